"""Fingerprints: stored plans and approvals hold them, so their values are those of all versions before."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from airflow_ckpt_provider.fingerprint import fingerprint_of


@pytest.mark.parametrize(
    ("content", "fingerprint"),
    [
        ("backups\norders/20260101", "5c18e7b0abe6deca"),
        ({"b": [1, None, "ü"], "a": {"0": 5}}, "e1395b6e9052a7f1"),
        ([("POST", "/api/2.0/pipelines", {"full_refresh": True})], "221638458e3d1f60"),
    ],
    ids=["text", "mapping", "calls"],
)
def test_values_are_fixed(content: object, fingerprint: str) -> None:
    assert fingerprint_of(content) == fingerprint


def test_the_order_of_keys_and_the_kind_of_mapping_make_no_difference() -> None:
    assert fingerprint_of({"a": 1, "b": {"c": 2}}) == fingerprint_of(
        MappingProxyType({"b": MappingProxyType({"c": 2}), "a": 1})
    )


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(TypeError):
        fingerprint_of([object()])
