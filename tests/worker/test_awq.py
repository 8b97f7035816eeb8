"""AWQ: the interleaved order of outputs within a word."""

from __future__ import annotations

import torch
from orca_worker.quantized_checkpoints.awq import AwqFormat
from orca_worker.quantized_checkpoints.weight_format import MapPart


def test_a_word_has_eight_outputs_of_an_input():
    """From the lowest four bits on: outputs 0, 2, 4, 6, 1, 3, 5, 7."""
    stored = {
        "qweight": torch.full((8, 1), 0x76543210, dtype=torch.int32),
        "qzeros": torch.zeros(1, 1, dtype=torch.int32),
        "scales": torch.full((1, 8), 0.5),
    }
    weight = AwqFormat(bits=4, group_size=8).integers(MapPart.whole(8, 8), stored).weight()
    assert weight.dequantized(torch.float32)[:, 3].tolist() == [0, 2, 0.5, 2.5, 1, 3, 1.5, 3.5]
