"""Invalid models, each a valid tiny Llama with one defect, and a program that checks all of them.

    python tests/support/hostile_models.py FOLDER

creates each model below FOLDER, checks it like `orca serve`, but in a single process, and prints a JSON line per model:
name, refusal (null if accepted) and seconds. The last line is the peak of resident memory in bytes.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orca_master.commands.text_check import try_text
from orca_master.errors import ConfigurationError
from orca_worker.errors import ModelError
from orca_worker.model_check import check_model

TOKENIZER = Path(__file__).parents[2] / "examples" / "demo-model" / "tokenizer.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
LAYERS, HIDDEN, INNER, VOCABULARY = 2, 8, 12, 16
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "intermediate_size": INNER, "vocab_size": VOCABULARY,
    "num_hidden_layers": LAYERS, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": True, "dtype": "bfloat16", "rope_theta": 10000.0,
}  # fmt: skip
QUERY = "model.layers.1.self_attn.q_proj.weight"
QUERY_MAP = QUERY.removesuffix(".weight")
DOWN = "model.layers.1.mlp.down_proj"


def shapes() -> dict[str, list[int]]:
    """Return tensor name → shape of the valid model."""
    tensors = {"model.embed_tokens.weight": [VOCABULARY, HIDDEN], "model.norm.weight": [HIDDEN]}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name, shape in {
            "input_layernorm": [HIDDEN], "post_attention_layernorm": [HIDDEN], "self_attn.q_proj": [8, HIDDEN],
            "self_attn.k_proj": [4, HIDDEN], "self_attn.v_proj": [4, HIDDEN], "self_attn.o_proj": [HIDDEN, 8],
            "mlp.gate_proj": [INNER, HIDDEN], "mlp.up_proj": [INNER, HIDDEN], "mlp.down_proj": [HIDDEN, INNER],
        }.items():  # fmt: skip
            tensors[f"{prefix}{name}.weight"] = shape
    return tensors


def header() -> dict[str, Any]:
    """Return the header of the valid model's weights, all bfloat16."""
    entries, offset = {}, 0
    for name, shape in shapes().items():
        size = 2
        for length in shape:
            size *= length
        entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    return entries


def safetensors(entries: dict[str, Any] | bytes, values: bytes | None = None, length: int | None = None) -> bytes:
    """Return a file with this header; `values` None: ones, as many as the valid header has."""
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    if values is None:
        values = b"\x80\x3f" * (max(entry["data_offsets"][1] for entry in header().values()) // 2)
    return (len(text) if length is None else length).to_bytes(8, "little") + text + values


def make_sound(folder: Path) -> None:
    """Write the valid model."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / WEIGHTS).write_bytes(safetensors(header()))
    (folder / "tokenizer.json").write_bytes(TOKENIZER.read_bytes())


def config(**changes: Any) -> Callable[[Path], None]:
    """Change fields of config.json; ... removes one."""

    def change(folder: Path) -> None:
        fields = {name: value for name, value in {**CONFIG, **changes}.items() if value is not ...}
        (folder / "config.json").write_text(json.dumps(fields))

    return change


def rope(**fields: Any) -> Callable[[Path], None]:
    """Set `rope_parameters`."""
    return config(rope_parameters={"rope_theta": 10000.0, **fields})


def text(name: str, content: str | bytes) -> Callable[[Path], None]:
    """Write a file."""

    def change(folder: Path) -> None:
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return change


def objects(name: str, **fields: Any) -> Callable[[Path], None]:
    """Write a file with a JSON object."""
    return text(name, json.dumps(fields))


def entry(tensor: str = QUERY, **changes: Any) -> Callable[[Path], None]:
    """Change a tensor's entry in the header of the weights."""

    def change(folder: Path) -> None:
        entries = header()
        entries[tensor] |= changes
        (folder / WEIGHTS).write_bytes(safetensors(entries))

    return change


def index(name: str) -> Callable[[Path], None]:
    """Write an index with all tensors in the file `name`."""

    def change(folder: Path) -> None:
        (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(shapes(), name)}))

    return change


