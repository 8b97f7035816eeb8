"""Loading: a rank holds its own slices and little more, and an interrupted load leaves nothing."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.served import Served, alive, descendants, eventually

MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def large_model(tmp_path_factory):
    """Return a Llama of 560 MB in float32 over two files; tensor by tensor, which is faster than transformers."""
    path = tmp_path_factory.mktemp("large")
    hidden, inner, layers, vocabulary = 1024, 4096, 8, 4001
    (path / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"], "hidden_size": hidden, "intermediate_size": inner,
                "num_hidden_layers": layers, "num_attention_heads": 16, "num_key_value_heads": 8,
                "vocab_size": vocabulary, "max_position_embeddings": 512, "hidden_act": "silu",
                "tie_word_embeddings": False, "dtype": "float32", "rope_theta": 10000.0,
            }
        )
    )  # fmt: skip
    shapes = {"self_attn.q_proj": (1024, hidden), "self_attn.k_proj": (512, hidden), "self_attn.v_proj": (512, hidden),
              "self_attn.o_proj": (hidden, 1024), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
              "mlp.down_proj": (hidden, inner), "input_layernorm": (hidden,),
              "post_attention_layernorm": (hidden,)}  # fmt: skip
    names = {f"model.layers.{layer}.{name}.weight": shape for layer in range(layers) for name, shape in shapes.items()}
    names |= {"model.norm.weight": (hidden,)}
    names |= dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), (vocabulary, hidden))
    weight_map = {}
    for file, part in (("one.safetensors", list(names)[:40]), ("two.safetensors", list(names)[40:])):
        save_file({name: torch.full(names[name], 0.01) for name in part}, path / file)
        weight_map |= dict.fromkeys(part, file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return path


def memory(pid: int) -> int:
    """RssAnon + RssShmem in bytes, 0 if the process is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(kilobytes) * 1024 for kilobytes in re.findall(r"Rss(?:Anon|Shmem):\s+(\d+) kB", status))


@pytest.mark.parametrize(
    ("partitions", "ranks", "dtype"),
    [
        pytest.param(2, 1, "float32", marks=pytest.mark.exhaustive),
        pytest.param(1, 2, "float32", marks=pytest.mark.exhaustive),
        pytest.param(2, 1, "bfloat16", marks=pytest.mark.long),
    ],
)
def test_a_rank_holds_its_shard_and_little_more(large_model, partitions, ranks, dtype):
    """At its peak while loading: under 1.25 times the shard plus the empty process."""
    total = sum(file.stat().st_size for file in large_model.glob("*.safetensors"))
    assert total >= 500 * MEBIBYTE
    empty = empty_rank()
    served = Served([str(large_model), "-pp", str(partitions), "-tp", str(ranks), "--dtype", dtype, "--kv-slots", "16"])
    peaks: dict[int, int] = {}
    done = threading.Event()

    def watch():
        while not done.is_set():
            for pid in descendants(served.process.pid):
                peaks[pid] = max(peaks.get(pid, 0), memory(pid))
            time.sleep(0.01)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        served.wait_ready()
    finally:
        done.set()
        watcher.join()
        served.stop()
    # The larger shard has half of the layers and one of embedding and head; the shards are about halves.
    shard = total / 2 * (0.5 if dtype == "bfloat16" else 1)
    assert max(peaks.values()) < 1.25 * shard + empty, (
        max(peaks.values()) / MEBIBYTE,
        shard / MEBIBYTE,
        empty / MEBIBYTE,
    )


def empty_rank() -> int:
    """Return what a process holds that has imported a rank's modules and loaded nothing."""
    import subprocess
    import sys

    program = "import orca_worker.rank, torch; torch.ones(64, 64) @ torch.ones(64, 64); input()"
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    try:
        last = -1
        assert eventually(lambda: "libtorch_cpu" in Path(f"/proc/{process.pid}/maps").read_text())
        while (now := memory(process.pid)) != last:
            last = now
            time.sleep(0.5)
        return now
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("after", [0.5, *(pytest.param(after, marks=pytest.mark.exhaustive) for after in (1.5, 2.5))])
def test_an_interrupted_load_leaves_nothing(large_model, after):
    served = Served([str(large_model), "-pp", "2"])
    time.sleep(after)
    processes = descendants(served.process.pid)
    served.stop(signal.SIGTERM)
    assert eventually(lambda: not any(map(alive, processes)))
    assert not any("Traceback" in line for line in served.log), served.log
