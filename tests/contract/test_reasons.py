"""The closed list of reasons: each is described, and each is one word as Kubernetes wants reasons."""

from __future__ import annotations

import re

from orca_contract.reasons import DESCRIPTIONS, Reason


def test_every_reason_is_described_in_the_order_of_the_list():
    assert list(DESCRIPTIONS) == list(Reason)
    assert all(text.endswith(".") for text in DESCRIPTIONS.values())


def test_reasons_are_words_of_metav1_conditions():
    assert all(re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", reason) for reason in Reason)
    assert len({reason.value for reason in Reason}) == len(Reason)


def test_a_reason_is_its_text():
    assert Reason("NodeLost") is Reason.NODE_LOST
    assert f"{Reason.NODE_LOST}" == "NodeLost"
