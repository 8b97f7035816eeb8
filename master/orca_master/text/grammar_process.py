"""Process that compiles clients' grammars before the master does, with bounds of time and memory.

    python -P -m orca_master.text.grammar_process MODEL

llguidance has limits of its own (`limits`), but some hostile grammars need seconds below them, and a thread cannot be
ended. Reads frames from standard input and answers each on standard output; a frame is 4 bytes of length, big-endian,
and JSON: {"kind", "text", "reasoning"} (see Grammar). Answers: {"grammar"}, llguidance's form of the grammar, or
{"error"}, for the schema of a function with the {"field"} of the request. The first answer, {} or {"error"}, says
whether the model's tokenizer can be used. Each grammar is compiled in a forked child, which has the tokenizer; the
answer is {} if the child ends early, as with more than CPU_SECONDS of processor time or more than MEMORY_BYTES, and
{"unavailable"}, with the reason, if the system cannot start a child or another process kills it. The process ends with
its parent, which closes the pipe.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from llguidance import LLMatcher, LLTokenizer
from llguidance._lib import LLParserLimits
from llguidance.gbnf_to_lark import any_to_lark
from orca_protos.exit_code import describe_exit, is_sent
from orca_protos.model_files import CONFIG_BYTES, TOKENIZER_BYTES, MissingFileError, read_file, read_object
from orca_protos.parent_death import die_with_parent
from tokenizers import Tokenizer

from orca_master.errors import RequestError
from orca_master.scheduling.constraint import GrammarKind
from orca_master.text.call_grammar import CallGrammar
from orca_master.text.process_frames import encode_frame, read_content
from orca_master.text.reasoning_rules import after_reasoning
from orca_master.text.schema_check import misread
from orca_master.text.schema_errors import locate
from orca_master.text.tokenizer import stop_token_ids
from orca_master.text.tokenizer_errors import errors_as

CPU_SECONDS = 0.5
CHILD_SECONDS = 50
"""Maximum lifetime of a child, reached only on a stalled machine or in an endless wait."""
TRIED_TOKENS = 4
"""Tokens of an answer that are tried: most grammars that are too complex for llguidance show it by then."""
MEMORY_BYTES = 512 << 20
"""Limit of the address space, added to that after the tokenizer is loaded."""
JSON_OPTIONS: Any = {"coerce_one_of": False, "lenient": False}
"""llguidance's, for every schema. Whitespace is bounded elsewhere (json_spaces.py)."""


def limits() -> LLParserLimits:
    """Return the limits of a grammar: compiling, and each mask, take well below a second (CPU_SECONDS bounds both).

    The lexer's states take up to 35 MB (compiled_grammar.py).
    """
    return LLParserLimits(
        initial_lexer_fuel=200_000,
        step_lexer_fuel=100_000,
        max_lexer_states=100_000,
        max_grammar_size=100_000,
        verbose_errors=False,
    )


def load_tokenizer(model_path: Path) -> tuple[LLTokenizer, tuple[int, ...]]:
    """Return the model's tokenizer for llguidance, and its end-of-sequence tokens, of which llguidance has the first.

    Raises RequestError if the model has no tokenizer that llguidance can use.

    Holds the interpreter lock, for seconds if the vocabulary is large.
    """
    try:
        content = read_file(model_path, "tokenizer.json", TOKENIZER_BYTES).decode()
    except MissingFileError as error:
        raise RequestError("this model has no tokenizer.json, which structured output needs") from error
    size = read_object(model_path, "config.json", CONFIG_BYTES).get("vocab_size")
    vocabulary_size = size if isinstance(size, int) else None
    with errors_as(RequestError, "structured output does not support this model's tokenizer: "):
        plain = Tokenizer.from_str(content)
    tokens = stop_token_ids(model_path, plain)
    ends = tuple(sorted(token for token in tokens if vocabulary_size is None or token < vocabulary_size))
    if not ends:  # llguidance would take another token for the end
        raise RequestError("this model has no eos_token_id, which structured output needs")
    try:
        tokenizer = LLTokenizer(content, n_vocab=vocabulary_size, eos_token=ends[0])
    except Exception as error:
        raise RequestError(f"structured output does not support this model's tokenizer: {str(error)[:300]}") from error
    return tokenizer, tuple(token for token in ends if token < tokenizer.vocab_size)


def special_token(tokenizer: LLTokenizer, text: str) -> int | None:
    """Return the token of a text that llguidance takes for a special token, None if there is none."""
    tokens = tokenizer.tokenize_str(text)
    return tokens[0] if len(tokens) == 1 and tokenizer.is_special_token(tokens[0]) else None


def translate(tokenizer: LLTokenizer, kind: GrammarKind, text: str, reasoning: str = "") -> str:
    """Return llguidance's form of a grammar and of the reasoning before it, see Grammar; raise ValueError."""
    token_of, has_text = partial(special_token, tokenizer), False
    if kind is GrammarKind.JSON:
        grammar = _of_schema(text)
    elif kind is GrammarKind.REGEX:
        grammar = LLMatcher.grammar_from_regex(text)
    elif kind is GrammarKind.CHOICE:
        # A terminal, because llguidance has a low limit for the alternatives of a rule.
        choices = " | ".join(json.dumps(choice) for choice in json.loads(text))
        grammar = _of_lark(f"start: CHOICE\nCHOICE: {choices}")
    elif kind is GrammarKind.CALLS:
        calls = CallGrammar.of(text)
        grammar, has_text = _of_lark(calls.lark(token_of, JSON_OPTIONS, reasoning)), calls.has_text
    else:
        grammar = _of_lark(any_to_lark(text))
    return after_reasoning(grammar, reasoning, token_of) if reasoning and not has_text else grammar


