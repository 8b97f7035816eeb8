"""Tokenizers and matchers for tests of structured output, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from llguidance import LLTokenizer
from orca_master.scheduling.constraint import GrammarKind
from orca_master.text.compiled_grammar import CompiledGrammar, OwnStates
from orca_master.text.grammar_process import compiled, translate
from orca_master.text.json_spaces import JsonSpaces
from orca_master.text.token_matcher import TokenMatcher
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

END = 0


def byte_tokenizer(special_tokens: Sequence[str] = ()) -> Tokenizer:
    """Return a tokenizer with a token for the end, one for each byte, `ab`, `{"`, `":`, and these special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["<end>", *alphabet, "ab", '{"', '":']
    merges = [("a", "b"), ("{", '"'), ('"', ":")]
    tokenizer = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, merges))
    tokenizer.add_special_tokens(["<end>", *special_tokens])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def write_model(folder: Path, vocabulary_size: int) -> Path:
    """Write the files of a model that the master reads, without weights."""
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(f'{{"vocab_size": {vocabulary_size}, "eos_token_id": {END}}}')
    return folder


def ll_tokenizer(vocabulary_size: int, special_tokens: Sequence[str] = ()) -> LLTokenizer:
    """Return `byte_tokenizer` as llguidance's."""
    return LLTokenizer(byte_tokenizer(special_tokens).to_str(), n_vocab=vocabulary_size, eos_token=END)


def matcher(tokenizer: LLTokenizer, kind: GrammarKind, text: str) -> TokenMatcher:
    """Return a new matcher."""
    return TokenMatcher(grammar(tokenizer, kind, text), (tokenizer.eos_token,))


def grammar(tokenizer: LLTokenizer, kind: GrammarKind, text: str) -> CompiledGrammar:
    """Return a compiled grammar."""
    spaces = JsonSpaces(tokenizer) if kind in (GrammarKind.JSON, GrammarKind.CALLS) else None
    return CompiledGrammar(partial(compiled, tokenizer, translate(tokenizer, kind, text)), OwnStates(), spaces)


def tokens_of(text: str) -> list[int]:
    """Return the tokens of a text."""
    return byte_tokenizer().encode(text).ids
