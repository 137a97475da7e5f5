"""progress: what it says, and what it costs: two listings and three reads however long the stream has run."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.progress import Progress
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.checkpoint.source_offsets import FileOffset
from airflow_ckpt_provider.errors import NotACheckpointError, UnreadableLogError
from airflow_ckpt_provider.storage.location import Location
from tests.support.checkpoints import (
    BEGAN,
    QUERY_ID,
    Files,
    batch_metadata,
    commit_log,
    hdfs_aggregation,
    logs,
    metadata,
    offsets_log,
    plant,
)
from tests.support.seals import SINCE, seal_at
from tests.support.watched_stores import watched


def progress(place: Location, files: Files) -> Progress:
    return Checkpoint.at(plant(place, files)).progress()


def test_a_healthy_stream(place: Location) -> None:
    found = progress(place, logs(range(3, 8)))
    assert found.uri == f"memory://{place.root.lstrip('/')}"
    assert found.query_id == QUERY_ID
    assert found.logged == found.committed == (3, 4, 5, 6, 7)
    assert (found.latest_logged, found.latest_committed, found.gap, found.uncommitted) == (7, 7, 0, ())
    assert found.batch_time == datetime.fromtimestamp((BEGAN + 7000) / 1000, UTC)
    assert [s.offset for s in found.sources] == [FileOffset('{"logOffset":7}', 7)]
    assert found.seal is None
    assert found.to_json() == {
        "uri": found.uri,
        "query_id": QUERY_ID,
        "latest_logged": 7,
        "latest_committed": 7,
        "gap": 0,
        "batch_time": found.batch_time.isoformat() if found.batch_time else "never",
        "sources": [{"index": 0, "kind": "file", "offset": {"logOffset": 7}}],
        "sealed": None,
    }


def test_batches_count_as_numbers_and_debris_not_at_all(place: Location) -> None:
    files = logs(range(8, 12)) | {
        "offsets/.99.crc": b"x",
        "offsets/.12.9f.tmp": b"x",
        "offsets/99.x": b"",
        "commits/x": b"",
    }
    found = progress(place, files)
    assert (found.logged, found.committed) == ((8, 9, 10, 11), (8, 9, 10, 11))


@pytest.mark.parametrize(
    ("logged", "committed", "gap", "uncommitted"),
    [
        ([], [], 0, ()),
        ([0], [], 1, (0,)),
        ([0, 1, 2], [], 3, (0, 1, 2)),
        ([0, 1, 2], [0, 1], 1, (2,)),
        ([0, 1, 2, 3, 4, 5], [0, 1, 2], 3, (3, 4, 5)),
        ([0, 3, 6], [0, 3], 3, (6,)),
        ([0, 1], [0, 1, 2, 3], -2, ()),
        ([], [0, 1], -2, ()),
    ],
)
def test_gap(place: Location, logged: list[int], committed: list[int], gap: int, uncommitted: tuple[int, ...]) -> None:
    files = {"metadata": metadata()}
    files |= {f"offsets/{b}": offsets_log("1", metadata=batch_metadata(b)) for b in logged}
    files |= {f"commits/{b}": commit_log() for b in committed}
    found = progress(place, files)
    assert (found.gap, found.uncommitted) == (gap, uncommitted)


def test_a_seal_is_not_a_batch(place: Location) -> None:
    found = progress(place, logs(range(5)) | seal_at(5))
    assert found.seal == Seal(5, "7f3a", "an upgrade", "me", SINCE)
    assert (found.logged, found.latest_logged, found.gap) == ((0, 1, 2, 3, 4), 4, 0)
    assert found.newest is not None
    assert found.newest.batch_id == 4
    assert found.to_json()["sealed"] == found.seal.sentence


def test_a_seal_alone(place: Location) -> None:
    found = progress(place, seal_at(0))
    assert (found.query_id, found.logged, found.newest, found.gap) == (None, (), None, 0)
    assert found.seal is not None


def test_two_seals(place: Location) -> None:
    """A restore that raised its seal and was killed before it removed the lower one: nothing is broken."""
    found = progress(place, logs(range(5)) | seal_at(5) | seal_at(9))
    assert found.seal is not None
    assert found.seal.batch_id == 9
    assert (found.logged, found.latest_logged, found.gap) == ((0, 1, 2, 3, 4), 4, 0)


def test_missing_query_id(place: Location) -> None:
    files = logs(range(5))
    del files["metadata"]
    assert progress(place, files).query_id is None


@pytest.mark.parametrize(
    "files", [{}, {"part-0000.parquet": b"x"}, {"state/0/0/1.delta": b"x"}, {"offsets/.0.crc": b"x"}]
)
def test_not_a_checkpoint(place: Location, files: Files) -> None:
    with pytest.raises(NotACheckpointError) as error:
        progress(place, files)
    assert error.value.message == f"{place} is not a checkpoint: it has no offsets/, no commits/ and no metadata"
    assert error.value.hint == (
        "check the address: it is the checkpointLocation of the query. It may also not have started yet; "
        "if it was deleted, put it back: airflow-ckpt restore REPOSITORY latest CHECKPOINT"
    )


@pytest.mark.parametrize(
    ("path", "data", "batch_id"),
    [("offsets/4", b"", 4), ("offsets/4", b"v1\n{", 4), ("offsets/4", b"v9\n", 4), ("metadata", b"{", None)],
)
def test_unreadable(place: Location, path: str, data: bytes, batch_id: int | None) -> None:
    with pytest.raises(UnreadableLogError) as error:
        progress(place, logs(range(5)) | {path: data})
    assert (error.value.path, error.value.batch_id) == (path, batch_id)


def test_older_entries_may_be_anything(place: Location) -> None:
    """Only the newest is read; Spark does not read the others either."""
    assert progress(place, logs(range(5)) | {"offsets/1": b"", "commits/4": b""}).latest_logged == 4


@pytest.mark.parametrize("sealed", [False, True], ids=["open", "sealed"])
@pytest.mark.parametrize("batches", [1, 5_000])
def test_cost(place: Location, batches: int, sealed: bool) -> None:
    files = {"metadata": metadata()}
    for batch in range(batches):
        files[f"offsets/{batch}"] = offsets_log("1", metadata=batch_metadata(batch))
        files[f"commits/{batch}"] = b"v1"
    location, store = watched(plant(place, files | (seal_at(batches) if sealed else {})))
    found = Checkpoint.at(location).progress()
    assert (found.latest_logged, found.latest_committed) == (batches - 1, batches - 1)
    assert store.count("list") == 2
    assert store.count("read") == (3 if sealed else 2)
    assert len(store.requests) == store.count("list", "read")


def test_cost_with_state(place: Location) -> None:
    """Nothing of the state is listed or read, and nothing is written."""
    location, store = watched(plant(place, hdfs_aggregation(20)))
    Checkpoint.at(location).progress()
    assert {path.removeprefix(place.root) for _, path in store.requests} == {
        "/offsets", "/commits", "/metadata", "/offsets/20",
    }  # fmt: skip
