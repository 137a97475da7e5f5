"""Rehearsals on real Spark: what continues, what does not, whose rows differ, and everything that can be wrong with
the request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.sinks.delta_history import read_table_history
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.checkpoints import batch_metadata, commit_log, metadata, offsets_log, plant
from tests.support.fingerprints import fingerprint
from tests.support.streams.data import put_files
from tests.support.upgrades.spark_worker import HDFS, QUERIES, SparkWorker
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@dataclass
class Stream:
    """A stream in production, stopped after some batches and backed up, with input that is not read yet."""

    worker: SparkWorker
    place: Path
    query: str
    mode: str

    @property
    def checkpoint(self) -> Path:
        return self.place / "production" / "ck"

    @property
    def table(self) -> Path:
        return self.place / "production" / "table"

    @property
    def conf(self) -> dict[str, str]:
        return {"tests.input": str(self.place / "in"), **HDFS}

    def begin(self, *, files: int = 3, to_table: bool = False) -> Stream:
        put_files(self.place / "in", files)
        out = str(self.table) if to_table else ""
        self.worker.run(self.query, checkpoint=self.checkpoint, conf=self.conf, mode=self.mode, out=out)
        repository = Repository.open_or_create(open_location(str(self.place / "backups")))
        create_backup(Checkpoint.at(open_location(str(self.checkpoint))), repository, name="orders")
        return self

    def go_on(self, files: int = 2, *, to_table: bool = False) -> Stream:
        have = len(list((self.place / "in" / "a").glob("*.json")))
        put_files(self.place / "in", files, start=have)
        if to_table:
            self.worker.run(self.query, checkpoint=self.checkpoint, conf=self.conf, mode=self.mode, out=str(self.table))
        return self

    def rehearse(self, new: str = "", **more: Any) -> dict[str, Any]:
        self.tell(new, **more)
        return self.worker.answer()

    def tell(self, new: str = "", **more: Any) -> None:
        """Have it rehearse, and do not wait for it."""
        request = {
            "repository": str(self.place / "backups"),
            "scratch": str(self.place / "scratch"),
            "build": QUERIES + new if new else "",
            "conf": self.conf,
            "output_mode": self.mode,
            "checkpoint": str(self.checkpoint),
            "timeout": 120,
            "batches": 2,
            **more,
        }
        self.worker.tell(do="rehearse", **request)


MakeStream = Callable[..., Stream]


@pytest.fixture
def stream(spark_worker: SparkWorker, tmp_path: Path) -> MakeStream:
    """Make a stream."""

    def make(query: str, mode: str = "append") -> Stream:
        return Stream(spark_worker, tmp_path, query, mode)

    return make


def untouched(report: dict[str, Any]) -> bool:
    assert report["production"]
    return all(place["unchanged"] for place in report["production"])


@pytest.mark.slow
def test_good_and_bad_code(stream: MakeStream):
    running = stream("totals", "update").begin().go_on()
    before = fingerprint(running.place / "production")
    good = running.rehearse("totals_refactored", old_build=f"{QUERIES}totals")
    assert (good["verdict"], good["starts"], good["reasons"]) == ("SAFE", True, [])
    assert [batch["batch_id"] for batch in good["batches"]] == [3, 4]
    assert good["difference"]["batches"] == [3, 4]
    assert (good["difference"]["equal"], good["input_rows"] > 0, good["output_rows"] > 0) == (True, True, True)
    assert good["state"]["rows"] == 12
    assert (good["state"]["bytes_before"] > 0, good["state"]["bytes_after"] > 0) == (True, True)
    assert good["baseline"]["batches"] == 3
    bad = running.rehearse("totals_more")
    assert (bad["verdict"], bad["starts"], bad["failure"]["code"]) == ("WILL_FAIL", False, "STATE-SCHEMA-CHANGED")
    assert bad["failure"]["advice"]["condition"] == "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE"
    assert all(untouched(report) for report in (good, bad))
    # Hidden files and times of modification too, by a poll that is not ours.
    assert fingerprint(running.place / "production") == before
    assert not list((running.place / "scratch").glob("*"))


def test_what_is_wrong_before_anything_is_restored(stream: MakeStream, tmp_path: Path):
    nothing = stream("totals", "update")
    (tmp_path / "in").mkdir()
    missing = nothing.rehearse("no_such_function", checkpoint="")
    assert "is not a repository" in missing["refused"]
    Repository.open_or_create(open_location(str(tmp_path / "backups")))
    report = nothing.rehearse("totals", checkpoint="")
    assert (report["verdict"], report["failure"]["code"]) == ("WILL_FAIL", "NO-BACKUP")
    assert "give either --build or --application" in nothing.rehearse("")["refused"]
    inside = nothing.rehearse("totals", checkpoint="", scratch=str(tmp_path / "backups" / "x"))
    assert "lie one inside the other" in inside["refused"]


@pytest.mark.slow
def test_what_is_wrong_with_the_code(stream: MakeStream):
    running = stream("plain").begin().go_on()
    inputs = fingerprint(running.place / "in")

    def code(new: str, **more: Any) -> str:
        report = running.rehearse(new, **more)
        assert report["verdict"] == "WILL_FAIL"
        assert untouched(report)
        return str(report["failure"]["code"])

    assert code("no_such_function") == "BUILD-MISSING"
    assert code("raises") == "BUILD-FAILED"
    assert code("gives_nothing") == "BUILD-NOT-STREAMING"
    assert code("moves_its_input") == "BUILD-CLEANS-SOURCE"
    assert code("fails_in_a_batch") in ("USER-FUNCTION", "UNKNOWN")
    assert code("hangs", timeout=15) == "TIMEOUT"
    assert code("plain_filtered", old_build=f"{QUERIES}raises") == "BUILD-FAILED"
    assert fingerprint(running.place / "in") == inputs


@pytest.mark.slow
def test_no_network_to_the_source(stream: MakeStream):
    lost = stream("unreachable")
    place = open_location(str(lost.checkpoint))
    about = batch_metadata(partitions=2)
    plant(place, {"metadata": metadata(), "sources/0/0": b'\x00v1\n{"orders":{"0":0}}'})
    for batch in range(2):
        entry = offsets_log(f'{{"orders":{{"0":{batch + 5}}}}}', metadata=about)
        plant(place, {f"offsets/{batch}": entry, f"commits/{batch}": commit_log()})
    (lost.place / "in").mkdir()
    repository = Repository.open_or_create(open_location(str(lost.place / "backups")))
    create_backup(Checkpoint.at(place), repository, name="orders")
    report = lost.rehearse("unreachable", timeout=45)
    assert (report["verdict"], report["starts"]) == ("WILL_FAIL", False)
    assert report["failure"]["code"] in ("KAFKA-UNREACHABLE", "TIMEOUT")
    assert untouched(report)
    assert report["seconds"] < 200


@pytest.mark.slow
def test_nothing_left_to_read_is_no_proof(stream: MakeStream):
    report = stream("totals", "update").begin().rehearse("totals_more")
    assert (report["verdict"], report["starts"], report["batches"]) == ("UNKNOWN", None, [])


@pytest.mark.slow
def test_rows_of_the_table_that_production_wrote(stream: MakeStream):
    running = stream("plain").begin(to_table=True).go_on(to_table=True)
    before = fingerprint(running.place / "production")
    same = running.rehearse("plain", sink=str(running.table))
    assert (same["verdict"], same["reasons"]) == ("SAFE", [])
    assert same["difference"]["batches"] == [3, 4]
    fewer = running.rehearse("plain_filtered", sink=str(running.table))
    assert (fewer["verdict"], fewer["difference"]["only_new"]) == ("UNKNOWN", 0)
    assert fewer["difference"]["only_old"] > 0
    wider = running.rehearse("plain_wider", sink=str(running.table))
    assert (wider["difference"]["columns_new"], wider["difference"]["only_old"]) == (["ts"], 0)
    assert fingerprint(running.place / "production") == before


@pytest.mark.slow
def test_batches_of_an_older_point_of_the_backup(stream: MakeStream):
    running = stream("totals", "update").begin()
    repository = Repository.open(open_location(str(running.place / "backups")))
    create_backup(Checkpoint.at(open_location(str(running.checkpoint))), repository, name="deep", restorable_batches=2)
    report = running.rehearse(
        "totals_refactored",
        name="deep",
        batch=1,
        old_build=f"{QUERIES}totals",
        checkpoint="",
        watch=[str(running.checkpoint)],
    )
    assert (report["verdict"], report["difference"]["batches"], report["batch_id"]) == ("SAFE", [2], 1)


def committed(checkpoint: Path) -> int:
    return max((int(p.name) for p in (checkpoint / "commits").glob("*") if p.name.isdigit()), default=-1)


@pytest.mark.slow
def test_good_and_bad_code_beside_production(stream: MakeStream):
    """The same code, with state, follows a stream that runs: each of its batches appears while followed. Then other code."""
    running = stream("distinct").begin(files=2, to_table=True)
    worker, place, backed_up = running.worker, running.place, committed(running.checkpoint)
    # As many as are kept by default; the tests' own session keeps three.
    conf = running.conf | {"spark.sql.streaming.minBatchesToRetain": "100"}
    request = {"checkpoint": str(running.checkpoint), "out": str(running.table), "conf": conf}
    assert worker.ask(do="begin", build=f"{QUERIES}distinct", **request) == {}
    try:
        running.tell("distinct", sink=str(running.table), follow=True, batches=5, timeout=200, idle=100)
        wait_until(lambda: list((place / "scratch").glob("*/new/metadata")), "the shadow begins")
        for file in range(5):
            before = committed(running.checkpoint)
            running.go_on(1)
            wait_until(lambda before=before: committed(running.checkpoint) > before, f"a batch for file {file}")
        report = worker.answer()
        running.tell("distinct_by_other", sink=str(running.table), follow=True, timeout=60, stop_at_difference=True)
        wait_until(lambda: list((place / "scratch").glob("*/new/metadata")), "the second shadow begins")
        before = committed(running.checkpoint)
        running.go_on(1)
        wait_until(lambda: committed(running.checkpoint) > before, "production continues beside both")
        bad = worker.answer()
    finally:
        ended = worker.ask(do="end", checkpoint=str(running.checkpoint))
    assert ended == {}
    assert (report["verdict"], report["reasons"]) == ("SAFE", [])
    # A watermark that moves brings batches without data as well.
    followed, compared = report["followed"], report["difference"]["batches"]
    assert (followed["ended"], followed["caught_up"], followed["equal"], followed["differing"]) == (
        "level",
        True,
        True,
        [],
    )
    assert compared == list(range(backed_up + 1, followed["to"] + 1))
    assert (followed["from"], followed["batches"]) == (backed_up + 1, len(compared))
    assert len(compared) >= 5
    assert report["output_rows"] > 0
    differing = bad["followed"]["differing"]
    assert (bad["verdict"], bad["followed"]["ended"], bad["followed"]["equal"]) == ("UNKNOWN", "difference", False)
    assert differing == [bad["followed"]["to"]]
    assert differing[0] in compared
    assert bad["difference"]["only_new"] > 0
    assert bad["difference"]["examples"][0].startswith(f"+ batch {differing[0]}: {{")
    # Production wrote its own batches, each once, and nobody else wrote anything.
    assert [p["rewritten"] for r in (report, bad) for p in r["production"]] == [0, 0, 0, 0]
    commits = read_table_history(open_location(str(running.table))).commits
    assert [list(commit.txns.values()) for commit in commits] == [[batch] for batch in range(len(commits))]
    assert len(commits) == committed(running.checkpoint) + 1
    assert not list((place / "scratch").glob("*"))


@pytest.mark.slow
def test_good_and_bad_code_beside_what_has_stopped(stream: MakeStream):
    running = stream("plain").begin(files=2, to_table=True).go_on(3, to_table=True)
    before = fingerprint(running.place / "production")
    shadow = {"sink": str(running.table), "follow": True, "timeout": 150}
    fewer = running.rehearse("plain_filtered", **shadow, batches=9, idle=1)
    assert (fewer["verdict"], fewer["followed"]["ended"], fewer["followed"]["caught_up"]) == ("UNKNOWN", "idle", True)
    assert (fewer["followed"]["differing"], fewer["followed"]["equal"]) == ([2, 3, 4], False)
    assert (fewer["difference"]["only_new"], fewer["difference"]["only_old"] > 0) == (0, True)
    assert fewer["difference"]["examples"][0].startswith("- batch 2: {")
    first = running.rehearse("plain_filtered", **shadow, stop_at_difference=True)
    assert (first["followed"]["ended"], first["followed"]["to"], first["followed"]["gap"]) == ("difference", 2, 2)
    late = running.rehearse("plain", **shadow | {"timeout": 12}, batches=9, idle=600)
    assert (late["verdict"], late["followed"]["ended"]) == ("UNKNOWN", "timeout")
    assert "production was not caught up with: " in late["reasons"][0]
    assert all(untouched(report) for report in (fewer, first, late))
    assert fingerprint(running.place / "production") == before
    assert "--follow needs --build" in running.rehearse("plain", follow=True)["refused"]
