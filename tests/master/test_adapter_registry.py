"""The registry of adapters: who may use which name, how many there are, and that no number returns."""

from __future__ import annotations

import pytest
from orca_master.engine.adapter_registry import AdapterRegistry, ServedAdapter
from orca_master.errors import ADAPTER_LIMIT, RequestError


def registry() -> AdapterRegistry:
    return AdapterRegistry(2, ("base", "one", "two"))


def ready(made: AdapterRegistry, name: str, owner: str = "") -> int:
    number = made.begin(name, owner, f"/d/{name}").number
    made.finish(number, f"digest of {name}")
    return number


def test_an_adapter_is_used_from_its_end_of_loading_until_it_leaves():
    made = registry()
    adapter = made.begin("x", "key", "/d/x")
    assert (adapter.number, made.ready, made.accepts(3), made.holds(3)) == (3, (), False, False)
    made.finish(3, "digest")
    assert (made.ready, made.accepts(3), made.holds(3)) == ((ServedAdapter("x", 3, "key"),), True, True)
    made.leave("x", "key")
    assert (made.ready, made.accepts(3), made.holds(3), made.leaving) == ((), False, True, {3})
    made.remove(3)
    assert (made.present, made.accepts(3), made.holds(3), made.leaving) == ([], False, False, set())


def test_the_model_and_the_adapters_of_the_start_always_serve():
    made = registry()
    assert [made.accepts(number) and made.holds(number) for number in range(4)] == [True, True, True, False]


def test_a_number_is_given_once_and_a_name_is_free_when_its_adapter_leaves():
    made = registry()
    assert ready(made, "x") == 3
    made.leave("x", "")
    assert ready(made, "x") == 4
    assert made.ready == (ServedAdapter("x", 4, ""),)
    made.remove(3)
    assert ready(made, "y") == 5


@pytest.mark.parametrize("owner", ["a", "b"])
@pytest.mark.parametrize("name", ["base", "one", "loading", "ready"])
def test_a_name_that_is_taken_is_refused_whoever_has_it(name, owner):
    made = registry()
    made.begin("loading", "a", "/d/x")
    ready(made, "ready", "a")
    with pytest.raises(RequestError, match=f"^lora_name: the name '{name}' is taken") as refused:
        made.begin(name, owner, "/d/y")
    assert refused.value.field == "lora_name"


@pytest.mark.parametrize("name", ["", "x" * 257, "a\nb", "\ud800"])
def test_a_name_has_printable_characters(name):
    with pytest.raises(RequestError, match="1 to 256 printable characters"):
        registry().begin(name, "", "/d/x")


def test_the_number_of_adapters_is_bounded_with_those_that_load_and_leave():
    made = registry()
    for index in range(61):
        ready(made, str(index))
    made.begin("loading", "", "/d/x")
    made.leave("0", "")
    with pytest.raises(RequestError, match="64 adapters are loaded or still in use, at most 64") as refused:
        made.begin("more", "", "/d/x")
    assert refused.value.code == ADAPTER_LIMIT
    made.remove(3)
    assert made.begin("more", "", "/d/x").number == 65


def test_one_key_leaves_room_for_the_others():
    made = registry()
    for index in range(32):
        ready(made, str(index), "a")
    with pytest.raises(RequestError, match="one API key may have 32 adapters at a time"):
        made.begin("more", "a", "/d/x")
    with pytest.raises(RequestError) as refused:  # those that are loaded again count, too
        made.begin_restored("more", "a", "/d/x")
    assert refused.value.code == ADAPTER_LIMIT
    assert made.begin_restored("more", "b", "/d/x").number == 35
    made.remove(3)
    assert made.begin("again", "a", "/d/x").number == 36


@pytest.mark.parametrize(("name", "owner"), [("none", "a"), ("x", "b"), ("one", "a"), ("left", "a")])
def test_only_its_owner_unloads_an_adapter_and_only_once(name, owner):
    made = registry()
    ready(made, "x", "a")
    ready(made, "left", "a")
    made.leave("left", "a")
    with pytest.raises(RequestError, match="was not loaded, or another API key loaded it") as refused:
        made.leave(name, owner)
    assert refused.value.field == "lora_name"
    assert [entry.name for entry in made.ready] == ["x"]


def test_an_adapter_that_is_being_loaded_cannot_leave():
    made = registry()
    made.begin("x", "a", "/d/x")
    with pytest.raises(RequestError, match="is still being loaded"):
        made.leave("x", "a")
    with pytest.raises(RequestError, match="another API key"):
        made.leave("x", "b")


def test_an_adapter_that_is_being_loaded_beside_its_leaving_predecessor_cannot_leave():
    made = registry()
    ready(made, "x", "a")
    made.leave("x", "a")
    made.begin("x", "a", "/d/x")
    with pytest.raises(RequestError, match="is still being loaded"):
        made.leave("x", "a")
    made.finish(4, "digest")
    made.leave("x", "a")
    assert (made.ready, made.leaving) == ((), {3, 4})


def test_an_adapter_that_was_removed_while_it_was_loaded_is_never_ready():
    made = registry()
    number = made.begin("x", "", "/d/x").number
    assert [made.remove(number), made.remove(number)] == [True, False]
    with pytest.raises(RequestError, match="could not load the adapter"):
        made.finish(number, "digest")
    assert made.ready == ()
