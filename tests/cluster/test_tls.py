"""Mutual TLS between pods: what strangers get, what is read on the wire, and a rotation under load."""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from orca_operator.certificates import AUTHORITIES, CERTIFICATE, KEY
from orca_operator.names import ADMIN_PORT, ROTATE_ANNOTATION, WORKER_PORT
from orca_operator.rotation import NEXT_CERTIFICATE, PREVIOUS
from support.kubernetes import MASTER_IMAGE, Namespace, demo_spec, eventually, helm
from support.pod_streams import TWENTY, streams_go_on

CHART = str(Path(__file__).parents[2] / "charts" / "orca")
BODY = {"prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0}
PROPAGATION_SECONDS = 30
TWO_PARTITIONS = {"pipelineParallelSize": 2}

STRANGER = r"""
import json, os, socket, ssl, sys
import grpc
from orca_protos import engine_pb2, engine_pb2_grpc

given = json.load(sys.stdin)
GET = b"GET /state HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer guess\r\nConnection: close\r\n\r\n"

def describe(credentials):
    options = [("grpc.ssl_target_name_override", given["worker_name"])]
    channel = (grpc.secure_channel(given["worker"], credentials, options) if credentials
               else grpc.insecure_channel(given["worker"]))
    with channel:
        try:
            engine_pb2_grpc.WorkerStub(channel).Describe(engine_pb2.DescribeRequest(), timeout=10)
        except grpc.RpcError as error:
            return error.code().name
    return "answered"

def state(context):
    host, port = given["admin"].split(":")
    try:
        with socket.create_connection((host, int(port)), 10) as plain:
            with (context.wrap_socket(plain) if context else plain) as connection:
                connection.sendall(GET)
                return connection.recv(4096).decode("latin-1").split("\r\n")[0]
    except OSError as error:
        return type(error).__name__

def context(chain=None):
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    if chain:
        with open(os.memfd_create("chain"), "w") as file:
            file.write(chain)
            file.flush()
            made.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return made

trusted = given["own"]["ca.crt"].encode()
found = {"plaintext": [describe(None), state(None)],
         "no certificate": [describe(grpc.ssl_channel_credentials(trusted)), state(context())]}
for name in ("foreign", "own"):
    pair = given[name]
    credentials = grpc.ssl_channel_credentials(trusted, pair["tls.key"].encode(), pair["tls.crt"].encode())
    found[name] = [describe(credentials), state(context(pair["tls.crt"] + pair["tls.key"]))]
print(json.dumps(found))
"""
"""Runs in a pod of the cluster: what a worker and a master's admin port answer to four kinds of callers."""

SNIFFER = """
import collections, json, select, socket, sys
needles = [needle.encode() for needle in json.loads(sys.argv[1])]
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
wire.setsockopt(socket.SOL_SOCKET, 33, 1 << 27)  # SO_RCVBUFFORCE: tensors go by as well
read, found = collections.Counter(), collections.defaultdict(set)
print("ready", flush=True)
while sys.stdin not in select.select([wire, sys.stdin], [], [])[0]:
    frame = wire.recv(1 << 17)
    if frame[12:14] != bytes((8, 0)) or frame[23] != 6:  # IPv4, TCP
        continue
    tcp, end = 14 + 4 * (frame[14] & 15), 14 + int.from_bytes(frame[16:18], "big")
    payload = frame[tcp + 4 * (frame[tcp + 12] >> 4):end]
    for address, port in ((frame[26:30], frame[tcp:tcp + 2]), (frame[30:34], frame[tcp + 2:tcp + 4])):
        place = socket.inet_ntoa(address) + ":" + str(int.from_bytes(port, "big"))
        read[place] += len(payload)
        found[place] |= {needle.decode() for needle in needles if needle in payload}
print(json.dumps({place: [size, sorted(found[place])] for place, size in read.items()}))
"""
"""Runs in the node's network: bytes of TCP by endpoint, and the texts that were read in them, until its input ends."""

SERVED = """
import json, ssl, sys
print(json.dumps([ssl.get_server_certificate(tuple(place), timeout=10) for place in json.load(sys.stdin)]))
"""
"""Runs in a pod of the cluster: the certificates that servers show."""


class Background:
    """A program in a pod that says "ready" and prints its result when its input ends."""

    def __init__(self, namespace: Namespace, pod: str, *command: str) -> None:
        exec_in = ["kubectl", "-n", namespace.name, "exec", "-i", pod, "--", "python3", "-c", *command]
        self.process = subprocess.Popen(exec_in, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def wait_ready(self) -> None:
        """Wait for the line with which the program begins; fail if the program ends instead."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def result(self) -> Any:
        """End the program and return what it found."""
        printed, _ = self.process.communicate(timeout=150)
        assert self.process.returncode == 0
        return json.loads(printed)


@contextlib.contextmanager
def background(namespace: Namespace, pod: str, *command: str) -> Iterator[Background]:
    running = Background(namespace, pod, *command)
    try:
        running.wait_ready()
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def content(namespace: Namespace, secret: str) -> dict[str, str]:
    data = namespace.get("secret", secret)["data"]
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


def addresses(namespace: Namespace, name: str) -> dict[str, list[str]]:
    """host:port of the workers' gRPC servers, and of the master's admin port."""
    found: dict[str, list[str]] = {"master": [], "worker": []}
    for pod in namespace.pods(name):
        role = pod["metadata"]["labels"]["orca-serving.io/component"]
        port = ADMIN_PORT if role == "master" else WORKER_PORT
        found[role].append(f"{pod['status']['podIP']}:{port}")
    return found


def test_strangers_are_refused_and_read_nothing(namespace: Namespace):
    """A deployment with defaults beside one in plaintext, whose packets show that the capture sees what there is."""
    sniffer = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "sniffer"},
        "spec": {"hostNetwork": True, "terminationGracePeriodSeconds": 0, "containers": [
            {"name": "sniffer", "image": MASTER_IMAGE, "command": ["sleep", "3600"],
             "securityContext": {"runAsUser": 0, "capabilities": {"add": ["NET_RAW", "NET_ADMIN"]}}}]},
    }  # fmt: skip
    namespace.apply(sniffer)
    namespace.kubectl("wait", "--for=condition=Ready", "pod/sniffer", "--timeout=60s")
    needles = ["/models/demo", "orca.v1.Worker", "Bearer "]
    with background(namespace, "sniffer", SNIFFER, json.dumps(needles)) as capture:
        namespace.deploy(demo_spec(parallelism=TWO_PARTITIONS))
        namespace.deploy(demo_spec(parallelism=TWO_PARTITIONS, tls={"mode": "off"}), "plain")
        for name in ("demo", "plain"):
            namespace.wait_ready(name, 150)
            assert namespace.ask(name, [BODY])[0]["usage"]["completion_tokens"] == 4
        read = capture.result()
    assert namespace.condition("TLSReady")["reason"] == "MutualTLS"
    assert namespace.condition("TLSReady", "plain")["reason"] == "Off"
    demo, plain = addresses(namespace, "demo"), addresses(namespace, "plain")
    texts = {text for place in plain["worker"] + plain["master"] for text in read[place][1]}
    assert texts == set(needles), "the capture sees plaintext"
    for place in demo["worker"] + demo["master"]:
        size, texts = read[place]
        print(f"{place}: {size} bytes captured")
        assert size > 2000
        assert texts == [], place

    namespace.deploy(demo_spec(suspend=True), "other")  # it has certificates, too, and no pods
    namespace.wait_reason("Suspended", 30, "other")
    given = {
        "worker": demo["worker"][0], "admin": demo["master"][0],
        "worker_name": f"worker.demo.{namespace.name}.orca-serving.io",
        "own": content(namespace, "demo-tls-master"), "foreign": content(namespace, "other-tls-master"),
    }  # fmt: skip
    printed = namespace.kubectl("exec", "-i", "client", "--", "python3", "-c", STRANGER, stdin=json.dumps(given))
    found = json.loads(printed)
    assert found.pop("own") == ["answered", "HTTP/1.1 401 Unauthorized"], "with the certificate the token still counts"
    for caller, (worker, admin) in found.items():
        assert worker == "UNAVAILABLE", caller
        assert not admin.startswith("HTTP/"), (caller, admin)
    assert set(found) == {"plaintext", "no certificate", "foreign"}


@pytest.mark.long
def test_certificates_are_replaced_under_load_without_a_restart(namespace: Namespace, operator: str):
    """A new authority and new certificates under twenty streams: none fails and no pod restarts.

    The kubelet looks at a pod's Secrets about once a minute, and at once when the pod is annotated; the operator is
    told of a propagation delay that suits that.
    """
    helm("upgrade", "orca", CHART, "--namespace", operator, "--reuse-values", "--wait", "--timeout", "120s",
         "--set", f"certificatePropagationSeconds={PROPAGATION_SECONDS}")  # fmt: skip
    namespace.deploy(demo_spec(model={"uri": "file:///models/demo", "dtype": "float32"}, parallelism=TWO_PARTITIONS))
    namespace.wait_ready(seconds=150)
    namespace.ask("demo", [BODY])  # the client is there
    secrets = ("demo-tls-master", "demo-tls-worker")
    before = {name: content(namespace, name) for name in secrets}
    pods = {pod["metadata"]["uid"] for pod in namespace.pods()}
    assert served(namespace) == {before[name][CERTIFICATE] for name in secrets}
    touched = 0

    def replaced() -> bool:
        nonlocal touched
        touched += 1
        selector = ("-l", "orca-serving.io/deployment=demo")
        namespace.kubectl("annotate", "--overwrite", "pods", *selector, f"example.com/touched={touched}")
        authority = content(namespace, "demo-tls-ca")
        return authority[CERTIFICATE] != before[secrets[0]][AUTHORITIES] and not {NEXT_CERTIFICATE, PREVIOUS} & set(
            authority
        )

    with streams_go_on(namespace, TWENTY) as numbers:
        namespace.kubectl("annotate", "orca", "demo", f"{ROTATE_ANNOTATION}=now")
        assert eventually(replaced, 300, interval=2)
        after = {name: content(namespace, name) for name in secrets}
        for name in secrets:
            assert after[name][CERTIFICATE] != before[name][CERTIFICATE]
            assert after[name][KEY] != before[name][KEY]
            assert before[name][AUTHORITIES] not in after[name][AUTHORITIES]
        assert eventually(lambda: served(namespace) == {after[name][CERTIFICATE] for name in secrets}, 150, 2)
    assert min(numbers) >= 1
    assert {pod["metadata"]["uid"] for pod in namespace.pods()} == pods
    restarts = [status["restartCount"] for pod in namespace.pods() for status in pod["status"]["containerStatuses"]]
    assert restarts == [0, 0, 0]
    assert namespace.condition()["status"] == "True"
    # A worker that is replaced is dialled anew, with certificates of the new authority only.
    worker = next(pod["metadata"]["name"] for pod in namespace.pods() if "master" not in pod["metadata"]["name"])
    namespace.kubectl("delete", "pod", worker)

    def serves_again() -> bool:
        """With its only pipeline lost, the master is not in its Service until the pipeline is formed anew."""
        with contextlib.suppress(AssertionError):
            ready = namespace.ask("demo", [BODY])[0]["usage"]["completion_tokens"] == 4
            return ready and {pod["metadata"]["uid"] for pod in namespace.pods()} != pods
        return False

    assert eventually(serves_again, 240, 2)  # the lost worker first ends, within its own bound


def served(namespace: Namespace) -> set[str]:
    """Return the certificates that the pods of the deployment show."""
    places = [place.split(":") for places in addresses(namespace, "demo").values() for place in places]
    printed = namespace.kubectl("exec", "-i", "client", "--", "python3", "-c", SERVED, stdin=json.dumps(places))
    return set(json.loads(printed))
