"""The process that compiles grammars: its children, however they end, and the signals that it inherits."""

from __future__ import annotations

import asyncio
import faulthandler
import io
import json
import os
import signal
import subprocess
import sys

import pytest
from orca_master.errors import EngineUnavailableError
from orca_master.scheduling.constraint import Grammar, GrammarKind
from orca_master.text import grammar_compiler, grammar_process
from orca_master.text.grammar_compiler import GrammarCompiler
from orca_master.text.process_frames import encode_frame, read_content
from orca_master.text.tokenizer import TextCodec
from support.grammars import write_model
from tokenizers import Tokenizer

CONTENT = json.dumps({"kind": "regex", "text": "a", "reasoning": ""}).encode()


def answer_of(frame: bytes) -> dict[str, str]:
    stream = io.BytesIO(frame)
    content = read_content(stream)
    assert content is not None
    assert not stream.read(), "one frame"
    return json.loads(content)


def abort_without_traceback() -> None:
    """Abort as native code does; pytest's faulthandler would print a traceback for it."""
    faulthandler.disable()
    os.abort()


@pytest.mark.parametrize(
    "end",
    [abort_without_traceback, lambda: os.kill(os.getpid(), signal.SIGPROF), lambda: os._exit(0)],
)
def test_a_child_that_ends_early_leaves_an_empty_answer(tmp_path, monkeypatch, end):
    tokenizer, _ = grammar_process.load_tokenizer(write_model(tmp_path, 300))
    assert "grammar" in answer_of(grammar_process.answer_in_child(tokenizer, CONTENT))
    monkeypatch.setattr(grammar_process, "answer", lambda tokenizer, frame: end())
    assert answer_of(grammar_process.answer_in_child(tokenizer, CONTENT)) == {}


def test_the_kill_of_a_child_is_not_the_fault_of_the_grammar(tmp_path, monkeypatch):
    tokenizer, _ = grammar_process.load_tokenizer(write_model(tmp_path, 300))
    monkeypatch.setattr(grammar_process, "answer", lambda tokenizer, frame: os.kill(os.getpid(), signal.SIGKILL))
    refusal = {"unavailable": "the process was killed by SIGKILL"}
    assert answer_of(grammar_process.answer_in_child(tokenizer, CONTENT)) == refusal


def test_an_answer_may_be_larger_than_a_pipe(tmp_path, monkeypatch):
    tokenizer, _ = grammar_process.load_tokenizer(write_model(tmp_path, 300))
    large = {"grammar": "a" * (1 << 20)}
    monkeypatch.setattr(grammar_process, "answer", lambda tokenizer, frame: large)
    assert answer_of(grammar_process.answer_in_child(tokenizer, CONTENT)) == large


def test_a_system_without_further_processes_is_not_the_fault_of_the_grammar(tmp_path, monkeypatch):
    tokenizer, _ = grammar_process.load_tokenizer(write_model(tmp_path, 300))

    def fork() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fork", fork)
        refusal = answer_of(grammar_process.answer_in_child(tokenizer, CONTENT))
    assert refusal == {"unavailable": "no process can be started: Resource temporarily unavailable"}

    async def scene() -> None:
        compiler = GrammarCompiler(tmp_path, lambda _: None)
        await compiler.prepare()

        async def ask(process: object, frame: dict[str, str] | None) -> dict[str, str]:
            return {} if frame is None else refusal

        monkeypatch.setattr(grammar_compiler, "_ask", ask)
        with pytest.raises(EngineUnavailableError, match="not compiled: no process can be started: Resource"):
            await compiler.compile(Grammar(GrammarKind.REGEX, "a"), 300)
        await compiler.close()

    asyncio.run(scene())


def test_ignored_and_blocked_signals_of_the_parent_change_nothing(tmp_path):
    """A master may be started with SIGCHLD ignored, and one that is restarted has SIGALRM blocked."""

    def before_exec() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGPROF})

    frames = b"".join(encode_frame(json.loads(CONTENT)) for _ in range(3))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "orca_master.text.grammar_process", str(write_model(tmp_path, 300))],
        input=frames, stdout=subprocess.PIPE, preexec_fn=before_exec, timeout=120, check=True,
    )  # fmt: skip
    source, answers = io.BytesIO(done.stdout), list[dict[str, str]]()
    while (content := read_content(source)) is not None:
        answers.append(json.loads(content))
    assert [list(answer) for answer in answers] == [[], *[["grammar"]] * 3]


def test_the_end_tokens_are_the_stop_tokens_of_the_answers(tmp_path):
    model = write_model(tmp_path, 300)
    before = TextCodec(model).stop_token_ids
    other = next(token for token in range(300) if token not in before)
    text = Tokenizer.from_file(str(model / "tokenizer.json")).id_to_token(other)
    (model / "tokenizer_config.json").write_text(json.dumps({"eos_token": text}))
    assert TextCodec(model).stop_token_ids == before | {other}
    assert set(grammar_process.load_tokenizer(model)[1]) == before | {other}
