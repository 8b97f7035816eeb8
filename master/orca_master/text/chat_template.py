"""`ChatTemplate`: renders messages to a prompt with the model's Jinja template, in a separate process.

Sources of the template, in this order: `--chat-template FILE`; chat_template.jinja of the model directory, with
additional_chat_templates/tool_use.jinja; `chat_template` in its tokenizer_config.json. As in transformers, a template
named tool_use renders requests with tools. template_process.py renders; a process that exceeds its limits is killed and
replaced, and only the request being rendered is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from orca_protos.exit_code import is_sent
from orca_protos.model_files import CONFIG_BYTES, FileError, MissingFileError, read_file

from orca_master.bodies.bounded_turns import ANYONE, BoundedTurns, Caller
from orca_master.errors import ConfigurationError, EngineUnavailableError, RequestError
from orca_master.text.process_frames import LENGTH_BYTES, encode_frame
from orca_master.text.template_process import CPU_SECONDS, FRAME_BYTES
from orca_master.text.tokenizer_config import (
    DEFAULT,
    SPECIAL_TOKENS,
    TOOL_USE,
    TokenizerConfigFile,
    read_tokenizer_config,
)
from orca_master.threads import start_process

if TYPE_CHECKING:  # commands.text_check does not need the API's types, whose import takes 0.1 s
    from collections.abc import Sequence

    from orca_master.bodies.openai_requests import ChatMessage
    from orca_master.bodies.tools import Tool

DEVELOPER = "developer"
"""A role of OpenAI's API that few templates know."""
MIN_LIMIT = 1 << 20
"""Minimum of the limit of a prompt's characters, which is GROWTH times the size of the request."""
GROWTH = 4
ENTRY_BYTES = 1024
"""Memory of a message's part, or of a call, beside its text."""
WALL_SECONDS = 60.0
"""Timeout of an exchange with the process, whose own limit is of processor time: reached only on a stalled machine."""
CONTINUATION = "ORCACONTINUESHERE"
"""Marks the end of a message's text in a rendered prompt; no template strips or escapes capital letters."""
RESERVED = frozenset(
    {
        *SPECIAL_TOKENS,
        *("messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now", "chat_template", "tokenize"),
        *("range", "dict", "lipsum", "cycler", "joiner", "namespace", "self", "context", "loop", "caller"),
    }
)
"""Names that `chat_template_kwargs` must not set, because they would replace messages or template functions."""


