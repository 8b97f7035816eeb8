"""The spec as a model: what a minimal one means, and what it accepts by which names."""

from __future__ import annotations

from orca_operator.api import Spec
from orca_operator.effects import Effect, leaves
from support.orcadeployments import MINIMAL


def test_one_field_is_enough_for_one_pipeline_of_one_worker():
    spec = Spec.model_validate(MINIMAL)
    assert spec.num_pipelines == 1
    assert (spec.parallelism.pipeline_parallel_size, spec.parallelism.tensor_parallel_size) == (1, 1)
    assert spec.tls.source == "selfSigned"


def test_a_suspended_deployment_wants_no_pipeline_and_keeps_its_replicas():
    spec = Spec.model_validate({**MINIMAL, "replicas": 3, "suspend": True})
    assert (spec.num_pipelines, spec.replicas) == (0, 3)


def test_every_field_declares_its_effect_and_every_effect_is_used():
    declared = {leaf.effect for leaf in leaves(Spec)}
    assert declared >= set(Effect) - {Effect.NOT_YET}


def test_a_deprecated_tls_switch_means_nothing_when_false():
    assert Spec.model_validate({**MINIMAL, "tls": {"enabled": False}}).tls.source == "selfSigned"
