"""`OperationRecorder`: records and replays operations on the CPU, on fixed memory, like a CUDA graph on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from orca_kernels.recording_memory import RecordingMemory, address, has_storage

Step = Callable[[], None]


class OperationRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records torch's operations and the steps that kernels `note`, in the order of execution.

    Tensors without accessible memory (oneDNN's packed weights) and values that the host computes are constants of a
    recording; reading a tensor on the host raises RuntimeError. One recording at a time.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Avoid importing torch._dynamo, which takes more than a second."""
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.memory = RecordingMemory()
        """Shared by all recordings."""
        self.steps: list[Step] | None = None
        """Steps of the recording in progress, None outside recordings."""

    def __call__(self, work: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Step]:
        """Run and record `work`; return its output and a replay, which writes to the output's memory.

        The output's memory is not reused while the output exists. Raises RuntimeError if `work` cannot be recorded.
        """
        steps: list[Step] = []
        self.steps = steps
        try:
            with self:
                output = work()
        finally:
            self.steps = None
        return output, partial(_run, steps)

    def note(self, step: Step) -> None:
        """Add a step that has just been executed, if a recording is in progress."""
        if self.steps is not None:
            self.steps.append(step)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run and record one operation of torch; new outputs are moved to the recordings' memory."""
        if "_local_scalar_dense" in str(function):
            raise RuntimeError("the host cannot read a tensor during a recording")
        kwargs = kwargs or {}
        output = function(*args, **kwargs)
        if not all(has_storage(leaf) for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)):
            raise RuntimeError(f"{function} returns a tensor without accessible memory, which cannot be recorded")
        inputs = {address(leaf) for leaf in tree_leaves((args, kwargs)) if has_storage(leaf)}
        if all(address(leaf) in inputs for leaf in tree_leaves(output) if has_storage(leaf)):
            if function._schema.is_mutable:
                self._note(function, args, kwargs, output)
            return output  # written in place, or a view of an argument
        output = tree_map_only(torch.Tensor, lambda new: new if address(new) in inputs else self._moved(new), output)
        if "empty" not in function._schema.name:
            self._note(function, args, kwargs, output)
        return output

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.memory.empty(tensor.shape, tensor.stride(), tensor.dtype).copy_(tensor)

    def _note(self, function: Any, args: Any, kwargs: Any, output: Any) -> None:
        args, kwargs, output = tree_map_only(torch.Tensor, self.memory.borrow, (args, kwargs, output))
        places = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
        self.note(partial(_repeat, partial(function, *args, **kwargs), places))


def _repeat(operation: Callable[[], Any], places: list[torch.Tensor]) -> None:
    """Repeat an operation and write its outputs to `places`, the recording's memory."""
    for output, place in zip(tree_leaves(operation()), places, strict=True):
        if output.data_ptr() != place.data_ptr():
            place.copy_(output)


def _run(steps: Iterable[Step]) -> None:
    for step in steps:
        step()
