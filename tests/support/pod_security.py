"""Check of pod specs against the pod security level "restricted": one entry per control of the standard.

Source: Kubernetes documentation, "Pod Security Standards", profiles Baseline and Restricted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Pod = dict[str, Any]
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
SYSCTLS = {
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem",
}  # fmt: skip
SELINUX = {None, "", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def containers(pod: Pod) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", []), *pod.get("ephemeralContainers", []), *pod["containers"]]


def contexts(pod: Pod) -> Iterator[dict[str, Any]]:
    for container in containers(pod):
        yield container.get("securityContext") or {}


def of_pod(pod: Pod) -> dict[str, Any]:
    return pod.get("securityContext") or {}


def hosts(pod: Pod) -> Iterator[str | None]:
    """Yield the hosts of probes and lifecycle hooks."""
    for container in containers(pod):
        hooks = [container.get(probe) or {} for probe in PROBES] + list((container.get("lifecycle") or {}).values())
        for hook in hooks:
            for kind in ("httpGet", "tcpSocket"):
                yield (hook.get(kind) or {}).get("host")


def either(pod: Pod, holds: Callable[[dict[str, Any]], bool | None]) -> bool:
    """Return True if each container's setting holds; the pod's setting is the default of containers without one."""
    answers = [holds(context) for context in contexts(pod)]
    return all(answer is True or (answer is None and holds(of_pod(pod)) is True) for answer in answers)


def non_root(context: dict[str, Any]) -> bool | None:
    return context.get("runAsNonRoot")


def seccomp(context: dict[str, Any]) -> bool | None:
    profile = context.get("seccompProfile")
    return None if profile is None else profile.get("type") in ("RuntimeDefault", "Localhost")


CONTROLS: dict[str, Callable[[Pod], bool]] = {
    "HostProcess": lambda pod: (
        not any((context.get("windowsOptions") or {}).get("hostProcess") for context in (of_pod(pod), *contexts(pod)))
    ),
    "Host namespaces": lambda pod: not any(pod.get(name) for name in ("hostNetwork", "hostPID", "hostIPC")),
    "Privileged containers": lambda pod: not any(context.get("privileged") for context in contexts(pod)),
    "Capabilities": lambda pod: all(
        "ALL" in (context.get("capabilities") or {}).get("drop", [])
        and set((context.get("capabilities") or {}).get("add", [])) <= {"NET_BIND_SERVICE"}
        for context in contexts(pod)
    ),
    "HostPath volumes": lambda pod: not any("hostPath" in volume for volume in pod.get("volumes", [])),
    "Host ports": lambda pod: (
        not any(port.get("hostPort") for container in containers(pod) for port in container.get("ports", []))
    ),
    "Host probes and lifecycle hooks": lambda pod: not any(hosts(pod)),
    "AppArmor": lambda pod: all(
        (context.get("appArmorProfile") or {}).get("type", "RuntimeDefault") in ("RuntimeDefault", "Localhost")
        for context in (of_pod(pod), *contexts(pod))
    ),
    "SELinux": lambda pod: all(
        (context.get("seLinuxOptions") or {}).get("type") in SELINUX
        and not (context.get("seLinuxOptions") or {}).get("user")
        and not (context.get("seLinuxOptions") or {}).get("role")
        for context in (of_pod(pod), *contexts(pod))
    ),
    "/proc mount type": lambda pod: all(context.get("procMount", "Default") == "Default" for context in contexts(pod)),
    "Sysctls": lambda pod: {sysctl["name"] for sysctl in of_pod(pod).get("sysctls", [])} <= SYSCTLS,
    "Volume types": lambda pod: all(set(volume) - {"name"} <= VOLUMES for volume in pod.get("volumes", [])),
    "Privilege escalation": lambda pod: all(
        context.get("allowPrivilegeEscalation") is False for context in contexts(pod)
    ),
    "Running as non-root": lambda pod: either(pod, non_root),
    "Running as non-root user": lambda pod: all(
        context.get("runAsUser") != 0 for context in (of_pod(pod), *contexts(pod))
    ),
    "Seccomp": lambda pod: either(pod, seccomp),
}


def violations(pod: Pod) -> list[str]:
    """Return the names of the controls that a pod spec violates."""
    return [name for name, holds in CONTROLS.items() if not holds(pod)]
