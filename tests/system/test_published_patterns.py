"""Requests after published vulnerabilities of other servers (docs/vulnerabilities.md): each is refused or harmless."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from support.checkpoints import with_tokenizer
from support.served import serve

pytestmark = pytest.mark.long

NAME = "gpt2-head64-tied"
KEY = "a-key-of-the-test"
SOUND = {"prompt": "a", "max_tokens": 2, "temperature": 0}
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
CHAT = {"messages": [{"role": "user", "content": "ab"}], "max_tokens": 2, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(checkpoint, tmp_path_factory) -> Path:
    """Return a model that brings code, named as modules that the server imports: an import leaves the file "ran"."""
    folder = with_tokenizer(checkpoint(NAME), tmp_path_factory.mktemp("published"))
    for name in ("code", "json", "resource", "torch"):
        (folder / f"{name}.py").write_text(f"open({str(folder / 'ran')!r}, 'w').close()\n")
    code = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model", "AutoTokenizer": ["code.A", "code.B"]}
    for name in ("config.json", "tokenizer_config.json"):
        path = folder / name
        content = json.loads(path.read_text()) if path.exists() else {}
        path.unlink(missing_ok=True)  # a link to the checkpoint that other tests use
        content |= {"auto_map": code, "vision_config": {"auto_map": code}, "tokenizer_class": "code.A"}
        path.write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def client(folder) -> Iterator[httpx.Client]:
    """Yield a server that runs in the model's folder, as after `cd MODEL; orca serve .`."""
    (folder / "published.jinja").write_text(TEMPLATE)
    options = ("--api-key", KEY, "--allowed-origins", "http://localhost")
    with (
        serve(Path("."), "--chat-template", "published.jinja", *options, cwd=folder) as served,
        httpx.Client(base_url=served.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=60) as client,
    ):
        yield client


@pytest.fixture(autouse=True)
def the_next_request_is_answered(client):
    yield
    assert client.post("/v1/completions", json=SOUND).status_code == 200


def test_no_code_of_a_model_runs(client, folder):
    """Neither in the server nor in its children: checks, worker, rank, template process, process for large bodies."""
    assert client.post("/v1/chat/completions", json=CHAT).status_code == 200
    assert client.post("/v1/completions", json={**SOUND, "prompt": "a" * 300_000}).status_code == 400
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"n": 1_000_000}, "n"),
        ({"n": 2**31}, "n"),
        ({"best_of": 10**9}, "best_of"),
        ({"prompt_embeds": "AAAA"}, "prompt_embeds"),
        ({"guided_regex": "(a+)+$"}, "guided_regex"),
        ({"guided_json": {"type": "no type"}}, "guided_json"),
        ({"structured_outputs": {"grammar": "root ::= root"}}, "structured_outputs"),
        ({"truncate_prompt_tokens": -(2**63)}, "truncate_prompt_tokens"),
        ({"logits_processors": ["os.system"]}, "logits_processors"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_a_completion_is_refused_by_the_field(client, fields, param):
    refused = client.post("/v1/completions", json={**SOUND, **fields})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_an_empty_prompt_is_answered_or_refused(client):
    assert client.post("/v1/completions", json={**SOUND, "prompt": ""}).status_code in (200, 400)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"pattern": "*"}}}]}, "tools"),
        ({"response_format": {"type": "json_schema", "json_schema": {"type": "x"}}}, "response_format"),
        ({"chat_template": "{{ 'a' * 10**9 }}"}, "chat_template"),
        ({"documents": [{"text": "x"}]}, "documents"),
        ({"mm_processor_kwargs": {"trust_remote_code": True}}, "mm_processor_kwargs"),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "",
)
def test_a_chat_is_refused_by_the_field(client, fields, param):
    refused = client.post("/v1/chat/completions", json={**CHAT, **fields})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    "options",
    [
        {"tokenize": True},
        {"return_dict": True, "return_tensors": "pt"},
        {"chat_template": "{{ 'x' * 10 }}"},
        {"padding": "max_length", "max_length": 10**9},
    ],
    ids=json.dumps,
)
def test_template_options_reach_the_template_alone(client, options):
    """No option changes what the server does with the template or its text."""
    plain = client.post("/v1/chat/completions", json=CHAT).json()
    answered = client.post("/v1/chat/completions", json={**CHAT, "chat_template_kwargs": options})
    if answered.status_code == 400:
        assert answered.json()["error"]["param"] == "chat_template_kwargs"
    else:
        assert answered.json()["usage"] == plain["usage"]
        assert answered.json()["choices"] == plain["choices"]


