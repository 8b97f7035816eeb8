"""The groups of pieces of a stream: all of them in turn, and the end of the generation whenever a reader leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from orca_master.endpoint.choice_run import Piece
from orca_master.endpoint.delivery import groups_of
from orca_master.errors import EngineError


class Groups:
    """Pieces whose texts are given; notes whether the generation has been closed."""

    def __init__(self, texts: str, error: Exception | None = None) -> None:
        self.closed = False
        self.pieces = self._pieces(texts, error)
        self.first = asyncio.create_task(self._first())

    async def _first(self) -> list[Piece]:
        return await anext(self.pieces)

    async def _pieces(self, texts: str, error: Exception | None) -> AsyncIterator[list[Piece]]:
        try:
            for text in texts:
                yield [Piece(0, text, 0, None, None)]
            if error is not None:
                raise error
        finally:
            self.closed = True


def test_all_groups_come_in_turn():
    async def run() -> None:
        source = Groups("abc")
        async with groups_of(source.first, source.pieces) as groups:
            assert [piece.text async for together in groups for piece in together] == ["a", "b", "c"]
        assert source.closed

    asyncio.run(run())


@pytest.mark.parametrize("read", [0, 1, 2])
def test_a_reader_that_leaves_closes_the_pieces(read):
    async def run() -> None:
        source = Groups("abc")
        await source.first
        async with groups_of(source.first, source.pieces) as groups:
            for _ in range(read):
                await anext(groups)
        assert source.closed

    asyncio.run(run())


@pytest.mark.parametrize("texts", ["", "a"])
def test_an_error_is_raised_after_the_pieces(texts):
    async def run() -> None:
        source = Groups(texts, EngineError("lost"))
        read: list[str] = []

        async def read_all() -> None:
            async with groups_of(source.first, source.pieces) as groups:
                async for together in groups:
                    read.extend(piece.text for piece in together)

        with pytest.raises(EngineError, match="lost"):
            await read_all()
        assert (read, source.closed) == (list(texts), True)

    asyncio.run(run())
