"""A file sink's log: what it skips, and what of it and of the data a rollback takes away."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.sinks.file_sink import inspect_file_sink
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location, inside
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.backups import stream
from tests.support.checkpoints import contents, plant
from tests.support.file_sinks import NEWEST, entry, file_sink
from tests.support.stopped import STOPPED
from tests.support.watched_stores import Killed, lives, watched

#: A store of Azure as adlfs has its paths: container and path.
AZURE: Any = SimpleNamespace(protocol="abfs", canonical=str)


@pytest.mark.parametrize("compact", [None, 1, 3])
@pytest.mark.parametrize("batch", [3, 5])
def test_what_goes(place: Location, compact: int | None, batch: int) -> None:
    sink = file_sink(place / "out", compact=compact, purged=True)
    report = inspect_file_sink(sink, batch)
    assert (report.verdict, report.batch_id, report.remembered) == (Verdict.WILL_SKIP, NEWEST, NEWEST)
    assert report.rollback is not None
    log = [path for path in report.rollback.paths if path.startswith("_spark_metadata/")]
    assert log == [f"_spark_metadata/{b}" for b in range(NEWEST, batch, -1)]
    assert set(report.rollback.paths) - set(log) == {f"part {b}.json" for b in range(batch + 1, NEWEST + 1)}


def test_a_batch_that_only_repartitioned_the_state(place: Location) -> None:
    """It writes no entry, which is no sign of a purge (seen on Spark 4.2.1)."""
    sink = file_sink(place / "out")
    sink.delete("_spark_metadata/4")
    sink.delete("part 4.json")
    for batch in (3, 4):
        assert inspect_file_sink(sink, batch).obstacle is not None
        rollback = inspect_file_sink(sink, batch, unwritten=frozenset({4})).rollback
        assert rollback is not None
        assert rollback.paths == ("_spark_metadata/6", "_spark_metadata/5", "part 5.json", "part 6.json")


def test_nothing_beyond(place: Location) -> None:
    assert inspect_file_sink(file_sink(place / "out"), NEWEST).verdict is Verdict.SAFE


@pytest.mark.parametrize("gone", [range(3, 7), range(5, 7), range(2, 3), range(7)])
def test_batches_that_the_sink_does_not_have(place: Location, gone: range) -> None:
    """It was SAFE: a sink that was undone without its checkpoint, another directory, an entry that somebody removed."""
    sink = file_sink(place / "out")
    for batch in gone:
        sink.delete(f"_spark_metadata/{batch}")
    report = inspect_file_sink(sink, NEWEST)
    assert (report.verdict, report.rollback) == (Verdict.UNKNOWN, None)
    words = "batch 2" if len(gone) == 1 else f"{len(gone)} batches, {gone[0]} to 6"
    assert report.reasons == (
        f"_spark_metadata has no entry of {words}, though the checkpoint resumes after 6: their rows are missing if they had any",
    )
    assert inspect_file_sink(sink, NEWEST, unwritten=frozenset(gone)).verdict is Verdict.SAFE


def test_a_gap_below_the_target_stays_after_a_rollback(place: Location) -> None:
    sink = file_sink(place / "out")
    sink.delete("_spark_metadata/2")
    report = inspect_file_sink(sink, 4)
    assert report.verdict is Verdict.WILL_SKIP
    assert report.doubts[0].startswith("_spark_metadata has no entry of batch 2")


def test_purged_beyond_the_target(place: Location) -> None:
    """The compacted entry does not say which batch a file belongs to."""
    report = inspect_file_sink(file_sink(place / "out", compact=5, purged=True), 3)
    assert (report.verdict, report.doubts) == (Verdict.WILL_SKIP, ())
    assert report.rollback is None
    assert report.obstacle is not None
    assert "was compacted and purged beyond batch 3" in report.obstacle


def test_compacted_and_not_yet_purged(place: Location) -> None:
    report = inspect_file_sink(file_sink(place / "out", compact=5), 3)
    assert report.rollback is not None
    assert "_spark_metadata/5.compact" in report.rollback.paths
    assert {"part 4.json", "part 5.json", "part 6.json"} <= set(report.rollback.paths)


def test_a_sink_that_was_moved(place: Location) -> None:
    sink = file_sink(place / "out")
    sink.replace("_spark_metadata/6", f"v1\n{entry(place / 'elsewhere', 6)}".encode())
    obstacle = inspect_file_sink(sink, 3).obstacle
    assert obstacle is not None
    assert "the sink was moved" in obstacle


@pytest.mark.parametrize("uri", ["file://[x", "file:///out/x%00y"])
def test_a_log_that_names_what_is_no_uri_or_no_path(uri: str, tmp_path: Path) -> None:
    sink = file_sink(open_location(str(tmp_path)) / "out")
    sink.replace("_spark_metadata/6", f'v1\n{{"path":"{uri}","size":3,"action":"add"}}'.encode())
    obstacle = inspect_file_sink(sink, 3).obstacle
    assert obstacle is not None
    assert f"names {uri}, which does not lie in" in obstacle


class TestRewound:
    @pytest.fixture
    def orders(self, place: Location) -> Location:
        return plant(place / "orders", stream(NEWEST))

    def rewind(self, orders: Location, sink: Sink, repository: Repository | None = None) -> None:
        checkpoint = Checkpoint.at(orders)
        plan = plan_rewind(checkpoint, Specifier("to_batch", "4"), sink=sink, sink_exit=SinkPolicy.ROLLBACK, guards=())
        held = repository or Repository.open_or_create(default_repository(orders))
        apply_rewind(plan, checkpoint, held, sink=sink, rest=STOPPED)

    def test_and_back(self, place: Location, orders: Location) -> None:
        sink = Sink(place=file_sink(place / "out"))
        before, files = contents(place / "out"), contents(orders)
        self.rewind(orders, sink)
        assert set(contents(place / "out")) == {
            *(f"part {b}.json" for b in range(5)),
            *(f"_spark_metadata/{b}" for b in range(5)),
        }
        undo(orders, Repository.open(default_repository(orders)), sink=sink, rest=STOPPED)
        assert contents(place / "out") == before
        assert contents(orders) == files

    @pytest.mark.parametrize("path", ["part 6.json", "_spark_metadata/5"])
    def test_a_file_that_was_set_aside_is_damaged(self, place: Location, orders: Location, path: str) -> None:
        """The undo is refused before it puts the first file back."""
        sink = Sink(place=file_sink(place / "out"))
        self.rewind(orders, sink)
        held = Repository.open(default_repository(orders))
        kept = next(each for each in held.location.walk("set-aside") if each.endswith(f"/sink/files/{path}"))
        held.location.replace(kept, b"x" * len(held.location.read(kept)))
        before = contents(place / "out")
        with pytest.raises(
            RefusedError, match=rf"{path} is missing or is not what was kept .*the sink was not changed"
        ):
            undo(orders, held, sink=sink, rest=STOPPED)
        assert contents(place / "out") == before
        assert Checkpoint.at(orders).progress().seal is None

    def test_stopped_anywhere_the_log_has_whole_batches(self, place: Location) -> None:
        """A reader goes by the log: at every moment all files that it names are there."""
        for life in lives(range(100), least=10):
            orders = plant(place / f"{life.writes}" / "orders", stream(NEWEST))
            out = file_sink(place / f"{life.writes}" / "out")
            dying, _ = watched(orders, life.before)
            dying_out, _ = watched(out, life.before)
            Repository.open_or_create(default_repository(orders))
            held, _ = watched(default_repository(orders), life.before)
            with suppress(Killed):
                self.rewind(dying, Sink(place=dying_out), Repository.open(held))
            if not life.dead:
                continue
            named = {path.removeprefix("_spark_metadata/") for path in out.walk("_spark_metadata")}
            assert {f"part {batch}.json" for batch in named} <= set(out.walk())
            assert named == {str(batch) for batch in range(len(named))}
            if Checkpoint.at(orders).progress().latest_committed != 4 or Checkpoint.at(orders).progress().seal:
                self.rewind(orders, Sink(place=out))
            assert set(out.walk("_spark_metadata")) == {f"_spark_metadata/{b}" for b in range(5)}

    def test_a_data_file_that_somebody_deleted(self, place: Location, orders: Location) -> None:
        out = file_sink(place / "out")
        out.delete("part 6.json")
        with pytest.raises(RefusedError, match=r"part 6.json is gone though the sink's log names it"):
            self.rewind(orders, Sink(place=out))
        assert Checkpoint.at(orders).progress().seal is None
        assert set(contents(orders)) == set(stream(NEWEST))


@pytest.mark.parametrize("torn", [b"", b'v1\n{"pa'])
@pytest.mark.parametrize("name", ["3.compact", "5"])
def test_a_log_that_readers_cannot_read(place: Location, name: str, torn: bytes) -> None:
    sink = file_sink(place / "out", compact=3)
    sink.replace(f"_spark_metadata/{name}", torn)
    report = inspect_file_sink(sink, NEWEST)
    assert report.verdict is Verdict.UNKNOWN
    assert "readers of the sink fail, and so does the query when it compacts the log" in report.reasons[0]
    assert f"_spark_metadata/{name}" in report.reasons[0]


@pytest.mark.parametrize("content", [None, b"r"])
def test_a_data_file_that_is_missing_or_cut_off(place: Location, content: bytes | None) -> None:
    sink = file_sink(place / "out", compact=3)
    sink.delete("part 2.json")
    assert inspect_file_sink(sink, NEWEST).verdict is Verdict.SAFE, "a file of a compacted entry may have expired"
    sink.delete("part 5.json")
    if content is not None:
        sink.replace("part 5.json", content)
    report = inspect_file_sink(sink, NEWEST)
    assert report.verdict is Verdict.UNKNOWN
    assert report.reasons == (
        "_spark_metadata names part 5.json, which is missing or has another size (1 files): their rows are missing",
    )


@pytest.mark.parametrize("purged", [False, True])
def test_a_data_file_of_the_batch_that_compacted_the_log(place: Location, purged: bool) -> None:
    """Every tenth batch by default. It was SAFE: files were looked for of the entries after the compacted one alone."""
    sink = file_sink(place, NEWEST, compact=NEWEST, purged=purged)
    assert inspect_file_sink(sink, NEWEST).verdict is Verdict.SAFE
    sink.delete(f"part {NEWEST}.json")
    report = inspect_file_sink(sink, NEWEST)
    assert report.verdict is Verdict.UNKNOWN
    assert "which is missing or has another size (1 files)" in report.reasons[0]


def test_a_compacted_entry_that_lacks_lines(place: Location) -> None:
    """It was cut off at the end of a line; the entries that it has taken in are still there."""
    sink = file_sink(place, 12, compact=9)
    lines = "\n".join(entry(sink, batch) for batch in range(5))
    sink.replace("_spark_metadata/9.compact", f"v1\n{lines}".encode())
    report = inspect_file_sink(sink, 12)
    assert report.verdict is Verdict.UNKNOWN
    assert "_spark_metadata/9.compact lacks" in report.reasons[0]
    assert "(4 files), which an entry before it names" in report.reasons[0]


def test_what_the_output_option_retention_dropped_leaves_too(place: Location) -> None:
    """The files of 11 to 13 stayed beside the replay, named by nothing."""
    sink = file_sink(place, 22, compact=9)
    sink.delete("_spark_metadata/19")
    lines = "\n".join(entry(sink, batch) for batch in range(14, 20))
    sink.replace("_spark_metadata/19.compact", f"v1\n{lines}".encode())
    rollback = inspect_file_sink(sink, 10).rollback
    assert rollback
    assert {f"part {batch}.json" for batch in range(11, 23)} <= set(rollback.paths)


def compacted(sink: Location, number: int, batches: range) -> Location:
    """A compacted entry in the place of a plain one; those before it are left, as for ten minutes after a compaction."""
    lines = "\n".join(entry(sink, batch) for batch in batches)
    sink.delete(f"_spark_metadata/{number}")
    sink.replace(f"_spark_metadata/{number}.compact", f"v1\n{lines}".encode())
    return sink


class TestTheNewestEntryIsACompactedOne:
    """Every tenth batch ends so: it was SAFE, as data files were looked for only of the entries after it."""

    @pytest.mark.parametrize(("first", "newest"), [(None, 9), (9, 19)])
    @pytest.mark.parametrize("back", [0, 1, 9])
    def test_a_data_file_of_its_last_batches(self, place: Location, first: int | None, newest: int, back: int) -> None:
        sink = file_sink(place / "out", newest)
        for number in [n for n in (first, newest) if n is not None]:
            compacted(sink, number, range(number + 1))
        assert inspect_file_sink(sink, newest).verdict is Verdict.SAFE
        sink.delete(f"part {newest - back}.json")
        report = inspect_file_sink(sink, newest)
        assert report.verdict is Verdict.UNKNOWN
        assert report.reasons[0].startswith(f"_spark_metadata names part {newest - back}.json, which is missing")

    def test_older_ones_may_have_been_deleted(self, place: Location) -> None:
        sink = compacted(compacted(file_sink(place / "out", 19), 9, range(10)), 19, range(20))
        sink.delete("part 9.json")
        assert inspect_file_sink(sink, 19).verdict is Verdict.SAFE
        for batch in range(19):
            sink.delete(f"_spark_metadata/{batch}" if batch != 9 else "_spark_metadata/9.compact")
        sink.delete("part 18.json")  # which batch it was of is not known any more
        assert inspect_file_sink(sink, 19).verdict is Verdict.SAFE

    def test_of_its_own_batch_also_later(self, place: Location) -> None:
        sink = compacted(file_sink(place / "out", 11), 9, range(10))
        sink.delete("part 8.json")
        assert inspect_file_sink(sink, 11).verdict is Verdict.SAFE
        sink.delete("part 9.json")
        assert inspect_file_sink(sink, 11).verdict is Verdict.UNKNOWN
        assert inspect_file_sink(sink, 8).doubts == (), "a rollback removes the entry"


class TestACompactedEntryThatLacksBatches:
    @pytest.mark.parametrize("newest", [9, 12])
    def test_the_newer_ones(self, place: Location, newest: int) -> None:
        """It was SAFE: cut at the end of a line, and the entries that show it are still there."""
        sink = compacted(file_sink(place / "out", newest), 9, range(5))
        report = inspect_file_sink(sink, newest)
        assert report.verdict is Verdict.UNKNOWN
        assert report.reasons[0].startswith("_spark_metadata/9.compact lacks ")
        assert "part%205.json (4 files), which an entry before it names, and has older ones" in report.reasons[0]

    def test_between_two_compacted_ones(self, place: Location) -> None:
        sink = compacted(compacted(file_sink(place / "out", 20), 9, range(10)), 19, range(12))
        assert "part%2012.json (7 files), which an entry before it names" in inspect_file_sink(sink, 20).reasons[0]

    def test_the_oldest_ones_by_retention(self, place: Location) -> None:
        sink = compacted(compacted(file_sink(place / "out", 20), 9, range(10)), 19, range(14, 20))
        assert inspect_file_sink(sink, 20).verdict is Verdict.SAFE

    def test_an_entry_that_it_was_made_of_is_torn(self, place: Location) -> None:
        sink = compacted(file_sink(place / "out", 11), 9, range(10))
        sink.replace("_spark_metadata/5", b"")
        assert inspect_file_sink(sink, 11).verdict is Verdict.SAFE


class TestRetention:
    """Spark's option ``retention`` leaves old files out of a compacted entry, and does not delete them."""

    def sink(self, place: Location) -> Location:
        return compacted(compacted(file_sink(place / "out", 22), 9, range(10)), 19, range(14, 20))

    def test_the_files_of_batches_that_only_plain_entries_name(self, place: Location) -> None:
        """They stayed in the directory, and readers that do not go through the log got them twice."""
        report = inspect_file_sink(self.sink(place), 10)
        assert report.rollback is not None
        data = [path for path in report.rollback.paths if not path.startswith("_spark_metadata/")]
        assert sorted(data) == sorted(f"part {batch}.json" for batch in range(11, 23))

    def test_those_that_were_deleted_are_not_looked_for(self, place: Location) -> None:
        sink = self.sink(place)
        sink.delete("part 11.json")
        rollback = inspect_file_sink(sink, 10).rollback
        assert rollback is not None
        assert "part 11.json" not in rollback.paths
        assert "part 12.json" in rollback.paths

    def test_a_plain_entry_that_a_compacted_one_took_in_is_torn(self, place: Location) -> None:
        sink = compacted(file_sink(place / "out", 22), 19, range(20))
        sink.replace("_spark_metadata/12", b"")
        rollback = inspect_file_sink(sink, 10).rollback
        assert rollback is not None
        assert "part 12.json" in rollback.paths


