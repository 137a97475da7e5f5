"""The health gate, run in tests."""

from __future__ import annotations

import json
import time
from typing import Any

from airflow_ckpt_provider.sensors.stream_health import StreamHealthSensor
from tests.support.checkpoints import BEGAN, batch_metadata, compact, offsets_log
from tests.support.commit_gaps import FAST
from tests.support.growing_streams import DiskStream


def ran(stream: DiskStream, batches: range, *, seconds: float = 5.0, rows: int = 600) -> DiskStream:
    """A batch a minute; the newest now."""
    now = time.time()  # the same for all: how long a batch took does not depend on how busy this machine is
    for batch in batches:
        age = 60.0 * (batches.stop - batch)
        at = stream_rows(stream) + rows
        about = batch_metadata(batch) | {"batchTimestampMs": BEGAN + 60_000 * batch}
        stream.put(f"offsets/{batch}", offsets_log(compact({"orders": {"0": at}}), metadata=about), age=age, now=now)
        stream.commit(batch, age=age - seconds, now=now)
    return stream


def stream_rows(stream: DiskStream) -> int:
    newest = max((int(f.name) for f in (stream.place / "offsets").glob("[0-9]*")), default=None)
    if newest is None:
        return 0
    line = (stream.place / "offsets" / str(newest)).read_text().splitlines()[-1]
    return int(json.loads(line)["orders"]["0"])


def gate(stream: DiskStream, baseline: Any, mode: str = "poke", **fields: Any) -> StreamHealthSensor:
    how: dict[str, Any] = {"deferrable": True} if mode == "deferrable" else {"mode": mode}
    fields = {"new_batches": 4, "warm_up": 1, "stuck_after": None, **FAST, **how, **fields}
    return StreamHealthSensor(task_id="gate", checkpoint=str(stream), baseline=baseline, **fields)
