"""The identity of a journal's model: what makes the tokens of a recorded request another model's."""

from __future__ import annotations

import pytest
from orca_contract.topology import AdapterSpec, ModelSpec, PipelineSpec, Topology
from orca_master.journal.config import model_identity


def identity(folder, **model) -> str:
    spec = ModelSpec(path=str(folder), served_name="m", **model)
    return model_identity(Topology(model=spec, pipelines=[PipelineSpec(id="a", workers=["w:1"])]))


@pytest.mark.parametrize(
    "change", [{"dtype": "bfloat16"}, {"quantization": "int8"}, {"quantization": "int4"}, {"kv_cache_dtype": "int8"}]
)
def test_a_model_with_other_numbers_is_another_one(change, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert identity(tmp_path, **change) != identity(tmp_path)


def test_adapters_are_named_in_their_order_and_by_their_place(tmp_path):
    """A resumed request finds its adapter by its name."""
    of = [[], [("a", "/1")], [("a", "/2")], [("b", "/1")], [("a", "/1"), ("b", "/2")], [("b", "/2"), ("a", "/1")]]
    made = [identity(tmp_path, adapters=[AdapterSpec(name=name, path=path) for name, path in each]) for each in of]
    assert len(set(made)) == len(of)


def test_quantised_weights_and_a_quantised_cache_differ(tmp_path):
    assert identity(tmp_path, quantization="int8") != identity(tmp_path, kv_cache_dtype="int8")


def test_names_and_lengths_do_not_matter_but_files_do(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    before = identity(tmp_path)
    assert identity(tmp_path, max_model_len=7) == before
    assert identity(tmp_path, draft_path="/draft") == before, "answers are the same with any draft"
    (tmp_path / "config.json").write_text('{"a": 1}')
    assert identity(tmp_path) != before
