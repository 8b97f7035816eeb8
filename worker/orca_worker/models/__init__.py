"""Registry of model families, by the architecture in config.json. Imports no torch."""

from __future__ import annotations

from orca_worker.config_schema import ConfigFile
from orca_worker.models.gemma2 import Gemma2File
from orca_worker.models.gpt2 import Gpt2File
from orca_worker.models.llama import LlamaFile
from orca_worker.models.llama_relatives import MistralFile, Qwen2File, Qwen3File

FAMILIES: dict[str, type[ConfigFile]] = {
    "GPT2LMHeadModel": Gpt2File,
    "LlamaForCausalLM": LlamaFile,
    "MistralForCausalLM": MistralFile,
    "Qwen2ForCausalLM": Qwen2File,
    "Qwen3ForCausalLM": Qwen3File,
    "Gemma2ForCausalLM": Gemma2File,
    "MinistralForCausalLM": MistralFile,
}
"""Architecture → schema of the family's config.json, whose `config` gives the family's ModelConfig."""


def without_head(name: str) -> str:
    """Return the architecture in FAMILIES whose model without a head is `name`, as "MistralModel"; "" if none is."""
    if not name.endswith("Model"):
        return ""
    stem = name.removesuffix("Model")
    return next((each for each in FAMILIES if each in (f"{stem}ForCausalLM", f"{stem}LMHeadModel")), "")
