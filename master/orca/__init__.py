"""ORCA in Python: `from orca import LLM, SamplingParams` runs the engine without a server.

The names are those of orca_master, imported when they are used first, so that `import orca` is quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orca_master

if TYPE_CHECKING:
    from orca_master import LLM, SamplingParams

__all__ = ["LLM", "SamplingParams"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(orca_master, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
