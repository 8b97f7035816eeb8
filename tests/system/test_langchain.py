"""An agent of LangChain calls a function through the endpoint and goes on with its result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from orca_master.engine.messages import Output, Submission
from support.scripted_engine import END, MODEL, Scripted, ScriptedEngine, make_model

TEMPLATE = "{% if tools %}{{ tools | tojson }} in <tool_call>{% endif %}{{ messages | tojson }}"
CALL = f'I add. <tool_call>\n{{"name": "add", "arguments": {{"x": 1, "y": 2}}}}\n</tool_call>{END}'
RESULT = "It is 3."


class Agent(ScriptedEngine):
    """Answers the first request with a call, later ones with a text."""

    text: list[int]

    def submit(self, submission: Submission, receive: Callable[[Output], object]) -> Awaitable[None]:
        if self.submissions:
            self.tokens = self.text
        return super().submit(submission, receive)


@pytest.mark.long  # seconds, for the import alone
@pytest.mark.parametrize("streams", [False, True])
def test_the_loop_of_an_agent(tmp_path, streams):
    from langchain.agents import create_agent
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool
    def add(x: int, y: int) -> int:
        """Add two numbers."""
        return x + y

    async def run() -> None:
        scripted = Scripted(make_model(tmp_path, TEMPLATE), CALL, engine=Agent)
        assert isinstance(scripted.engine, Agent)
        scripted.engine.text = scripted.codec.encode(RESULT + END)
        async with scripted:
            model = ChatOpenAI(
                model=MODEL,
                base_url="http://localhost/v1",
                api_key="-",
                http_async_client=scripted.http,
                max_retries=0,
                streaming=streams,
            )
            answer = await create_agent(model, [add]).ainvoke({"messages": [{"role": "user", "content": "1 + 2?"}]})
        _, call, result, last = answer["messages"]
        assert (call.content, call.tool_calls[0]["args"]) == ("I add. ", {"x": 1, "y": 2})
        assert (result.content, last.content, last.tool_calls) == ("3", RESULT, [])
        assert '"role": "tool", "content": "3"' in scripted.prompt

    asyncio.run(asyncio.wait_for(run(), 120))
