"""The engine master: endpoint, request pool, scheduler and engine. No torch in this process.

`LLM` and `SamplingParams` run the engine in Python (users import them from `orca`). They are imported on first use, so
that the console command starts fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orca_protos.grpc_environment  # noqa: F401  (before gRPC)

if TYPE_CHECKING:
    from orca_master.llm import LLM, SamplingParams

__all__ = ["LLM", "SamplingParams"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from orca_master import llm

        return getattr(llm, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
