"""`Encoder`: tokenizes long texts on threads, with limits of memory and time.

Threads suffice because the `tokenizers` library releases the interpreter lock. The library needs about 170 bytes per
token beside the ids: the tokens of a long text are first counted in pieces, to refuse a text that exceeds the context.
"""

from __future__ import annotations

import asyncio

from orca_master.bodies.bounded_turns import ANYONE, BoundedTurns, Caller
from orca_master.bodies.lengths import Lengths
from orca_master.errors import CONTEXT_EXCEEDED, RequestError
from orca_master.text.tokenizer import TextCodec
from orca_master.threads import started_threads

SHORT = 2048
"""Maximum characters of a text that is tokenized on the event loop, in about 3 ms."""
PIECE = 32 << 10
"""Characters per counted piece; shorter texts are tokenized without counting."""
MIN_LIMIT = 64 << 10
"""Minimum of the token limit of a text: /tokenize accepts texts that are longer than the model's context."""
NUM_THREADS = 2


class Encoder:
    """Tokenizes texts; used from one event loop."""

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._threads = started_threads(NUM_THREADS, "tokenizer")
        self._turns = BoundedTurns("texts", NUM_THREADS)

    async def encode(
        self, text: str, name: str, add_special_tokens: bool, lengths: Lengths, caller: Caller = ANYONE
    ) -> list[int]:
        """Return the token ids of the field `name`; raise RequestError, or QueueFullError if many texts wait."""
        if len(text) <= SHORT:
            tokens = self._codec.encode(text, add_special_tokens, name)
            await asyncio.sleep(0)  # a request may have a thousand short texts: others are served between them
            return tokens
        await self._turns.acquire(caller, len(text))
        tokenizing = asyncio.get_running_loop().run_in_executor(
            self._threads, self._encode, text, name, add_special_tokens, lengths.max_model_len or 0
        )
        # The thread goes on after the deadline of the request: the turn, and its memory, are free when it ends.
        tokenizing.add_done_callback(lambda _: self._turns.release(caller))
        return await asyncio.shield(tokenizing)

    def _encode(self, text: str, name: str, add_special_tokens: bool, max_model_len: int) -> list[int]:
        # A text has more than half as many tokens as its pieces together.
        limit, count = max(MIN_LIMIT, 2 * max_model_len), 0
        for start in range(0, len(text) if len(text) > PIECE else 0, PIECE):
            count += len(self._codec.encode(text[start : start + PIECE], add_special_tokens=False, name=name))
            if count > limit:
                raise RequestError(
                    f"{name}: the text has more than {limit} tokens: the prompt is too long, this model's maximum "
                    f"context length is {max_model_len} tokens",
                    name,
                    CONTEXT_EXCEEDED,
                )
        return self._codec.encode(text, add_special_tokens, name)
