"""Names of children fit into 63 characters, and no two of them are equal."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from orca_operator import names
from orca_operator.observe import Observed
from orca_operator.plan import plan
from orca_operator.validation import NAME
from support.orcadeployments import MINIMAL, context, merged, view

DNS_LABEL = re.compile(r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$")
deployment_names = st.from_regex(NAME, fullmatch=True).filter(lambda name: len(name) <= names.LONGEST_NAME)
shapes = st.fixed_dictionaries(
    {"pipelineParallelSize": st.integers(1, 64), "tensorParallelSize": st.sampled_from([1, 2, 8])}
)


@given(deployment_names, shapes, st.integers(0, 1000))
def test_every_name_fits(name, shape, replicas):
    spec = merged(MINIMAL, parallelism=shape, replicas=replicas)
    found = context(spec, name)
    for action in plan(found, view(Observed())):
        metadata = action.manifest["metadata"]
        assert DNS_LABEL.match(metadata["name"]), metadata["name"]
        for value in metadata["labels"].values():
            assert len(value) <= 63
    last = names.partition(name, found.revision, shape["pipelineParallelSize"] - 1)
    assert len(f"{last}-{max(0, replicas - 1)}") <= 63
    assert len(f"{last}-0123456789") <= 63, "the label controller-revision-hash of its pods"


@given(deployment_names, deployment_names, st.integers(0, 63), st.integers(0, 63))
def test_names_of_children_are_distinct(one, other, left, right):
    children = {names.partition(one, "abcdef", left), names.master(one, "abcdef"), names.boot(one, "abcdef"), one,
                names.control(one), names.admin(one), names.revision(one, "abcdef")}  # fmt: skip
    assert len(children) == 7
    if (one, left) != (other, right):
        assert names.partition(one, "abcdef", left) != names.partition(other, "abcdef", right)
