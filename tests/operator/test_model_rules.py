"""Rules about the model; tests/support/spec_table.py has the same in the API server's form."""

from __future__ import annotations

import pytest
from orca_operator.api import Spec
from orca_operator.model_rules import MODEL_RULES
from orca_operator.schema import spec_schema
from orca_operator.structural import admitted
from orca_operator.validation import InvalidSpecError, parse
from support.orcadeployments import MINIMAL, merged

FILE, HUB = "file:///models/demo", "hf://a/b"


@pytest.mark.parametrize(
    ("model", "tokens", "broken"),
    [
        ({"uri": FILE}, None, []),
        ({"uri": "pvc://claim/../x", "revision": "main"}, None, ["model.uri", "model.revision"]),
        ({"uri": FILE, "cache": {}, "secretRef": {"name": "a"}}, None, ["model.cache", "model.secretRef"]),
        ({"uri": HUB, "adapters": [{"name": "demo", "path": "x"}]}, None, ["model.adapters", "spec.model.adapters"]),
        ({"uri": FILE, "draftPath": "draft"}, 1, []),
        ({"uri": HUB, "draftPath": "/draft"}, 1, []),
        ({"uri": "s3://bucket/a", "draftPath": "draft"}, 1, ["model.draftPath"]),
        ({"uri": FILE, "draftPath": "draft"}, 0, ["model.draftPath"]),
        ({"uri": HUB, "draftPath": "draft"}, None, ["model.draftPath"] * 2),
    ],
)
def test_broken_rules(model, tokens, broken):
    changes = merged(MINIMAL, model=model, scheduler={"speculativeTokens": tokens})
    spec = Spec.model_validate(admitted(changes, spec_schema()))
    assert [rule.field for rule in MODEL_RULES if not rule.holds("demo", spec)] == broken


def test_the_message_about_a_draft_model_without_drafted_tokens_names_both_fields():
    with pytest.raises(
        InvalidSpecError, match=r"^spec\.model\.draftPath needs scheduler\.speculativeTokens of at least 1, "
    ):
        parse("demo", merged(MINIMAL, model={"uri": FILE, "draftPath": "draft"}))
