"""FlashInfer's package and forms: what is refused, and what a machine with the package and a GPU tests besides."""

from __future__ import annotations

import gc
import importlib.util
import inspect
import sys
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from orca_kernels.attention_self_test import self_test_attention
from orca_kernels.cuda.flashinfer_attention import FlashInferSource, check_form, load_wrapper
from orca_kernels.interface import AttentionBackendError, AttentionForm
from support.paged_flashinfer import VERSION, FakeEvent, FakeFlashInfer, FakeWrapper

CPU = torch.device("cpu")
FORM = AttentionForm(64, 0.125)


@pytest.mark.parametrize(
    ("form", "dtype", "reason"),
    [
        (FORM, torch.float32, "FlashInfer computes bfloat16 and float16, not float32"),
        (replace(FORM, kv_cache_dtype="int8"), torch.bfloat16, "FlashInfer lacks kv_cache_dtype"),
        (AttentionForm(80, 0.1), torch.bfloat16, "FlashInfer has head dimensions 64, 128, 256, not 80"),
    ],
    ids=str,
)
def test_forms_that_flashinfer_lacks(form, dtype, reason):
    """They are refused before the package is imported."""

    def load():
        raise AssertionError("loaded")

    with pytest.raises(AttentionBackendError, match=f"^{reason}$"):
        FlashInferSource(CPU, load).attention(form, dtype)
    check_form(AttentionForm(256, 0.1, window=4096, softcap=50.0), torch.float16)


def test_a_source_loads_the_package_once_and_frees_the_workspace():
    loads = []
    fake = FakeFlashInfer()
    source = FlashInferSource(CPU, lambda: loads.append(True) or fake, FakeEvent)
    first, second = (source.attention(form, torch.bfloat16) for form in (FORM, replace(FORM, window=7)))
    assert first._plans is second._plans
    workspace = weakref.ref(first._plans)
    del first, second
    source.release()
    gc.collect()
    assert workspace() is None
    source.attention(FORM, torch.bfloat16)
    assert len(loads) == 2


def installed(version: str) -> SimpleNamespace:
    return SimpleNamespace(__version__=version, BatchPrefillWithPagedKVCacheWrapper=FakeWrapper)


@pytest.mark.parametrize("version", ["0.7.2", "0.7.2.post1", "0.10.0rc1", "1.0.0"])
def test_the_package_is_loaded(version, monkeypatch):
    monkeypatch.setitem(sys.modules, "flashinfer", installed(version))
    assert load_wrapper() is FakeWrapper


@pytest.mark.parametrize("version", ["0.7.1.post2", "0.2.14", "0.0.0+unknown"])
def test_an_older_package_is_refused(version, monkeypatch):
    monkeypatch.setitem(sys.modules, "flashinfer", installed(version))
    with pytest.raises(AttentionBackendError, match=r"^FlashInfer \S+ is installed, 0\.7\.2 or later is needed$"):
        load_wrapper()


def test_a_package_that_cannot_be_imported_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    words = r"^FlashInfer \(package flashinfer-python\) cannot be imported: ModuleNotFoundError: import of flashinfer "
    with pytest.raises(AttentionBackendError, match=words):
        load_wrapper()
    monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace(__version__="0.7.2"))
    with pytest.raises(AttentionBackendError, match="cannot be imported: AttributeError: "):
        load_wrapper()


@pytest.mark.skipif(importlib.util.find_spec("flashinfer") is None, reason="FlashInfer is not installed")
@pytest.mark.parametrize("method", ["__init__", "plan", "run"])
def test_the_played_parameters_are_those_of_the_package(method):
    played, real = (
        {
            name: (parameter.kind, parameter.default)
            for name, parameter in inspect.signature(function).parameters.items()
        }
        for function in (getattr(FakeWrapper, method), getattr(load_wrapper(), method))
    )
    assert played == real, f"those of {VERSION} are played"


def has_flashinfer() -> bool:
    """Return True on a GPU that the wrapper runs on, with its package."""
    modern = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)
    return modern and importlib.util.find_spec("flashinfer") is not None


@pytest.mark.skipif(not has_flashinfer(), reason="no GPU of compute capability 8.0 with FlashInfer")
@pytest.mark.parametrize("softcap", [None, 50.0])
@pytest.mark.parametrize("window", [None, 1, 40, 300])
@pytest.mark.parametrize("heads", [(4, 4), (8, 1), (32, 8)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_flashinfer_passes(softcap, window, heads, dtype):
    form, device = AttentionForm(128, 128**-0.5, window, softcap), torch.device("cuda")
    self_test_attention(FlashInferSource(device).attention(form, dtype), form, heads, dtype, device)
