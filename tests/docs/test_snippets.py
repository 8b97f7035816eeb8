"""The snippets of the pages: Python defines the names that it uses, manifests and patches are valid specs."""

from __future__ import annotations

import ast
import builtins
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from orca_bench.traces import recorded
from orca_operator.api import Spec
from orca_operator.effects import leaves
from orca_operator.names import KIND
from orca_operator.schema import spec_schema
from orca_operator.structural import admitted
from orca_operator.validation import parse
from support.orcadeployments import MINIMAL

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELL = re.compile(r"(?:[A-Z_]+=\S+ )*(?:orca|curl|pip|make|kubectl|helm|docker|openssl|lm_eval) ")
OWN_GROUPS = r"v1|(?:rbac\.authorization|networking)\.k8s\.io/v1"
"""API versions of objects whose schema a cluster has without add-ons."""
FIELDS = {name for leaf in leaves(Spec) for name in leaf.wire.split(".")[:1]}
"""Fields of a spec."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> Iterator[str]:
    """Yield the indented blocks of code, which blank lines do not end."""
    lines: list[str] = []
    for line in [*page.read_text(encoding="utf-8").splitlines(), "end"]:
        if line.startswith("    ") or (lines and not line.strip()):
            lines.append(line.removeprefix("    "))
            continue
        if lines:
            yield "\n".join(lines).rstrip() + "\n"
        lines = []


def programs(page: Path) -> Iterator[ast.Module]:
    """Yield the blocks that are Python: those that parse, and that import, call or assign something."""
    for block in blocks(page):
        try:
            tree = ast.parse(block)
        except SyntaxError:
            continue
        if any(isinstance(node, ast.Import | ast.ImportFrom | ast.Call) for node in ast.walk(tree)):
            yield tree


def defined(tree: ast.Module) -> set[str]:
    """Return the names that a program assigns, imports or declares, those of parameters included."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(ctx=ast.Store()):
                found.add(node.id)
            case ast.Import() | ast.ImportFrom():
                found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
            case ast.ClassDef() | ast.FunctionDef():
                found.add(node.name)
            case ast.arg():
                found.add(node.arg)
    return found


def merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the change merged into it, as by `kubectl patch --type=merge`."""
    result = dict(base)
    for name, value in change.items():
        old = result.get(name)
        result[name] = merged(old, value) if isinstance(value, dict) and isinstance(old, dict) else value
    return result


def documents(page: Path) -> Iterator[dict[str, Any]]:
    """Yield the YAML documents that are maps."""
    for block in blocks(page):
        try:
            yield from (document for document in yaml.safe_load_all(block) if isinstance(document, dict))
        except yaml.YAMLError:
            continue


def specs(page: Path) -> Iterator[dict[str, Any]]:
    """Yield the specs of OrcaDeployments in manifests and patches, and parts of such specs."""
    for document in documents(page):
        if document.get("kind", KIND) == KIND and ("spec" in document or document.keys() <= FIELDS):
            yield document.get("spec", document)
    for patch in re.findall(r"-p '(\{.*?\})'", page.read_text(encoding="utf-8")):
        yield json.loads(patch)["spec"]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_uses_names_that_its_page_defines(page):
    known = set(dir(builtins))
    for tree in programs(page):
        known |= defined(tree)
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert used - known == set()


def test_imported_packages_are_installed_by_a_command_of_the_pages():
    installed = {name for page in PAGES for name in re.findall(r"pip install ([a-z]\w+)", page.read_text("utf-8"))}
    installed |= {"orca", "pydantic"} | sys.stdlib_module_names  # pydantic: a dependency of ORCA
    imported = {
        module.partition(".")[0]
        for page in PAGES
        for tree in programs(page)
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for module in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [name.name for name in node.names])
    }
    assert imported - installed == set()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_block_is_python_or_shell(page):
    """Who copies a block gets all of it: the commands of a shell and a Python program are two blocks."""
    mixed = [
        block
        for block in blocks(page)
        if re.search(r"^(?:from [\w.]+ )?import \w", block, re.MULTILINE) and SHELL.match(block)
    ]
    assert mixed == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_specs_are_valid(page):
    """The operator's check has the verdict of the API server (tests/operator/test_validation.py)."""
    for part in specs(page):
        spec = merged(MINIMAL, part)
        parse("demo", spec)
        stored = admitted(spec, spec_schema())
        assert merged(stored, spec) == stored, "the API server drops unknown fields"


def test_kubernetes_own_objects_are_valid():
    """tests/docs/test_reach.py has those of other projects."""
    kinds = set()
    for document in (document for page in PAGES for document in documents(page)):
        if re.fullmatch(OWN_GROUPS, document.get("apiVersion", "")):
            kubernetes_validate.validate(document, "1.36", strict=True)
            kinds.add(document["kind"])
    assert {"ClusterRole", "Ingress", "PersistentVolumeClaim"} <= kinds


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_named_fields_exist(page):
    """A field in a sentence: `spec.worker.env`, or `worker.env`."""
    wires = [leaf.wire for leaf in leaves(Spec)]
    names = re.findall(r"`spec\.([\w.]*\w)", page.read_text(encoding="utf-8"))
    if page.parent.name == "how-to" or page.name == "operator.md":
        names += re.findall(rf"`((?:{'|'.join(FIELDS)})(?:\.[a-z]\w+)+)[:`]", page.read_text(encoding="utf-8"))
    fields = {name for name in names if not name.endswith((".crt", ".key", ".orca", ".txt"))}
    known = {name for name in fields if any(f"{wire}.".startswith(f"{name}.") for wire in wires)}
    free = {name for name in fields if any(name.startswith(f"{wire}.") for wire in wires)}
    assert fields - known - free == set()


def test_the_pages_have_python_and_specs():
    assert sum(len(list(programs(page))) for page in PAGES) >= 15
    assert sum(len(list(specs(page))) for page in PAGES) >= 15


def test_the_traces_of_the_how_to_can_be_read(tmp_path):
    """docs/how-to/load.md has a .csv file in a block, and a .json file in a row of its table."""
    page = ROOT / "docs" / "how-to" / "load.md"
    (table,) = [block for block in blocks(page) if block.startswith("arrival,")]
    (tmp_path / "a.csv").write_text(table)
    requests, has_arrivals = recorded(tmp_path / "a.csv", 5, 0)
    assert [(request.arrival, request.input_length, request.output_length) for request in requests] == [
        (0, 350, 128),
        (0.7, 41, 12),
    ]
    assert has_arrivals
    (conversations,) = re.findall(r"ShareGPT's format: `(.*?)`", page.read_text(encoding="utf-8"))
    (tmp_path / "a.json").write_text(conversations.replace(", …", ""))
    ((request,), has_arrivals) = recorded(tmp_path / "a.json", 5, 0)
    assert (request.prompt, request.output_length, has_arrivals) == ("a prompt", 2, False)
