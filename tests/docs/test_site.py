"""The site builds without a warning, needs no other server, and the links of files outside of docs/ resolve."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("examples/**/*.md"), *ROOT.glob(".github/**/*.md")]
"""Pages outside of docs/, whose links mkdocs does not check."""
LINK = re.compile(r"\]\(([^)\s]+)\)")
LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=\"?(?:https?:)?//")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`|^    .*?$", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors that hosts of repositories give the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_site_builds_strictly_and_loads_nothing_from_other_servers(tmp_path):
    """--strict: a broken link or anchor, or a page that the navigation does not name, ends the build with an error."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 20
    assert [page.name for page in pages if LOADED.search(page.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_resolve(page):
    broken = []
    for link in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        path, _, anchor = unquote(link).partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        target = (page.parent / path) if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_code_and_tests_name_pages_that_exist():
    """Comments name pages as docs/contracts.md, and sections of contracts.md and architecture.md by number."""
    folders = ("master", "worker", "kernels", "operator", "protos", "benchmarks", "tools", "tests", "charts", "images")
    files = [
        file for folder in folders for file in (ROOT / folder).rglob("*") if file.suffix in (".py", ".proto", ".h")
    ]
    missing = set()
    for file in [*files, ROOT / "Dockerfile", ROOT / "Makefile", ROOT / "mkdocs.yml"]:
        text = file.read_text(encoding="utf-8")
        for name in re.findall(r"docs/[\w/-]+\.md", text):
            if not (ROOT / name).exists():
                missing.add(f"{file.relative_to(ROOT)}: {name}")
        for name, number in re.findall(r"docs/(\w+)\.md, section (\d+)", text):
            page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
            if not re.search(rf"^## {number}\. ", page, re.MULTILINE):
                missing.add(f"{file.relative_to(ROOT)}: docs/{name}.md, section {number}")
    assert missing == set()
