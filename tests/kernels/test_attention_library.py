"""Which attention a GPU's layers have: by choice, GPU, form and self-test, and what is said about it."""

from __future__ import annotations

import gc
import itertools
import logging
import weakref
from types import SimpleNamespace
from typing import get_args

import pytest
import torch
from orca_contract.model_choices import AttentionBackend
from orca_kernels.cuda import attention_library, modules, torch_attention
from orca_kernels.cuda.attention_library import AttentionChoice, CheckedLibrary, PreferredLibrary
from orca_kernels.cuda.flashinfer_attention import FlashInferAttention, FlashInferSource
from orca_kernels.cuda.kernels import CudaAttention, CudaKernels
from orca_kernels.cuda.torch_attention import TorchAttention, TorchSource
from orca_kernels.fallback import Operations
from orca_kernels.interface import AttentionBackendError, AttentionForm
from orca_kernels.reference import ReferenceAttention, ReferenceKernels
from orca_kernels.select import kernels_for
from support.paged_flashinfer import FakeEvent, FakeFlashInfer
from support.paged_varlen import fake_flash_attention
from torch.nn.attention.varlen import varlen_attn_out

CPU, GPU = torch.device("cpu"), torch.device("cuda")
FORM, WINDOW, SOFTCAP = AttentionForm(64, 0.125), AttentionForm(64, 0.125, 40), AttentionForm(64, 0.125, softcap=50.0)
CAPABILITIES = ((8, 0), (8, 9), (9, 0), (10, 0), (12, 0))
LIBRARIES = {
    "auto": (PreferredLibrary, "torch"),
    "orca": (type(None), None),
    "torch": (CheckedLibrary, "torch"),
    "flashinfer": (CheckedLibrary, "flashinfer"),
}
"""Of a Hopper GPU: class and name."""


def choice(backend: str) -> AttentionChoice:
    return AttentionChoice(backend, 4, 2)


def torchs(load, backend: str = "torch") -> CheckedLibrary:
    return CheckedLibrary(TorchSource(load), choice(backend), CPU)


class Loader:
    """Returns torch's function, or raises the error of a machine without FlashAttention-3; counts the loads."""

    def __init__(self, error: str = "") -> None:
        self.loads = 0
        self._error = error

    def __call__(self):
        self.loads += 1
        if self._error:
            raise AttentionBackendError(self._error)
        return varlen_attn_out


def wrong(out, *_, **__) -> None:
    out.zero_()


def refusing(*_, **__) -> None:
    raise RuntimeError("no kernel image is available\nfor execution on the device")


@pytest.mark.parametrize(("backend", "capability"), list(itertools.product(get_args(AttentionBackend), CAPABILITIES)))
def test_the_library_of_a_gpu(backend, capability):
    """By default only torch's, on the GPUs for which it is made."""
    if backend == "torch" and capability != (9, 0):
        words = "FlashAttention-3 needs compute capability 9.0, this GPU has " + ".".join(map(str, capability))
        with pytest.raises(AttentionBackendError, match=f"^{words}$"):
            attention_library.attention_library(choice(backend), capability, GPU)
        return
    library = attention_library.attention_library(choice(backend), capability, GPU)
    if backend == "flashinfer" or capability == (9, 0):
        assert (type(library), library and library.name) == LIBRARIES[backend]
    else:
        assert library is None


def test_a_torch_without_flash_attention_3_has_orcas_kernels(monkeypatch):
    """There is nothing to release, and nothing is activated that could not be."""
    monkeypatch.delattr(torch.nn.attention, "restore_flash_attention_impl", raising=False)
    monkeypatch.setattr(torch.nn.attention, "activate_flash_attention_impl", None)
    assert attention_library.attention_library(choice("orca"), (8, 0), GPU) is None
    with pytest.raises(AttentionBackendError, match=r"^torch 2\.\S+ has no varlen_attn over pages, 2\.13 has: "):
        torch_attention.load_varlen()


def test_each_form_is_tested_once():
    load = Loader()
    library = torchs(load)
    with fake_flash_attention() as calls:
        for _ in range(3):
            for form in (FORM, WINDOW):
                assert isinstance(library.attention(form, torch.bfloat16), TorchAttention)
    assert load.loads == 1
    assert [call["window"] for call in calls] == [(-1, 0)] * 2 + [(39, 0)] * 2
    assert {call["max_q"] for call in calls} == {33}


def test_a_form_that_the_library_lacks_is_refused_before_it_is_loaded():
    load = Loader()
    for form, dtype in ((SOFTCAP, torch.bfloat16), (FORM, torch.float32)):
        with pytest.raises(AttentionBackendError):
            torchs(load).attention(form, dtype)
    assert load.loads == 0


@pytest.mark.parametrize(
    ("varlen", "words"),
    [
        (wrong, r"results differ from those of the reference by \d\.\de[+-]\d\d"),
        (refusing, "RuntimeError: no kernel image is available"),
    ],
)
def test_a_self_test_that_fails(varlen, words, monkeypatch):
    """It is not repeated for the next layer, and torch's other functions get their own attention back."""
    released, loads = [], []
    monkeypatch.setattr(torch_attention, "unload_varlen", lambda: released.append(True))
    library = torchs(lambda: loads.append(True) or varlen)
    for _ in range(3):
        with pytest.raises(AttentionBackendError, match=f"^the self-test of torch's attention failed: {words}$"):
            library.attention(FORM, torch.bfloat16)
    assert len(loads) == len(released) == 1


