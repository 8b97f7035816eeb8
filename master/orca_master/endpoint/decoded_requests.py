"""`DecodedRequests`: the decoded answers of GET /v1/requests/{request_id}, so that a poll decodes only new tokens."""

from __future__ import annotations

import asyncio
import itertools

from orca_master.endpoint.choice_run import PIECES_TOGETHER, Piece, size_of
from orca_master.endpoint.generation import Generation
from orca_master.endpoint.resumable_request import ResumableRequest

MOST_BYTES = 64 << 20
CHOICE_BYTES = 2 << 10
"""Approximate memory of a choice without its pieces: its detokenizer, with what it holds for a stop string."""

LOGPROBS_BYTES = 512
"""Memory of the log probabilities of a token beside their values: protobuf gives each message blocks of its own."""


class _Decoded:
    """The pieces of one request so far. `generation` has its decoders."""

    def __init__(self, request: ResumableRequest, generation: Generation) -> None:
        self._unread = request.known(generation)
        self.pieces: list[list[Piece]] = [[] for _ in generation.choices]
        """Of each choice."""
        self.num_tokens = 0
        self.num_bytes = CHOICE_BYTES * len(generation.choices)
        """Approximate memory."""
        self._error: Exception | None = None

    def decode(self, num_tokens: int) -> None:
        """Decode the next tokens; raise EngineError, in each call from then on, if the tokenizer fails."""
        if self._error is not None:
            raise self._error.with_traceback(None)  # it would grow, and keep the frames of all polls
        try:
            for piece in itertools.islice(self._unread, num_tokens):
                self.pieces[piece.index].append(piece)
                self.num_tokens += 1
                self.num_bytes += size_of(piece.text, piece.logprobs) + LOGPROBS_BYTES * (piece.logprobs is not None)
                if piece.prompt_logprobs is not None:
                    self.num_bytes += 4 * piece.prompt_logprobs.ByteSize()
        except Exception as error:
            self._error = error
            raise


class DecodedRequests:
    """The answers that were read last, with at most MOST_BYTES; one answer alone may have more."""

    def __init__(self) -> None:
        self._decoded: dict[ResumableRequest, _Decoded] = {}
        """The one that was read last comes last."""

    async def pieces(self, request: ResumableRequest, generation: Generation) -> list[list[Piece]]:
        """Return the pieces so far of each choice; raise EngineError if the tokenizer fails.

        Several calls for a request may run at a time. The `generation` of the first one decodes for all.
        """
        request.flush()
        num_tokens = request.num_tokens  # later ones are not flushed
        decoded = self._decoded.pop(request, None) or _Decoded(request, generation)
        self._decoded[request] = decoded
        try:
            while (unread := num_tokens - decoded.num_tokens) > 0:
                decoded.decode(min(unread, PIECES_TOGETHER))
                await asyncio.sleep(0)
        finally:
            self._make_room()
        return list(map(list, decoded.pieces))

    def forget(self, request: ResumableRequest) -> None:
        """Forget a request."""
        self._decoded.pop(request, None)

    def _make_room(self) -> None:
        while len(self._decoded) > 1 and sum(entry.num_bytes for entry in self._decoded.values()) > MOST_BYTES:
            del self._decoded[next(iter(self._decoded))]
