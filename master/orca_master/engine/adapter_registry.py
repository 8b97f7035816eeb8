"""`AdapterRegistry`: the adapters that were loaded while the engine runs; pure.

| state | meaning | next state |
|---|---|---|
| loading | the workers read the files; no request may use the adapter | ready, gone |
| ready | requests of its owner may use it | leaving, gone |
| leaving | new requests are refused, and its name is free; accepted requests use it until they end | gone |
| restored | loaded again for requests of an earlier master, under a number only: its name is free | leaving, gone |

A number is given once, so that nothing that belongs to an earlier adapter, such as cached blocks or a request on its
way, can meet a later one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from orca_contract.model_choices import MAX_ADAPTERS, MAX_NAME_LENGTH

from orca_master.errors import ADAPTER_LIMIT, RequestError

NAME, PATH = "lora_name", "lora_path"
"""Fields of the bodies that load and unload adapters, with vLLM's names."""
OFF = "adapters cannot be loaded while the server runs: start it with --enable-runtime-adapters DIR"
MAX_OF_ONE_KEY = MAX_ADAPTERS // 2
"""Most adapters of an owner, if there are keys: the others have room, too."""


class ServedAdapter(NamedTuple):
    """An adapter that requests of `owner` (digest of an API key, "" without keys) may use by its name."""

    name: str
    number: int
    owner: str


@dataclass(frozen=True, slots=True)
class RuntimeAdapter:
    """An adapter in any state. `folder`: path on the workers. `digest`: of its files, "" before it is ready."""

    name: str
    number: int
    owner: str
    folder: str
    digest: str = ""
    leaving: bool = False
    restored: bool = False

    @property
    def is_ready(self) -> bool:
        """True if requests may use it by its name."""
        return bool(self.digest) and self.has_name

    @property
    def has_name(self) -> bool:
        """True if no other adapter may have its name."""
        return not (self.leaving or self.restored)


class AdapterRegistry:
    """Adapters beside the `num_at_start` of the start, which have the first numbers. `reserved`: names in use."""

    def __init__(self, num_at_start: int, reserved: Iterable[str]) -> None:
        self._num_at_start = self._last_number = num_at_start
        self._reserved = frozenset(reserved)
        self._adapters: dict[int, RuntimeAdapter] = {}
        self.ready: tuple[ServedAdapter, ...] = ()
        """The adapters that are ready."""
        self.leaving: frozenset[int] = frozenset()
        """Numbers of those that leave."""

    @property
    def present(self) -> list[RuntimeAdapter]:
        """The adapters of every state that workers have or load, by number."""
        return list(self._adapters.values())

    def of_number(self, number: int) -> RuntimeAdapter | None:
        """Return an adapter in any state, None if there is none; from any thread."""
        return self._adapters.get(number)

    def accepts(self, number: int) -> bool:
        """Return True if requests that the engine does not know may use the adapter; 0 is the model."""
        return number <= self._num_at_start or (self.holds(number) and not self._adapters[number].leaving)

    def holds(self, number: int) -> bool:
        """Return True if accepted requests may use the adapter."""
        return number <= self._num_at_start or (number in self._adapters and bool(self._adapters[number].digest))

    def begin(self, name: str, owner: str, folder: str) -> RuntimeAdapter:
        """Add an adapter that is being loaded; raise RequestError for its name, with ADAPTER_LIMIT for one too many."""
        self._check_number(owner)
        if not (0 < len(name) <= MAX_NAME_LENGTH and name.isprintable()):
            raise RequestError(f"{NAME}: 1 to {MAX_NAME_LENGTH} printable characters are expected", NAME)
        if name in self._reserved or any(entry.name == name and entry.has_name for entry in self.present):
            raise RequestError(
                f"{NAME}: the name {name!r} is taken: choose another, or unload that adapter first", NAME
            )
        return self._add(name, owner, folder, restored=False)

    def begin_restored(self, name: str, owner: str, folder: str) -> RuntimeAdapter:
        """Add an adapter that is being loaded again; raise RequestError with ADAPTER_LIMIT for one too many."""
        self._check_number(owner)
        return self._add(name, owner, folder, restored=True)

    def finish(self, number: int, digest: str) -> None:
        """Let requests use an adapter that was being loaded; raise RequestError if it has been removed meanwhile."""
        if number not in self._adapters:
            raise RequestError(f"{PATH}: a pipeline that was being formed could not load the adapter", PATH)
        self._put(replace(self._adapters[number], digest=digest))

    def leave(self, name: str, owner: str) -> None:
        """Refuse new requests for an adapter; raise RequestError if this owner has none of this name that is ready."""
        mine = (entry for entry in self.present if (entry.name, entry.owner) == (name, owner) and entry.has_name)
        adapter = next(mine, None)
        if adapter is None or not adapter.is_ready:
            reason = "was not loaded, or another API key loaded it" if adapter is None else "is still being loaded"
            raise RequestError(f"{NAME}: the adapter {name[:MAX_NAME_LENGTH]!a} {reason}", NAME)
        self._put(replace(adapter, leaving=True))

    def release(self, number: int) -> None:
        """Let an adapter leave that was restored, if it is not gone."""
        if number in self._adapters:
            self._put(replace(self._adapters[number], restored=False, leaving=True))

    def remove(self, number: int) -> bool:
        """Forget an adapter, in any state; return False if it is gone."""
        was_there = self._adapters.pop(number, None) is not None
        self._publish()
        return was_there

    def _add(self, name: str, owner: str, folder: str, restored: bool) -> RuntimeAdapter:
        self._last_number += 1
        return self._put(RuntimeAdapter(name, self._last_number, owner, folder, restored=restored))

    def _check_number(self, owner: str) -> None:
        if (count := self._num_at_start + len(self._adapters)) >= MAX_ADAPTERS:
            raise RequestError(
                f"{NAME}: {count} adapters are loaded or still in use, at most {MAX_ADAPTERS} are possible: unload one",
                NAME,
                ADAPTER_LIMIT,
            )
        if owner and sum(entry.owner == owner for entry in self.present) >= MAX_OF_ONE_KEY:
            text = f"{NAME}: one API key may have {MAX_OF_ONE_KEY} adapters at a time: unload one"
            raise RequestError(text, NAME, ADAPTER_LIMIT)

    def _put(self, adapter: RuntimeAdapter) -> RuntimeAdapter:
        self._adapters[adapter.number] = adapter
        self._publish()
        return adapter

    def _publish(self) -> None:
        entries = self.present
        self.ready = tuple(ServedAdapter(entry.name, entry.number, entry.owner) for entry in entries if entry.is_ready)
        self.leaving = frozenset(entry.number for entry in entries if entry.leaving)
