"""What README and docs name exists: make targets, options, files; README's figures are those of docs/benchmarks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    if page.name not in ("CHANGELOG.md", "options.md", "api.md")
]
FOLDERS = "benchmarks|charts|crds|examples|images|kernels|master|operator|protos|tests|tools|worker"
UNITS = {"": 1, "s": 1, "days": 24 * 3600, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
OPTIONS = (ROOT / "docs" / "reference" / "options.md").read_text(encoding="utf-8")


def section(command: str) -> str:
    """Return the reference of one command, such as "orca serve", with the sections that also apply to it."""
    text = OPTIONS.partition(f"\n## {command}\n")[2].partition("\n## ")[0]
    assert text, command
    others = {"orca master": ["orca serve"], "orca serve": ["Options of vLLM"]}
    return text + "".join(section(other) for other in others.get(command, []))


def code(page: Path) -> str:
    """Return indented blocks and fenced blocks, with continued lines joined and comments dropped."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^(?: {4}\S.*\n)+", text, re.MULTILINE) + re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S)
    return re.sub(r"\s#\s.*", "", "".join(blocks).replace("\\\n", " "))


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_commands_have_targets_options_and_files(page):
    text = page.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        target for words in re.findall(r"(?:`|^ {4})make ((?:[a-z-]+\s?)+)", text, re.M) for target in words.split()
    }
    assert named <= targets
    wrong = []
    for command, arguments in re.findall(r"\b(orca (?:bench )?[a-z]+)\b([^\n;&|]*)", code(page)):
        if f"\n## {command}\n" not in OPTIONS:
            continue
        known = section(command)
        wrong += [
            f"{command} {option}"
            for option in re.findall(r"(?<=\s)--?[a-z][a-z-]*", arguments)
            if f"`{option}`" not in known
        ]
    assert wrong == []
    paths = re.findall(rf"(?<=[\s`])(?:{FOLDERS})/[\w./-]*\w", text)
    assert [path for path in paths if not (ROOT / path).exists() and "NAME" not in path] == []


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.parent.name != "benchmarks"], ids=lambda page: page.stem
)
def test_options_in_sentences_exist(page):
    """An option of ORCA's commands, of helm, or of docker's build."""
    named = set(re.findall(r"`(--[a-z][\w-]*)", page.read_text(encoding="utf-8")))
    assert {option for option in named if f"`{option}`" not in OPTIONS} <= {"--set", "--build-arg"}


def test_defaults_in_sentences_are_those_of_the_options():
    """A number in brackets behind an option, as in "`--patience` (600 s)"; a command has this default."""
    named = {
        (page.name, option, int(number) * UNITS[unit])
        for page in PAGES
        for option, number, unit in re.findall(
            r"`(--[a-z][\w-]*)`\s+\((\d+)(?: (KiB|MiB|GiB|s|days)\b)?", page.read_text(encoding="utf-8")
        )
    }
    assert len(named) >= 20
    defaults = {
        (option, default) for option, default in re.findall(r"^\| `(--[\w-]+)`.*? \| .*? \| (\S+) \|", OPTIONS, re.M)
    }
    assert [(page, option, number) for page, option, number in named if (option, str(number)) not in defaults] == []


def test_every_target_is_documented():
    """A page names each target of the Makefile, but those that are a part of another one."""
    makefile = (ROOT / "Makefile").read_text()
    (targets,) = re.findall(r"^\.PHONY: (.*)", makefile, re.MULTILINE)
    pages = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = {word for words in re.findall(r"(?:`|^ {4})make ([a-z -]+)", pages, re.MULTILINE) for word in words.split()}
    parts = set(" ".join(re.findall(r"(?:^[a-z-]+:|\$\(MAKE\))(.*)", makefile, re.MULTILINE)).split())
    assert set(targets.split()) - named - parts == set()


def test_figures_of_the_readme_are_those_of_the_benchmarks():
    """Some section of the benchmarks has all numbers of a row."""
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "benchmarks").glob("*.md")]
    sections = [set(re.findall(r"[\d.]*\d", part)) for page in pages for part in page.split("\n## ")]
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("| figure |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert len(rows) >= 5
    for _, ours, theirs, ratio, _ in rows:
        numbers = {ours, theirs.rpartition(": ")[2], ratio.removesuffix(" x")}
        assert any(numbers <= section for section in sections), numbers