def both(*changes: Callable[[Path], Any]) -> Callable[[Path], None]:
    """Apply several changes."""

    def change(folder: Path) -> None:
        for apply in changes:
            apply(folder)

    return change


def removed(name: str) -> Callable[[Path], None]:
    """Remove a file."""
    return lambda folder: (folder / name).unlink()


def linked(name: str, target: str) -> Callable[[Path], None]:
    """Replace a file by a symbolic link."""

    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return change


def fifo(name: str) -> Callable[[Path], None]:
    """Replace a file by a FIFO without a writer."""

    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return change


def listening(folder: Path) -> None:
    """Replace config.json by a socket."""
    (folder / "config.json").unlink()
    here = os.getcwd()
    os.chdir(folder)  # a socket's path has at most 107 characters
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("config.json")
    os.chdir(here)


def sparse(name: str, size: int) -> Callable[[Path], None]:
    """Create a sparse file of `size` bytes."""

    def change(folder: Path) -> None:
        with (folder / name).open("wb") as file:
            file.truncate(size)

    return change


def tokenizer(**changes: Any) -> Callable[[Path], None]:
    """Change fields of tokenizer.json."""
    return objects("tokenizer.json", **{**json.loads(TOKENIZER.read_bytes()), **changes})


def splitting(pattern: str) -> dict[str, Any]:
    """Return a pre-tokenizer that splits at a regular expression."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def integers(fields: dict[str, Any], scope: str = QUERY_MAP, **changes: Any) -> Callable[[Path], None]:
    """Store a map of 8 x 8 as GPTQ does; change fields of `quantization_config`, and entries of the map's tensors.

    ... removes a field, None a tensor.
    """
    described = {"quant_method": "gptq", "bits": 4, "group_size": 128, **fields}

    def change(folder: Path) -> None:
        entries = {name: value for name, value in header().items() if name != f"{scope}.weight"}
        offset = max(entry["data_offsets"][1] for entry in header().values())
        for name, dtype, shape, size in (
            ("qweight", "I32", [1, 8], 32), ("qzeros", "I32", [1, 1], 4), ("scales", "F16", [1, 8], 16),
        ):  # fmt: skip
            if changes.get(name, {}) is not None:
                entry = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
                entries[f"{scope}.{name}"] = entry | changes.get(name, {})
                offset += size
        (folder / WEIGHTS).write_bytes(safetensors(entries, bytes(offset)))
        config(quantization_config={name: value for name, value in described.items() if value is not ...})(folder)

    return change


HUGE = {"type": "BPE", "vocab": {}, "merges": [["a", "zzz"]]}
INDICES: dict[str, tuple[Callable[[Path], Any], str]] = {
    ": a FIFO": (fifo(INDEX), "not a regular file"),
    ": a list": (text(INDEX, "[]"), "a JSON object is expected"),
    ": no weight_map": (objects(INDEX, metadata={}), "weight_map is missing"),
    ": weight_map a list": (objects(INDEX, weight_map=[]), "weight_map a list of 0: "),
    ": weight_map of numbers": (objects(INDEX, weight_map={"a": 1}), "weight_map.a 1: "),
    ": 1 GiB": (sparse(INDEX, 1 << 30), "at most 4194304 are read"),
    " names a file elsewhere": (index("../model.safetensors"), "weight_map names '../model.safetensors'"),
    " names an absolute path": (index("/dev/zero"), "weight_map names '/dev/zero'"),
    " names a pickle": (index("pytorch_model.bin"), "weight_map names 'pytorch_model.bin'"),
    " names a FIFO": (both(index("x.safetensors"), fifo("x.safetensors")), "x.safetensors: not a regular file"),
    " names a missing file": (index("x.safetensors"), "x.safetensors: No such file"),
    " names a file without the tensors": (
        both(index("x.safetensors"), text("x.safetensors", safetensors({}, b""))),
        "although model.safetensors.index.json names this file",
    ),
    " names a link elsewhere": (
        both(index("x.safetensors"), linked("x.safetensors", "/proc/self/mem")),
        "a link out of the model's folder",
    ),
}
"""Indices of a folder without a single file, which would be read in their place."""
HOSTILE: dict[str, tuple[Callable[[Path], Any], str]] = {
    # config.json: the file
    "config: missing": (lambda folder: (folder / "config.json").unlink(), "config.json: No such file"),
    "config: a list": (text("config.json", "[]"), "a JSON object is expected, not a list"),
    "config: null": (text("config.json", "null"), "a JSON object is expected, not None"),
    "config: cut short": (text("config.json", "{"), "not JSON"),
    "config: not UTF-8": (text("config.json", b'{"a": "\xff"}'), "not JSON"),
    "config: deep": (text("config.json", '{"a":' * 150_000 + "1" + "}" * 150_000), "nested too deeply"),
    "config: a number of 100,000 digits": (text("config.json", '{"a": ' + "9" * 100_000 + "}"), "not JSON"),
    "config: a name twice": (text("config.json", '{"vocab_size": 1, "vocab_size": 2}'), "duplicate name 'vocab_size'"),
    "config: 1 TiB": (sparse("config.json", 1 << 40), "at most 1048576 are read"),
    "config: a FIFO": (fifo("config.json"), "not a regular file"),
    "config: a socket": (listening, "not a regular file"),
    "config: a folder": (
        both(lambda f: (f / "config.json").unlink(), lambda f: (f / "config.json").mkdir()),
        "not a regu",
    ),
    "config: /dev/zero": (linked("config.json", "/dev/zero"), "a link out of the model's folder"),
    "config: /etc/passwd": (linked("config.json", "/etc/passwd"), "a link out of the model's folder, to '/etc/passwd'"),
    "config: a link to itself": (linked("config.json", "config.json"), "config.json: "),
    # config.json: its fields
    "layers 10**9": (config(num_hidden_layers=10**9), "num_hidden_layers 1000000000: Input should be less than"),
    "layers 4000": (config(num_hidden_layers=4000), "4000 layers, but the weights have no layer 2"),
    "layers 0": (config(num_hidden_layers=0), "num_hidden_layers 0: Input should be greater than"),
    "layers -1": (config(num_hidden_layers=-1), "num_hidden_layers -1: "),
    "layers true": (config(num_hidden_layers=True), "num_hidden_layers True: Input should be a valid integer"),
    "layers '2'": (config(num_hidden_layers="2"), "num_hidden_layers '2': Input should be a valid integer"),
    "layers 2.5": (config(num_hidden_layers=2.5), "num_hidden_layers 2.5: "),
    "heads 0": (config(num_attention_heads=0), "num_attention_heads 0: Input should be greater than"),
    "heads 10**9": (config(num_attention_heads=10**9), "num_attention_heads 1000000000: Input should be less than"),
    "heads 3": (config(num_attention_heads=3, num_key_value_heads=3), "hidden size 8 is not a multiple of the 3 heads"),
    "heads 4": (config(num_attention_heads=4, head_dim=4), "q_proj.weight has shape [8, 8], [16, 8] is expected"),
    "K/V heads 0": (config(num_key_value_heads=0), "num_key_value_heads 0: "),
    "K/V heads 5": (config(num_key_value_heads=5), "num_attention_heads 2 is not a multiple of num_key_value_heads 5"),
    "head dimension odd": (config(head_dim=3), "head_dim 3: Input should be a multiple of 2"),
    "hidden size 0": (config(hidden_size=0), "hidden_size 0: "),
    "hidden size 2**40": (config(hidden_size=2**40), "hidden_size 1099511627776: "),
    "inner size a list": (config(intermediate_size=[12]), "intermediate_size a list of 1: "),
    "vocabulary 2**31": (config(vocab_size=2**31), "vocab_size 2147483648: "),
    "vocabulary 10**9": (
        config(vocab_size=10**9),
        "embed_tokens.weight has shape [16, 8], [1000000000, 8] is expected",
    ),
    "vocabulary missing": (config(vocab_size=...), "vocab_size is missing"),
    "positions 2**33": (config(max_position_embeddings=2**33), "max_position_embeddings 8589934592: "),
    "positions 2**31 - 1": (config(max_position_embeddings=2**31 - 1), "set --max-model-len to at most 2097152"),
    "epsilon a text": (config(rms_norm_eps="x"), "rms_norm_eps 'x': Input should be a valid number"),
    "epsilon NaN": (config(rms_norm_eps=float("nan")), "rms_norm_eps nan: "),
    "epsilon negative": (config(rms_norm_eps=-1e-6), "rms_norm_eps -1e-06: "),
    "architectures empty": (config(architectures=[]), "architectures a list of 0: "),
    "architectures a number": (config(architectures=5), "architectures 5: "),
    "architecture with a line break": (
        config(architectures=["a\n\x1b[2Jb"]),
        r"architecture a\n\x1b[2Jb is not supported",
    ),
    "dtype a list": (config(dtype=["bfloat16"]), "dtype a list of 1: "),
    "dtype __class__": (config(dtype="__class__"), "dtype '__class__' is not supported"),
    "theta 0": (config(rope_theta=0), "rope_theta 0: "),
    "theta infinite": (config(rope_theta=float("inf")), "rope_theta inf: "),
    "rope a list": (config(rope_parameters=[1]), "rope_parameters a list of 1: "),
    "rope factor 0": (rope(rope_type="linear", factor=0), "rope_parameters.factor 0: "),
    "rope factor 1e300": (rope(rope_type="yarn", factor=1e300), "rope_parameters.factor 1e+300: "),
    "rope factor missing": (rope(rope_type="linear"), "factor of rope_parameters is missing"),
    "llama3 frequencies": (
        rope(rope_type="llama3", factor=8.0, low_freq_factor=4.0),
        "high_freq_factor 4.0 is not above",
    ),
    "window -1": (config(architectures=["MistralForCausalLM"], sliding_window=-1), "sliding_window -1: "),
    "layer types": (
        config(
            architectures=["Qwen2ForCausalLM"],
            use_sliding_window=True,
            sliding_window=4,
            layer_types=["full_attention"] * 9,
        ),
        "layer_types has 9 entries, but the model has 2 layers",
    ),
    # weights
    "weights missing": (lambda folder: (folder / WEIGHTS).unlink(), "no weights: model.safetensors or"),
    "weights empty": (text(WEIGHTS, b""), "not a safetensors file, or truncated"),
    "weights cut short": (text(WEIGHTS, safetensors(header())[:-7]), "does not fill bytes"),
    "weights: header of 2**63 bytes": (
        text(WEIGHTS, safetensors(header(), length=2**63)),
        "a header of 9223372036854775808",
    ),
    "weights: header of 9 MiB": (
        both(sparse(WEIGHTS, 1 << 34), lambda f: (f / WEIGHTS).open("r+b").write((9 << 20).to_bytes(8, "little"))),
        "a header of 9437184 bytes",
    ),
    "weights: header of brackets": (text(WEIGHTS, safetensors(b"[" * 200_000)), "nested too deeply"),
    "weights: header of a million lists": (
        text(WEIGHTS, safetensors(b'{"a":[' + b"[]," * 1_300_000 + b"[]]}")),
        "tensor 'a': an object is expected",
    ),
    "weights: a FIFO": (fifo(WEIGHTS), "not a regular file"),
    "weights: /dev/zero": (linked(WEIGHTS, "/dev/zero"), "a link out of the model's folder"),
    "weights of integers": (entry(dtype="I16"), "has dtype I16, not F64, F32, F16, BF16"),
    "weights of an unknown dtype": (entry(dtype="Q4"), "has the unknown dtype 'Q4'"),
    "weights: shape transposed": (
        entry("model.layers.1.mlp.down_proj.weight", shape=[INNER, HIDDEN]),
        "down_proj.weight has shape [12, 8], [8, 12] is expected",
    ),
    "weights: shape negative": (entry(shape=[-8, -8]), "shape.0 -8: "),
    "weights: shape 2**47 x 2**47": (entry(shape=[2**47, 2**47]), "does not fill bytes"),
    "weights: offsets backwards": (entry(data_offsets=[128, 0]), "does not fill bytes 128 to 0"),
    "weights: offsets beyond the end": (entry(data_offsets=[2**60, 2**60 + 128]), "does not fill bytes"),
    "weights: two tensors on the same bytes": (entry(data_offsets=[0, 128]), "overlap"),
    "weights: a tensor missing": (
        text(WEIGHTS, safetensors({name: value for name, value in header().items() if name != QUERY})),
        f"tensor {QUERY} is missing",
    ),
    **{f"index{name}": (both(removed(WEIGHTS), change), words) for name, (change, words) in INDICES.items()},
    # stop tokens
    "end of sequence [[1]]": (objects("generation_config.json", eos_token_id=[[1]]), "eos_token_id"),
    "end of sequence -1": (objects("generation_config.json", eos_token_id=-1), "eos_token_id"),
    "end of sequence 2**40": (objects("generation_config.json", eos_token_id=[1, 2**40]), "eos_token_id"),
    "end of sequence in config": (config(eos_token_id="</s>"), "config.json: eos_token_id"),
    "generation config a list": (
        text("generation_config.json", "[]"),
        "generation_config.json: a JSON object is expected",
    ),
    "generation config: a FIFO": (fifo("generation_config.json"), "not a regular file"),
    # tokenizer
    "tokenizer: not one": (text("tokenizer.json", "{}"), "tokenizer.json: "),
    "tokenizer: a FIFO": (fifo("tokenizer.json"), "not a regular file"),
    "tokenizer: 1 TiB": (sparse("tokenizer.json", 1 << 40), "at most 67108864 are read"),
    "tokenizer: a merge of nothing": (tokenizer(model=HUGE), "tokenizer.json: "),
    "tokenizer: not an expression": (tokenizer(pre_tokenizer=splitting("(")), "unmatched parenthesis"),
    "tokenizer: an expression without bound": (tokenizer(pre_tokenizer=splitting("(a+)+$")), "fails on this text"),
    "tokenizer: a normaliser without bound": (
        tokenizer(normalizer={"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "x"}),
        "fails on this text",
    ),
    "tokenizer: a panic at loading": (
        tokenizer(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        "precompiled_charsmap",
    ),
    "tokenizer: a panic at encoding": (
        tokenizer(
            post_processor={
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "[X]", "type_id": 0}}],
                "pair": [],
                "special_tokens": {},
            }
        ),
        "tokenizer.json: ",
    ),
    "tokenizer: no token for the unknown": (
        tokenizer(model={"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0]], "byte_fallback": False}),
        "fails on this text",
    ),
    "tokenizer config a list": (
        text("tokenizer_config.json", "[]"),
        "tokenizer_config.json: a JSON object is expected",
    ),
    "tokenizer config: token a list": (objects("tokenizer_config.json", bos_token=["a"]), "bos_token"),
    # template
    "template: not a template": (text("chat_template.jinja", "{% if %}"), "chat template, line 1"),
    "template: not UTF-8": (text("chat_template.jinja", b"\xff\xfe"), "chat_template.jinja: not UTF-8"),
    "template: a FIFO": (fifo("chat_template.jinja"), "not a regular file"),
    "template: 1 TiB": (sparse("chat_template.jinja", 1 << 40), "at most 1048576 are read"),
    "template: deep": (text("chat_template.jinja", "{{" + "(" * 20_000 + ")" * 20_000 + "}}"), "nested too deeply"),
    "template: a list of numbers": (objects("tokenizer_config.json", chat_template=[1]), "chat_template"),
    # weights that are quantised
    "quantised: a list": (config(quantization_config=[1]), "quantization_config a list of 1: an object is expected"),
    "quantised: method missing": (integers({"quant_method": ...}), "quantization_config.quant_method None is not"),
    "quantised: an unknown method": (integers({"quant_method": "fp8"}), "quantization_config.quant_method 'fp8' is"),
    "quantised: method a list": (integers({"quant_method": ["gptq"]}), "quantization_config.quant_method a list of 1"),
    "quantised: bits -4": (integers({"bits": -4}), "quantization_config.bits -4: weights of 4 and 8 bits are"),
    "quantised: bits 0": (integers({"bits": 0}), "quantization_config.bits 0: weights of 4 and 8 bits are"),
    "quantised: bits 10**30": (integers({"bits": 10**30}), "quantization_config.bits 1000000000000000000000000"),
    "quantised: bits true": (integers({"bits": True}), "quantization_config.bits True: "),
    "quantised: group size 0": (integers({"group_size": 0}), "quantization_config.group_size 0: a multiple of 8"),
    "quantised: group size -8": (integers({"group_size": -8}), "quantization_config.group_size -8: "),
    "quantised: group size 2**40": (integers({"group_size": 2**40}), "quantization_config.group_size 1099511627776: "),
    "quantised: group size missing": (integers({"group_size": ...}), "quantization_config.group_size is missing"),
    "quantised: groups null": (integers({"quant_method": "compressed-tensors"}), "config_groups is missing"),
    "quantised: config.json silent": (
        both(integers({}), config()),
        "config.json: quantization_config is missing, but the weights have model.layers.1.self_attn.q_proj.qweight",
    ),
    "quantised: zero points missing": (integers({}, qzeros=None), "self_attn.q_proj.qzeros is missing"),
    "quantised: integers of another shape": (
        integers({}, qweight={"shape": [8, 1]}),
        "q_proj.qweight has shape [8, 1], [1, 8] is expected",
    ),
    "quantised: integers of eight bits": (integers({"bits": 8}), "q_proj.qweight has shape [1, 8], [2, 8] is expected"),
    "quantised: groups of 8": (
        integers({"group_size": 8}, scales={"shape": [8, 1]}),
        "q_proj.scales has shape [8, 1], [1, 8] is expected",
    ),
    "quantised: integers in floats": (integers({}, qweight={"dtype": "F32"}), "q_proj.qweight has dtype F32, not I32"),
    "quantised: scales in integers": (integers({}, scales={"dtype": "I16"}), "q_proj.scales has dtype I16, not F64"),
    "quantised: inputs that fill no word": (
        integers({}, DOWN),
        "map model.layers.1.mlp.down_proj: 12 inputs are not a multiple of 8, the integers of a word",
    ),
}
"""Name → change of the valid model, and a phrase of the expected error."""


def refusal(folder: Path) -> str | None:
    """Return the error of the checks of a model, None if they accept it."""
    try:
        check_model(folder, 1, 1, 0, range(1))
        try_text(folder, None)
    except (ModelError, ConfigurationError) as error:
        return str(error)
    return None


def main(below: Path) -> None:
    """Check all models, the valid model last."""

    def leave(folder: Path) -> None:
        """Change nothing."""

    for number, (name, (change, _)) in enumerate([*HOSTILE.items(), ("sound", (leave, ""))]):
        folder = below / str(number)
        make_sound(folder)
        change(folder)
        started = time.perf_counter()
        error = refusal(folder)
        print(json.dumps({"name": name, "refusal": error, "seconds": time.perf_counter() - started}), flush=True)
    # Not ru_maxrss, which includes the peak of the parent process.
    (peak,) = (line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    print(json.dumps({"peak_bytes": int(peak) << 10}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
