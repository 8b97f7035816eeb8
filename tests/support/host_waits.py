"""`HostWaits`: the operations of torch for which the host would wait for a GPU, found without one.

Tensors on the device "meta", which has no data, stand for those on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

READS = ("_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "unique", "_unique2")
"""Operations whose result, or the shape of whose result, the host needs."""


class HostWaits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the names of operations that wait, in `found`; a value that the host reads is 1.

    `pinned`: tensors that lie in pinned memory where there is a GPU, besides those of bytes, which `to_device` pins.
    """

    def __init__(self, *pinned: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []
        self._pinned = pinned

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = function._schema.name.removeprefix("aten::")
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        on_gpu = [tensor for tensor in tensors if tensor.device.type == "meta"]
        if name in READS and on_gpu:
            self.found.append(name)
            if name in ("_local_scalar_dense", "item", "is_nonzero", "equal"):
                return 1
            return torch.empty((1, on_gpu[0].dim()), dtype=torch.int64, device="meta")
        if name in ("index", "index_put", "index_put_") and on_gpu:
            indices = [leaf for leaf in tree_leaves(args[1]) if isinstance(leaf, torch.Tensor)]
            if any(index.dtype == torch.bool for index in indices):
                self.found.append(f"{name} with a mask")
                return args[0]
        if name in ("lift_fresh", "detach_") and on_gpu:
            self.found.append("tensor")  # torch.tensor(values, device=...): from memory that is not pinned
        output = None
        if name in ("to", "_to_copy", "copy_", "copy"):
            output = self._copy(function, name, args, kwargs)
        return function(*args, **kwargs) if output is None else output

    def _copy(self, function: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Note a copy between devices that is not asynchronous; return the output of one to the host."""
        names = [argument.name for argument in function._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        source, target = args[0].device, given.get("device") or args[0].device
        if name in ("copy_", "copy"):
            source, target = args[1].device, args[0].device
        if isinstance(given.get("other"), torch.Tensor):
            target = given["other"].device
        if source.type == torch.device(target).type:
            return None
        to_gpu = torch.device(target).type == "meta"
        pinned = args[0].dtype == torch.uint8 or any(args[0] is tensor for tensor in self._pinned)
        if not given.get("non_blocking", False) or (to_gpu and not pinned):
            self.found.append(name)
        if to_gpu:
            return None
        return args[0] if name == "copy_" else torch.zeros(args[0].shape, dtype=args[0].dtype)
