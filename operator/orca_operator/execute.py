"""Executes planned actions: the only writer of children. Objects that are up to date are not written again.

An object is written if its manifest differs from the last one written, or if another client has changed it since: its
`observe.version` differs from the one after our write. What another client keeps changing is restored less and less
often (repairs.py). After a restart every object is applied once, which changes nothing if nothing differs.
"""

from __future__ import annotations

import base64
import json
import logging
import secrets
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from orca_operator import names
from orca_operator.actions import (
    Action,
    Apply,
    ApplyAutoscaler,
    Check,
    Delete,
    ForceDelete,
    Put,
    PutScheduler,
    PutTopology,
    Replace,
    Scale,
)
from orca_operator.adoption import adopt, adopt_orphans, is_own
from orca_operator.cluster import Cluster, ClusterError, KindNotServedError
from orca_operator.dropped_fields import check_kept
from orca_operator.manifests.access import admin_secret
from orca_operator.manifests.context import Context, Owner
from orca_operator.observe import Object, Observed, is_ending, name_of, owner_uid, version
from orca_operator.pod_deletions import Deleted, PodDeletions
from orca_operator.refusals import refused
from orca_operator.repairs import Repairs
from orca_operator.rivals import check_rivals
from orca_operator.validation import RejectedError

NO_DRY_RUN = "does not support dry run"
"""In the answer to a dry run before a webhook that does not declare its side effects: it sees the write only."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Outcome:
    """Result of one pass.

    `skipped`: kinds that the cluster does not serve; `autoscaler_refusal`: why the autoscaler was not written, or "";
    `failures`: why pods of lost nodes or of pipelines without progress were not deleted, which StatefulSets were not
    scaled, which optional objects were not written, and which objects another client keeps changing.
    """

    writes: int = 0
    skipped: list[str] = field(default_factory=list)
    puts: list[Put] = field(default_factory=list)
    autoscaler_refusal: str = ""
    failures: list[str] = field(default_factory=list)

    def note(self, deleted: Deleted) -> None:
        """Add the deletion of pods."""
        self.writes += deleted.count
        self.failures += deleted.failures


class Executor:
    """Writes the objects of one OrcaDeployment. Methods block."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._deletions = PodDeletions(cluster)
        self._written: dict[tuple[str, str], tuple[str, str]] = {}
        self._accepted: dict[tuple[str, str], str] = {}
        self._repairs = Repairs()
        self._scaled: set[tuple[str, str]] = set()
        """Objects that the operator itself has changed since it last applied them."""
        self._token = ""

    def adopt(self, children: tuple[Object, ...], owner: Owner) -> tuple[tuple[Object, ...], list[str]]:
        """Return the children, orphans with this owner, and a sentence for each orphan that is not adopted."""
        return adopt_orphans(self._cluster, children, owner, self._written)

    def check_rivals(self, deployment: Object, children: tuple[Object, ...]) -> None:
        """Raise InvalidSpecError if an older OrcaDeployment needs a Service of this one."""
        check_rivals(self._cluster, deployment, children)

    def run(self, actions: list[Action], owner: Owner, observed: Observed) -> Outcome:
        """Execute actions in order, except calls to a master, which are returned in `puts`.

        Raises RejectedError for a manifest that the API server rejects, ClusterError if it does not answer.
        """
        outcome = Outcome()
        for action in actions:
            match action:
                case Check(manifest):
                    self._check(manifest, owner, observed)
                case Apply(manifest, optional):
                    try:
                        self._apply(manifest, owner, observed, outcome)
                    except (RejectedError, ClusterError) as error:  # also an admission webhook that does not answer
                        if not optional:
                            raise
                        outcome.failures.append(str(error))
                case ApplyAutoscaler(manifest):
                    self._apply_autoscaler(manifest, owner, observed, outcome)
                case Scale(child, replicas):
                    self._scale(child, replicas, owner.namespace, outcome)
                case Delete(child):
                    self._delete(child, owner, outcome)
                case ForceDelete():
                    outcome.note(self._deletions.force_delete(action, owner))
                case Replace():
                    outcome.note(self._deletions.replace(action, owner))
                case PutTopology() | PutScheduler():
                    outcome.puts.append(action)
        outcome.failures += self._repairs.disputes()
        return outcome

    def admin_token(self, context: Context, fresh: bool = False) -> str:
        """Return the admin token, created at first use; `fresh` reads the Secret again, and restores its token."""
        if self._token and not fresh:
            return self._token
        name = names.admin(context.name)
        secret = self._cluster.get("Secret", context.namespace, name)
        if secret is not None and not self._claim(secret, context):
            secret = None
        if secret is not None and (token := _usable_token(secret)):
            self._token = token
            return token
        token = self._token or secrets.token_urlsafe(32)
        manifest = admin_secret(context, token)
        if secret is None:
            self._create_secret(manifest)
        else:  # somebody removed its token: neither a master nor the operator can use it
            self.write_secret(manifest)
        self._token = token
        return token

    def read_admin_token(self, namespace: str, name: str, fresh: bool = False) -> str:
        """Return the admin token of a deployment whose spec cannot be used, "" without one; `fresh` reads it again."""
        if fresh or not self._token:
            secret = self._cluster.get("Secret", namespace, names.admin(name))
            self._token = _usable_token(secret or {}) or self._token
        return self._token

    def read_secret(self, namespace: str, name: str) -> dict[str, bytes] | None:
        """Return the content of a Secret, None if it does not exist."""
        secret = self._cluster.get("Secret", namespace, name)
        return None if secret is None else _content(secret)

    def read_own_secret(self, owner: Owner, name: str) -> dict[str, bytes] | None:
        """Return the content of a Secret that the operator created, None if it does not exist.

        Raises InvalidSpecError if a Secret of this name has another owner.
        """
        secret = self._cluster.get("Secret", owner.namespace, name)
        return None if secret is None or not self._claim(secret, owner) else _content(secret)

    def write_secret(self, manifest: dict[str, Any]) -> None:
        """Create or update one of the operator's Secrets; raise RejectedError if the API server rejects it."""
        metadata = manifest["metadata"]
        try:
            self._cluster.apply(manifest)
        except ClusterError as error:
            raise refused("Secret", metadata["name"], error) from error
        logger.info("%s: wrote Secret %s", metadata["namespace"], metadata["name"])

    def _create_secret(self, manifest: dict[str, Any]) -> None:
        try:
            self._cluster.create(manifest)
        except ClusterError as error:
            if error.status == HTTPStatus.CONFLICT:  # created meanwhile: the next pass reads the Secret
                raise
            raise refused("Secret", manifest["metadata"]["name"], error) from error

    def _check(self, manifest: dict[str, Any], owner: Owner, observed: Observed) -> None:
        """Have the API server validate an object; an object that it has accepted before is not sent again.

        Raises RejectedError for a rejected manifest, and for an object of another owner with the same name.
        """
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        content = json.dumps(manifest, sort_keys=True)
        if self._accepted.get((kind, name)) == content or self._written.get((kind, name), ("",))[0] == content:
            return
        try:
            live = observed.find(kind, name) or self._cluster.get(kind, owner.namespace, name)
            if live is not None and (is_ending(live) or not is_own(live, owner)):
                return
            check_kept(manifest, self._cluster.apply(manifest, dry_run=True))
        except KindNotServedError:
            return
        except ClusterError as error:
            if not (error.status == HTTPStatus.BAD_REQUEST and NO_DRY_RUN in str(error)):
                raise refused(kind, name, error) from error
        self._accepted[(kind, name)] = content

    def _scale(self, child: Object, replicas: int, namespace: str, outcome: Outcome) -> None:
        """Change the replicas of an object; a failure does not end the pass, which has other revisions to care for."""
        kind, name = child["kind"], name_of(child)
        self._scaled.add((kind, name))
        try:
            self._cluster.scale(kind, namespace, name, replicas)
        except ClusterError as error:
            outcome.failures.append(f"{kind} {name} is not scaled to {replicas}: {error}")
            return
        outcome.writes += 1
        logger.info("%s: set the replicas of %s %s to %d", namespace, kind, name, replicas)

    def _apply(self, manifest: dict[str, Any], owner: Owner, observed: Observed, outcome: Outcome) -> None:
        kind, name = place = manifest["kind"], manifest["metadata"]["name"]
        content = json.dumps(manifest, sort_keys=True)
        live, (before, known) = observed.find(kind, name), self._written.get(place, ("", ""))
        if live is not None and (before, known) == (content, version(live)):
            return
        try:
            if live is None or owner_uid(live) != owner.uid:  # new, not seen yet, or of another owner
                live = self._cluster.get(kind, owner.namespace, name)
                if live is not None and (before, known) == (content, version(live)):
                    return
            if before == content and self._repairs.is_early(place, content):
                return
            if live is not None and (is_ending(live) or not self._claim(live, owner)):
                return  # the next pass creates it after the deletion
            written = self._cluster.apply(manifest)
        except KindNotServedError as error:
            outcome.skipped.append(str(error))
            return
        except ClusterError as error:
            raise refused(kind, name, error) from error
        if live is None or version(written) != version(live):
            outcome.writes += 1
            logger.info("%s/%s: wrote %s %s", owner.namespace, owner.name, kind, name)
            changed_by_other = live is None or version(written) != known  # not only an event that was late
            if before == content and changed_by_other and place not in self._scaled:
                self._repairs.note(place, content)
        self._scaled.discard(place)
        self._written[place] = (content, version(written))

    def _apply_autoscaler(self, manifest: dict[str, Any], owner: Owner, observed: Observed, outcome: Outcome) -> None:
        """Apply the autoscaler; the next pass tries a rejected one again. Serving does not depend on it."""
        try:
            self._apply(manifest, owner, observed, outcome)
        except (RejectedError, ClusterError) as error:  # also an admission webhook that does not answer
            outcome.autoscaler_refusal = str(error)

    def _claim(self, live: Object, owner: Owner) -> bool:
        """Return whether an object may be written; delete an object of an earlier OrcaDeployment of the same name.

        Raises InvalidSpecError for an object of another owner, which is left unchanged.
        """
        if not is_own(live, owner):
            self._cluster.delete(live["kind"], owner.namespace, name_of(live), live["metadata"]["uid"])
            return False
        if not owner_uid(live):
            adopt(self._cluster, live, owner)
        return True

    def _delete(self, child: Object, owner: Owner, outcome: Outcome) -> None:
        """Delete a child. A missing owner is set first: that fails during a deletion of the owner with orphans."""
        kind, name = child["kind"], name_of(child)
        try:
            if not owner_uid(child):
                adopt(self._cluster, child, owner)
            self._cluster.delete(kind, owner.namespace, name, child["metadata"]["uid"])
        except KindNotServedError:
            return
        except ClusterError as error:
            failure = f"{kind} {name} is not deleted: {error}"
            if kind == "ControllerRevision":  # it may be immutable, and in the way of its successor
                raise ClusterError(error.status, failure) from error
            if error.status != HTTPStatus.CONFLICT:  # else the watch is late
                outcome.failures.append(failure)
            return
        self._written.pop((kind, name), None)
        outcome.writes += 1
        logger.info("%s: deleted %s %s", owner.namespace, kind, name)


def _content(secret: Object) -> dict[str, bytes]:
    return {key: base64.b64decode(value) for key, value in (secret.get("data") or {}).items()}


def _usable_token(secret: Object) -> str:
    """Return the token of an admin Secret; "" without one that an HTTP header can carry."""
    token = _content(secret).get("token", b"").strip()
    return token.decode("ascii") if token.isascii() and all(0x20 <= byte <= 0x7E for byte in token) else ""