def kernels(load, preferred=True) -> CudaKernels:
    library = torchs(load, "auto")
    return CudaKernels(SimpleNamespace(), "CUDA sm_90", PreferredLibrary(library) if preferred else library)


def test_the_name_says_who_computes_attention():
    made = kernels(Loader())
    assert made.name == "CUDA sm_90"
    with fake_flash_attention():
        assert isinstance(made.attention(FORM, torch.bfloat16), TorchAttention)
    assert made.name == "CUDA sm_90, attention by torch"


def test_flashinfer_is_tested_once_per_form_and_named():
    fake = FakeFlashInfer()
    library = CheckedLibrary(FlashInferSource(CPU, lambda: fake, FakeEvent), choice("flashinfer"), CPU)
    made = CudaKernels(SimpleNamespace(), "CUDA sm_80", library)
    for _ in range(3):
        for form in (FORM, WINDOW, SOFTCAP):
            assert isinstance(made.attention(form, torch.bfloat16), FlashInferAttention)
    assert [wrapper.runs for wrapper in fake.wrappers] == [1, 1, 1]
    assert made.name == "CUDA sm_80, attention by flashinfer"


class Untrue:
    """A wrapper that writes nothing, or whose planner fails."""

    def __init__(self, error: str) -> None:
        self._error = error

    def plan(self, *_, **__) -> None:
        if self._error:
            raise RuntimeError(f"{self._error}\nand more")

    def run(self, query, pages, *, out):
        return out.zero_()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("", r"results differ from those of the reference by \d\.\de[+-]\d\d"),
        ("Could not find nvcc", "RuntimeError: Could not find nvcc"),
    ],
)
def test_a_self_test_of_flashinfer_that_fails(error, words):
    loads, workspaces = [], []

    def new_wrapper(workspace: torch.Tensor, _: str) -> Untrue:
        workspaces.append(weakref.ref(workspace))
        return Untrue(error)

    source = FlashInferSource(CPU, lambda: loads.append(True) or new_wrapper, FakeEvent)
    library = CheckedLibrary(source, choice("flashinfer"), CPU)
    for _ in range(3):
        with pytest.raises(AttentionBackendError, match=f"^the self-test of flashinfer's attention failed: {words}$"):
            library.attention(FORM, torch.bfloat16)
    assert len(loads) == 1
    assert source._plans is None
    gc.collect()
    assert [workspace() for workspace in workspaces] == [None], "no error that is kept has the frames of the self-test"


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (Loader("FlashAttention-3 cannot be activated: no module"), "FlashAttention-3 cannot be activated: no module"),
        (lambda: refusing, "the self-test of torch's attention failed: RuntimeError: no kernel image is available"),
    ],
    ids=["not installed", "fails"],
)
def test_by_default_orcas_kernels_take_over_with_one_line(load, reason, caplog):
    made = kernels(load)
    operations = Operations(made)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            for form in (FORM, WINDOW):
                assert isinstance(operations.attention(form, torch.bfloat16), CudaAttention)
    assert caplog.messages == [f"attention by ORCA's kernels, not by torch's library: {reason}"]
    assert made.name == "CUDA sm_90"
    assert not operations.missing


def test_a_form_of_neither_is_the_references(caplog):
    operations = Operations(kernels(Loader()))
    assert isinstance(operations.attention(SOFTCAP, torch.bfloat16), ReferenceAttention)
    assert operations.missing == {"attention with head_dim 64 softcap"}
    assert caplog.messages == ["attention by ORCA's kernels, not by torch's library: torch's varlen_attn lacks softcap"]


def test_float32_is_computed_by_orcas_kernels():
    assert isinstance(kernels(Loader()).attention(FORM, torch.float32), CudaAttention)


def test_a_demanded_library_refuses_what_it_lacks():
    with pytest.raises(AttentionBackendError, match="lacks softcap"):
        kernels(Loader(), preferred=False).attention(SOFTCAP, torch.bfloat16)


@pytest.fixture
def hopper(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(modules, "CupyLauncher", lambda: SimpleNamespace(launch=lambda *_: None))
    monkeypatch.setattr(torch, "zeros", lambda shape, **_: torch.empty(shape))


@pytest.mark.parametrize(
    ("wanted", "library"), [(None, type(None)), *((name, kind) for name, (kind, _) in LIBRARIES.items())]
)
def test_the_kernels_of_a_hopper_gpu_have_the_chosen_library(wanted, library, hopper):
    made = kernels_for(GPU, torch.bfloat16, wanted and choice(wanted))
    assert isinstance(made, CudaKernels)
    assert type(made._library) is library


@pytest.mark.parametrize("backend", ["orca", "torch", "flashinfer"])
def test_what_is_demanded_is_not_replaced_by_plain_torch(backend, hopper, monkeypatch):
    def launcher() -> object:
        raise ImportError("No module named 'cupy'\nand more")

    monkeypatch.setattr(modules, "CupyLauncher", launcher)
    with pytest.raises(
        AttentionBackendError, match=r"^no fused kernels on this GPU: ImportError: No module named 'cupy'$"
    ):
        kernels_for(GPU, torch.bfloat16, choice(backend))
    assert type(kernels_for(GPU, torch.bfloat16, choice("auto"))) is ReferenceKernels
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(AttentionBackendError, match=r"^no fused kernels for a GPU older than Ampere$"):
        kernels_for(GPU, torch.bfloat16, choice(backend))
    assert type(kernels_for(GPU, torch.bfloat16, choice("auto"))) is ReferenceKernels
