from __future__ import annotations

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.storage.location import Location
from tests.support.checkpoints import (
    HDFS,
    ROCKSDB,
    hdfs_aggregation,
    logs,
    operator_metadata,
    plant,
    rocksdb_aggregation,
)
from tests.support.seals import seal_at
from tests.support.watched_stores import watched


def test_documented_keys(place: Location) -> None:
    files = hdfs_aggregation(4)
    found = Checkpoint.at(plant(place, files | {".metadata.crc": b"hidden"})).inspect()
    report = found.to_json()
    assert {
        "uri",
        "query_id",
        "latest_logged",
        "latest_committed",
        "gap",
        "resume",
        "sources",
        "state",
        "files",
        "bytes",
        "findings",
    } <= report.keys()
    assert {"batch_id", "replay", "start_offsets", "end_offsets", "watermark_ms"} <= report["resume"].keys()
    assert report["state"]["operators"] == [
        {"id": 0, "name": "stateStoreSave", "stores": ["default"], "partitions": 2, "provider": HDFS}
    ]
    assert [p["partition"] for p in report["state"]["partitions"]] == [0, 1]
    assert [d["path"] for d in report["directories"]] == [".", "commits", "offsets", "sources/0", "state/0"]
    assert (report["files"], report["bytes"]) == (len(files), sum(map(len, files.values())))
    assert report["findings"] == []


def test_a_missing_state_file_is_a_finding(place: Location) -> None:
    files = rocksdb_aggregation(4)
    del files["state/0/1/5.changelog"]
    found = Checkpoint.at(plant(place, files)).inspect()
    assert found.findings == ("state/0/1/5.changelog is missing, state version 5 needs it",)


def test_a_hole_in_the_logs_is_a_finding(place: Location) -> None:
    files = logs(range(5))
    del files["commits/3"], files["commits/4"]
    found = Checkpoint.at(plant(place, files)).inspect()
    assert found.findings == (
        "batch 2 is the newest commit, 4 the newest logged: Spark runs 4 again and never 3; it only logs a warning",
    )


def test_sealed(place: Location) -> None:
    report = Checkpoint.at(plant(place, hdfs_aggregation(4) | seal_at(5))).inspect().to_json()
    assert report["latest_logged"] == 4
    assert report["sealed"].startswith("airflow-ckpt: sealed by plan 7f3a")
    assert report["findings"] == ["sealed by plan 7f3a (an upgrade): no Spark can start from it"]


def test_before_spark_4_operators_have_no_name(place: Location) -> None:
    files = {p: d for p, d in rocksdb_aggregation(4).items() if not p.startswith("state/0/_metadata")}
    (operator,) = Checkpoint.at(plant(place, files)).inspect().operators
    assert (operator.name, operator.provider, operator.partitions) == (None, ROCKSDB, 2)


def test_named_stores(place: Location) -> None:
    files = logs(range(2)) | {f"state/0/{p}/{s}/{v}.delta": b"x" for p in (0, 1) for s in "ab" for v in (1, 2)}
    files["state/0/_metadata/metadata"] = operator_metadata(name="join")
    (operator,) = Checkpoint.at(plant(place, files)).inspect().operators
    assert (operator.name, operator.stores) == ("join", ("a", "b"))


def test_before_the_first_batch(place: Location) -> None:
    found = Checkpoint.at(plant(place, {"metadata": b'{"id":"x"}'})).inspect()
    assert (found.operators, found.files, found.findings) == ((), 1, ())


def test_nothing_is_written(place: Location) -> None:
    location, store = watched(plant(place, rocksdb_aggregation(4)))
    Checkpoint.at(location).inspect()
    assert {operation for operation, _ in store.requests} == {"list", "walk", "read"}


def test_a_stream_that_moves_on_meanwhile(place: Location) -> None:
    """Between the read the logs and the read the files a batch is done and old entries are purged."""
    plant(place, rocksdb_aggregation(4))

    def go_on(operation: str, path: str) -> None:
        if operation == "walk":
            newer = rocksdb_aggregation(6)
            plant(place, newer)
            for path in newer:
                if path.startswith(("offsets/", "commits/")) and int(path.rpartition("/")[2]) < 5:
                    place.delete(path)

    location, _ = watched(place, go_on)
    assert Checkpoint.at(location).inspect().findings == ()
