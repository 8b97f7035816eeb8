"""`Cluster`: the only client of the API server. Calls block; the reconciler runs them in threads."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import NotFoundError, ResourceNotFoundError
from urllib3.exceptions import HTTPError

from orca_operator.names import API_VERSION, DEPLOYMENT_LABEL, FIELD_MANAGER, KIND

CALL_SECONDS = 20
CALL_ENDED: ContextVar[Callable[[], None]] = ContextVar("CALL_ENDED", default=lambda: None)
"""Called at the end of each call, with or without an answer, on the calling thread."""
MISSING_SECONDS = 600.0
NO_FILE = f"{os.devnull}/discovery.json"
"""A path that cannot exist: the client keeps the discovered kinds in memory alone."""
API_VERSIONS = {
    "Pod": "v1",
    "Service": "v1",
    "ConfigMap": "v1",
    "Secret": "v1",
    "ServiceAccount": "v1",
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
    "ControllerRevision": "apps/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "PodDisruptionBudget": "policy/v1",
    "HorizontalPodAutoscaler": "autoscaling/v2",
    "ScaledObject": "keda.sh/v1alpha1",
    "PodMonitor": "monitoring.coreos.com/v1",
    "Certificate": "cert-manager.io/v1",
    "Event": "v1",
    "Node": "v1",
    KIND: API_VERSION,
}
"""Every kind that the operator handles."""
OF_ADD_ONS = ("ScaledObject", "PodMonitor", "Certificate")
"""Kinds whose CRD may be installed and removed while the operator runs."""


class ClusterError(Exception):
    """A failed call: `status` is the HTTP status (0 without a response), `message` the API server's message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class KindNotServedError(Exception):
    """The API server does not serve this kind."""


class _BoundedClient(client.ApiClient):
    """Sends no request without a timeout; those of the discovery have none of their own."""

    def call_api(self, *arguments: Any, **named: Any) -> Any:
        timeout = named.pop("_request_timeout", None) or CALL_SECONDS
        return super().call_api(*arguments, **named | {"_request_timeout": timeout})


def connect(on_write: Callable[[str, str], None]) -> Cluster:
    """Connect with the pod's service account, or with the user's kubeconfig; raise ClusterError."""
    try:
        try:
            config.load_incluster_config()  # type: ignore[no-untyped-call]
        except config.ConfigException:
            config.load_kube_config()  # type: ignore[no-untyped-call]
        with _mapped_errors():
            return Cluster(DynamicClient(_BoundedClient(), cache_file=NO_FILE), on_write)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError, ValueError, ClusterError) as error:
        raise ClusterError(getattr(error, "status", 0), f"no cluster: {error}") from error


