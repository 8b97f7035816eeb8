"""The registry of model families: what an entry costs, and what is logged where kernels lack an operation."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
from orca_worker import models
from orca_worker.model_check import check_model
from orca_worker.models.llama import LlamaFile
from support.checkpoints import llama_like
from support.partitions import PartitionedModel


def test_a_relative_of_llama_is_one_entry(checkpoint, tmp_path, monkeypatch):
    path = shutil.copytree(checkpoint("llama-gqa-tied"), tmp_path / "relative")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "architectures": ["RelativeForCausalLM"]}))
    monkeypatch.setitem(models.FAMILIES, "RelativeForCausalLM", LlamaFile)
    assert check_model(path, 1, 1, 0, range(1)).config.num_layers == 5
    model = PartitionedModel(path, 1)
    assert model.logits(model.iteration([(0, 0, [3, 4])], 16)).shape == (2, 211)


def test_families_are_read_without_torch():
    program = (
        "import sys; from orca_worker import model_check, models;"
        "sys.exit('torch' in sys.modules or len(models.FAMILIES) < 5)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize(("head_dim", "lines"), [(64, 0), (20, 1)])
def test_one_line_names_what_plain_torch_computes(head_dim, lines, tmp_path, caplog):
    llama_like("llama", 2, head_dim, tied=True).save_pretrained(tmp_path)
    PartitionedModel(tmp_path, 1)
    expected = (
        f"plain torch computes the operations that the kernels of device cpu lack: attention with head_dim {head_dim}"
    )
    assert caplog.messages == [expected] * lines
