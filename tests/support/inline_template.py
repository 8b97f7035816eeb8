"""A chat template that is rendered within the process of the test, in place of a process of its own."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from orca_master.text.chat_template import ChatTemplate
from orca_master.text.process_frames import LENGTH_BYTES
from orca_master.text.template_process import Renderer, answer


class InlineTemplate(ChatTemplate):
    """Renders as the process does, from the same frames, but without its limits of time and memory.

    The process takes 0.08 s of processor time to start, as much as all else in most tests of answers. Its start, its
    limits and its end are tested in tests/master/test_chat_template.py.
    """

    _renderer: Renderer | None = None

    async def _started(self) -> dict[str, Any] | None:
        if self._renderer is None:
            self._renderer, reply = answer(None, {"sources": self.sources, "special_tokens": self.special_tokens})
            return reply or None
        return None

    async def _exchange(self, frame: bytes) -> dict[str, Any]:
        await asyncio.sleep(0)  # as long as the process answers, other requests have their turn
        unable = await self._started()
        return unable or answer(self._renderer, json.loads(frame[LENGTH_BYTES:]))[1]
