"""`ResumableRequests`: the requests in the journal, which a restarted master finishes and clients can read again.

A request is remembered until `window` seconds after its end. Only the key that asked may read it. The adapters that
were loaded at run time are loaded again for the unfinished requests that use them (restored_adapters.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from orca_protos import engine_pb2 as pb

from orca_master.bodies.openai_requests import GenerationRequest
from orca_master.endpoint.decoded_requests import DecodedRequests
from orca_master.endpoint.generation import Generation, Generator
from orca_master.endpoint.recorded_body import recorded_body
from orca_master.endpoint.restored_adapters import RestoredAdapters
from orca_master.endpoint.resumable_request import ResumableRequest
from orca_master.errors import EngineUnavailableError, RequestError, RequestTimeoutError
from orca_master.journal.journal import Journal
from orca_master.journal.records import Accepted, JournalledRequest

logger = logging.getLogger(__name__)

MAX_PROMPT_LOGPROBS = 2**14
"""Most log probabilities of a request's prompts, about 150 KB of the journal: a few requests with as many as a response
can have would fill it, and it would be off for all."""
MAX_RESUMES = 3
"""Maximum continuations of a request without a token, by masters that were then killed."""
EXPECTED = (RequestError, RequestTimeoutError)
"""Why an adapter is not loaded again."""


class ResumableRequests:
    """All remembered requests, by id. Used on the event loop of the endpoint."""

    def __init__(self, journal: Journal, generator: Generator, window: float, adapters: RestoredAdapters) -> None:
        self._journal = journal
        self._generator = generator
        self._window = window
        self._adapters = adapters
        self._waiting: set[ResumableRequest] = set()
        """Requests of earlier masters that are not submitted yet: they wait for their adapters, or for their turn."""
        self._turn = asyncio.Lock()
        """Of the requests whose tokens are decoded again."""
        self._requests: dict[str, ResumableRequest] = {}
        self._by_number: dict[int, ResumableRequest] = {}
        self.decoded = DecodedRequests()
        self._running: set[asyncio.Task[None]] = set()
        self._unfinished: list[ResumableRequest] = []
        """Unfinished requests of earlier masters, until `resume`; new requests may be accepted before."""
        for number, journalled in list(journal.requests.items()):
            request = ResumableRequest(journal, journalled.accepted, self._remember, self._forget_later, number)
            request.restore(journalled)
            self._remember(request)
            if request.ended is None:
                self._unfinished.append(request)
            else:
                self._forget_later(request)
        journal.requests.clear()
        journal.content_of = self._content_of

    def accept(
        self, route: str, body: GenerationRequest, generation: Generation, owner: str
    ) -> ResumableRequest | None:
        """Return the recorder of a new request; None while the journal is off, or for too many log probabilities.

        The request is remembered as soon as the engine accepts it. Raises RequestError for a body that no record can
        have.
        """
        count = body.num_prompt_logprobs
        num_logprobs = 0 if count is None else generation.prompt_tokens * (1 + count)
        submission = generation.choices[0].submission
        if not self._journal.is_on or num_logprobs > MAX_PROMPT_LOGPROBS:
            return None
        files, trace = None, submission.trace
        if not self._generator.models.is_of_start(submission.adapter):
            files = self._adapters.files(submission.adapter)
            if files is None:  # it has left since the body was checked, and the engine refuses the request
                return None
        return ResumableRequest(
            self._journal,
            Accepted(
                generation.request_id,
                route,
                recorded_body(body),
                generation.prompts,
                generation.max_tokens,
                submission.sampling.logprobs,
                submission.sampling.seed,
                generation.created,
                owner,
                generation.deadline,
                files,
                ("", "") if trace is None else (trace.traceparent, trace.tracestate),
            ),
            self._remember,
            self._forget_later,
        )

    def find(self, request_id: str, owner: str) -> ResumableRequest | None:
        """Return a remembered request of this key."""
        request = self._requests.get(request_id)
        return request if request is not None and request.accepted.owner == owner else None

    def resume(self, weights: Callable[[], pb.ModelFacts]) -> int:
        """Continue the unfinished requests of earlier masters; return their number.

        A request that was continued MAX_RESUMES times without a token ends: it may crash the master. The journal has
        the `weights` of the pipelines from then on.
        """
        unfinished, self._unfinished = self._unfinished, []
        for request in unfinished:
            if request.num_resumed >= MAX_RESUMES:
                request.end(f"{request.num_resumed} masters have ended since the request's last token")
        waiting = [request for request in unfinished if request.ended is None]
        self._waiting.update(waiting)
        self._journal.weights_of = weights
        self._keep(asyncio.create_task(self._run_each(waiting)))
        return len(waiting)

    def interrupt(self) -> None:
        """End the streams of requests that do not run yet, because the server stops."""
        for request in (*self._unfinished, *self._waiting):
            request.interrupt()

    async def close(self) -> None:
        """Stop the resumed requests; what has not ended continues after the next start."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._journal.close()

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run_each(self, requests: list[ResumableRequest]) -> None:
        """Begin the requests one by one: each prepares its choices, and the event loop must give signs of life."""
        for request in requests:
            self._keep(asyncio.create_task(self._run(request)))
            await asyncio.sleep(0)

    async def _run(self, request: ResumableRequest) -> None:
        accepted = request.accepted
        if accepted.adapter is None:
            with self._generator.activity.one():
                await self._continue(request)
            return
        name = accepted.adapter.name
        self._note_attempt(request)  # to load an adapter may crash the master, too
        try:
            with self._generator.activity.one():
                holding = self._adapters.held(accepted.owner, accepted.adapter, accepted.deadline)
                async with holding as request.restored_adapter:
                    await self._continue(request)
        except (EngineUnavailableError, asyncio.CancelledError):  # the server stops
            request.interrupt()
        except Exception as error:
            logger.warning("adapter %r is not loaded again: %s", name, error, exc_info=not isinstance(error, EXPECTED))
            request.end(f"the adapter {name!r} could not be loaded again after the master's end: {error}")
        finally:
            self._waiting.discard(request)

    def _note_attempt(self, request: ResumableRequest) -> None:
        """Count this attempt, also in the journal; requests that wait for their turn have none."""
        request.num_resumed += 1
        if request.number is not None:
            self._journal.resume([request.number])

    async def _continue(self, request: ResumableRequest) -> None:
        try:
            async with self._turn:
                if request.accepted.adapter is None:
                    self._note_attempt(request)
                generation = request.generation(self._generator)
                choices = await request.unfinished(generation)
        except asyncio.CancelledError:  # the server stops
            request.interrupt()
            raise
        except Exception as error:  # a record that this version does not understand
            logger.exception("request %s cannot be resumed", request.accepted.request_id)
            request.end(f"the request cannot be resumed: {type(error).__name__}")
            return
        finally:
            self._waiting.discard(request)
        try:
            async for _ in self._generator.pieces(generation, request, choices):
                pass
        except EngineUnavailableError:  # the server stops, or no pipeline recovers
            pass
        except Exception as error:
            logger.warning("request %s was resumed and failed: %s", request.accepted.request_id, error)

    def _remember(self, request: ResumableRequest) -> None:
        self._requests[request.accepted.request_id] = request
        if request.number is not None:
            self._by_number[request.number] = request

    def _content_of(self, number: int) -> JournalledRequest:
        return self._by_number[number].content()

    def _forget_later(self, request: ResumableRequest) -> None:
        assert request.ended is not None
        seconds = request.ended.at + self._window - time.time()
        asyncio.get_running_loop().call_later(min(max(0.0, seconds), self._window), self._forget, request)

    def _forget(self, request: ResumableRequest) -> None:
        del self._requests[request.accepted.request_id]
        self.decoded.forget(request)
        assert request.number is not None
        del self._by_number[request.number]
        self._journal.forget(request.number)
