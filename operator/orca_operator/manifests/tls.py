"""Mutual TLS between the pods: the Secret that a pod mounts, the options that go with it, Secrets and Certificates.

Secrets are mounted as directories, so that the kubelet updates their files and no pod restarts.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orca_operator import names
from orca_operator.certificates import LEAF_LIFE
from orca_operator.manifests.context import Context, Owner
from orca_operator.rotation import CA

MOUNT = "/etc/orca-tls"
ROLES = (names.MASTER, names.WORKER)
HOURS = LEAF_LIFE.days * 24
SECRETS = {"selfSigned": names.own_secret, "certManager": names.issued}


@dataclass(frozen=True, slots=True)
class PodTls:
    """What TLS adds to a pod: options of its command, volumes and mounts."""

    options: list[str]
    volumes: list[dict[str, Any]]
    mounts: list[dict[str, Any]]


def pod_tls(context: Context, role: str) -> PodTls:
    """Return the additions for the pods of a role in a new revision; plaintext needs the option `--insecure`."""
    mode = context.spec.tls.source
    if mode == "off":
        return PodTls(["--insecure"], [], [])
    secret = context.spec.tls.secret_name if mode == "secret" else SECRETS[mode](context.name, role)
    return PodTls(
        ["--tls-dir", MOUNT],
        [{"name": names.CERTIFICATE_VOLUME, "secret": {"secretName": secret}}],
        [{"name": names.CERTIFICATE_VOLUME, "mountPath": MOUNT, "readOnly": True}],
    )


def own_secret(owner: Owner, part: str, data: Mapping[str, bytes]) -> dict[str, Any]:
    """Return a Secret of `tls.mode: selfSigned`; no pod mounts the authority's."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": owner.metadata(names.own_secret(owner.name, part), names.labels(owner.name)),
        "type": "Opaque" if part == CA else "kubernetes.io/tls",
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }


def issued_certificates(context: Context) -> list[dict[str, Any]]:
    """Return the Certificates of `tls.mode: certManager`, none for other modes."""
    issuer = context.spec.tls.issuer_ref
    if context.spec.tls.source != "certManager" or issuer is None:
        return []
    return [
        {
            "apiVersion": "cert-manager.io/v1",
            "kind": "Certificate",
            "metadata": context.metadata(names.issued(context.name, role), names.labels(context.name)),
            "spec": {
                "secretName": names.issued(context.name, role),
                "duration": f"{HOURS}h",
                "renewBefore": f"{HOURS // 3}h",
                "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"},
                "usages": ["digital signature", "server auth", "client auth"],
                "dnsNames": [names.dns_name(role, context.name, context.namespace)],
                "issuerRef": {"name": issuer.name, "kind": issuer.kind, "group": issuer.group},
            },
        }
        for role in (*ROLES, names.OPERATOR)
    ]
