"""The token of the admin port follows its file."""

from __future__ import annotations

import pytest
from orca_master.endpoint.admin_token import AdminToken
from orca_master.errors import ConfigurationError


def test_a_replaced_token_is_in_force_at_once(tmp_path):
    path = tmp_path / "token"
    path.write_text("two words\n")
    assert AdminToken(path).matches("two words")
    path.write_text("first\n")
    token = AdminToken(path)
    assert token.matches("first")
    assert not token.matches("second")
    path.write_text("second")
    assert not token.matches("first")
    assert token.matches("second")


DAMAGES = {"empty": b"", "not UTF-8": b"\xff", "not ASCII": "tök".encode(), "a control character": b"a\tb"}


@pytest.mark.parametrize("damage", ["deleted", *DAMAGES])
def test_a_file_without_a_token_changes_nothing(tmp_path, damage):
    """As between the deletion of the Secret and the next one."""
    path = tmp_path / "token"
    path.write_text("first")
    token = AdminToken(path)
    if damage == "deleted":
        path.unlink()
    else:
        path.write_bytes(DAMAGES[damage])
    assert token.matches("first")
    assert not token.matches("")


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "No such file"), (b" \n", "it is empty"), (b"\xff", "it is not UTF-8"), ("tök".encode(), "visible ASCII")],
)
def test_a_start_without_a_token_is_a_mistake(tmp_path, content, words):
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=f"--admin-token-file {path}: .*{words}"):
        AdminToken(path)


@pytest.mark.parametrize("sent", ["tök", "\udcff", "first\n", "", "fir"])
def test_another_token_of_whatever_characters_does_not_match(tmp_path, sent):
    path = tmp_path / "token"
    path.write_text("first")
    assert not AdminToken(path).matches(sent)


def test_the_token_is_not_logged(tmp_path, caplog):
    caplog.set_level("DEBUG")
    path = tmp_path / "token"
    path.write_text("first-secret")
    token = AdminToken(path)
    path.write_text("second-secret")
    assert token.matches("second-secret")
    assert "the token was replaced" in caplog.text
    assert "secret" not in caplog.text.replace(str(path), "")
