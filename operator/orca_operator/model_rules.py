"""Rules about the model: its URI, what is for downloaded models only, its adapters and its draft model."""

from __future__ import annotations

import re

from orca_contract.model_choices import adapters_refusal

from orca_operator.api_model import OCI_URI, S3_URI
from orca_operator.rule import Rule

DOWNLOADED = ("hf://", "s3://")
IS_DOWNLOADED = "(self.uri.startsWith('hf://') || self.uri.startsWith('s3://'))"
"""In CEL."""

MODEL_RULES = (
    Rule(
        "model",
        "!self.uri.contains('..')",
        "model.uri",
        "must not contain ..",
        lambda name, spec: ".." not in spec.model.uri,
    ),
    Rule(
        "model",
        f"!self.uri.startsWith('oci://') || self.uri.matches('{OCI_URI}')",
        "model.uri",
        "must be oci://IMAGE, or with a path oci://IMAGE:TAG/PATH or oci://IMAGE@sha256:DIGEST/PATH",
        lambda name, spec: not spec.model.uri.startswith("oci://") or re.match(OCI_URI, spec.model.uri) is not None,
    ),
    Rule(
        "model",
        f"!self.uri.startsWith('s3://') || self.uri.matches('{S3_URI}')",
        "model.uri",
        "must be s3://BUCKET/PREFIX",
        lambda name, spec: not spec.model.uri.startswith("s3://") or re.match(S3_URI, spec.model.uri) is not None,
    ),
    Rule(
        "model",
        f"!has(self.cache) || {IS_DOWNLOADED}",
        "model.cache",
        "is for hf:// and s3:// models: others are not downloaded",
        lambda name, spec: spec.model.cache is None or spec.model.uri.startswith(DOWNLOADED),
    ),
    Rule(
        "model",
        "!has(self.adapters) || self.adapters.all(a, self.adapters.exists_one(b, b.name == a.name))",
        "model.adapters",
        "must have different names",
        lambda name, spec: not adapters_refusal([], [adapter.name for adapter in spec.model.adapters or ()]),
    ),
    Rule(
        "model",
        f"!has(self.adapters) || !{IS_DOWNLOADED} || self.adapters.all(a, a.path.startsWith('/'))",
        "model.adapters",
        "must have absolute paths with hf:// and s3:// models, of which only the model is downloaded",
        lambda name, spec: (
            not spec.model.uri.startswith(DOWNLOADED)
            or all(adapter.path.startswith("/") for adapter in spec.model.adapters or ())
        ),
    ),
    Rule(
        None,
        "!has(self.spec.model.adapters) || self.spec.model.adapters.all(a, "
        "a.name != (has(self.spec.model.name) ? self.spec.model.name : self.metadata.name))",
        "spec.model.adapters",
        "must not have the model's name",
        lambda name, spec: all(adapter.name != (spec.model.name or name) for adapter in spec.model.adapters or ()),
    ),
    Rule(
        "model",
        f"!has(self.draftPath) || !{IS_DOWNLOADED} || self.draftPath.startsWith('/')",
        "model.draftPath",
        "must be absolute with hf:// and s3:// models, of which only the model is downloaded",
        lambda name, spec: (
            not spec.model.uri.startswith(DOWNLOADED)
            or spec.model.draft_path is None
            or spec.model.draft_path.startswith("/")
        ),
    ),
    Rule(
        "",
        "!has(self.model.draftPath) || "
        "(has(self.scheduler.speculativeTokens) && self.scheduler.speculativeTokens >= 1)",
        "model.draftPath",
        "needs scheduler.speculativeTokens of at least 1, the most tokens to draft",
        lambda name, spec: spec.model.draft_path is None or (spec.scheduler.speculative_tokens or 0) >= 1,
    ),
    Rule(
        "model",
        "!has(self.revision) || self.uri.startsWith('hf://')",
        "model.revision",
        "is for hf:// models: others have no revisions",
        lambda name, spec: spec.model.revision is None or spec.model.uri.startswith("hf://"),
    ),
    Rule(
        "model",
        f"!has(self.secretRef) || {IS_DOWNLOADED}",
        "model.secretRef",
        "is for hf:// and s3:// models: others are not downloaded",
        lambda name, spec: spec.model.secret_ref is None or spec.model.uri.startswith(DOWNLOADED),
    ),
)
