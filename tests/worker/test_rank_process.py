"""Every answer of a rank belongs to its question, and a rank that cannot be trusted is ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from orca_protos import engine_pb2 as pb
from orca_worker import rank_process
from orca_worker.errors import FaultError
from orca_worker.rank_exit import exit_code
from orca_worker.rank_process import RankProcess
from orca_worker.rank_start import RankStart, start_rank
from support.variants import one_short

SCRIPT = Path(__file__).parents[1] / "support" / "scripted_rank.py"
COMMANDS = {
    "load": pb.RankCommand(load=pb.LoadRequest(partition=2)),
    "prepare": pb.RankCommand(prepare=pb.PrepareRequest(epoch=3)),
    "form": pb.RankCommand(form=pb.FormRequest(epoch=3)),
    "warmup": pb.RankCommand(warmup=pb.WarmupRequest(max_tokens=5)),
    "allocate": pb.RankCommand(allocate=pb.AllocateRequest(num_blocks=5)),
}


async def nothing_asked(_: pb.RendezvousRequest) -> pb.RendezvousReply:
    raise AssertionError("a scripted rank meets nobody")


async def spawned(environment, command, *calls) -> RankProcess:
    return await RankProcess.adopt(start_rank(RankStart(tuple(command), environment, (), "cpu")), *calls)


@contextlib.asynccontextmanager
async def scripted(**script: object) -> AsyncIterator[tuple[RankProcess, list[pb.Fault]]]:
    """Yield a rank that follows `script`, and the faults that its controller gets."""
    faults: list[pb.Fault] = []
    command = (sys.executable, str(SCRIPT), json.dumps(script))
    rank = await spawned({}, command, lambda _: None, faults.append, nothing_asked)
    rank.become(1, ())
    rank._partition = 2  # as after a load
    try:
        yield rank, faults
    finally:
        await rank.end()


def warmup(tokens: int) -> pb.RankCommand:
    return pb.RankCommand(warmup=pb.WarmupRequest(max_tokens=tokens))


@pytest.mark.parametrize("seed", one_short(range(5)))
def test_every_question_gets_its_own_answer(seed):
    """Of many at once, answered in any order, while some of them are given up."""

    async def run() -> None:
        count, drawn = 30, random.Random(seed)
        async with scripted(hold=count, seed=seed) as (rank, faults):
            asked = [asyncio.create_task(rank.ask(warmup(index + 1), 100)) for index in range(count - 1)]
            await asyncio.sleep(0)  # each has sent its question
            given_up = set(drawn.sample(range(count - 1), 12))
            for index in given_up:
                asked[index].cancel()
            last = await rank.ask(warmup(count), 100)
            answers = await asyncio.gather(*asked, return_exceptions=True)
            for index, answer in enumerate(answers):
                if index in given_up:
                    assert isinstance(answer, asyncio.CancelledError)
                else:
                    assert answer.warmed_up.num_blocks == index + 1
            assert last.warmed_up.num_blocks == count
            assert not rank._waiting, "nothing is kept for questions that are over"
            assert faults == []

    asyncio.run(run())


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_silent_rank_is_killed_whatever_the_command(kind):
    async def run() -> None:
        async with scripted(silent=kind) as (rank, faults):
            with pytest.raises(FaultError, match=f"rank 1 did not reply to {kind} within 0 s") as error:
                await rank.ask(COMMANDS[kind], 0.2)
            assert await exit_code(rank._process, 60) == -signal.SIGKILL
            assert faults == [error.value.fault], "one fault: its exit is no second"
            assert error.value.fault.kind == pb.FAULT_KIND_CAUSE
            assert (error.value.fault.partition, error.value.fault.tensor_rank) == (2, 1)
            with pytest.raises(FaultError, match="did not reply to"):
                await rank.ask(COMMANDS["prepare"], 100)

    asyncio.run(run())


@pytest.mark.long
def test_a_stopped_rank_is_killed_long_before_its_command_is_late(monkeypatch):
    monkeypatch.setattr(rank_process, "PING_INTERVAL", 0.05)
    monkeypatch.setattr(rank_process, "LIFE_SECONDS", 2.0)

    async def run() -> None:
        async with scripted() as (rank, faults):
            await rank.ask(warmup(1), 100)
            os.kill(rank._process.pid, signal.SIGSTOP)
            with pytest.raises(FaultError, match="did not reply to ping within 2 s"):
                await rank.ask(COMMANDS["load"], 1000)
            assert rank.failed
            assert len(faults) == 1
            assert await exit_code(rank._process, 60) == -signal.SIGKILL

    asyncio.run(run())


@pytest.mark.long
def test_a_rank_that_is_busy_and_gives_signs_of_life_is_not_killed_before_its_command_is_late(monkeypatch):
    monkeypatch.setattr(rank_process, "PING_INTERVAL", 0.01)
    monkeypatch.setattr(rank_process, "LIFE_SECONDS", 2.0)
    pings = []
    ask = RankProcess.ask

    async def counted(self, command, timeout):
        pings.append(command.WhichOneof("command") == "ping")
        return await ask(self, command, timeout)

    monkeypatch.setattr(RankProcess, "ask", counted)

    async def run() -> None:
        async with scripted(silent="form") as (rank, _):
            await rank.ask(warmup(1), 100)  # the process has started
            with pytest.raises(FaultError, match="did not reply to form within 3 s"):
                await rank.ask(COMMANDS["form"], 3.0)

    asyncio.run(run())
    assert sum(pings) > 1


def test_before_its_first_reply_a_rank_is_killed_only_if_a_signal_has_stopped_it(monkeypatch):
    """Its interpreter imports torch, as slowly as the disk is."""
    monkeypatch.setattr(rank_process, "PING_INTERVAL", 0.05)
    monkeypatch.setattr(rank_process, "LIFE_SECONDS", 0.1)

    async def run() -> None:
        async with scripted() as (slow, _), scripted() as (stopped, _):
            os.kill(stopped._process.pid, signal.SIGSTOP)
            with pytest.raises(FaultError, match="rank 1 has been stopped by a signal"):
                await stopped.ask(warmup(1), 1000)
            await slow.ask(warmup(1), 1000)  # an interpreter takes longer than two intervals

    asyncio.run(run())


def test_a_load_that_is_cancelled_when_its_progress_arrives_ends():
    async def run() -> None:
        async with scripted(silent="load") as (rank, _), asyncio.timeout(60):
            loading = asyncio.create_task(rank.ask(COMMANDS["load"], 1000))
            await asyncio.sleep(0)
            rank._take(pb.RankReply(load=pb.LoadProgress(loaded_bytes=1), number=1))
            loading.cancel()
            await asyncio.wait({loading})
            assert loading.cancelled()

    asyncio.run(run())


@pytest.mark.parametrize("kind", one_short(COMMANDS))
def test_an_answer_of_another_kind_is_a_fault(kind):
    async def run() -> None:
        async with scripted(wrong=kind) as (rank, faults):
            with pytest.raises(FaultError, match=f"rank 1 replied to {kind} with (allocated|formed)"):
                await rank.ask(COMMANDS[kind], 100)
            assert await exit_code(rank._process, 60) == -signal.SIGKILL
            assert len(faults) == 1

    asyncio.run(run())


def test_an_exit_fails_every_question_as_a_cause():
    async def run() -> None:
        async with scripted(silent="warmup") as (rank, faults):
            await rank.ask(COMMANDS["prepare"], 100)
            asked = [asyncio.create_task(rank.ask(warmup(1), 100)) for _ in range(3)]
            await asyncio.sleep(0)
            os.kill(rank._process.pid, signal.SIGKILL)
            for error in await asyncio.gather(*asked, return_exceptions=True):
                assert "rank 1 ended: killed by SIGKILL" in str(error)
                assert error.fault.kind == pb.FAULT_KIND_CAUSE
                assert error.fault.epoch == 3
            assert len(faults) == 1

    asyncio.run(run())


def test_the_end_of_a_rank_by_its_controller_is_no_fault_and_answers_every_question():
    async def run() -> None:
        async with scripted(silent="form") as (rank, faults):
            asked = [asyncio.create_task(rank.ask(COMMANDS["form"], 1000)) for _ in range(3)]
            await asyncio.sleep(0)
            await rank.end()
            async with asyncio.timeout(60):
                for error in await asyncio.gather(*asked, return_exceptions=True):
                    assert error.fault.kind == pb.FAULT_KIND_CONSEQUENCE
                    assert "was ended by its controller" in str(error)
            assert faults == []
            assert not rank._waiting

    asyncio.run(run())


def test_a_rank_that_hangs_is_killed_also_if_the_call_that_ends_it_is_cancelled():
    async def run() -> None:
        async with scripted() as (rank, _):
            await rank.ask(COMMANDS["prepare"], 100)
            os.kill(rank._process.pid, signal.SIGSTOP)
            ending = asyncio.create_task(rank.end())
            await asyncio.sleep(0.1)
            ending.cancel()
            assert await exit_code(rank._process, 60) == -signal.SIGKILL

    asyncio.run(run())


def test_a_rank_that_has_not_replied_is_killed_at_once(monkeypatch):
    """It imports torch, and does not read its socket yet."""
    monkeypatch.setattr(rank_process, "EXIT_SECONDS", 1000.0)
    command = (sys.executable, "-c", "import time; time.sleep(120)")  # ends by itself, after the test

    async def run() -> None:
        rank = await spawned({}, command, lambda _: None, lambda _: None, nothing_asked)
        async with asyncio.timeout(60):
            await rank.end()
        assert rank._process.returncode == -signal.SIGKILL

    asyncio.run(run())


@pytest.mark.parametrize(("environment", "seen"), [({}, "4"), ({"OPENBLAS_THREAD_TIMEOUT": "9"}, "9")])
def test_numpys_threads_do_not_spin_unless_the_environment_says_so(environment, seen):
    async def run() -> None:
        command = (sys.executable, "-c", "import os, sys; sys.exit(os.environ['OPENBLAS_THREAD_TIMEOUT'])")
        faults: list[pb.Fault] = []
        rank = await spawned(environment, command, lambda _: None, faults.append, nothing_asked)
        with pytest.raises(FaultError, match=f"{seen}$"):
            await rank.ask(COMMANDS["prepare"], 100)
        await rank.end()

    asyncio.run(run())


@pytest.mark.parametrize("damage", [b"\xff\xff\xff\xff", b"\x03\x00\x00\x00\xff\xff\xff"], ids=["length", "body"])
def test_bytes_that_are_no_frame_are_a_fault(damage):
    async def run() -> None:
        sends = f"import socket, sys, time; socket.socket(fileno=int(sys.argv[2])).sendall({damage})"
        command = (sys.executable, "-c", f"{sends}; time.sleep(600)")
        faults: list[pb.Fault] = []
        rank = await spawned({}, command, lambda _: None, faults.append, nothing_asked)
        with pytest.raises(FaultError, match=r"rank 0 sent a (frame of|reply of)"):
            await rank.ask(COMMANDS["prepare"], 100)
        assert [fault.kind for fault in faults] == [pb.FAULT_KIND_CAUSE]
        await rank.end()

    asyncio.run(run())


def test_a_long_line_on_standard_error_blocks_no_rank():
    """Longer than the reader's buffer and the pipe together."""

    async def run() -> None:
        async with scripted(writes=1 << 20) as (rank, faults):
            assert (await rank.ask(warmup(7), 100)).warmed_up.num_blocks == 7
            assert faults == []

    asyncio.run(run())


