"""Types of arguments: what each takes, and the values that its error names."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_master.commands import argument_types as types


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (types.positive, "1", 1),
        (types.positive, str(types.MAX_NUMBER), types.MAX_NUMBER),
        (types.num_bytes, "1", 1),
        (types.num_bytes, str(types.MAX_BYTES), types.MAX_BYTES),
        (types.count, "0", 0),
        (types.stall_seconds, str(types.MAX_STALL_SECONDS), types.MAX_STALL_SECONDS),
        (types.bound_seconds, "0.25", 0.25),
        (types.bound_seconds, str(types.MAX_STALL_SECONDS), types.MAX_STALL_SECONDS),
        (types.slots, str(BLOCK_SIZE), BLOCK_SIZE),
        (types.fraction, "1", 1.0),
        (types.fraction, "1e-3", 0.001),
        (types.host_name, "*", "*"),
        (types.host_name, "Api.example", "api.example"),
        (types.host_name, "api.example:8000", "api.example"),
        (types.host_name, "api.example.", "api.example"),
        (types.host_name, "10.0.0.1:80", "10.0.0.1"),
        *((types.host_name, text, "::1") for text in ("::1", "[::1]", "[::1]:8000")),
        (types.folder, "/a/../b", Path("/b")),
        *((types.root_path, text, "/llm/v2") for text in ("/llm/v2", "/llm/v2/")),
        *((types.root_path, text, "") for text in ("", "/")),
    ],
)
def test_values_up_to_the_bounds(kind, text, value):
    assert kind(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        (types.positive, "0", "whole number from 1 to 2147483647"),
        (types.positive, "-1", "whole number from 1 to"),
        (types.positive, "1.0", "whole number from 1 to"),
        (types.positive, str(types.MAX_NUMBER + 1), "whole number from 1 to"),
        (types.positive, "9" * 5000, "whole number from 1 to"),
        (types.num_bytes, "0", "whole number from 1 to 9223372036854775807"),
        (types.num_bytes, str(types.MAX_BYTES + 1), "whole number from 1 to"),
        (types.count, "-1", "at least 0"),
        (types.stall_seconds, str(types.MAX_STALL_SECONDS + 1), "more than 4000000 seconds"),
        *(
            (types.bound_seconds, text, "number of seconds above 0")
            for text in ("0", "-1", "nan", "inf", "4e6s", "4000001")
        ),
        (types.slots, str(BLOCK_SIZE - 1), f"one block of {BLOCK_SIZE} slots"),
        (types.fraction, "0", "above 0 and up to 1"),
        (types.fraction, "1.01", "above 0 and up to 1"),
        (types.fraction, "nan", "above 0 and up to 1"),
        (types.fraction, "much", "above 0 and up to 1"),
        *(
            (types.host_name, text, "is no name or address of a host, and not \\* for any")
            for text in (
                "",
                ":8000",
                ".",
                "http://a",
                "a/b",
                "a,b",
                "a b",
                "*.a",
                "u@a",
                "[::1",
                "a:b",
                "a:b:c",
                "ü",
                "a\n",
            )
        ),
        (types.folder, "", "a folder is expected"),
        *((types.root_path, text, "a slash comes first") for text in ("llm", "http://a/llm", " /llm")),
        *((kind, "/a\udcff", r"'/a\\udcff' is not valid UTF-8") for kind in (types.utf8_text, types.root_path)),
    ],
)
def test_values_beyond_the_bounds(kind, text, words):
    with pytest.raises(argparse.ArgumentTypeError, match=words):
        kind(text)


def test_a_folder_below_links_in_a_circle_is_no_error_yet(tmp_path):
    (tmp_path / "a").symlink_to("a")
    assert types.folder(str(tmp_path / "a" / "b")) == tmp_path / "a" / "b"
