"""Upgrades that have begun."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.delta_batches import delta_table
from tests.support.one_checkpoint import NEWEST

FEATURES = '"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["deletionVectors"],"writerFeatures":["deletionVectors"]'


PROTOCOL = '"minReaderVersion":1,"minWriterVersion":2'


@pytest.fixture
def query_id(checkpoint: Path) -> str:
    found = Checkpoint.at(open_location(str(checkpoint))).progress().query_id
    assert found
    return found


@pytest.fixture
def table(tmp_path: Path, query_id: str) -> Path:
    """The sink of the sample, as far as its checkpoint."""
    return Path(delta_table(tmp_path / "table", range(NEWEST + 1), app_id=query_id).uri)


def edit_first(table: Path, change: Callable[[str], str]) -> None:
    first = table / "_delta_log" / f"{0:020d}.json"
    text = change(first.read_text())
    assert text != first.read_text()
    first.write_text(text)


def file_sink(place: Path, newest: int, *, at: Path | None = None) -> Path:
    """The output of a file sink: an entry and a data file of each batch."""
    (place / "_spark_metadata").mkdir(parents=True)
    for batch in range(newest + 1):
        (place / f"part-{batch}.parquet").write_bytes(b"PAR1")
        entry = {"path": f"file://{at or place}/part-{batch}.parquet", "size": 4, "isDir": False}
        entry |= {"modificationTime": 1, "blockReplication": 1, "blockSize": 1, "action": "add"}
        (place / "_spark_metadata" / str(batch)).write_text(f"v1\n{json.dumps(entry)}")
    return place
