"""A checkpoint with one weight file per layer, and a second revision of it with other weights."""

from __future__ import annotations

import json
import re
from pathlib import Path

from orca_worker.weight_headers import INDEX, SINGLE
from safetensors.torch import load_file, save_file


def write_sharded(source: Path, folder: Path, factor: float = 1.0) -> Path:
    """Write the checkpoint `source`, of a single file, to `folder` with its weights times `factor`."""
    folder.mkdir()
    files: dict[str, dict[str, object]] = {}
    for name, tensor in load_file(source / SINGLE).items():
        layer = re.search(r"\.(\d+)\.", name)
        files.setdefault(f"model-{layer[1] if layer else 'outside'}.safetensors", {})[name] = tensor * factor
    for name, tensors in files.items():
        save_file(tensors, folder / name)
    weight_map = {tensor: name for name, tensors in files.items() for tensor in tensors}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_bytes((source / "config.json").read_bytes())
    return folder
