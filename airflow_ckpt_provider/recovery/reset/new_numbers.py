"""The first files of a new checkpoint that continues with the batch numbers of the old one.

A file sink's ``_spark_metadata`` and a Delta table written with ``txnAppId`` go by batch number, and silently skip a checkpoint
that begins at 0 again. One that holds log entries of a committed batch R, in which no source has an offset yet (``-``,
Spark's ``SERIALIZED_VOID_OFFSET``), continues with batch R+1, and its sources start where their options say. Only for queries
without state: batch R+1 of a stateful one would look for state of version R+1.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE

_NO_OFFSET = "-"


def logs_up_to(
    batch_id: int, sources: Iterable[str], *, conf: Mapping[str, Any], time_ms: int, query_id: str
) -> dict[str, str]:
    """Make ``metadata``, ``offsets/`` and ``commits/`` of a checkpoint that continues after ``batch_id``: path -> content.

    :param batch_id: the batch that counts as committed; the next to run is one more.
    :param sources: the sources, in plan order.
    :param conf: settings that the offset log pins, as the old query had them.
    :param time_ms: when the batch counts as planned, milliseconds since the epoch.
    :param query_id: the new query's id.
    """
    about = json.dumps(
        {"batchWatermarkMs": 0, "batchTimestampMs": time_ms, "conf": dict(conf)},
        separators=(",", ":"),
        ensure_ascii=False,
    )
    entry = "\n".join(("v1", about, *(_NO_OFFSET for _ in sources)))
    return {
        # Spark reads the entry before the newest one at every start.
        **{f"{OFFSETS}/{b}": entry for b in range(max(batch_id - 1, 0), batch_id + 1)},
        f"{COMMITS}/{batch_id}": 'v1\n{"nextBatchWatermarkMs":0}',
        METADATA_FILE: new_metadata(query_id),
    }


def new_metadata(query_id: str) -> str:
    """Content of ``metadata`` for a query id."""
    return json.dumps({"id": query_id}, separators=(",", ":"))