def test_a_rank_that_cannot_be_started_leaves_no_socket():
    async def run() -> None:
        before = sorted(os.listdir("/proc/self/fd"))
        with pytest.raises(FileNotFoundError) as error:
            await spawned({}, ("/nowhere/python",), lambda _: None, lambda _: None, nothing_asked)
        assert sorted(os.listdir("/proc/self/fd")) == before, "closed, not left to the garbage collector"
        assert error.value.filename == "/nowhere/python"

    asyncio.run(run())


def test_a_rank_that_closes_its_socket_and_lives_on_is_killed(monkeypatch):
    monkeypatch.setattr(rank_process, "EXIT_SECONDS", 0.2)

    async def run() -> None:
        command = (sys.executable, "-c", "import os, sys, time; os.close(int(sys.argv[2])); time.sleep(600)")
        faults: list[pb.Fault] = []
        rank = await spawned({}, command, lambda _: None, faults.append, nothing_asked)
        with pytest.raises(FaultError, match="rank 0 ended: killed by SIGKILL"):
            await rank.ask(COMMANDS["prepare"], 100)
        assert [fault.kind for fault in faults] == [pb.FAULT_KIND_CAUSE]
        await rank.end()

    asyncio.run(run())


def test_a_process_that_a_rank_leaves_behind_delays_no_report_of_its_end(tmp_path, monkeypatch):
    """It has the rank's standard error. The rank ends when its controller has noticed the end of the socket."""
    noticed = tmp_path / "noticed"

    async def noticing(process: subprocess.Popen[bytes], seconds: float) -> int | None:
        noticed.touch()
        return await exit_code(process, seconds)

    monkeypatch.setattr(rank_process, "exit_code", noticing)
    monkeypatch.setattr(rank_process, "EXIT_SECONDS", 1000.0)
    program = """
import os, subprocess, sys, time
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
open(sys.argv[1], "w").write(str(left.pid))
os.close(int(sys.argv[4]))
for _ in range(6000):
    if os.path.exists(sys.argv[2]):
        break
    time.sleep(0.01)
os._exit(3)
"""
    left = tmp_path / "left"

    async def run() -> None:
        command = (sys.executable, "-c", program, str(left), str(noticed))
        rank = await spawned({}, command, lambda _: None, lambda _: None, nothing_asked)
        try:
            with pytest.raises(FaultError, match="rank 0 ended: exit code 3"):
                async with asyncio.timeout(60):
                    await rank.ask(COMMANDS["prepare"], 1000)
        finally:
            os.kill(int(left.read_text()), signal.SIGKILL)
            await rank.end()

    asyncio.run(run())


