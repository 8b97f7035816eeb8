"""Lines of a batch: what is valid, and how an interrupted output is continued."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from orca_master.commands.batch_files import ROUTES, AnswerFile, BatchAnswer, BatchRequest, read_requests
from orca_master.errors import ConfigurationError

LINE = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}


def test_the_file_of_the_how_to_fits_the_batch_that_it_creates(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "batch.md").read_text(encoding="utf-8")
    path = tmp_path / "in.jsonl"
    path.write_text(page.partition("<<'EOF'\n")[2].partition("    EOF\n")[0])
    (endpoint,) = re.findall(r'endpoint="([^"]+)"', page)
    assert {request.url for request in read_requests(path)} == {endpoint}


def test_requests_come_in_the_order_of_their_lines(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(json.dumps(LINE | {"custom_id": name}) for name in "cab") + "\n\n")
    expected = [BatchRequest(name, "/v1/completions", {"prompt": "x"}) for name in "cab"]
    assert list(read_requests(path)) == expected


@pytest.mark.parametrize(("store", "sent"), [(None, False), (False, False), (True, True)])
def test_a_response_is_stored_only_if_its_line_says_so(tmp_path, store, sent):
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps(LINE | {"url": "/v1/responses", "body": {"input": "x", "store": store}}))
    assert [request.body["store"] for request in read_requests(path)] == [sent]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"custom_id": None}, "custom_id: a string that is not empty"),
        ({"custom_id": ""}, "custom_id: a string that is not empty"),
        ({"custom_id": "first"}, "custom_id: 'first' is that of an earlier line"),
        ({"method": "GET"}, 'method: "POST" is expected'),
        ({"url": "/v1/moderations"}, "url: one of /v1/chat/completions, "),
        ({"url": ["/v1/completions"]}, "url: one of /v1/chat/completions, "),
        ({"body": "x"}, "body: an object is expected"),
        ({"body": {"stream": True}}, "body.stream: answers of a batch are not streamed"),
        ({"body": {"background": True}}, "body.background: a batch waits for its answers"),
    ],
)
def test_an_invalid_line_is_named_by_its_number_and_field(tmp_path, change, words):
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps(LINE | {"custom_id": "first"}) + "\n\n" + json.dumps(LINE | change))
    with pytest.raises(ConfigurationError) as refusal:
        list(read_requests(path))
    assert str(refusal.value).startswith(f"{path}: line 3: {words}")


def test_a_cut_line_is_named_by_its_number_and_the_character(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps(LINE) + '\n{"custom_id": \n')
    with pytest.raises(ConfigurationError) as refusal:
        list(read_requests(path))
    assert str(refusal.value) == f"{path}: line 2: no JSON, Expecting value at character 16"


@pytest.mark.parametrize("url", ROUTES)
def test_a_line_goes_to_any_of_the_routes(tmp_path, url):
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps(LINE | {"url": url}))
    assert [request.url for request in read_requests(path)] == [url]


@pytest.mark.parametrize("text", [b"{", b"[1]", b"[" * 100_000, b"\xff"])
def test_a_line_that_is_no_object(tmp_path, text):
    path = tmp_path / "in.jsonl"
    path.write_bytes(text)
    with pytest.raises(ConfigurationError, match=r"in\.jsonl: "):
        list(read_requests(path))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigurationError, match="none: No such file"):
        list(read_requests(tmp_path / "none"))


@pytest.mark.parametrize("zeros", [0, 100])
def test_an_output_is_continued_after_its_last_whole_line(tmp_path, zeros):
    path = tmp_path / "out.jsonl"
    with AnswerFile(path) as answers:
        for name in "ab":
            answers.add(BatchAnswer(name, 200, f"cmpl-{name}", {"text": name}))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"id": "batch_c", "custom_id": "c", "respo' + b"\0" * zeros)
    with AnswerFile(path) as answers:
        assert answers.answered == {"a", "b"}
        assert path.read_bytes() == whole
        answers.add(BatchAnswer("c", 400, "cmpl-c", {"error": {}}))
    with AnswerFile(path) as answers:
        assert (answers.answered, answers.num_refused) == ({"a", "b", "c"}, 1)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["custom_id"] for line in lines] == ["a", "b", "c"]
    response = {"status_code": 400, "request_id": "cmpl-c", "body": {"error": {}}}
    assert lines[2] == {"id": "batch_cmpl-c", "custom_id": "c", "response": response, "error": None}


@pytest.mark.parametrize("text", ["notes\n", "[1]\n", "{}\n", "[" * 100_000 + "\n", "notes", '{"id": "x"}'])
def test_a_file_with_other_lines_is_not_written(tmp_path, text):
    path = tmp_path / "out.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match="line 1 is no answer of a batch"), AnswerFile(path):
        pass
    assert path.read_text() == text


def test_one_process_at_a_time_writes_the_output(tmp_path):
    path = tmp_path / "out.jsonl"
    with (
        AnswerFile(path),
        pytest.raises(ConfigurationError, match="another process writes this file"),
        AnswerFile(path),
    ):
        pass


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(ConfigurationError, match="No such file"), AnswerFile(tmp_path / "none" / "out.jsonl"):
        pass
