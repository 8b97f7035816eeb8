"""ORCA in Python: `from orca import LLM, SamplingParams` runs the engine without a server.

The names are re-exported from orca_master, which imports them on first use, so that `import orca` is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orca_master

if TYPE_CHECKING:
    from orca_master import LLM, SamplingParams

__all__ = ["LLM", "SamplingParams"]
__getattr__ = orca_master.__getattr__
