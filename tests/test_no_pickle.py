"""No package reads or writes a format that runs code when it is read (tests/system/test_no_pickle.py: at run time)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(path.parent for path in ROOT.glob("*/orca_*/__init__.py"))
MODULES = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "copyreg", "dill", "cloudpickle", "joblib"}
"""Modules that read code. multiprocessing and concurrent.futures.process send pickles between processes."""
SENDERS = {"multiprocessing", "concurrent.futures.process", "torch.multiprocessing"}
CALLS = {
    "torch.load", "torch.save", "numpy.load", "np.load", "ProcessPoolExecutor",
    "all_gather_object", "broadcast_object_list", "gather_object", "recv_object_list", "scatter_object_list",
    "send_object_list", "torch.distributed.rpc",
}  # fmt: skip
"""Compared with the ends of dotted names; the objects of torch's collective calls are pickles."""


def uses(source: str) -> list[str]:
    """Names of a module that stand for pickles, in order."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Attribute | ast.Name):
            names.append(ast.unparse(node))
    return [
        name
        for name in names
        if name.split(".")[0] in MODULES
        or any(name == sender or name.startswith(f"{sender}.") for sender in SENDERS)
        or any(name == call or name.endswith(f".{call}") for call in CALLS)
    ]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_no_package_uses_pickles(package):
    sources = {path.relative_to(ROOT): path.read_text() for path in sorted(package.rglob("*.py"))}
    assert {path: names for path, source in sources.items() if (names := uses(source))} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import marshal as m",
        "import multiprocessing.connection",
        "from multiprocessing import shared_memory",
        "from torch import multiprocessing",
        "from concurrent.futures import ProcessPoolExecutor",
        "import torch\ntorch.load(path)",
        "import torch.distributed as dist\ndist.broadcast_object_list([None])",
        "from torch.distributed import all_gather_object",
        "def late():\n    import shelve",
    ],
)
def test_the_search_sees(source):
    assert uses(source)


def test_all_packages_are_searched():
    assert {path.name for path in PACKAGES} == {
        "orca_contract", "orca_protos", "orca_master", "orca_worker", "orca_kernels", "orca_operator", "orca_bench",
    }  # fmt: skip