@pytest.mark.parametrize("kind", ["image_url", "video_url", "input_audio"])
def test_no_address_of_a_message_is_fetched(client, kind):
    """Parts other than text are refused, and nobody connects to the address in them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/a"
        part = {"type": kind, kind: {"url": address}}
        refused = client.post("/v1/chat/completions", json={**CHAT, "messages": [{"role": "user", "content": [part]}]})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages")
        assert "0x" not in refused.text
        listener.settimeout(0.5)
        with pytest.raises(TimeoutError):
            listener.accept()


@pytest.mark.parametrize(
    "path",
    [
        "/v1/load_lora_adapter", "/collective_rpc", "/reset_prefix_cache", "/update_weights_from_tensor", "/sleep",
        "/update_weights_from_disk", "/init_weights_update_group", "/pd_register", "/kv_move_status",
        "/scale_elastic_ep", "/server_info", "/start_profile", "/release_memory_occupation", "/invocations",
    ],
)  # fmt: skip
def test_routes_that_manage_a_server_are_not_there(client, path):
    assert client.post(path, json={}).status_code == 404
    assert client.get(path).status_code == 404


def raw(client: httpx.Client, target: str, *headers: str) -> bytes:
    """Send a request line as it is, without a key; return the answer's head."""
    url = urlsplit(str(client.base_url))
    with socket.create_connection((url.hostname, url.port), timeout=30) as connection:
        lines = [f"GET {target} HTTP/1.1", *(headers or (f"Host: {url.netloc}",)), "Connection: close", "", ""]
        connection.sendall("\r\n".join(lines).encode())
        with connection.makefile("rb") as answer:
            return answer.read()


@pytest.mark.parametrize(
    "target",
    [
        "/v1/models", "//v1/models", "/v1//models", "/health/../v1/models", "/v1/models/", "/V1/models",
        "/v1/models?a=/health", "/%76%31/models", "/v1/models%00", "/livez;/v1/models", "/docs/../v1/models",
        "http://a/health/../v1/models", "/metrics/..%2fv1/models",
    ],
)  # fmt: skip
def test_no_spelling_of_a_path_passes_without_a_key(client, target):
    answer = raw(client, target)
    assert answer.split()[1] in (b"400", b"401", b"404", b"307", b"431"), answer[:200]
    assert b"max_model_len" not in answer


@pytest.mark.parametrize("host", ["Host: /health", "Host: localhost/health?", "Host: [::1", "Host: a\tb", "Host:"])
def test_no_host_header_passes_without_a_key(client, host):
    answer = raw(client, "/v1/models", host)
    assert not answer or answer.split()[1] in (b"400", b"401"), answer[:200]
    assert b"max_model_len" not in answer


def test_no_message_is_taken_over_a_websocket(client):
    url = urlsplit(str(client.base_url))
    upgrade = ("Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==")
    answer = raw(client, "/pd_register", f"Host: {url.netloc}", *upgrade)
    assert answer.split()[1] != b"101"


def test_every_combination_of_penalties_is_served(client):
    fields = {"repetition_penalty": 1.5, "frequency_penalty": 1.0, "presence_penalty": -1.0, "min_p": 0.1, "top_k": 3}
    for number in range(2 ** len(fields)):
        chosen = {name: value for place, (name, value) in enumerate(fields.items()) if number >> place & 1}
        assert client.post("/v1/completions", json={**SOUND, "temperature": 1, "seed": 1, **chosen}).status_code == 200


def test_the_same_prompt_is_computed_again(client):
    """A salt makes a prefix invisible to all other requests; tests/system/test_prefix_caching.py: so does each key."""
    prompt = {**SOUND, "prompt": [3, 4] * 40}
    usages = [
        client.post("/v1/completions", json={**prompt, "cache_salt": salt}).json()["usage"]
        for salt in ("mine", "yours")
    ]
    assert usages[0] == usages[1]
    assert usages[0]["prompt_tokens_details"] == {"cached_tokens": 0}
