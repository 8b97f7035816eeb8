"""`import orca`: the names for Python users, and what they cost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orca
import orca_master
import pytest
from orca_master.errors import ConfigurationError


def test_both_ways_lead_to_the_same_classes():
    assert orca.LLM is orca_master.LLM
    assert orca.SamplingParams is orca_master.SamplingParams
    assert sorted(orca.__all__) == sorted(orca_master.__all__)


def test_another_name_is_no_attribute():
    with pytest.raises(AttributeError, match="module 'orca_master' has no attribute 'Llm'"):
        _ = orca.Llm


def test_a_choice_of_attention_needs_a_gpu():
    """Before anything of the model is read."""
    with pytest.raises(ConfigurationError, match=r"^attention_backend torch: only GPUs have a choice, "):
        orca.LLM("/nowhere", attention_backend="torch")


def test_a_misspelt_option_is_refused_before_anything_is_read():
    with pytest.raises(ConfigurationError, match=r"^max_batchsize: no such option, choose from .*, max_batch_size, "):
        orca.LLM("/nowhere", max_batchsize=4)


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ({"": "x"}, "'' is no name of 1 to 256 characters without ="),
        ({"a" * 257: "x"}, f"'{'a' * 80}' is no name"),
        ({"a=b": "x"}, "'a=b' is no name"),
        ({"nowhere": "x"}, "'nowhere' is also the name of the model or of another adapter"),
        ({f"{number}": "x" for number in range(65)}, "65 adapters, at most 64 are possible"),
    ],
)
def test_names_of_adapters_are_checked_before_anything_is_read(modules, message):
    with pytest.raises(ConfigurationError, match=f"^lora_modules: {message}"):
        orca.LLM("/nowhere", lora_modules=modules)


def test_an_adapter_that_cannot_be_read_is_refused_by_its_name(tmp_path):
    model = Path(__file__).parents[2] / "examples" / "demo-model"
    with pytest.raises(ConfigurationError, match=r"^adapter sql: .*adapter_config\.json: No such file"):
        orca.LLM(model, lora_modules={"sql": tmp_path})


def test_a_draft_model_needs_tokens_to_draft():
    """Before anything of the model is read."""
    with pytest.raises(ConfigurationError, match=r"^speculative_model: set speculative_tokens, the most tokens to dra"):
        orca.LLM("/nowhere", speculative_model="/draft")


def test_a_draft_model_that_cannot_be_read_is_refused(tmp_path):
    model = Path(__file__).parents[2] / "examples" / "demo-model"
    with pytest.raises(ConfigurationError, match=rf"^{tmp_path}/config\.json: No such file"):
        orca.LLM(model, speculative_model=tmp_path, speculative_tokens=4)


def test_the_import_alone_loads_no_engine():
    script = "import orca, sys; print([name for name in ('fastapi', 'grpc', 'torch') if name in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
