"""Outcomes as JSON: tasks and commands return them, so their keys and the order of the keys are fixed."""

from __future__ import annotations

from airflow_ckpt_provider.recovery.undo import UndoOutcome


def test_all_fields_in_order_and_seconds_rounded() -> None:
    outcome = UndoOutcome("7f3a", "rewind", "s3://b/orders", 3, 1, None, seconds=1.23456, already_done=False)
    assert list(outcome.to_json().items()) == [
        ("plan_id", "7f3a"),
        ("kind", "rewind"),
        ("checkpoint", "s3://b/orders"),
        ("put_back", 3),
        ("deleted", 1),
        ("table_version", None),
        ("seconds", 1.235),
        ("already_done", False),
    ]
