"""Settings of the comparison with other engines: each has a file of its engine and ORCA's setting of its precision."""

from __future__ import annotations

from pathlib import Path

import pytest
from orca_bench.peer_settings import DEFAULT, OF_ORCA, OF_PEERS, SETTINGS, chosen, of_vendor, reference, vendor_of

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"


def names(settings):
    return [setting.name for setting in settings]


def test_names_begin_with_the_engine_and_occur_once():
    assert len(SETTINGS) == len(OF_ORCA) + len(OF_PEERS)
    assert all(name.partition(":")[0] == setting.engine for name, setting in SETTINGS.items())
    assert all((PEERS / f"{setting.engine}.py").exists() for setting in SETTINGS.values())


@pytest.mark.parametrize("name", SETTINGS)
def test_the_reference_has_the_same_precision(name):
    setting, own = SETTINGS[name], reference(SETTINGS[name])
    assert (own.engine, own.weights, own.cache) == ("orca", setting.weights, setting.cache)
    assert own.activations == setting.activations


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (["orca"], ["orca"]),
        (["vllm_cpu:compiled"], ["orca", "vllm_cpu:compiled"]),
        (["llama_cpp:q4_0", "llama_cpp:q4_0"], ["orca:w4a8", "llama_cpp:q4_0"]),
        (["openvino_genai:int8"], ["orca:w8a8+int8-cache", "openvino_genai:int8"]),
        (
            ["openvino_genai:int8-cache", "openvino_genai"],
            ["orca", "orca:int8-cache", "openvino_genai", "openvino_genai:int8-cache"],
        ),
        (DEFAULT, list(DEFAULT)),
        (["orca:int8+int8-cache", "llama_cpp:q8_0"], ["orca:int8+int8-cache", "orca:w8a8", "llama_cpp:q8_0"]),
        (["all"], list(SETTINGS)),
    ],
)
def test_chosen_settings_come_with_their_references(wanted, expected):
    assert names(chosen(wanted)) == expected


def test_an_engine_for_one_vendor_is_left_out_elsewhere_with_the_reason():
    settings = chosen(["vllm_cpu", "vllm_zentorch"])
    assert of_vendor(settings, "AuthenticAMD") == (settings, {})
    fit, unfit = of_vendor(settings, "GenuineIntel")
    assert names(fit) == ["orca", "vllm_cpu"]
    assert unfit == {"vllm_zentorch": "needs a processor of AuthenticAMD, this one is of GenuineIntel"}
    assert "an unknown vendor" in of_vendor(settings, "")[1]["vllm_zentorch"]


@pytest.mark.parametrize(
    ("text", "vendor"),
    [("processor\t: 0\nvendor_id\t: AuthenticAMD\n", "AuthenticAMD"), ("CPU implementer\t: 0x41\n", ""), (None, "")],
)
def test_vendor_of_a_processor(tmp_path, text, vendor):
    path = tmp_path / "cpuinfo"
    if text is not None:
        path.write_text(text)
    assert vendor_of(path) == vendor
