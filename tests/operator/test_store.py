"""The store of watched children: events, listings, and events that are older than a listing."""

from __future__ import annotations

from typing import Any

from orca_operator import names
from orca_operator.store import Store

KEY = ("default", "demo")


def body(name: str = "a", version: int = 1, uid: str = "u", deployment: str | None = "demo") -> dict[str, Any]:
    labels = {names.DEPLOYMENT_LABEL: deployment} if deployment else {}
    metadata = {"name": name, "namespace": "default", "uid": uid, "resourceVersion": str(version), "labels": labels}
    return {"metadata": metadata}


def versions(store: Store) -> dict[str, str]:
    return {child["metadata"]["name"]: child["metadata"]["resourceVersion"] for child in store.children(KEY)}


def test_events():
    store = Store()
    assert store.update("Pod", body("a", 1), deleted=False) == KEY
    store.update("Pod", body("b", 2), deleted=False)
    store.update("Pod", body("a", 3), deleted=False)
    assert versions(store) == {"a": "3", "b": "2"}
    store.update("Pod", body("a", 4), deleted=True)
    assert versions(store) == {"b": "2"}
    assert [child["kind"] for child in store.children(KEY)] == ["Pod"]


def test_field_owners_are_not_kept():
    owned = body("a", 1)
    owned["metadata"]["managedFields"] = [{"manager": "kubectl"}]
    store = Store()
    store.update("Pod", owned, deleted=False)
    assert store.children(KEY) == ({**body("a", 1), "kind": "Pod"},)


def test_foreign_objects_are_left_out():
    assert Store().update("Pod", body(deployment=None), deleted=False) is None


def test_an_older_event_does_not_undo_a_listing():
    store = Store()
    store.replace(KEY, [{**body("a", 5), "kind": "Pod"}])
    store.update("Pod", body("a", 4), deleted=False)
    assert versions(store) == {"a": "5"}
    store.update("Pod", body("a", 4, uid="another"), deleted=False)
    assert versions(store) == {"a": "4"}, "another object of the same name"


def test_an_event_that_comes_during_a_listing_is_not_undone_by_it():
    """The listing of a kind may be older than an event that arrives before all kinds are listed."""
    store = Store()
    for name in ("changed", "deleted", "replaced"):
        store.update("Pod", body(name, 1), deleted=False)
    listed = store.children(KEY)
    store.begin_listing(KEY)
    store.update("Pod", body("changed", 5), deleted=False)
    store.update("Pod", body("created", 6), deleted=False)
    store.update("Pod", body("deleted", 7), deleted=True)
    store.update("Pod", body("replaced", 8), deleted=True)
    store.update("Pod", body("replaced", 9, uid="successor"), deleted=False)
    store.replace(KEY, listed)
    assert versions(store) == {"changed": "5", "created": "6", "replaced": "9"}
    store.replace(KEY, listed)
    assert versions(store) == {"changed": "1", "deleted": "1", "replaced": "1"}, "events are used once"


def test_the_late_deletion_of_an_object_leaves_its_successor():
    """kopf handles the events of each object in a task of its own: two objects of one name may change their order."""
    store = Store()
    store.update("Pod", body("a", 1, "u"), deleted=False)
    store.update("Pod", body("a", 3, "successor"), deleted=False)
    store.update("Pod", body("a", 2, "u"), deleted=True)
    assert versions(store) == {"a": "3"}
    store.update_deployment(body("demo", 5, "u"), deleted=False)
    store.update_deployment(body("demo", 7, "successor"), deleted=False)
    store.update_deployment(body("demo", 6, "u"), deleted=True)
    assert store.deployment(KEY) is not None


def test_a_listing_drops_what_is_gone():
    store = Store()
    store.update("Pod", body("a"), deleted=False)
    store.replace(KEY, [])
    assert store.children(KEY) == ()
    store.forget(KEY)
    assert store.children(KEY) == ()


def test_a_deployment_is_the_newest_that_a_watch_a_read_or_a_write_has_returned():
    store = Store()
    assert store.deployment(("default", "a")) is None
    assert store.update_deployment(body("a", 5), deleted=False) == ("default", "a")
    store.update_deployment(body("a", 4), deleted=False)
    known = store.deployment(("default", "a"))
    assert known is not None
    assert known["metadata"]["resourceVersion"] == "5"


def test_a_slow_read_does_not_bring_a_deleted_deployment_back():
    store = Store()
    store.update_deployment(body("a", 5, "u"), deleted=False)
    store.update_deployment(body("a", 6, "u"), deleted=True)
    store.update_deployment(body("a", 5, "u"), deleted=False)
    assert store.deployment(("default", "a")) is None
    store.update_deployment(body("a", 7, "another"), deleted=False)
    assert store.deployment(("default", "a")) is not None, "another of the same name"


def test_after_the_deletion_of_a_child_the_deployment_is_read_again():
    """The garbage collector deletes the children of a deployment whose own deletion a watch may have missed."""
    store = Store()
    store.update_deployment(body("demo"), deleted=False)
    store.update("Pod", body("a", 1), deleted=False)
    assert store.deployment(KEY) is not None
    store.update("Pod", body("a", 2), deleted=True)
    assert store.deployment(KEY) is None


def test_a_version_that_a_write_returned_is_known_when_its_event_comes():
    store = Store()
    assert not store.has(body("demo", 5))
    store.update_deployment(body("demo", 5), deleted=False)
    assert store.has(body("demo", 5))
    assert not store.has(body("demo", 6))
    assert not store.has(body("demo", 5, uid="another"))
    store.drop_deployment(KEY)
    assert not store.has(body("demo", 5))
