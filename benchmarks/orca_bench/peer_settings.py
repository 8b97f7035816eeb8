"""Settings in which engines are compared: defaults of the peers, settings that their manuals recommend, and ORCA's.

`vllm_cpu` is vLLM in eager mode, which starts in seconds; `vllm_cpu:compiled` has vLLM's default, torch.compile, and
the libraries that the manual preloads.

A setting is a column of the comparison. Columns are compared within a group of equal weights (`weights`), and the ratio
of a column is that to ORCA's column with the same precision (`reference`) of weights, K/V cache and the activations in
products.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Weights = Literal["none", "int8", "int4"]
Cache = Literal["auto", "int8"]
Activations = Literal["auto", "int8"]

WEIGHTS: tuple[Weights, ...] = ("none", "int8", "int4")
"""Quantisations of the weights, in the order of the output; `none`: the weights have the activations' type."""
ALL = "all"
PRELOADED = ("libiomp5.so", "libtcmalloc_minimal.so.4")
"""Libraries that the CPU manual of vLLM preloads on x86."""
VENDOR_OF_AMD = "AuthenticAMD"


@dataclass(frozen=True, slots=True)
class Setting:
    """A peer's engine with options.

    `engine` names a file of benchmarks/peers, which has an environment of its own. `cache`: the type of the model, or
    eight bits. `activations`: the same for the activations in products. `compiled`: whether torch.compile compiles the
    model. `preload`: file names of libraries for LD_PRELOAD. `vendor`: the only vendor of processors (`vendor_id` of
    /proc/cpuinfo) on which the engine runs, or "".
    """

    name: str
    engine: str
    weights: Weights = "none"
    cache: Cache = "auto"
    activations: Activations = "auto"
    compiled: bool = False
    preload: tuple[str, ...] = ()
    vendor: str = ""


ORCA = "orca"
OF_ORCA = (
    Setting("orca", ORCA),
    Setting("orca:int8-cache", ORCA, cache="int8"),
    Setting("orca:int8", ORCA, weights="int8"),
    Setting("orca:int8+int8-cache", ORCA, weights="int8", cache="int8"),
    Setting("orca:w8a8", ORCA, weights="int8", activations="int8"),
    Setting("orca:w8a8+int8-cache", ORCA, weights="int8", cache="int8", activations="int8"),
    Setting("orca:int4", ORCA, weights="int4"),
    Setting("orca:int4+int8-cache", ORCA, weights="int4", cache="int8"),
    Setting("orca:w4a8", ORCA, weights="int4", activations="int8"),
    Setting("orca:w4a8+int8-cache", ORCA, weights="int4", cache="int8", activations="int8"),
)
OF_PEERS = (
    Setting("vllm_cpu", "vllm_cpu"),
    Setting("vllm_cpu:preload", "vllm_cpu", preload=PRELOADED),
    Setting("vllm_cpu:compiled", "vllm_cpu", compiled=True, preload=PRELOADED),
    Setting("vllm_zentorch", "vllm_zentorch", compiled=True, preload=PRELOADED, vendor=VENDOR_OF_AMD),
    Setting("openvino_genai", "openvino_genai"),
    Setting("openvino_genai:int8-cache", "openvino_genai", cache="int8"),
    Setting("openvino_genai:int8", "openvino_genai", weights="int8", cache="int8", activations="int8"),
    Setting("openvino_genai:int4", "openvino_genai", weights="int4", cache="int8", activations="int8"),
    Setting("llama_cpp", "llama_cpp"),
    Setting("llama_cpp:q8_0", "llama_cpp", weights="int8", activations="int8"),
    Setting("llama_cpp:q4_0", "llama_cpp", weights="int4", activations="int8"),
    Setting("transformers_generate", "transformers_generate"),
    Setting("transformers_continuous", "transformers_continuous"),
)
SETTINGS = {setting.name: setting for setting in (*OF_ORCA, *OF_PEERS)}
DEFAULT = ("orca", "vllm_cpu", "openvino_genai", "transformers_generate", "transformers_continuous")


def chosen(names: Iterable[str]) -> list[Setting]:
    """Return the settings of these names, each once, in the order of SETTINGS, and the references that they need.

    The name `all` stands for every setting.
    """
    wanted = set(names)
    if ALL in wanted:
        wanted |= set(SETTINGS)
    wanted |= {reference(SETTINGS[name]).name for name in wanted - {ALL}}
    return [setting for setting in SETTINGS.values() if setting.name in wanted]


def reference(setting: Setting) -> Setting:
    """Return ORCA's setting of the same precision."""
    precision = (setting.weights, setting.cache, setting.activations)
    return next(own for own in OF_ORCA if (own.weights, own.cache, own.activations) == precision)


def of_vendor(settings: Sequence[Setting], vendor: str) -> tuple[list[Setting], dict[str, str]]:
    """Return the settings that run on a vendor's processors, and the reason for each of the others by its name."""
    unfit = {
        setting.name: f"needs a processor of {setting.vendor}, this one is of {vendor or 'an unknown vendor'}"
        for setting in settings
        if setting.vendor not in ("", vendor)
    }
    return [setting for setting in settings if setting.name not in unfit], unfit


def vendor_of(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's vendor, "" where the file is missing or does not have it (Arm)."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")