ITERATION = pb.RankCommand(iteration=pb.Iteration(epoch=3, sequence=1).SerializeToString())


def test_a_rank_that_has_lost_a_neighbour_runs_on():
    """The consequence is reported; the rank is prepared for the next epoch, and its end is a cause again."""

    async def run() -> None:
        async with scripted(complains=1, stays=True) as (rank, faults):
            await rank.ask(COMMANDS["load"], 100)
            await rank.ask(COMMANDS["prepare"], 100)
            rank.send(ITERATION)
            await rank.ask(warmup(1), 100)
            assert not rank.failed
            assert rank.loaded
            (fault,) = faults
            assert (fault.kind, fault.epoch, fault.tensor_rank) == (pb.FAULT_KIND_CONSEQUENCE, 3, 1)
            await rank.ask(pb.RankCommand(prepare=pb.PrepareRequest(epoch=4)), 100)
            os.kill(rank._process.pid, signal.SIGKILL)
            with pytest.raises(FaultError, match="killed by SIGKILL"):
                await rank.ask(warmup(1), 100)
            assert [fault.kind for fault in faults] == [pb.FAULT_KIND_CONSEQUENCE, pb.FAULT_KIND_CAUSE]

    asyncio.run(run())


def test_the_exit_of_a_rank_that_has_lost_a_neighbour_is_the_same_consequence():
    async def run() -> None:
        async with scripted(complains=1) as (rank, faults):
            await rank.ask(COMMANDS["load"], 100)
            await rank.ask(COMMANDS["prepare"], 100)
            rank.send(ITERATION)
            with pytest.raises(FaultError) as error:
                await rank.ask(warmup(1), 100)
            assert faults == [error.value.fault]
            assert error.value.fault.kind == pb.FAULT_KIND_CONSEQUENCE
            assert rank.failed
            assert rank.loaded is None

    asyncio.run(run())
