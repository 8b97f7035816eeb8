"""The token of the admin port follows its file."""

from __future__ import annotations

import pytest
from orca_master.endpoint.admin_token import AdminToken
from orca_master.errors import ConfigurationError


def test_a_replaced_token_is_in_force_at_once(tmp_path):
    path = tmp_path / "token"
    path.write_text("first\n")
    token = AdminToken(path)
    assert token.matches("first")
    assert not token.matches("second")
    path.write_text("second")
    assert not token.matches("first")
    assert token.matches("second")


@pytest.mark.parametrize("damage", ["deleted", "empty", "not UTF-8"])
def test_a_file_without_a_token_changes_nothing(tmp_path, damage):
    """As between the deletion of the Secret and the next one."""
    path = tmp_path / "token"
    path.write_text("first")
    token = AdminToken(path)
    if damage == "deleted":
        path.unlink()
    else:
        path.write_bytes(b"" if damage == "empty" else b"\xff")
    assert token.matches("first")
    assert not token.matches("")


@pytest.mark.parametrize(
    ("content", "words"), [(None, "No such file"), (b" \n", "it is empty"), (b"\xff", "it is not UTF-8")]
)
def test_a_start_without_a_token_is_a_mistake(tmp_path, content, words):
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=f"--admin-token-file {path}: {words}"):
        AdminToken(path)
