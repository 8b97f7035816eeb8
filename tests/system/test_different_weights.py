"""Workers whose folders have different weights do not serve together: their tokens would be wrong, without an error."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from orca_contract.state import PipelinePhase
from support.engines import WORKER_COMMAND, engine_over, topology, worker_processes
from support.hub import REPOSITORY, Hub
from support.sharded import write_sharded

pytestmark = pytest.mark.long

SECONDS = 300


@pytest.fixture
def revisions(checkpoint, tmp_path):
    """Return the folders of two revisions of a model."""
    source = checkpoint("llama-gqa-tied")
    return [write_sharded(source, tmp_path / f"revision-{number}", 1.0 + number / 8) for number in range(2)]


@pytest.fixture
def hub():
    made = Hub()
    yield made
    made.server.shutdown()
    made.server.server_close()


def push(hub: Hub, folder: Path) -> None:
    """Move the branch of the repository to the files of `folder`."""
    hub.files = {path.name: path.read_bytes() for path in folder.iterdir()}


def start_pod(hub: Hub, folder: Path, partition: int) -> None:
    """Do what the init container of a worker does."""
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "home"), "HF_HUB_DISABLE_XET": "1"}
    command = ["fetch", f"hf://{REPOSITORY}", "--into", str(folder / "model"), "--partition", f"{partition}/2"]
    subprocess.run([sys.executable, "-m", "orca_master.cli", *command], env=environment, check=True, timeout=SECONDS)


def outcome(pods: list[Path]) -> tuple[str, str]:
    """Return reason and message of the first failure of a pipeline over workers in these folders, "" if it serves."""

    async def run(addresses: list[str]) -> tuple[str, str]:
        async with engine_over(topology(Path("model"), addresses), start=False) as harness, asyncio.timeout(SECONDS):
            started = asyncio.create_task(harness.engine.start())
            while True:
                await asyncio.sleep(0.05)
                (report,) = harness.engine.snapshot.pipelines
                if report.last_failure is not None:
                    started.cancel()
                    return str(report.last_failure.reason), report.last_failure.message
                if report.phase is PipelinePhase.SERVING:
                    await started
                    return "", ""

    commands = {index: ("sh", "-c", f'cd {pod} && exec "$@"', "sh", *WORKER_COMMAND) for index, pod in enumerate(pods)}
    with worker_processes(len(pods), commands) as (addresses, _):
        return asyncio.run(run(addresses))


def two_pods(tmp_path: Path) -> list[Path]:
    pods = [tmp_path / f"pod-{index}" for index in range(2)]
    for pod in pods:
        pod.mkdir()
    return pods


def test_the_branch_moves_between_the_starts_of_two_partitions(hub, revisions, tmp_path):
    pods = two_pods(tmp_path)
    for index, pod in enumerate(pods):
        push(hub, revisions[index])
        start_pod(hub, pod, index)
    reason, message = outcome(pods)
    assert reason == "DifferentWeights"
    assert all(part in message for part in ("partition 0 (", "partition 1 (", "spec.model.revision")), message
    start_pod(hub, pods[0], 0)  # a new pod fetches the present revision
    assert outcome(pods) == ("", "")


def test_the_branch_moves_while_two_partitions_share_a_volume(hub, revisions, tmp_path):
    """The second pod fetches its own weights, and leaves those of the first one as they are."""
    pods = two_pods(tmp_path)
    (pods[1] / "model").symlink_to(pods[0] / "model")
    for index, pod in enumerate(pods):
        push(hub, revisions[index])
        start_pod(hub, pod, index)
    reason, message = outcome(pods)
    assert reason == "DifferentWeights"
    assert "model-0.safetensors is not of the revision" in message
    start_pod(hub, pods[0], 0)
    assert outcome(pods) == ("", "")


def test_images_with_different_weights(revisions, tmp_path):
    """As a tag of an image that has moved, and that one of the nodes has pulled before."""
    pods = two_pods(tmp_path)
    for pod, revision in zip(pods, revisions, strict=True):
        shutil.copytree(revision, pod / "model")
    reason, message = outcome(pods)
    assert reason == "DifferentWeights"
    assert all(part in message for part in ("partition 0 (", "partition 1 (", "safetensors")), message
    shutil.rmtree(pods[1] / "model")
    shutil.copytree(revisions[0], pods[1] / "model")
    (pods[1] / "model" / "model-0.safetensors").unlink()  # only the other partition needs it
    assert outcome(pods) == ("", "")
