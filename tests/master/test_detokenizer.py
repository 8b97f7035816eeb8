"""The text of generated tokens at the borders of characters, spaces and stops; stop strings: test_tokenizer.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_master.text.detokenizer import MOST_HELD, NUM_BEFORE
from orca_master.text.tokenizer import TextCodec
from tokenizers import Tokenizer, decoders, models

NAMES = ["▁the", "▁cat", "s", "\n", *(f"<0x{byte:02X}>" for byte in range(256)), "<end>"]
THE, CAT, S, NEWLINE = range(4)
END = NAMES.index("<end>")


def byte(value: int) -> int:
    return NAMES.index(f"<0x{value:02X}>")


@pytest.fixture(scope="module")
def codec(tmp_path_factory) -> TextCodec:
    """Return a vocabulary of SentencePiece, as Llama 2's: a space before words, and bytes."""
    path: Path = tmp_path_factory.mktemp("codec")
    tokenizer = Tokenizer(models.BPE({name: place for place, name in enumerate(NAMES)}, [], byte_fallback=True))
    tokenizer.add_special_tokens(["<end>"])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.save(str(path / "tokenizer.json"))
    return TextCodec(path)


def said(codec: TextCodec, *tokens: int, stops: tuple[str, ...] = (), include: bool = False, **options) -> str:
    """Return the text of an answer up to its stop string."""
    decoder, pieces = codec.decoder(stops, include, skip_special_tokens=True, **options), []
    for place, token in enumerate(tokens):
        pieces.append(decoder.step(token, last=place == len(tokens) - 1))
        if decoder.stop_string is not None:
            break
    return "".join(pieces)


def test_an_answer_that_continues_a_text_keeps_its_first_space(codec):
    assert said(codec, CAT, S) == "cats", "a text of its own"
    assert said(codec, CAT, S, before=[THE]) == " cats"
    assert said(codec, S, CAT, before=[THE, CAT]) == "s cat"
    assert said(codec, CAT, before=[THE, END]) == " cat"
    assert said(codec, CAT, before=[END] * NUM_BEFORE) == "cat", "nothing before has a text"


def test_a_text_before_that_ends_within_a_character_changes_nothing(codec):
    """A prompt of token ids may end so."""
    assert said(codec, CAT, S, before=[THE, byte("é".encode()[0])]) == "cats"


@pytest.mark.parametrize("count", range(4, 9))
@pytest.mark.parametrize("character", "é€🙂")
def test_the_last_tokens_before_may_begin_within_a_character(codec, character, count):
    assert said(codec, CAT, S, before=[THE, *(byte(value) for value in (character * count).encode())]) == " cats"


@pytest.mark.parametrize("count", range(20))
def test_skipped_tokens_before_a_character_of_several_tokens_leave_it_whole(codec, count):
    assert said(codec, THE, *[END] * count, *map(byte, "🙂".encode()), CAT) == "the🙂 cat"


@given(st.lists(st.sampled_from([[THE], [CAT], [S], *([byte(value) for value in text.encode()] for text in "é🙂")])))
def test_a_text_and_its_continuation_make_up_the_whole(codec, groups):
    before = [token for group in groups[:3] for token in group]
    after = [token for group in groups[3:] for token in group]
    assert said(codec, *before) + said(codec, *after, before=before) == codec.decode(before + after)


def test_a_byte_that_makes_earlier_bytes_no_characters_does_not_end_the_answer(codec):
    """The decoder reads consecutive bytes together: with the last one, none of them is a character."""
    first, second = map(byte, "é".encode())
    assert said(codec, first, second, first, THE, CAT) == "é\ufffd the cat"


def test_bytes_that_are_no_characters_have_a_text_and_a_bounded_price(codec):
    """What the stream holds is decoded again with each token: it is given up after MOST_HELD tokens."""
    decoder, tokens = codec.decoder([], False, skip_special_tokens=True), [byte(0xF0)] * 100
    longest = 0
    text = ""
    for token in tokens:
        text += decoder.step(token, last=False)
        longest = max(longest, len(decoder._incomplete))
    assert longest == MOST_HELD
    assert set(text) == {"\ufffd"}
    assert len(text) >= len(tokens) - MOST_HELD
    assert decoder.step(CAT, last=True).endswith(" cat")


def test_skipped_special_tokens_have_a_bounded_price_too(codec):
    decoder = codec.decoder([], False, skip_special_tokens=True)
    assert decoder.step(THE, last=False) == "the"
    for _ in range(100):
        assert decoder.step(END, last=False) == ""
        assert len(decoder._incomplete) <= MOST_HELD
    assert decoder.step(CAT, last=True) == " cat", "the space stays, although the stream is a new one"


@pytest.mark.parametrize(("include", "text"), [(False, "the"), (True, "the\n")])
def test_a_stop_token_has_a_text_only_where_stop_strings_have(codec, include, text):
    decoder = codec.decoder([], include, skip_special_tokens=True, stop_token_ids=[NEWLINE])
    pieces = [decoder.step(THE, last=False), decoder.step(NEWLINE, last=True, stops=True)]
    assert "".join(pieces) == text


def test_the_last_token_of_a_grammars_answer_has_its_text(codec):
    """A grammar that allows no further token ends the answer, too."""
    decoder = codec.decoder([], False, skip_special_tokens=True, stop_token_ids=[NEWLINE])
    assert decoder.step(THE, last=True, stops=True) == "the"


def test_what_was_held_for_a_stop_string_comes_with_a_stop_token(codec):
    decoder = codec.decoder(["cats"], False, skip_special_tokens=True, stop_token_ids=[NEWLINE])
    assert [decoder.step(THE, last=False), decoder.step(CAT, last=False)] == ["the", " "]
    assert decoder.step(NEWLINE, last=True, stops=True) == "cat"
    assert decoder.stop_string is None


@pytest.mark.parametrize(
    ("min_tokens", "text"), [(0, "the"), (1, "the"), (2, "the\n cat"), (3, "the\n cat"), (9, "the\n cat\n")]
)
def test_no_stop_string_ends_in_the_first_tokens(codec, min_tokens, text):
    assert said(codec, THE, NEWLINE, CAT, NEWLINE, stops=("\n",), min_tokens=min_tokens) == text


@pytest.mark.parametrize(("min_tokens", "text"), [(0, "the"), (2, "the"), (3, "the"), (4, "the\n cats\n")])
def test_a_stop_string_may_begin_in_the_first_tokens(codec, min_tokens, text):
    assert said(codec, THE, NEWLINE, CAT, S, NEWLINE, stops=("\n cats",), min_tokens=min_tokens) == text
