from __future__ import annotations

from airflow_ckpt_provider.backup.copy_progress import CopyProgress, Meter
from airflow_ckpt_provider.parallel import in_parallel


def test_meter() -> None:
    seen: list[CopyProgress] = []
    meter = Meter(seen.append, files=2, size=30)
    meter.add(10)
    meter.add(20)
    assert seen == [CopyProgress(1, 2, 10, 30), CopyProgress(2, 2, 30, 30)]
    Meter(None, files=1, size=1).add(1)


def test_meter_counts_right_from_many_threads() -> None:
    seen: list[CopyProgress] = []
    meter = Meter(seen.append, files=500, size=500)
    in_parallel(meter.add, [1] * 500, workers=16)
    assert [p.files_done for p in seen] == list(range(1, 501))
    assert seen[-1] == CopyProgress(500, 500, 500, 500)