def _of_lark(lark: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": lark}]})


def _of_schema(text: str) -> str:
    return LLMatcher.grammar_from_json_schema(text, overrides=JSON_OPTIONS)


def compiled(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """Return the matcher of a grammar in llguidance's form, in its error state if it cannot be compiled."""
    return LLMatcher(tokenizer, grammar, log_level=0, limits=limits())


def answer(tokenizer: LLTokenizer, frame: dict[str, str]) -> dict[str, str]:
    """Compile a grammar and try the first tokens of an answer; return the answer to a frame."""
    kind, text = GrammarKind(frame["kind"]), frame["text"]
    try:
        if kind is GrammarKind.CALLS:
            calls = CallGrammar.of(text)
            schemas = {function.field: function.arguments for function in calls.functions}
            if calls.answer_schema is not None:
                schemas["response_format"] = calls.answer_schema
            for field, schema in schemas.items():
                if error := _misread(tokenizer, schema) or _error_of_object(tokenizer, schema):
                    return {"field": field, "error": error}
        if kind is GrammarKind.JSON:
            with contextlib.suppress(ValueError):  # llguidance reports what is no JSON
                if error := _misread(tokenizer, json.loads(text)):
                    return {"error": error}
        return _tried(tokenizer, kind, text, frame["reasoning"])
    except MemoryError:
        return {"error": f"more than {MEMORY_BYTES >> 20} MiB of memory are needed"}
    except Exception as failure:  # llguidance's translation of GBNF has errors of its own
        return {"error": " ".join(str(failure).split()) or type(failure).__name__}


def _tried(tokenizer: LLTokenizer, kind: GrammarKind, text: str, reasoning: str) -> dict[str, str]:
    grammar = translate(tokenizer, kind, text)
    matcher = compiled(tokenizer, grammar)
    for _ in range(TRIED_TOKENS):
        if matcher.is_error() or matcher.is_stopped():
            break
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        if mask:
            matcher.consume_token((mask & -mask).bit_length() - 1)
    if matcher.is_error():
        error = _error_of(matcher)
        return {"error": locate(json.loads(text), error, _error_of_schema) if kind is GrammarKind.JSON else error}
    if reasoning:
        grammar = translate(tokenizer, kind, text, reasoning)
        if (matcher := compiled(tokenizer, grammar)).is_error():
            return {"error": _error_of(matcher)}
    return {"grammar": grammar}


def _misread(tokenizer: LLTokenizer, schema: Any) -> str:
    """Return what llguidance would enforce differently in a schema, "" if nothing."""

    def accepts(pattern: str, text: str) -> bool:
        matcher = compiled(tokenizer, _of_schema(json.dumps({"type": "string", "pattern": pattern})))
        tokens = tokenizer.tokenize_str(text)
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    return misread(schema, accepts)


def _error_of(matcher: LLMatcher) -> str:
    return " ".join(matcher.get_error().removesuffix("<non-verbose/>").split())


def _error_of_object(tokenizer: LLTokenizer, schema: dict[str, Any]) -> str:
    """Return the error of a schema with its place, "" without any.

    The beginning of an object is tried, too: in an answer, a call may come after many tokens of text.
    """
    matcher = compiled(tokenizer, _of_schema(json.dumps(schema)))
    matcher.try_consume_tokens(tokenizer.tokenize_str("{"))
    return locate(schema, _error_of(matcher), _error_of_schema) if matcher.is_error() else ""


def _error_of_schema(schema: Any) -> str:
    """Return the first line of the error of a schema, "" if it is valid."""
    try:
        return LLMatcher.validate_grammar(_of_schema(json.dumps(schema)), None, limits=limits())
    except ValueError as error:
        return str(error)


def answer_in_child(tokenizer: LLTokenizer, content: bytes) -> bytes:
    """Compile the grammar of a frame's content in a child; return the frame of the answer, {} if the child ends early.

    The child writes to a pipe of its own, so that one that ends while it writes leaves nothing on the standard output.
    """
    source, sink = os.pipe()
    try:
        child = os.fork()
    except OSError as error:
        os.close(source)
        os.close(sink)
        return encode_frame({"unavailable": f"no process can be started: {error.strerror}"})
    if not child:
        _answer_and_exit(tokenizer, content, sink)
    os.close(sink)
    with open(source, "rb") as answers:
        frame = answers.read()
    _, status = os.waitpid(child, 0)
    if is_sent(code := os.waitstatus_to_exitcode(status)):  # by the kernel for lack of memory, for example
        return encode_frame({"unavailable": f"the process was {describe_exit(code)}"})
    return frame if frame and status == 0 else encode_frame({})


def _answer_and_exit(tokenizer: LLTokenizer, content: bytes, sink: int) -> NoReturn:
    status = 1
    try:
        die_with_parent()
        signal.alarm(CHILD_SECONDS)
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        frame = encode_frame(answer(tokenizer, json.loads(content)))
        signal.setitimer(signal.ITIMER_PROF, 0)
        with open(sink, "wb") as answers:
            answers.write(frame)
        status = 0
    finally:
        os._exit(status)


def main() -> int:
    """Answer frames until the input ends."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the end of the input ends this process
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the parent may ignore it, and block SIGALRM
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    tokenizer, reply = None, {}
    try:
        tokenizer, _ = load_tokenizer(Path(sys.argv[1]))
    except Exception as error:  # a model's files are untrusted
        reply = {"error": str(error) or type(error).__name__}
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    frame = encode_frame(reply)
    with contextlib.suppress(BrokenPipeError):
        while True:
            sink.write(frame)
            sink.flush()
            if tokenizer is None or (content := read_content(source)) is None:
                return 0
            frame = answer_in_child(tokenizer, content)
    os._exit(0)  # the interpreter would try to flush the rest


if __name__ == "__main__":
    sys.exit(main())
