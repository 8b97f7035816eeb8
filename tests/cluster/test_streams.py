"""Streams through the Service while worker pods are deleted, evicted and killed: none fails, none differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.edits import evict
from support.kubernetes import Namespace, demo_spec, eventually
from support.pod_streams import streams_go_on

RECOVERY_SECONDS = 120
"""From the end of a worker to the next epoch in the status: kubelet 1.20 reports the end of a pod late."""


def test_streams_survive_the_end_of_every_worker(namespace: Namespace):
    """One pipeline of two workers, so that the streams wait for the new worker each time."""
    model = {"uri": "file:///models/demo", "dtype": "float32"}
    namespace.deploy(demo_spec(model=model, parallelism={"pipelineParallelSize": 2}))
    namespace.wait_ready()
    with streams_go_on(namespace) as numbers:
        first, second = namespace.workers()
        recover_from(namespace, lambda: namespace.kubectl("delete", "pod", second, "--wait=false"))
        recover_from(namespace, lambda: evict(namespace, first))
        for pod in (first, second):
            delete = ("delete", "pod", pod, "--force", "--grace-period=0")
            recover_from(namespace, lambda delete=delete: namespace.kubectl(*delete))
        kill = "kill -9 $(cat /proc/1/task/1/children)"
        recover_from(namespace, lambda: namespace.kubectl("exec", first, "--", "sh", "-c", kill, check=False))
    assert min(numbers) > 1
    losses = [line for line in namespace.kubectl("logs", namespace.master()).splitlines() if " is lost: " in line]
    assert [pod for line, pod in zip(losses, (second, first), strict=False) if f"worker {pod}." in line] == [
        second,
        first,
    ]
    assert ["it got a signal to end" in line for line in losses] == [True, True, False, False, False]
    print(f"{sum(numbers)} streams over {pipeline(namespace)['epoch']} epochs", *losses, sep="\n")


def recover_from(namespace: Namespace, end: Callable[[], object]) -> None:
    """End a worker while streams run, and wait until the pipeline serves again."""
    epoch = pipeline(namespace)["epoch"]
    assert eventually(lambda: namespace.unfinished("demo") > 0, 30, interval=0.1)
    end()

    def serves_again() -> bool:
        present = pipeline(namespace)
        return present["phase"] == "Serving" and present["epoch"] > epoch

    assert eventually(serves_again, RECOVERY_SECONDS), pipeline(namespace)


def pipeline(namespace: Namespace) -> dict[str, Any]:
    """Return the status of the only pipeline."""
    (status,) = namespace.get("orca", "demo")["status"]["pipelines"]
    return dict(status)