class ChatTemplate:
    """The chat template of a model, if any. Raises ConfigurationError for files that cannot be read.

    Entering the asynchronous context starts the process, else the first `render` does; leaving the context ends it.
    """

    def __init__(self, model_path: Path, file: Path | None = None) -> None:
        try:
            configuration = read_tokenizer_config(model_path)
            self.sources = _sources(model_path, file, configuration)
        except FileError as error:
            raise ConfigurationError(str(error)) from error
        self.special_tokens = configuration.special_tokens
        self._process: asyncio.subprocess.Process | None = None
        self._turns = BoundedTurns("chats")

    @property
    def source_with_tools(self) -> str | None:
        """Text of the template that renders requests with tools, None without a template."""
        return self.sources.get(TOOL_USE, self.sources.get(DEFAULT))

    async def render(
        self,
        messages: list[ChatMessage],
        add_generation_prompt: bool,
        options: dict[str, Any],
        tools: Sequence[Tool] = (),
        caller: Caller = ANYONE,
    ) -> str:
        """Render messages, and the functions that the answer can call, to a prompt.

        Raises RequestError without a template, or for messages or options that the template refuses;
        QueueFullError if many requests wait for the process, EngineUnavailableError if it cannot be started or is
        killed.
        """
        name = TOOL_USE if tools and TOOL_USE in self.sources else DEFAULT
        if name not in self.sources:
            raise RequestError(
                "this model has no chat template: use /v1/completions, or start the server with --chat-template",
                "messages",
            )
        for option in options:
            if option in RESERVED or option.startswith("_") or not option.isidentifier():
                raise RequestError(
                    f"chat_template_kwargs: {option[:80]!a} is reserved or not a valid name",
                    "chat_template_kwargs",
                )
        wires = [_wire(message) for message in messages]
        variables = {
            **options,
            "messages": wires if DEVELOPER in self.sources[name] else _without_developers(wires),
            "add_generation_prompt": add_generation_prompt,
            "tools": [tool.model_dump(exclude_none=True, exclude_unset=True) for tool in tools] or None,
        }
        texts = sum(message.num_characters for message in messages)
        size = texts + len(json.dumps([options, variables["tools"]]))
        frame = encode_frame({"name": name, "variables": variables, "limit": max(MIN_LIMIT, GROWTH * size)})
        entries = sum(message.num_entries for message in messages)
        await self._turns.acquire(caller, len(frame) + ENTRY_BYTES * entries)
        exchange = asyncio.create_task(self._exchange(frame))
        exchange.add_done_callback(lambda _: self._turns.release(caller))
        # Shielded: cancelling the exchange would leave its answer in the pipe for the next request.
        answer = await asyncio.shield(exchange)
        if "text" not in answer:
            reason = str(answer.get("error", f"rendering exceeded the limit of {CPU_SECONDS:g} s of processor time"))
            raise RequestError(f"the chat template refuses these messages: {reason[:500]}", "messages")
        return str(answer["text"])

    async def render_unfinished(
        self,
        messages: list[ChatMessage],
        options: dict[str, Any],
        tools: Sequence[Tool] = (),
        caller: Caller = ANYONE,
    ) -> str:
        """Render messages up to the last character of the last one, which the answer continues. Raises as `render`."""
        *before, last = messages
        if last.role != "assistant" or not last.text:
            message = "continue_final_message: the last message must be of the role assistant and have a text"
            raise RequestError(message, "messages")
        marked = last.model_copy(update={"content": last.text + CONTINUATION})
        text, mark, _ = (await self.render([*before, marked], False, options, tools, caller)).rpartition(CONTINUATION)
        if not mark:
            message = "continue_final_message: the chat template does not write the text of the last message"
            raise RequestError(message, "messages")
        return text

    async def __aenter__(self) -> ChatTemplate:
        if self.sources:
            await self._turns.acquire(ANYONE, 0)
            try:
                await self._started()
            finally:
                self._turns.release(ANYONE)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def _exchange(self, frame: bytes) -> dict[str, Any]:
        """Return the answer to one frame, {"error"} if compiling fails, {} if the process has exceeded its limits.

        Raises EngineUnavailableError.
        """
        unable = await self._started()
        if unable is not None:
            return unable
        assert self._process is not None
        answer = await self._ask(self._process, frame)
        if answer is None:
            if is_sent(await self._end()):
                raise EngineUnavailableError("the chat template's process was killed, or did not answer: retry")
            return {}
        return answer

    async def _started(self) -> dict[str, Any] | None:
        """Start the process unless one runs; return None, else {"error"} if compiling fails, {} if it is too long.

        Raises EngineUnavailableError.
        """
        if self._process is not None and self._process.returncode is None:
            return None
        try:
            self._process = await start_process(
                *(sys.executable, "-P", "-m", "orca_master.text.template_process"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        except OSError as error:  # a limit of descriptors, processes or threads is reached
            raise EngineUnavailableError(f"the chat template's process does not start: {error.strerror}") from error
        first = encode_frame({"sources": self.sources, "special_tokens": self.special_tokens})
        answer = await self._ask(self._process, first)
        if answer == {}:
            return None
        await self._end()  # the next request compiles again, as compiling may have been slow only this time
        return answer or {}

    async def _ask(self, process: asyncio.subprocess.Process, frame: bytes) -> dict[str, Any] | None:
        """Return the answer to one frame, None if the process ends or does not answer."""
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WALL_SECONDS):
                try:
                    process.stdin.write(frame)
                    await process.stdin.drain()
                    size = int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES), "big")
                    if size > FRAME_BYTES:
                        return None
                    answer: dict[str, Any] = json.loads(await process.stdout.readexactly(size))
                    return answer
                except (OSError, asyncio.IncompleteReadError):
                    await process.wait()  # asyncio takes the exit code: a `kill` before that could take it instead
        return None

    async def _end(self) -> int:
        """Kill the process unless it has ended; return its exit code, 0 without a process."""
        process, self._process = self._process, None
        if process is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        return await process.wait()


def _wire(message: ChatMessage) -> dict[str, Any]:
    """Return a message as templates expect it: one text, and the arguments of calls as objects where they are."""
    wire = {**message.model_dump(exclude_none=True, exclude={"tool_calls"}), "content": message.text}
    if message.tool_calls:
        wire["tool_calls"] = [
            {
                **call.model_dump(exclude={"index"}),
                "function": {"name": call.function.name, "arguments": call.function.values},
            }
            for call in message.tool_calls
        ]
    return wire


def _without_developers(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages for a template that does not know developers, whose messages it would drop or refuse.

    Theirs become the system's, and part of a message of the system just before: many templates take only one.
    """
    known: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] != DEVELOPER:
            known.append(message)
        elif known and known[-1]["role"] == "system":
            known[-1] = {**known[-1], "content": f"{known[-1]['content']}\n\n{message['content']}"}
        else:
            known.append({**message, "role": "system"})
    return known


def _sources(model_path: Path, file: Path | None, configuration: TokenizerConfigFile) -> dict[str, str]:
    """Return the texts of the templates by name; raise FileError or ConfigurationError."""
    if file is not None:
        try:
            path = file.resolve()  # unlike a model's file, the option's file may be a link to another folder
        except (OSError, RuntimeError) as error:  # RuntimeError: a cycle of symbolic links, before Python 3.13
            raise ConfigurationError(f"--chat-template {file}: {getattr(error, 'strerror', None) or error}") from error
        try:
            return {DEFAULT: _text(path)}
        except MissingFileError as error:
            raise ConfigurationError(f"--chat-template {error}") from error
    files = {
        DEFAULT: model_path / "chat_template.jinja",
        TOOL_USE: model_path / "additional_chat_templates" / f"{TOOL_USE}.jinja",
    }
    sources = {}
    for name, path in files.items():
        with contextlib.suppress(MissingFileError):
            sources[name] = _text(path)
    if DEFAULT in sources:
        return sources
    return {name: text for name, text in configuration.templates.items() if name in files} | sources


def _text(path: Path) -> str:
    """Return the text of a file; raise FileError, MissingFileError, or ConfigurationError for other bytes."""
    try:
        return read_file(path.parent, path.name, CONFIG_BYTES).decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from error