def test_a_huge_batch_takes_neither_time_nor_memory(place: Location) -> None:
    sink = file_sink(place / "out")
    report = inspect_file_sink(sink, 10**17)
    assert report.verdict is Verdict.UNKNOWN
    assert f"has no entry of {10**17 - NEWEST:,} batches, {NEWEST + 1} to {10**17}" in report.reasons[0]
    sink.replace(f"_spark_metadata/{10**17}", b"v1")
    assert inspect_file_sink(sink, NEWEST).obstacle is not None


@pytest.mark.parametrize(
    ("place", "uri"),
    [
        ("abfss://c@a.dfs.core.windows.net/out", "abfss://c@a.dfs.core.windows.net/out/part%201.json"),
        ("abfs://c/out", "wasbs://c@a.blob.core.windows.net/out/part%201.json"),
        ("s3://bucket/out", "s3a://bucket/out/part%201.json"),
        ("hdfs://alice@nn1:8020/out", "hdfs://nameservice/out/part%201.json"),
        ("webhdfs://nn1:9870/out", "hdfs://nn1:8020/out/part%201.json"),
        ("/out", "file:///out/part%201.json"),
    ],
)
def test_a_data_file_lies_in_the_sink_however_the_store_is_named(place: str, uri: str) -> None:
    """A file sink in Azure, or in HDFS under another name, was taken for one that was moved."""
    store, root = (open_location(place).store, open_location(place).root) if "abf" not in place else (AZURE, "c/out")
    there = Location(store, root)
    assert inside(there, uri) == "part 1.json"
    assert inside(there, uri.replace("/out/", "/other/")) is None
    assert inside(there, uri.replace("/out/", "/out/../other/")) is None


def test_a_data_file_lies_in_a_sink_that_is_named_by_a_link(tmp_path: Path) -> None:
    """Streams of a chain may name one directory in two ways."""
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "out")
    for named, written in (("link", "out"), ("out", "link")):
        there = open_location(str(tmp_path / named))
        assert inside(there, f"file://{tmp_path}/{written}/part%201.json") == "part 1.json"
        assert inside(there, f"file://{tmp_path}/{written}/../part%201.json") is None
