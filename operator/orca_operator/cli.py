"""`orca operator`: watches OrcaDeployments until SIGINT or SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from datetime import timedelta

import kopf
from orca_protos.command_line import OneLineParser, port

from orca_operator.cluster import Cluster, ClusterError, connect
from orca_operator.handlers import make_registry
from orca_operator.manifests.context import Images
from orca_operator.master_client import MasterClient
from orca_operator.metrics import Metrics
from orca_operator.metrics_port import serving_metrics
from orca_operator.names import KIND
from orca_operator.reconcile import PROPAGATION, Reconciler

KIND_SECONDS = 3.0
"""Interval of questions for the kind until the API server serves it."""
logger = logging.getLogger(__name__)


def _seconds(text: str) -> timedelta:
    if not (text.isdecimal() and len(text) <= 5 and 1 <= int(text) <= 86_400):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 86400")
    return timedelta(seconds=int(text))


async def run(
    namespaces: list[str], images: Images, liveness: str | None, metrics_port: int | None, propagation: timedelta
) -> None:
    """Watch `namespaces` (all if empty) until SIGINT or SIGTERM, from the time on at which the CRD is there.

    Raises ClusterError without a cluster that answers, OSError if the port of the metrics is in use.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    metrics = Metrics()
    cluster = await asyncio.to_thread(connect, metrics.count_write)
    reconciler = Reconciler(cluster, images, MasterClient(), metrics, propagation)
    async with contextlib.AsyncExitStack() as stack:
        if metrics_port is not None:
            await stack.enter_async_context(serving_metrics(metrics_port, metrics.render))
        if await wait_for_kind(cluster, stop):
            await kopf.operator(  # handles the signals from here on
                registry=make_registry(reconciler),
                namespaces=namespaces,
                clusterwide=not namespaces,
                standalone=True,
                liveness_endpoint=liveness,
            )


async def wait_for_kind(cluster: Cluster, stop: asyncio.Event) -> bool:
    """Wait until the API server serves OrcaDeployments, or until `stop`; return False then.

    After a wait it must say so twice: of several API servers behind one address, others may learn of the CRD later.
    kopf learns the kinds only at its start. Nothing answers the probes meanwhile, so that the pod is not ready.
    """
    logged, is_served, was_served = "", False, True
    while not stop.is_set():
        problem = f"the API server does not serve {KIND}: waiting for the CRD (kubectl apply -f crds/)"
        try:
            is_served = await asyncio.to_thread(cluster.serves, KIND)
        except ClusterError as error:
            is_served, problem = False, f"waiting for {KIND}: {error}"
        if is_served and was_served:
            return not stop.is_set()
        was_served = is_served
        if not is_served and problem != logged:
            logger.warning(problem)
            logged = problem
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), KIND_SECONDS)
    return False


def _liveness_host() -> str:
    """Return the address that the kubelet probes, IPv4 or IPv6; all IPv4 addresses outside of a pod."""
    address = os.environ.get("POD_IP", "0.0.0.0")
    return f"[{address}]" if ":" in address else address


def main(argv: list[str]) -> int:
    """Run `orca operator`; return exit code 0 after a signal, 1 if a port is in use, 2 without a cluster."""
    parser = OneLineParser(prog="orca operator", description="Turns OrcaDeployments into engine masters and workers.")
    parser.add_argument(
        "--namespace", action="append", default=[], help="namespace to watch, repeatable (the operator's own)"
    )
    parser.add_argument("--all-namespaces", action="store_true", help="watch all namespaces; needs a ClusterRole")
    parser.add_argument("--master-image", default="orca-master:0.1.0", help="image of masters (orca-master:0.1.0)")
    parser.add_argument("--worker-image", default="orca-worker:0.1.0", help="image of workers (orca-worker:0.1.0)")
    parser.add_argument(
        "--certificate-propagation", type=_seconds, default=PROPAGATION, metavar="SECONDS",
        help="wait between the steps of a CA rotation, until every pod has the changed Secret (300)",
    )  # fmt: skip
    parser.add_argument("--liveness-port", type=port, help="port for /healthz (none)")
    parser.add_argument("--metrics-port", type=port, help="port for /metrics (none)")
    arguments = parser.parse_args(argv)
    if arguments.all_namespaces and arguments.namespace:
        parser.error("--all-namespaces and --namespace exclude each other")
    if arguments.metrics_port is not None and arguments.metrics_port == arguments.liveness_port:
        parser.error("--metrics-port and --liveness-port must differ")
    namespaces = arguments.namespace or [os.environ.get("POD_NAMESPACE", "default")]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    for noisy in ("httpx", "httpcore", "kopf.objects", "kopf.activities", "aiohttp.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # it warns of each attempt; ClusterError has the last one
    liveness = None
    if arguments.liveness_port is not None:
        liveness = f"http://{_liveness_host()}:{arguments.liveness_port}/healthz"
    propagation = arguments.certificate_propagation
    images = Images(arguments.master_image, arguments.worker_image)
    try:
        watched = [] if arguments.all_namespaces else namespaces
        asyncio.run(run(watched, images, liveness, arguments.metrics_port, propagation))
    except (ClusterError, OSError) as error:
        print(f"orca operator: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ClusterError) else 1
    return 0
