"""Checkpoints of sources that a guard does not guard."""

from __future__ import annotations

import json
from pathlib import Path

META = '{"batchWatermarkMs":0,"batchTimestampMs":1795000000000,"conf":{}}'


FILE, RATE, OF_ANOTHER_KIND = '{"logOffset":3}', "5", '{"shardId-000":"49590"}'


def checkpoint(place: Path, *offsets: str) -> str:
    for directory in ("offsets", "commits"):
        (place / directory).mkdir(parents=True)
    (place / "metadata").write_text(json.dumps({"id": "8cef2d40-976d-488e-846b-c476bdbf188f"}))
    if offsets:
        (place / "offsets" / "0").write_text("\n".join(["v1", META, *offsets]))
        (place / "commits" / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')
        for source in (number for number, offset in enumerate(offsets) if offset == RATE):
            (place / "sources" / str(source)).mkdir(parents=True)
            (place / "sources" / str(source) / "0").write_text("v1\n1795000000000")  # as Spark's format rate does
    return str(place)
