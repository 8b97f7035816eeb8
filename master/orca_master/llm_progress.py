"""`prompts_display`: shows how many prompts of a call of `LLM` are done, as its `use_tqdm` says."""

from __future__ import annotations

import contextlib
import itertools
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

from orca_protos.progress_display import progress_display

logger = logging.getLogger(__name__)

TITLE = "Processed prompts"  # vLLM's
UseTqdm = bool | Callable[..., Any]
"""True: a bar on stderr if that is a terminal, else log lines; False: nothing; otherwise what makes the bar, which gets
tqdm's `total`, `desc` and `dynamic_ncols`."""


@contextlib.contextmanager
def prompts_display(use_tqdm: UseTqdm, total: int) -> Iterator[Callable[[], object]]:
    """Yield what notes one more of `total` prompts as done."""
    if not use_tqdm or not total:
        yield lambda: None
    elif callable(use_tqdm):
        with contextlib.closing(use_tqdm(total=total, desc=TITLE, dynamic_ncols=True)) as bar:
            yield lambda: bar.update(1)
    else:
        with progress_display(TITLE, "prompts", sys.stderr, logger.info) as show:
            show(0, total)
            done = itertools.count(1)
            yield lambda: show(next(done), total)
