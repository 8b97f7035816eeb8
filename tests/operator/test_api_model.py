"""Which URIs of models are accepted; manifests/model.py has what becomes of them."""

from __future__ import annotations

import re

import pytest
from orca_operator.api_model import OCI_URI, S3_URI, URI

DIGEST = f"@sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("uri", "image", "path"),
    [
        ("oci://registry.example:5000/team/model:v1/weights", "registry.example:5000/team/model:v1", "/weights"),
        (f"oci://registry.example/model{DIGEST}", f"registry.example/model{DIGEST}", None),
        (f"oci://model:v1{DIGEST}/a/b", f"model:v1{DIGEST}", "/a/b"),
    ],
)
def test_the_tag_or_digest_ends_the_name_of_an_image(uri, image, path):
    match = re.match(OCI_URI, uri)
    assert match is not None
    assert (match["image"], match["path"], match["latest"]) == (image, path, None)


def test_an_image_without_a_tag_has_no_path():
    match = re.match(OCI_URI, "oci://registry.example/team/model")
    assert match is not None
    assert match["latest"] == "registry.example/team/model"


@pytest.mark.parametrize("uri", ["oci://", "oci://Model:v1", "oci://model:", "oci://model@sha256:a", "oci://a b"])
def test_what_is_no_image_is_refused(uri):
    assert re.match(OCI_URI, uri) is None


@pytest.mark.parametrize(("uri", "accepted"), [("s3://bucket", True), ("s3://bucket/a/b", True), ("s3://B", False)])
def test_the_names_of_buckets(uri, accepted):
    assert bool(re.match(S3_URI, uri)) == accepted


@pytest.mark.parametrize("uri", ["http://example/model", "hf://model", "model", "pvc://Claim/path", "file://relative"])
def test_other_schemes_and_incomplete_uris_are_refused(uri):
    assert re.match(URI, uri) is None
