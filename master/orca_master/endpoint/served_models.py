"""`ServedModels`: the names that requests may use as their model, and the adapter that each stands for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from orca_master.engine.engine_client import EngineClient
from orca_master.errors import ModelNotFoundError


class ModelNames(Protocol):
    """Numbers of adapters by the names of models."""

    def number_of(self, model: str | None, owner: str | None) -> int:
        """Return the number of the adapter that a request of `owner` names as its model, 0 for the model itself.

        Raises ModelNotFoundError for a name that is not served, or that is another owner's.
        """


class AnyName:
    """Every name is the model's: for generations that no client asked for by a name."""

    def number_of(self, model: str | None, owner: str | None) -> int:
        """See ModelNames."""
        return 0


class ServedModels:
    """The model under `model_names`, its `adapters` of the start, and those that the engine has loaded since.

    Those are served to the owner only that loaded them: the digest of an API key, "" without keys. With the owner None
    they are not served.
    """

    def __init__(self, model_names: Sequence[str], adapters: Sequence[str], engine: EngineClient) -> None:
        self._model_names = model_names
        self._adapters = adapters
        self._engine = engine

    def numbers(self, owner: str | None) -> dict[str, int]:
        """Return the number of each served name: 0 for those of the model, which come first."""
        numbers = dict.fromkeys(self._model_names, 0)
        numbers |= {name: number for number, name in enumerate(self._adapters, 1)}
        return numbers | {entry.name: entry.number for entry in self._engine.status.adapters if entry.owner == owner}

    def number_of(self, model: str | None, owner: str | None) -> int:
        """See ModelNames."""
        if model is None:
            return 0
        numbers = self.numbers(owner)
        if model not in numbers:
            served = ", ".join(map(repr, numbers))
            raise ModelNotFoundError(f"the model {model!r} does not exist, this server serves {served}")
        return numbers[model]

    def name_of(self, model: str | None) -> str:
        """Return the name in responses to a request for a served `model`: the model's first, or that of an adapter."""
        return self._model_names[0] if model is None or model in self._model_names else model
