"""`orca operator`: mistakes on the command line are one line and exit code 2; it waits for its CRD."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from datetime import timedelta

import pytest
from kubernetes import client
from orca_operator import cli, names
from orca_operator.cli import main
from orca_operator.manifests.context import Images
from support.kubernetes_api import KubernetesApi
from support.served import eventually


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--certificate-propagation", "0"], "'0' is not a whole number from 1 to 86400"),
        (["--certificate-propagation", "86401"], "'86401' is not a whole number from 1 to 86400"),
        (["--certificate-propagation", "9" * 5000], "is not a whole number from 1 to 86400"),
        (["--certificate-propagation", "a minute"], "'a minute' is not a whole number"),
        (["--liveness-port", "65536"], "'65536' is not a port"),
        (["--metrics-port", "x"], "'x' is not a port"),
        (["--metrics-port", "8080", "--liveness-port", "8080"], "--metrics-port and --liveness-port must differ"),
        (["--all-namespaces", "--namespace", "a"], "--all-namespaces and --namespace exclude each other"),
    ],
)
def test_mistakes_on_the_command_line(options, words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(options)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("orca operator: error: ")
    assert words in line


def test_a_port_in_use_ends_the_operator_with_one_line(monkeypatch, capsys):
    monkeypatch.setattr(cli, "connect", lambda _on_write: None)
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["--metrics-port", str(port)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("orca operator: error: ")
    assert str(port) in line


def test_without_an_api_server_that_answers_there_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(client.Configuration, "_default", None)
    with KubernetesApi(("Pod",)).serve(tmp_path) as kubeconfig:
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
    assert main([]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("orca operator: error: no cluster: the API server does not answer: ")


@pytest.mark.parametrize(
    ("address", "url"),
    [
        (None, "http://0.0.0.0:8080/healthz"),
        ("10.0.0.7", "http://10.0.0.7:8080/healthz"),
        ("fd00::7", "http://[fd00::7]:8080/healthz"),
    ],
)
def test_the_probe_listens_at_the_address_of_the_pod(address, url, monkeypatch):
    used = []

    async def run(_namespaces, _images, liveness, _metrics_port, _propagation):
        used.append(liveness)

    monkeypatch.setattr(cli, "run", run)
    monkeypatch.delenv("POD_IP", raising=False)
    if address is not None:
        monkeypatch.setenv("POD_IP", address)
    assert main(["--liveness-port", "8080"]) == 0
    assert used == [url]


@pytest.fixture
def api(tmp_path, monkeypatch):
    """Serve without the CRD."""
    monkeypatch.setattr(client.Configuration, "_default", None)
    monkeypatch.setattr(cli, "KIND_SECONDS", 0.05)
    server = KubernetesApi(("Pod", names.KIND))
    del server.versions[names.KIND]
    with server.serve(tmp_path) as kubeconfig:
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
        yield server


def lists(api: KubernetesApi, plural: str) -> int:
    return sum(path.split("/")[-1] == plural and not query.get("watch") for _, path, query in api.requests)


@pytest.mark.parametrize("install", [True, False])
def test_the_operator_waits_for_its_crd(api, caplog, install):
    """kopf, which learns the kinds of the cluster only at its start, and answers the probes, starts after the CRD."""
    watched: list[int] = []

    def drive() -> None:
        try:
            assert eventually(lambda: lists(api, "apis") >= 10)
            watched.append(lists(api, "pods"))
            if install:
                api.versions[names.KIND] = names.API_VERSION
                assert eventually(lambda: lists(api, names.PLURAL) > 0)
            watched.append(lists(api, names.PLURAL))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    driver = threading.Thread(target=drive)
    driver.start()
    with caplog.at_level(logging.WARNING, "orca_operator"):
        asyncio.run(cli.run(["default"], Images("m", "w"), None, None, timedelta(seconds=1)))
    driver.join()
    assert watched == [0, int(install)], "kopf has not started before"
    (line,) = [record.getMessage() for record in caplog.records if record.name == "orca_operator.cli"]
    assert line == "the API server does not serve OrcaDeployment: waiting for the CRD (kubectl apply -f crds/)"


@pytest.mark.parametrize("answers", [[True], [False, True, True], [False, True, False, True, True]])
def test_after_a_wait_the_kind_must_be_served_twice_in_a_row(answers, monkeypatch):
    """Of several API servers behind one address each learns of a new CRD in its own time."""
    monkeypatch.setattr(cli, "KIND_SECONDS", 0.0)

    class Servers:
        def serves(self, _kind: str) -> bool:
            return left.pop(0)

    left = [*answers, True]
    assert asyncio.run(cli.wait_for_kind(Servers(), asyncio.Event()))  # type: ignore[arg-type]
    assert left == [True]


def test_an_api_server_that_fails_meanwhile_ends_nothing(api, caplog):
    async def run() -> None:
        cluster, stop = await asyncio.to_thread(cli.connect, lambda _verb, _kind: None), asyncio.Event()
        api.answers["/version"] = (503, {"kind": "Status", "message": "no storage"})
        task = asyncio.create_task(cli.wait_for_kind(cluster, stop))
        async with asyncio.timeout(60):
            while not caplog.records:
                await asyncio.sleep(0.02)
            del api.answers["/version"]
            api.versions[names.KIND] = names.API_VERSION
            assert await task

    asyncio.run(run())
    (line,) = [record.getMessage() for record in caplog.records if record.name == "orca_operator.cli"]
    assert line.startswith("waiting for OrcaDeployment: ")
