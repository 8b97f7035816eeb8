"""Forms that come in pieces of any size, and what is refused."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_master.endpoint.form_parts import FormParts
from orca_master.errors import RequestError

TYPE = "multipart/form-data; boundary=xyz"
BODY = (
    b'--xyz\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="a;b\\".jsonl"\r\nContent-Type: text/plain\r\n\r\n'
    b"{}\r\n--xy\r\n\r\n--xyz\r\n"
    b'Content-Disposition: form-data; name="empty"\r\n\r\n\r\n--xyz--\r\n'
)


@given(st.lists(st.integers(0, len(BODY)), max_size=12))
def test_the_sizes_of_the_pieces_change_nothing(cuts):
    places = [0, *sorted(cuts), len(BODY)]
    form = FormParts(TYPE)
    values: dict[str, bytes] = {}
    for start, end in itertools.pairwise(places):
        for part in form.feed(BODY[start:end]):
            assert part.is_first == (part.name not in values)
            values[part.name] = values.get(part.name, b"") + part.data
            assert part.name != "file" or part.filename.startswith("a;b")
    form.end()
    assert values == {"purpose": b"batch", "file": b"{}\r\n--xy\r\n", "empty": b""}


@given(st.binary(max_size=200))
def test_any_bytes_are_parts_or_refused(data):
    form = FormParts(TYPE)
    try:
        list(form.feed(data))
        form.end()
    except RequestError:
        pass


def test_a_long_header_is_refused():
    form = FormParts(TYPE)
    with pytest.raises(RequestError, match="no valid multipart/form-data"):
        list(form.feed(b"--xyz\r\nA: " + b"b" * 65536))


@pytest.mark.parametrize("kind", ["", "text/plain", "multipart/form-data", "multipart/form-data; boundary="])
def test_another_content_type_is_refused(kind):
    with pytest.raises(RequestError, match="must be multipart/form-data"):
        FormParts(kind)
