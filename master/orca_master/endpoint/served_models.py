"""`ServedModels`: the names that requests may use as their model, and the adapter that each stands for."""

from __future__ import annotations

from collections.abc import Sequence

from orca_master.engine.engine_client import EngineClient
from orca_master.errors import ModelNotFoundError


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
        """Return the number of the adapter that a request of `owner` names as its model, 0 for the model itself.

        Raises ModelNotFoundError for a name that is not served, or that is another owner's.
        """
        if model is None:
            return 0
        numbers = self.numbers(owner)
        if model not in numbers:
            served = ", ".join(map(repr, numbers))
            raise ModelNotFoundError(f"the model {model!r} does not exist, this server serves {served}")
        return numbers[model]

    def number_at_start(self, model: str | None) -> int:
        """Return the number of an adapter of the start, 0 for any other name: one of the model, perhaps an earlier one.

        For requests in the journal, which belongs to a model with these adapters (journal/config.py).
        """
        return self._adapters.index(model) + 1 if model is not None and model in self._adapters else 0

    def is_of_start(self, number: int) -> bool:
        """Return True for the model and the adapters of the start, which the next master has, too."""
        return number <= len(self._adapters)

    def name_of(self, model: str | None) -> str:
        """Return the name in responses to a request for a served `model`: the model's first, or that of an adapter."""
        return self._model_names[0] if model is None or model in self._model_names else model
