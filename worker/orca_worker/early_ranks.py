"""`EarlyRanks`: the ranks that a worker starts before a master's first Load, so that they import torch meanwhile.

`orca serve`, which knows its workers' places on the machine, passes them to `orca worker --start-ranks`. A Load with
another setting ends these ranks and starts its own.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from typing import cast

from orca_contract.model_choices import Backend, Device, backend_of, backend_refusal
from orca_protos import engine_pb2 as pb

PATTERN = re.compile(r"(\d{1,4}):(\d{1,4}):(\d{1,4}):(cpu|cuda)(?::(gloo|nccl))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class EarlyRanks:
    """`count` ranks: those from number `first` on of the `total` that compute on `device` of this machine."""

    count: int
    first: int
    total: int
    device: Device
    backend: Backend

    @classmethod
    def parse(cls, text: str) -> EarlyRanks:
        """Convert COUNT:FIRST:TOTAL:DEVICE[:BACKEND] (argparse type)."""
        match = PATTERN.fullmatch(text)
        if match is None:
            raise argparse.ArgumentTypeError(
                f"{text!r}: COUNT:FIRST:TOTAL:DEVICE[:BACKEND] is expected, such as 1:0:1:cpu"
            )
        count, first, total = map(int, match.groups()[:3])
        if count == 0 or first % count or total % count or first >= total:
            raise argparse.ArgumentTypeError(f"{text!r}: FIRST and TOTAL must be multiples of COUNT, FIRST < TOTAL")
        device = cast("Device", match[4])
        backend = cast("Backend", match[5] or backend_of(device))
        if refusal := backend_refusal(device, backend):
            raise argparse.ArgumentTypeError(f"{text!r}: {refusal}")
        return cls(count, first, total, device, backend)

    def request(self) -> pb.LoadRequest:
        """Return the part of the Load of `orca serve`'s master that determines how the ranks are started."""
        return pb.LoadRequest(
            tensor_parallel_size=self.count,
            first_device=self.first,
            workers_on_host=self.total // self.count,
            device=self.device,
            communication_backend=self.backend,
            socket_interface="lo",
        )
