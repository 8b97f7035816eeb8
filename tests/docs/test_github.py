"""The workflow runs targets that exist, on a supported Python; the issue forms are well-formed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FORMS = [path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml"]


def test_the_workflow_runs_targets_of_the_makefile():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    (job,) = workflow["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert commands == ["make ${{ matrix.targets }}"]
    runs = job["strategy"]["matrix"]["targets"]
    assert runs == ["lint test resolve", "test-long", "test-exhaustive"]
    assert set(" ".join(runs).split()) <= targets
    (python,) = [step["with"]["python-version"] for step in job["steps"] if "setup-python" in step.get("uses", "")]
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert requires == f">={python}"
    assert job["timeout-minutes"] == 90


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_a_form_has_what_github_requires(form):
    content = yaml.safe_load(form.read_text())
    assert {"name", "description", "body"} <= set(content)
    ids = [part["id"] for part in content["body"] if part["type"] != "markdown"]
    assert len(ids) == len(set(ids))
    assert all(part["attributes"].get("label") or part["type"] == "markdown" for part in content["body"])
    assert {part["type"] for part in content["body"]} <= {"markdown", "textarea", "input", "dropdown", "checkboxes"}
