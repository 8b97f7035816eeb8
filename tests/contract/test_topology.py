"""The topology as a message: what is refused, and by which field."""

from __future__ import annotations

import json

import pytest
from orca_contract.message import read
from orca_contract.topology import AdapterSpec, Communication, ModelSpec, PipelineSpec, Topology

MODEL = ModelSpec(path="/models/demo", served_name="demo")


def adapter(name: str) -> AdapterSpec:
    return AdapterSpec(name=name, path=f"/adapters/{name}")


def topology(**changes) -> Topology:
    values = {"model": MODEL, "pipelines": [PipelineSpec(id="a", workers=["w:1"])], **changes}
    return Topology(**values)


def test_a_topology_of_defaults_is_one_worker_on_cpus():
    made = topology()
    assert (made.pipeline_parallel_size, made.tensor_parallel_size, made.communication.backend) == (1, 1, "gloo")
    assert made.refusal() == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pipeline_parallel_size": 2}, "pipelines.0.workers: pipeline a names 1 workers, pipelineParallelSize is 2"),
        (
            {
                "model": MODEL.model_copy(update={"quantization": "int8"}),
                "communication": Communication(backend="nccl"),
            },
            "model.quantization: int8: the CUDA kernels lack it, use none or a CPU",
        ),
        ({"communication": Communication(env={"LD_PRELOAD": "x"})}, "communication.env: "),
        ({"communication": Communication(backend="nccl", device="cpu")}, "communication.backend: nccl: needs GPUs"),
        (
            {"communication": Communication(device="cuda"), "tensor_parallel_size": 2},
            "tensorParallelSize: 2: on GPUs the ranks of a worker need nccl",
        ),
        (
            {
                "model": MODEL.model_copy(update={"quantization": "int8"}),
                "communication": Communication(device="cuda"),
            },
            "model.quantization: int8: the CUDA kernels lack it, use none or a CPU",
        ),
        (
            {
                "model": MODEL.model_copy(update={"kv_cache_dtype": "int8"}),
                "communication": Communication(backend="nccl"),
            },
            "model.kvCacheDtype: int8: the CUDA kernels lack it, use auto or a CPU",
        ),
        (
            {
                "model": MODEL.model_copy(update={"quantization": "w8a8"}),
                "communication": Communication(backend="nccl"),
            },
            "model.quantization: w8a8: the CUDA kernels lack it, use none or a CPU",
        ),
        (
            {"model": MODEL.model_copy(update={"adapters": [adapter("a"), adapter("a")]})},
            "model.adapters: 'a' is also the name of the model or of another adapter",
        ),
        (
            {"model": MODEL.model_copy(update={"adapters": [adapter("demo")]})},
            "model.adapters: 'demo' is also the name of the model or of another adapter",
        ),
    ],
)
def test_what_no_master_carries_out_is_refused_by_the_field(changes, words):
    assert topology(**changes).refusal().startswith(words)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": {"path": "", "servedName": "m"}}, "model.path"),
        ({"model": {"path": "a\0b", "servedName": "m"}}, "model.path"),
        ({"model": {"path": "a" * 5000, "servedName": "m"}}, "model.path"),
        ({"pipelines": {}}, "pipelines"),
        ({"model": {"path": "a", "servedName": "m", "quantization": "int3"}}, "model.quantization"),
        ({"pipelines": [{"id": "a", "workers": []}]}, "pipelines.0.workers"),
        ({"tensorParallelSize": 0}, "tensorParallelSize"),
        ({"communication": {"backend": "mpi"}}, "communication.backend"),
        ({"communication": {"device": "tpu"}}, "communication.device"),
        ({"model": {"path": "a", "servedName": "m", "kvCacheDtype": "fp8"}}, "model.kvCacheDtype"),
        ({"model": {"path": "a", "servedName": "m", "draftPath": ""}}, "model.draftPath"),
        ({"model": {"path": "a", "servedName": "m", "draftPath": "a\0b"}}, "model.draftPath"),
        ({"model": {"path": "a", "servedName": "m", "draftPath": "a" * 5000}}, "model.draftPath"),
    ],
)
def test_what_cannot_be_read_is_refused_by_the_field(changes, field):
    with pytest.raises(ValueError, match=f"^{field}: "):
        read(Topology, json.dumps({**topology().wire(), **changes}).encode())


def test_masters_of_older_versions_do_not_get_the_default_of_a_newer_field():
    assert "quantization" not in topology().wire()["model"]
    quantised = topology(model=MODEL.model_copy(update={"quantization": "int8"}))
    assert quantised.wire()["model"]["quantization"] == "int8"
    assert quantised.unknown_to(6) == ["model.quantization"]
    assert "kvCacheDtype" not in quantised.wire()["model"]
    of_integers = topology(model=MODEL.model_copy(update={"kv_cache_dtype": "int8"}))
    assert of_integers.wire()["model"]["kvCacheDtype"] == "int8"
    assert of_integers.unknown_to(7) == ["model.kvCacheDtype"]
    assert "adapters" not in topology().wire()["model"]
    adapted = topology(model=MODEL.model_copy(update={"adapters": [adapter("a")]}))
    assert adapted.wire()["model"]["adapters"] == [{"name": "a", "path": "/adapters/a"}]
    assert adapted.unknown_to(9) == ["model.adapters"]
    assert "device" not in topology().wire()["communication"]
    over_gloo = topology(communication=Communication(device="cuda"))
    assert over_gloo.wire()["communication"]["device"] == "cuda"
    assert over_gloo.unknown_to(9) == ["communication.device"]
    assert "draftPath" not in topology().wire()["model"]
    drafted = topology(model=MODEL.model_copy(update={"draft_path": "/models/draft"}))
    assert drafted.wire()["model"]["draftPath"] == "/models/draft"
    assert drafted.unknown_to(10) == ["model.draftPath"]


@pytest.mark.parametrize(
    ("written", "device"),
    [
        ({}, "cpu"),
        ({"backend": "gloo"}, "cpu"),
        ({"backend": "nccl"}, "cuda"),
        ({"backend": "gloo", "device": "cuda"}, "cuda"),
        ({"backend": "gloo", "device": "cpu"}, "cpu"),
    ],
)
def test_documents_without_a_device_have_that_of_the_backend(written, device):
    message, unknown = read(Topology, json.dumps({**topology().wire(), "communication": written}).encode())
    assert (message.communication.workers_device, unknown, message.refusal()) == (device, frozenset(), "")


@pytest.mark.parametrize(
    ("device", "backend", "written"),
    [("cpu", "gloo", None), ("cuda", "nccl", None), ("cuda", "gloo", "cuda")],
)
def test_the_backends_own_device_is_not_written(device, backend, written):
    made = Communication.of(device, backend, socket_interface="lo")
    assert made == Communication(backend=backend, device=written, socket_interface="lo")
    assert made.workers_device == device


def test_the_wire_is_camel_case_and_reads_back():
    made = topology(communication=Communication(socket_interface="eth0"))
    assert made.wire()["communication"]["socketInterface"] == "eth0"
    assert read(Topology, json.dumps(made.wire()).encode()) == (made, frozenset())
