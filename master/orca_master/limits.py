"""Which requests can never be served, however long they wait."""

from __future__ import annotations

from orca_master.errors import RequestError
from orca_master.kv_ledger import BLOCK_SIZE, blocks_for
from orca_master.request import Request


def check_fits(request: Request, max_model_len: int, num_slots: int) -> None:
    """Raises RequestError for one that exceeds the model's context, or all K/V slots of the largest pipeline."""
    rounded = blocks_for(request.max_tokens) * BLOCK_SIZE
    numbers = f"{len(request.prompt)} prompt tokens + {request.max_gen_tokens} max_tokens"
    if request.max_tokens > max_model_len:
        raise RequestError(
            f"{numbers} = {request.max_tokens} exceed the model's context of {max_model_len} tokens", "max_tokens"
        )
    if rounded > num_slots:
        raise RequestError(
            f"{numbers} need {rounded} K/V slots (rounded to blocks of {BLOCK_SIZE}), "
            f"this server has {num_slots}: lower max_tokens or raise --kv-slots",
            "max_tokens",
        )
