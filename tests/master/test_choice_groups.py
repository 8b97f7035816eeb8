"""Several choices of one request: the queue has all of them or none, at any moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from orca_master.engine import live_requests
from orca_master.engine.choice_groups import ChoiceGroups
from orca_master.engine.config import EngineConfig
from orca_master.engine.messages import Choices, Submission
from orca_master.errors import QueueFullError, RequestError
from orca_master.scheduling.prefix_cache import block_keys
from orca_master.scheduling.request import Request
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.sampling_parameters import SamplingParameters
from support.fake_engine import Engine, play, topology
from support.fake_workers import VOCABULARY, continuation

CONFIG = EngineConfig(max_batch_size=1, max_queued_requests=4, max_queued_tokens=100)


def choices_of(made: Engine, name: str, count: int, answer: int = 4) -> list[Submission]:
    choices = Choices(name, count, count * (1 + answer))
    return [replace(made.submission(f"{name}-{index}", (3,), answer), choices=choices) for index in range(count)]


async def busy(made: Engine, num_waiting: int) -> None:
    """Let one request occupy the only place, and others wait behind it."""
    await made.engine.start()
    made.submit("runs", (1,), 40)
    await made.until(lambda: made.engine.snapshot.num_running == 1)
    made.cluster.newest("a").hangs = True
    for index in range(num_waiting):
        made.submit(f"waits-{index}", (2,), 4)
    assert made.engine.snapshot.num_waiting == num_waiting


def waiting(made: Engine) -> int:
    return made.engine.snapshot.num_waiting


def test_choices_that_do_not_all_fit_are_refused_by_the_first():
    async def scene(made: Engine) -> None:
        await busy(made, 2)
        for submission in choices_of(made, "many", 3):
            with pytest.raises(QueueFullError, match="2 requests are waiting, the limit is 4, 3 more do not fit"):
                made.engine.submit(submission)
            assert waiting(made) == 2
        with pytest.raises(QueueFullError, match="of 10 tokens and this one of 102 exceed the limit of 100"):
            made.engine.submit(choices_of(made, "long", 2, 50)[0])
        for submission in choices_of(made, "few", 2):
            assert waiting(made) == 2, "a choice waits before the last has come"
            made.engine.submit(submission)
        assert waiting(made) == 4
        made.cluster.newest("a").hangs = False
        assert (await made.collect(5))["few-1"] == continuation((3,), 4)

    play(lambda: Engine(topology("a"), CONFIG), scene)


def test_places_are_reserved_until_the_last_choice_and_an_end_before_it_frees_them():
    async def scene(made: Engine) -> None:
        await busy(made, 1)
        submissions = choices_of(made, "group", 3)
        for submission in submissions[:2]:
            made.engine.submit(submission)
        with pytest.raises(QueueFullError, match="4 requests are waiting"):
            made.submit("other", (2,), 4)
        made.engine.cancel("group-1")
        made.engine.cancel("group-0")
        assert waiting(made) == 1
        for index in range(3):
            made.submit(f"other-{index}", (2,), 4)
        assert waiting(made) == 4
        made.cluster.newest("a").hangs = False
        assert set(await made.collect(5)) == {"runs", "waits-0", "other-0", "other-1", "other-2"}

    play(lambda: Engine(topology("a"), CONFIG), scene)


def test_an_engine_that_stops_fails_choices_whose_request_is_incomplete():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        made.engine.submit(choices_of(made, "group", 2)[0])
        await made.engine.stop("over")
        assert "over" in str(await made.ended("group-0"))
        made.engine.cancel("group-0")

    play(lambda: Engine(topology("a"), CONFIG), scene)


def test_a_choice_that_turns_out_not_to_fit_ends_while_its_request_is_incomplete():
    """It came before the engine knew its limits."""

    async def scene(made: Engine) -> None:
        made.engine.submit(choices_of(made, "long", 2, 90)[0])
        await made.engine.start()
        assert "tokens: this model's maximum context length is 64 tokens" in str(await made.ended("long-0"))
        for index in range(4):
            made.submit(f"other-{index}", (2,), 4)
        assert len(await made.collect(4)) == 4

    play(lambda: Engine(topology("a"), replace(CONFIG, max_queued_tokens=1000)), scene)


def test_choices_of_a_prompt_are_hashed_once_and_those_of_others_not_with_them():
    """Three prompts of 40 tokens, two choices each, and two choices that differ from the one before."""

    async def scene(made: Engine) -> None:
        await busy(made, 0)
        choices = Choices("g", 8, 8 * 44)
        submissions = [
            replace(made.submission(f"g-{index}", (index // 2,) * 40, 4), choices=choices) for index in range(6)
        ]
        submissions.append(replace(submissions[-1], request_id="g-6", cache_salt="other"))
        submissions.append(replace(submissions[-1], request_id="g-7", prompt=[2] * 40))
        for submission in submissions:
            made.engine.submit(submission)
        pool = list(made.engine.pool)
        keys = [block_keys(request, 2) for request in pool]
        assert all(keys[index] is keys[index + 1] for index in (0, 2, 4))
        assert len({id(entry) for entry in keys}) == 5
        assert all(pool[index].prompt is pool[index + 1].prompt for index in (0, 2, 4))
        assert keys == [block_keys(Request("", 0, r.prompt, 4, cache_salt=r.cache_salt), 2) for r in pool]

    config = replace(CONFIG, max_queued_requests=10, max_queued_tokens=1000)
    play(lambda: Engine(topology("a"), config), scene)


class CountedPrompt(tuple[int, ...]):
    """Counts how often all tokens are looked at."""

    num_looks = 0

    def __iter__(self) -> Iterator[int]:
        self.num_looks += 1
        return super().__iter__()


def test_the_tokens_of_a_prompt_are_checked_once_for_all_of_its_choices():
    """What can differ from choice to choice is checked for each: other prompts, and parameters."""

    async def scene(made: Engine) -> None:
        await busy(made, 0)
        prompt = CountedPrompt((3,))
        submissions = [replace(entry, prompt=prompt) for entry in choices_of(made, "group", 3)]
        made.engine.submit(submissions[0])
        num_looks = prompt.num_looks
        made.engine.submit(submissions[1])
        assert 0 < num_looks == prompt.num_looks
        with pytest.raises(RequestError, match=f"prompt: token id {VOCABULARY} is not between"):
            made.engine.submit(replace(submissions[2], prompt=(3, VOCABULARY)))
        bias = SamplingParameters(logit_bias=((VOCABULARY, 1.0),))
        with pytest.raises(RequestError, match=f"logit_bias: token id {VOCABULARY} is not between"):
            made.engine.submit(replace(submissions[2], sampling=bias))
        with pytest.raises(RequestError, match="out of range"):
            made.engine.submit(replace(submissions[2], sampling=SamplingParameters(top_k=-1)))

    play(lambda: Engine(topology("a"), CONFIG), scene)


def test_tokens_that_no_message_can_hold_are_refused_before_the_vocabulary_is_known():
    async def scene(made: Engine) -> None:
        for prompt in ((2**32,), (-1,)):
            with pytest.raises(RequestError, match="a number of this request is out of range"):
                made.submit("hostile", prompt, 4)

    play(lambda: Engine(topology("a"), CONFIG), scene)


def test_reserved_tokens_count_like_those_of_waiting_requests():
    pool = RequestPool(4, 100)
    pool.reserve(2, 96)
    with pytest.raises(QueueFullError, match="of 96 tokens and this one of 5 exceed the limit of 100"):
        pool.add(Request("a", 0, (1,), 4))
    pool.free(2, 96)
    pool.add(Request("a", 0, (1,), 4))


def test_choices_whose_last_does_not_come_end_after_a_bound(monkeypatch):
    """As of an API process that is stopped."""
    monkeypatch.setattr(live_requests, "CHOICES_SECONDS", 0.01)

    async def scene(made: Engine) -> None:
        await busy(made, 1)
        first, second, _ = choices_of(made, "group", 3)
        made.engine.submit(first)
        made.engine.submit(second)
        for name in ("group-0", "group-1"):
            assert await made.ended(name) == "not all choices of the request arrived within 0.01 s"
        for index in range(3):
            made.submit(f"other-{index}", (2,), 4)

    play(lambda: Engine(topology("a"), CONFIG), scene)


@pytest.mark.parametrize(
    "change",
    [
        lambda request: (replace(request, max_gen_tokens=10), Choices("g", 3, 15)),
        lambda request: (request, Choices("g", 2, 15)),
    ],
    ids=["more tokens than announced", "another count"],
)
def test_a_choice_that_contradicts_the_first_is_refused(
    change: Callable[[Request], tuple[Request, Choices]],
):
    pool = RequestPool(4, 100)
    groups = ChoiceGroups(pool)
    first, second = (Request(name, index, (1,), 4) for index, name in enumerate("ab"))
    assert groups.add(first, Choices("g", 3, 15)) == []
    with pytest.raises(RequestError, match="differ from those that its first choice announced"):
        groups.add(*change(second))
    assert (len(pool), list(groups)) == (0, [first])
    with pytest.raises(RequestError, match="differ from those"):
        groups.add(second, Choices("lies from the beginning", 3, 4))
    with pytest.raises(QueueFullError):
        groups.add(second, Choices("more tokens than an empty queue takes", 2, 101))
    assert groups.discard("a")
    assert not groups.discard("a")
    pool.reserve(4, 100)


def test_a_first_choice_longer_than_all_together_is_refused_and_reserves_nothing():
    pool = RequestPool(4, 100)
    groups = ChoiceGroups(pool)
    for _ in range(2):
        with pytest.raises(RequestError, match="differ from those that its first choice announced"):
            groups.add(Request("a", 0, (1,), 4), Choices("g", 3, 4))
    pool.reserve(4, 100)
