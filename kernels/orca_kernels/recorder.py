"""`OperationRecorder`: records work once and does it again on the same memory, as a CUDA graph does, on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Step = Callable[[], None]


class OperationRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records torch's operations, and the steps that kernels `note`, in the order in which they are done.

    Everything else is not seen: what the host reads from a tensor (refused with RuntimeError) or computes by itself is
    in a recording as a constant. One recording at a time.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch's compiler is not here, and to be left alone by it torch would import it: more than a second."""
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[Step] | None = None
        """Of the recording that is being made."""

    def __call__(self, work: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Step]:
        """Does the work; returns its output and what computes it again into the same memory."""
        steps: list[Step] = []
        self.steps = steps
        try:
            with self:
                output = work()
        finally:
            self.steps = None
        return output, partial(_run, steps)

    def note(self, step: Step) -> None:
        """Adds what has just been done, if a recording is being made."""
        if self.steps is not None:
            self.steps.append(step)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one operation of torch and notes it."""
        if "_local_scalar_dense" in str(function):
            raise RuntimeError("the host cannot read what is being recorded")
        output = function(*args, **(kwargs or {}))
        made = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
        if function._schema.is_mutable or not _computes_nothing(function, (args, kwargs), made):
            self.note(partial(_again, partial(function, *args, **(kwargs or {})), made))
        return output


def _computes_nothing(function: Any, arguments: Any, made: list[torch.Tensor]) -> bool:
    """Whether an operation only looks at its arguments' memory in another way, or returns memory without content."""
    given = {_memory(leaf) for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor)}
    return "empty" in function._schema.name or all(_memory(tensor) in given for tensor in made)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _again(operation: Callable[[], Any], places: list[torch.Tensor]) -> None:
    for found, place in zip(tree_leaves(operation()), places, strict=True):
        if found.data_ptr() != place.data_ptr():
            place.copy_(found)


def _run(steps: Iterable[Step]) -> None:
    for step in steps:
        step()
