"""Long texts are tokenized in threads, and counted in pieces before they take memory as a whole."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from orca_master.bodies.bounded_turns import Caller
from orca_master.bodies.lengths import Lengths
from orca_master.errors import QueueFullError, RequestError
from orca_master.text.encoder import MIN_LIMIT, NUM_THREADS, PIECE, SHORT, Encoder
from orca_master.text.tokenizer import TextCodec

MODEL = Path(__file__).parents[2] / "examples" / "demo-model"


class Recorder(TextCodec):
    """Notes where and how many characters are tokenized; waits for `go` first."""

    def __init__(self) -> None:
        super().__init__(MODEL)
        self.calls: list[tuple[bool, int]] = []
        self.go = threading.Event()
        self.go.set()

    def encode(self, text: str, add_special_tokens: bool = True, name: str = "prompt") -> list[int]:
        self.go.wait(60)
        self.calls.append((threading.current_thread() is threading.main_thread(), len(text)))
        return super().encode(text, add_special_tokens, name)


def encode(text: str, max_model_len: int = 1024) -> tuple[list[int], list[tuple[bool, int]]]:
    codec = Recorder()
    found = asyncio.run(Encoder(codec).encode(text, "prompt", True, Lengths(max_model_len)))
    return found, codec.calls


async def long_text(encoder: Encoder, caller: Caller) -> list[int]:
    """Tokenize a text on a thread, in a turn of the caller."""
    return await encoder.encode("a" * (SHORT + 1), "prompt", True, Lengths(1024), caller)


def test_short_texts_stay_on_the_loop_and_long_ones_do_not():
    for length, on_the_loop in ((0, True), (SHORT, True), (SHORT + 1, False), (PIECE, False)):
        found, calls = encode("a" * length)
        assert found == TextCodec(MODEL).encode("a" * length)
        assert calls == [(on_the_loop, length)]


def test_others_are_served_between_the_short_texts_of_a_request():
    """A thousand of them, each tokenized on the event loop, take more than a second together."""
    turns, seen = 0, []

    async def encode_all() -> None:
        encoder = Encoder(Recorder())
        for _ in range(100):
            await encoder.encode("once", "prompt", True, Lengths(1024))
            seen.append(turns)

    async def run() -> None:
        nonlocal turns
        encoding = asyncio.create_task(encode_all())
        while not encoding.done():
            turns += 1
            await asyncio.sleep(0)
        await encoding

    asyncio.run(run())
    assert len(set(seen)) == 100


def test_a_long_text_is_counted_in_pieces_first():
    text = "once upon a time " * (3 * PIECE // 17)
    found, calls = encode(text)
    assert found == TextCodec(MODEL).encode(text)
    assert [length for _, length in calls] == [PIECE, PIECE, len(text) - 2 * PIECE, len(text)]


def test_a_text_that_exceeds_the_context_is_never_tokenized_as_a_whole():
    with pytest.raises(RequestError, match=f"prompt: the text has more than {MIN_LIMIT} tokens") as refused:
        encode("😀" * 4 * PIECE)
    assert refused.value.field == "prompt"
    with pytest.raises(RequestError, match="lone surrogate"):
        encode("a" * PIECE + "\ud800")


@pytest.mark.parametrize("length", [1, PIECE, 2 * PIECE])
def test_a_refusal_names_the_field(length):
    encoder = Encoder(TextCodec(MODEL))
    with pytest.raises(RequestError, match="lone surrogate") as refused:
        asyncio.run(encoder.encode("a" * length + "\ud800", "messages", True, Lengths(1024)))
    assert refused.value.field == "messages"


def test_a_burst_of_texts_is_tokenized_and_the_queue_bounds_those_that_wait():
    async def run() -> None:
        codec = Recorder()
        codec.go.clear()
        encoder, caller = Encoder(codec), Caller("a", 1000)

        try:
            some = [asyncio.create_task(long_text(encoder, caller)) for _ in range(NUM_THREADS + 1000)]
            await asyncio.sleep(0)
            with pytest.raises(QueueFullError, match="1000 texts are waiting, the limit is 1000"):
                await long_text(encoder, caller)
        finally:
            codec.go.set()
        assert len(await asyncio.gather(*some)) == NUM_THREADS + 1000

    asyncio.run(run())


def test_a_deadline_frees_no_turn_before_the_thread_has_ended():
    """Else the texts that threads have not ended would be without a bound."""

    async def run() -> None:
        codec = Recorder()
        codec.go.clear()
        encoder, caller = Encoder(codec), Caller("a", 256)

        try:
            some = [asyncio.create_task(long_text(encoder, caller)) for _ in range(NUM_THREADS)]
            await asyncio.sleep(0)
            for task in some:
                task.cancel()
            assert await asyncio.gather(*some, return_exceptions=True)
            waiting = [asyncio.create_task(long_text(encoder, caller)) for _ in range(256)]
            await asyncio.sleep(0)
            with pytest.raises(QueueFullError, match="256 texts are waiting"):
                await long_text(encoder, caller)
        finally:
            codec.go.set()
        assert len(await asyncio.gather(*waiting)) == 256

    asyncio.run(run())


def test_the_texts_of_api_keys_take_turns():
    async def run() -> None:
        codec, order = Recorder(), list[str]()
        codec.go.clear()
        encoder = Encoder(codec)

        async def encode(owner: str) -> None:
            await long_text(encoder, Caller(owner))
            order.append(owner)

        tasks = [asyncio.create_task(encode(owner)) for owner in "a" * 40 + "b"]
        await asyncio.sleep(0)
        codec.go.set()
        await asyncio.gather(*tasks)
        assert order.index("b") <= 2 * NUM_THREADS

    asyncio.run(run())
