"""A minimal OpenAI-compatible server, independent of ORCA, with fixed delays and a record of arrival and send times.

The record also has the server's lag, the longest time by which its event loop was late: on a busy machine both arrival
and sending may be late by so much.

    python -m support.stub_server FIRST_TOKEN_SECONDS TOKEN_SECONDS      prints its port

Model `broken` gets status 500, `cut` a stream that ends early, `silent` no answer.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from aiohttp import web

BEAT = 0.01
"""Interval, in seconds, at which the event loop's lag is measured."""

record: list[dict] = []
lags = [0.0]


async def watch_lag() -> None:
    while True:
        begin = time.perf_counter()
        await asyncio.sleep(BEAT)
        lags.append(time.perf_counter() - begin - BEAT)


def make_app(first: float, gap: float) -> web.Application:
    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "stub", "object": "model"}]})

    async def completions(request: web.Request) -> web.StreamResponse:
        arrived = time.perf_counter()
        body = await request.json()
        if body["model"] == "broken":
            return web.json_response({"error": {"message": "it is broken"}}, status=500)
        if body["model"] == "silent":
            await asyncio.sleep(3600)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        sent: list[float] = []
        count = body["max_tokens"]
        for index in range(count):
            due = arrived + first + index * gap
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            if body["model"] == "cut" and index == count // 2:
                return response
            last = index == count - 1
            choice = {"index": 0, "text": "x", "finish_reason": "length" if last else None}
            sent.append(time.perf_counter())
            await response.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
        record.append({"arrived": arrived, "sent": sent, "input": len(body["prompt"]), "output": count,
                       "prompt": body["prompt"]})  # fmt: skip
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": count}
        await response.write(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n".encode())
        return response

    async def recorded(_: web.Request) -> web.Response:
        entries = {"requests": list(record), "lag": max(lags)}
        record.clear()
        lags[:] = [0.0]
        return web.json_response(entries)

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/completions", completions)
    app.router.add_get("/record", recorded)
    return app


async def main() -> None:
    runner = web.AppRunner(make_app(float(sys.argv[1]), float(sys.argv[2])))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await watch_lag()


if __name__ == "__main__":
    asyncio.run(main())
