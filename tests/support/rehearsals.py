"""Reports of rehearsals."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow_ckpt_provider.upgrade.rehearsal.report import Rehearsal, TrialBatch


def rehearsal(**more: Any) -> Rehearsal:
    batches = (TrialBatch(6, 1.5, 10, 4), TrialBatch(7, 2.5, 12, 5))
    given = {"batches": batches, "state": {"bytes_before": 100, "bytes_after": 120, "rows": 9}, **more}
    return Rehearsal("orders", "b000005", 5, "orders:build", "4.0.0", datetime(2026, 1, 1, tzinfo=UTC), 9.0, **given)