class Cluster:
    """Client of the API server. Methods raise ClusterError, and KindNotServedError for a kind that is not served.

    `on_write` is called with verb and kind before each request that may change an object.
    """

    def __init__(self, dynamic: DynamicClient, on_write: Callable[[str, str], None]) -> None:
        self._dynamic = dynamic
        self._on_write = on_write
        self._lock = threading.Lock()
        self._resources: dict[str, Any] = {}
        self._discovered_at: dict[str, float] = {}

    def serves(self, kind: str) -> bool:
        """Whether the API server serves a kind now."""
        with self._lock:
            return self._discover(kind) is not None

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """Return one object, None if it does not exist; `namespace` is "" for a kind without namespaces."""
        try:
            return self._call(self._resource(kind).get, name=name, namespace=namespace)
        except ClusterError as error:
            if error.status == 404:
                return None
            raise

    def children(self, kind: str, namespace: str, deployment: str) -> list[dict[str, Any]]:
        """Return the objects of one kind that carry the deployment's label."""
        selector = f"{DEPLOYMENT_LABEL}={deployment}"
        resource = self._resource(kind)
        try:
            listing = self._call(resource.get, namespace=namespace, label_selector=selector)
        except ClusterError as error:
            self._check_served(kind, error)  # a list without objects is no 404, in a missing namespace either
            raise
        return [{**item, "kind": kind} for item in listing["items"]]

    def apply(self, manifest: dict[str, Any], dry_run: bool = False) -> dict[str, Any]:
        """Apply an object by server-side apply, as the only owner of the fields in it; `dry_run` changes nothing."""
        metadata = manifest["metadata"]
        options = {"dry_run": "All"} if dry_run else {}
        resource = self._resource(manifest["kind"])
        if not dry_run:
            self._on_write("patch", manifest["kind"])
        try:
            return self._call(
                resource.server_side_apply,
                body=self._supported(manifest),
                name=metadata["name"],
                namespace=metadata["namespace"],
                field_manager=FIELD_MANAGER,
                force_conflicts=True,
                **options,
            )
        except ClusterError as error:
            if not str(error).startswith("namespaces "):
                self._check_served(manifest["kind"], error)
            raise

    def scale(self, kind: str, namespace: str, name: str, replicas: int) -> None:
        """Set `spec.replicas` of an object."""
        self.merge(kind, namespace, name, {"spec": {"replicas": replicas}})

    def merge(self, kind: str, namespace: str, name: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Set fields of an object; return the object."""
        resource = self._resource(kind)
        self._on_write("patch", kind)
        return self._call(
            resource.patch,
            body=fields,
            name=name,
            namespace=namespace,
            content_type="application/merge-patch+json",
            field_manager=FIELD_MANAGER,
        )

    def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        """Delete an object if it still has this uid; one that is missing or replaced, or of no kind, is no error."""
        self._delete(kind, namespace, name, {"preconditions": {"uid": uid}, "propagationPolicy": "Background"})

    def force_delete(self, namespace: str, pod: str, uid: str) -> bool:
        """Remove a pod without its kubelet if it still has this uid; return False if it is missing or replaced."""
        return self._delete("Pod", namespace, pod, {"preconditions": {"uid": uid}, "gracePeriodSeconds": 0})

    def patch_status(self, namespace: str, name: str, status: dict[str, Any], version: str) -> dict[str, Any]:
        """Merge `status` into the status of an OrcaDeployment, None removes a field; return the OrcaDeployment.

        Raises ClusterError 409 if its resourceVersion is not `version`. A uid in the patch would not be compared: the
        API server takes nothing but the status from it.
        """
        resource = self._resource(KIND)
        self._on_write("patch", KIND)
        return self._call(
            resource.status.patch,
            body={"metadata": {"resourceVersion": version}, "status": status},
            name=name,
            namespace=namespace,
            content_type="application/merge-patch+json",
            field_manager=FIELD_MANAGER,
        )

    def events(self, namespace: str, uid: str) -> list[dict[str, Any]]:
        """Return the Events about the object with this uid."""
        selector = f"involvedObject.uid={uid}"
        listing = self._call(self._resource("Event").get, namespace=namespace, field_selector=selector)
        return list(listing.get("items") or [])

    def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Create an object."""
        resource = self._resource(manifest["kind"])
        self._on_write("create", manifest["kind"])
        return self._call(resource.create, body=manifest, namespace=manifest["metadata"]["namespace"])

    def _delete(self, kind: str, namespace: str, name: str, options: dict[str, Any]) -> bool:
        try:
            resource = self._resource(kind)
        except KindNotServedError:
            return False
        self._on_write("delete", kind)
        try:
            self._call(resource.delete, name=name, namespace=namespace, body=options)
        except ClusterError as error:
            if error.status not in (404, 409):
                raise
            return False
        return True

    def _supported(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Return a manifest without `unhealthyPodEvictionPolicy` for a server before 1.27, which may reject it."""
        minor = re.match(r"\d+", str(self._dynamic.version["kubernetes"].get("minor")))  # "27+" on some clouds
        if manifest["kind"] != "PodDisruptionBudget" or (minor and int(minor[0]) >= 27):
            return manifest
        spec = {field: value for field, value in manifest["spec"].items() if field != "unhealthyPodEvictionPolicy"}
        return {**manifest, "spec": spec}

    def _resource(self, kind: str) -> Any:
        """Return the resource of a kind from a cache (a missing kind for MISSING_SECONDS): discovery is slow, and not
        thread-safe."""
        with self._lock:
            if kind not in self._resources or (
                self._resources[kind] is None and time.monotonic() - self._discovered_at[kind] > MISSING_SECONDS
            ):
                self._resources[kind] = self._discover(kind)
                self._discovered_at[kind] = time.monotonic()
            resource = self._resources[kind]
        if resource is None:
            raise KindNotServedError(f"{API_VERSIONS[kind]} {kind}")
        return resource

    def _check_served(self, kind: str, error: ClusterError) -> None:
        """Raise KindNotServedError if the error says that an add-on's CRD was removed; the client's own cache does not
        learn of that."""
        if error.status == 404 and kind in OF_ADD_ONS:
            with self._lock:
                self._resources[kind], self._discovered_at[kind] = None, time.monotonic()
            raise KindNotServedError(f"{API_VERSIONS[kind]} {kind}") from error

    def _discover(self, kind: str) -> Any:
        with _mapped_errors():
            try:
                return self._dynamic.resources.get(api_version=API_VERSIONS[kind], kind=kind)
            except (ResourceNotFoundError, NotFoundError):
                return None

    def _call(self, method: Any, **arguments: Any) -> dict[str, Any]:
        with _mapped_errors():
            response: dict[str, Any] = method(**arguments).to_dict()
        return response


@contextlib.contextmanager
def _mapped_errors() -> Iterator[None]:
    """Raise ClusterError for a request without an answer, and for an answer that is an error."""
    try:
        yield
    except ApiException as error:
        raise ClusterError(error.status or 0, _message(error)) from error
    except (HTTPError, OSError) as error:
        raise ClusterError(0, f"the API server does not answer: {error}") from error
    finally:
        CALL_ENDED.get()()


def _message(error: Any) -> str:
    """Return the API server's own message."""
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return str(error.reason or error)
