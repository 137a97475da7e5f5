"""create: backups of checkpoints that stand still, that move, and that are broken."""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup import create as module
from airflow_ckpt_provider.backup.create import BackupResult, create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.transfer import CopyProgress
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import (
    BackupRunningError,
    CkptError,
    HistoryRewrittenError,
    MissingFileError,
    NotACheckpointError,
    RefusedError,
    RepositoryError,
    StorageError,
    UnreadableLogError,
)
from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.storage.location import Location
from tests.unit.backup.backups import back_up, bury, entry_of, files_in, repository, stream, visible
from tests.unit.checkpoint.builders import (
    BEGAN,
    Files,
    commit_log,
    contents,
    logs,
    metadata,
    plant,
    rocksdb_aggregation,
)
from tests.unit.checkpoint.stores import WRITES, Killed, Life, watched
from tests.unit.checkpoint.test_progress import seal_at


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE", 0)


def closure_of(files: Files, place: Location, batch_id: int) -> Files:
    """What a checkpoint of these files needs for a batch, resolved where nothing moves."""
    still = plant(place / "still" / str(batch_id), files)
    return {file.path: files[file.path] for file in Checkpoint.at(still).closure(batch_id).files}


def moving(place: Location, before: Callable[[str, str], None], **options: Any) -> BackupResult:
    """Back up a checkpoint that is changed from outside before requests to it."""
    location, _ = watched(place / "orders", before)
    return create_backup(Checkpoint.at(location), repository(place), **options)


def test_a_first_backup(place: Location) -> None:
    files = stream()
    result = back_up(place, files, tags={"release": "27"}, reason="before 2.7", made_by="me")
    manifest = result.manifest
    assert files_in(manifest, place) == closure_of(files, place, 4)
    assert (result.name, result.batch_id, manifest.restorable) == ("orders", 4, (4,))
    assert (manifest.tags, manifest.reason, manifest.made_by) == ({"release": "27"}, "before 2.7", "me")
    assert manifest.checkpoint == (place / "orders").uri
    assert manifest.query_id == "199ce9d3-fd64-4a41-a1cf-23002acf0134"
    assert (result.copied_files, result.copied_bytes) == (result.files, result.bytes)
    assert manifest.backup_id.endswith("-b000004")
    assert abs((datetime.now(UTC) - manifest.created).total_seconds()) < 60
    assert verify_backup(repository(place), manifest, read_data=ReadData()).ok
    assert repository(place).backups() == [manifest]


def test_facts_answer_without_reading_objects(place: Location) -> None:
    facts = back_up(place, stream(), restorable_batches=2).manifest.facts
    assert facts == {
        "offset_log_version": 1,
        "commit_log_version": 1,
        "batch_times": {
            str(batch): datetime.fromtimestamp((BEGAN + 1000 * batch) / 1000, UTC).isoformat() for batch in (3, 4)
        },
        "start_offsets": [{"index": 0, "kind": "file", "offset": {"logOffset": 3}}],
        "end_offsets": [{"index": 0, "kind": "file", "offset": {"logOffset": 4}}],
        "watermark_ms": 0,
        "operators": [
            {
                "id": 0, "name": "stateStoreSave", "stores": ["default"], "partitions": 2,
                "provider": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
            }
        ],
        "log_sha256": {
            path: hashlib.sha256((place / "orders").read(path)).hexdigest()
            for path in ("metadata", "offsets/4", "commits/4")
        },
        "restorable_asked": 2,
    }  # fmt: skip


def test_documented_keys(place: Location) -> None:
    report = back_up(place, stream()).to_json()
    assert {
        "backup_id",
        "name",
        "batch_id",
        "files",
        "bytes",
        "copied_files",
        "copied_bytes",
        "seconds",
    } <= report.keys()


def test_nothing_is_written_into_the_checkpoint(place: Location) -> None:
    before = contents(plant(place / "orders", stream()))
    location, store = watched(place / "orders")
    create_backup(Checkpoint.at(location), repository(place))
    assert store.count(*WRITES) == 0
    assert contents(place / "orders") == before


def test_the_latest_has_the_last_id(place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within one second too, and whatever the batch; not beside one that a wrong clock has dated far ahead."""

    class Still(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime(2026, 11, 21, 8, 30, 59, tzinfo=tz)

    monkeypatch.setattr(module, "datetime", Still)
    ahead = back_up(place, stream()).manifest
    far = replace(ahead, backup_id="20261121T083159Z-b000009")
    (place / "backups").create(far.path, far.to_document())
    (place / "orders").delete("commits/4")
    older, same, newer = back_up(place), back_up(place), back_up(place, stream(5))
    assert [each.backup_id for each in (older, same, newer)] == [
        "20261121T083100Z-b000003",
        "20261121T083101Z-b000003",
        "20261121T083101Z-b000005",
    ]
    assert {each.manifest.created for each in (older, same, newer)} == {ahead.created}, "the time is as it was"


def test_a_second_backup_copies_only_what_is_new(place: Location) -> None:
    back_up(place, stream(4))
    again = back_up(place)
    assert (again.copied_files, again.copied_bytes) == (0, 0)
    newer = back_up(place, stream(5))
    new = {p for p in closure_of(stream(5), place, 5) if p not in closure_of(stream(4), place, 4)} - {
        "offsets/4",
        "commits/5",
    }
    # commits/5 has the content of commits/4: nothing to copy.
    assert newer.copied_files == len(new)
    assert newer.copied_bytes == sum(len(stream(5)[p]) for p in new)


def test_a_second_backup_reads_only_what_is_new(place: Location) -> None:
    back_up(place, stream(4))
    plant(place / "orders", dict(stream(5).items() - stream(4).items()))
    location, store = watched(place / "orders")
    create_backup(Checkpoint.at(location), repository(place))
    state = [p.removeprefix(f"{place.root}/orders/") for p in store.paths("read") if "/state/" in p or "/sources/" in p]
    # Of the state that was there: the zips, which tell their tables, and what tells the operator. Each once.
    assert sorted(state) == [
        "sources/0/5", "state/0/0/3.zip", "state/0/0/6.changelog", "state/0/0/_metadata/schema", "state/0/1/3.zip",
        "state/0/1/6.changelog", "state/0/_metadata/metadata",
    ]  # fmt: skip


def test_two_backups_of_one_batch_get_two_ids(place: Location) -> None:
    made = [back_up(place, stream()).backup_id, back_up(place).backup_id, back_up(place).backup_id]
    assert len(set(made)) == 3
    assert list(repository(place).backup_ids("orders")) == made


def test_a_sealed_checkpoint(place: Location) -> None:
    result = back_up(place, stream() | seal_at(5))
    assert result.batch_id == 4
    assert "offsets/5" not in files_in(result.manifest, place)


def test_a_batch_in_the_middle_is_not_in_it(place: Location) -> None:
    files = stream(5)
    del files["commits/5"]
    result = back_up(place, files)
    assert result.batch_id == 4
    assert files_in(result.manifest, place) == closure_of(files, place, 4)


def test_hidden_files_stay_behind(place: Location) -> None:
    result = back_up(place, stream() | {"offsets/.4.crc": b"h", "state/0/0/.5.changelog.9f.tmp": b"h"})
    assert not any("/." in path for path in files_in(result.manifest, place))


class TestRestorableBatches:
    def test_each_of_them_has_its_own_closure(self, place: Location) -> None:
        result = back_up(place, stream(6), restorable_batches=3)
        assert result.manifest.restorable == (4, 5, 6)
        for batch_id in (4, 5, 6):
            found = {e.path: place.read(f"backups/{e.object}") for e in result.manifest.files_of(batch_id)}
            assert found == closure_of(stream(6), place, batch_id)

    def test_more_than_there_are(self, place: Location) -> None:
        assert back_up(place, stream(2), restorable_batches=99).manifest.restorable == (0, 1, 2)

    def test_only_as_far_as_spark_still_has_their_files(self, place: Location) -> None:
        files = {p: d for p, d in stream(6).items() if not p.endswith(("/1.changelog", "/2.changelog"))}
        assert back_up(place, files, restorable_batches=99).manifest.restorable == (2, 3, 4, 5, 6)

    def test_committed_batches_are_counted_not_numbers(self, place: Location) -> None:
        """Async progress tracking commits not every batch."""
        files = {p: d for p, d in logs(range(7)).items() if p.startswith("sources/") or p[-1] in "036a"}
        result = back_up(place, files, restorable_batches=2)
        assert result.manifest.restorable == (3, 6)

    @pytest.mark.parametrize("number", [0, -1])
    def test_none(self, place: Location, number: int) -> None:
        with pytest.raises(RefusedError) as error:
            back_up(place, stream(), restorable_batches=number)
        assert (error.value.message, error.value.hint) == (f"restorable_batches is {number}", "use 1 or more")


class TestRefusals:
    def refused(self, place: Location, kind: type[CkptError], message: str, **options: Any) -> CkptError:
        before = contents(place)
        with pytest.raises(kind) as error:
            back_up(place, **options)
        assert error.value.message == message
        assert error.value.hint
        made = {p for p in contents(place) if p not in before}
        assert not [p for p in made if "/objects/" in p or p.startswith("backups/backups/")]
        return error.value

    def test_an_empty_place(self, place: Location) -> None:
        self.refused(
            place, NotACheckpointError,
            f"{place / 'orders'} is not a checkpoint: it has no offsets/, no commits/ and no metadata",
        )  # fmt: skip

    def test_something_else(self, place: Location) -> None:
        plant(place / "orders", {"part-0.parquet": b"x"})
        self.refused(
            place, NotACheckpointError,
            f"{place / 'orders'} is not a checkpoint: it has no offsets/, no commits/ and no metadata",
        )  # fmt: skip

    def test_nothing_committed_yet(self, place: Location) -> None:
        files = logs(range(1))
        del files["commits/0"]
        plant(place / "orders", files)
        self.refused(
            place, NotACheckpointError, f"{place / 'orders'} has no committed batch yet: there is nothing to go back to"
        )

    @pytest.mark.parametrize("data", [b"", b"v1", b"v1\n{", b"\xff"])
    def test_an_unreadable_newest_entry(self, place: Location, data: bytes) -> None:
        plant(place / "orders", stream() | {"offsets/4": data})
        with pytest.raises(UnreadableLogError) as error:
            back_up(place)
        assert (error.value.path, error.value.batch_id) == ("offsets/4", 4)
        assert repository(place).backups() == []

    @pytest.mark.parametrize("name", ["..", "a/b", "../../etc", "a..b", ".x"])
    def test_a_name_that_is_none(self, place: Location, name: str) -> None:
        plant(place / "orders", stream())
        self.refused(place, RefusedError, f"{name!r} cannot be the name of a stream", name=name)

    def test_the_repository_inside_the_checkpoint(self, place: Location) -> None:
        checkpoint = plant(place, stream())
        repo = Repository(place / "backups", "x")
        with pytest.raises(RefusedError) as error:
            create_backup(Checkpoint.at(checkpoint), repo)
        assert error.value.message == f"the repository lies inside the checkpoint: {place / 'backups'} in {place}"
        assert error.value.hint == "keep backups in a place of their own"
        assert contents(place).keys() == stream().keys()

    def test_the_checkpoint_inside_the_repository(self, place: Location) -> None:
        repo = Repository.open_or_create(place)
        checkpoint = plant(place / "orders", stream())
        with pytest.raises(RefusedError) as error:
            create_backup(Checkpoint.at(checkpoint), repo)
        assert error.value.message == f"the checkpoint lies inside the repository: {place / 'orders'} in {place}"

    def test_the_same_place(self, place: Location) -> None:
        with pytest.raises(RepositoryError, match="holds a checkpoint: a repository needs a place of its own"):
            Repository.open_or_create(plant(place, stream()))

    def test_a_place_beside_with_the_same_beginning_is_fine(self, place: Location) -> None:
        checkpoint = plant(place / "orders", stream())
        create_backup(Checkpoint.at(checkpoint), Repository.open_or_create(place / "orders-backups"))

    def test_an_unknown_provider(self, place: Location) -> None:
        plant(place / "orders", stream() | logs(range(5), provider="com.example.Mine"))
        self.refused(
            place, RefusedError,
            "state/0/0: the state store provider com.example.Mine is not known here, so its files cannot be told apart",
        )  # fmt: skip


def test_another_backup_of_the_stream_is_running(place: Location) -> None:
    """And when that one has ended, the next is let in."""
    plant(place / "orders", stream())
    second: list[Exception] = []

    def start_another(operation: str, path: str) -> None:
        if operation == "walk" and not second:
            try:
                back_up(place, made_by="run 2")
            except BackupRunningError as e:
                second.append(e)

    first = moving(place, start_another, made_by="run 1")
    (refusal,) = second
    assert str(refusal).startswith("another backup of this stream is running: process ")
    assert " for run 1, last sign of life " in str(refusal)
    assert [m.backup_id for m in repository(place).backups()] == [first.backup_id]
    back_up(place)


def test_progress(place: Location) -> None:
    seen: list[CopyProgress] = []
    result = back_up(place, stream(), on_progress=seen.append)
    assert [p.files_done for p in seen] == list(range(1, result.files + 1))
    assert seen[-1] == CopyProgress(result.files, result.files, result.bytes, result.bytes)


def test_files_are_copied_at_once(place: Location) -> None:
    """As many as there are workers, or this would wait for ever."""
    plant(place / "orders", stream())
    barrier = threading.Barrier(4, timeout=10)
    met = itertools.count()

    def meet(operation: str, path: str) -> None:
        if (operation == "read" and path.endswith(".sst") and next(met) < 2) or (
            operation == "read" and path.endswith(("/sources/0/0", "/sources/0/1"))
        ):
            barrier.wait()

    moving(place, meet, workers=8)


class Spark:
    """A stream and its maintenance, as seen from a reader: moves on before requests to its checkpoint.

    :param newest: newest batch at the beginning.
    :param keep: how many batches are kept; state before the newest snapshot that serves them is deleted.
    """

    def __init__(self, place: Location, newest: int, *, keep: int = 2) -> None:
        self.location = place / "orders"
        self.newest = newest
        self.keep = keep
        self.lock = threading.Lock()
        plant(self.location, self.files())

    def files(self) -> Files:
        """The checkpoint as it would be if nothing ever failed: a snapshot every third version."""
        oldest = max(0, self.newest + 1 - self.keep)
        whole = all_of(self.newest)
        base = max((v for v in range(3, oldest + 2, 3)), default=0)
        return {path: data for path, data in whole.items() if not self._purged(path, oldest, base)}

    def _purged(self, path: str, oldest: int, base: int) -> bool:
        directory, _, name = path.rpartition("/")
        if directory in ("offsets", "commits"):
            return int(name) < oldest - 1
        number = name.partition(".")[0].partition("-")[0]
        return directory.startswith("state/0/") and number.isdigit() and int(number) < base

    def go_on(self, batches: int = 1) -> None:
        with self.lock:
            before = self.files()
            self.newest += batches
            after = self.files()
            plant(self.location, dict(after.items() - before.items()))
            for path in before.keys() - after.keys():
                self.location.delete(path)


def all_of(newest: int) -> Files:
    return rocksdb_aggregation(newest, zips=range(3, newest + 2, 3))


class TestLive:
    def check(self, place: Location, result: BackupResult) -> None:
        """Whatever happened meanwhile: the backup is the closure of its batch, to the letter."""
        whole = all_of(result.batch_id)
        found = files_in(result.manifest, place)
        assert found == {path: whole[path] for path in found}
        restored = plant(place / "restored", found)
        closure = Checkpoint.at(restored).closure(result.batch_id)
        assert {f.path for f in closure.files} == found.keys()
        assert verify_backup(repository(place), result.manifest, read_data=ReadData()).ok
        assert repository(place).backups() == [result.manifest]

    @pytest.mark.parametrize("operation", ["list", "walk", "read"])
    @pytest.mark.parametrize("number", [1, 2, 3, 5, 8, 13, 21, 30])
    def test_batches_pass_at_one_moment(self, place: Location, operation: str, number: int) -> None:
        """Before the n-th request seven batches are done, old entries purged, snapshots made and deleted."""
        spark = Spark(place, 7)
        seen = itertools.count(1)

        def maybe(asked: str, path: str) -> None:
            if asked == operation and next(seen) == number:
                spark.go_on(7)

        self.check(place, moving(place, maybe))

    @pytest.mark.parametrize("every", [3, 10, 25])
    def test_batches_pass_all_the_time(self, place: Location, every: int) -> None:
        spark = Spark(place, 7, keep=6)
        seen = itertools.count(1)

        def maybe(asked: str, path: str) -> None:
            if next(seen) % every == 0:
                spark.go_on()

        result = moving(place, maybe)
        assert result.batch_id >= 7
        self.check(place, result)

    def test_what_was_copied_before_is_used_again(self, place: Location) -> None:
        """A file vanishes at the very end: the next look copies only what is new then."""
        spark = Spark(place, 7)
        once = itertools.count()

        def vanish(asked: str, path: str) -> None:
            if asked == "read" and path.endswith("sources/0/7") and next(once) == 0:
                spark.go_on(3)
                raise FileNotFoundError(path)

        location, store = watched(spark.location, vanish)
        result = create_backup(Checkpoint.at(location), repository(place), workers=1)
        self.check(place, result)
        reads = [p for p in store.paths("read") if p.endswith(".sst")]
        assert len(reads) == len(set(reads))
        objects = (place / "backups").walk("objects")
        assert result.copied_files <= len(objects)

    def test_faster_than_can_be_copied_ends(self, place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
        """Everything is gone each time it is to be read: bounded, and the message says what would help."""
        assert module._LOOKS == 30
        monkeypatch.setattr(module, "_LOOKS", 5)
        spark = Spark(place, 7, keep=1)

        def run_away(asked: str, path: str) -> None:
            if asked == "read" and path.endswith(".sst"):
                spark.go_on(6)

        with pytest.raises(HistoryRewrittenError) as error:
            moving(place, run_away)
        assert error.value.message.startswith(
            f"{spark.location} moved faster than it could be copied, 5 times; the last time: "
        )
        assert error.value.hint == (
            "raise spark.sql.streaming.minBatchesToRetain or the trigger interval, or use more workers"
        )
        assert repository(place).backups() == []

    def test_a_batch_runs_again(self, tmp_path: Path) -> None:
        """Format 1 replaces state in place: same name, same size, equivalent content. Either is right."""
        place = Location(LocalStore(), str(tmp_path))
        plant(place / "orders", stream())
        done = itertools.count()

        def run_again(asked: str, path: str) -> None:
            if asked == "read" and path.endswith("5.changelog") and next(done) == 0:
                (place / "orders").replace("state/0/1/5.changelog", b"CHANGELOG 1 5")

        result = moving(place, run_again, workers=1)
        entry = entry_of(result.manifest, "state/0/1/5.changelog")
        assert place.read(f"backups/{entry.object}") in (b"changelog 1 5", b"CHANGELOG 1 5")
        assert verify_backup(repository(place), result.manifest, read_data=ReadData()).ok
        # The next backup has what is there now, though nothing else is new.
        entry = entry_of(back_up(place).manifest, "state/0/1/5.changelog")
        assert place.read(f"backups/{entry.object}") == b"CHANGELOG 1 5"

    def test_a_file_replaced_by_another_size_while_it_is_read(self, place: Location) -> None:
        plant(place / "orders", stream())
        once = itertools.count()

        def grow(asked: str, path: str) -> None:
            if asked == "read" and path.endswith("1/5.changelog") and next(once) == 0:
                plant(place / "orders", {"state/0/1/5.changelog": b"a longer changelog than before"})

        result = moving(place, grow)
        entry = entry_of(result.manifest, "state/0/1/5.changelog")
        assert place.read(f"backups/{entry.object}") == b"a longer changelog than before"
        assert entry.size == 30

    def test_the_newest_commit_is_young(self, place: Location) -> None:
        """Its commit is seen, the listing that follows is older in parts: look again."""
        plant(place / "orders", stream(4))
        once = itertools.count()

        def commit(asked: str, path: str) -> None:
            if asked == "walk" and next(once) == 0:
                plant(place / "orders", stream(5))

        result = moving(place, commit)
        assert result.batch_id in (4, 5)
        assert files_in(result.manifest, place) == closure_of(stream(5), place, result.batch_id)


class TestHistory:
    """Somebody rewinds or replaces the checkpoint while it is copied: never a mixture of both."""

    def rewriting(self, place: Location, changes: list[Files], *, at: str = "sources/0/4") -> BackupResult:
        plant(place / "orders", stream())
        left = iter(changes)

        def rewrite(asked: str, path: str) -> None:
            if asked == "read" and path.endswith(at):
                plant(place / "orders", next(left, {}))

        return moving(place, rewrite, workers=1)

    @pytest.mark.parametrize(
        ("path", "content"),
        [
            ("metadata", metadata("another-id")),
            ("commits/4", commit_log(watermark=9)),
            ("offsets/4", stream()["offsets/4"] + b"\n5"),
        ],
    )
    def test_rewritten_once_it_is_the_new_one(self, place: Location, path: str, content: bytes) -> None:
        result = self.rewriting(place, [{path: content}])
        assert files_in(result.manifest, place)[path] == content
        assert result.manifest.query_id == (
            "another-id" if path == "metadata" else "199ce9d3-fd64-4a41-a1cf-23002acf0134"
        )

    @pytest.mark.parametrize("path", ["metadata", "commits/4", "offsets/4"])
    def test_a_rewrite_is_noticed(self, place: Location, path: str, caplog: pytest.LogCaptureFixture) -> None:
        new = {"metadata": metadata("another-id"), "commits/4": commit_log(watermark=9)}
        caplog.set_level("INFO")
        self.rewriting(place, [{path: new.get(path, stream()["offsets/4"] + b"\n5")}])
        assert f"{place / 'orders'}/{path} was rewritten while it was backed up" in caplog.text

    def test_rewritten_again_and_again(self, place: Location) -> None:
        """The same file each time: an error that names it, and no backup."""
        plant(place / "orders", stream())
        turn = itertools.count()

        def rewrite(asked: str, path: str) -> None:
            if asked == "read" and path.endswith("state/0/0/5.changelog"):
                plant(
                    place / "orders",
                    {"commits/4": commit_log(watermark=next(turn)), "state/0/0/5.changelog": b"%d" % next(turn)},
                )

        with pytest.raises(HistoryRewrittenError) as error:
            moving(place, rewrite, workers=1)
        assert error.value.message == f"{place / 'orders'}/commits/4 was rewritten while it was backed up"
        assert error.value.hint == "somebody changes this checkpoint"
        assert repository(place).backups() == []

    def test_rewound_while_it_is_copied(self, place: Location) -> None:
        """Batch 4 is taken back: the backup is of batch 3, or of nothing, never of a batch that is not there."""
        plant(place / "orders", stream())
        once = itertools.count()

        def rewind(asked: str, path: str) -> None:
            if asked == "read" and path.endswith("sources/0/4") and next(once) == 0:
                for name in ("commits/4", "offsets/4", "sources/0/4", "state/0/0/5.changelog", "state/0/1/5.changelog"):
                    (place / "orders").delete(name)

        result = moving(place, rewind, workers=1)
        assert result.batch_id == 3
        assert files_in(result.manifest, place) == closure_of(stream(4), place, 3)

    def test_deleted_while_it_is_copied(self, place: Location) -> None:
        plant(place / "orders", stream())

        def lose(asked: str, path: str) -> None:
            if asked == "read" and path.endswith("sources/0/4"):
                for name in visible(place / "orders"):
                    (place / "orders").delete(name)

        with pytest.raises(NotACheckpointError):
            moving(place, lose, workers=1)
        assert repository(place).backups() == []


class TestDamage:
    """What is missing and stays missing is named, after a bounded number of looks."""

    @pytest.mark.parametrize(
        "gone",
        [
            "state/0/1/5.changelog",
            "sources/0/2",
            "metadata",
            "offsets/3",
            "state/0/0/SSTs/000003-00000000-0000-0000-0000-000000000000.sst",
        ],
    )
    def test_a_file_is_missing(self, place: Location, gone: str) -> None:
        files = stream()
        del files[gone]
        location, store = watched(plant(place / "orders", files))
        with pytest.raises(MissingFileError) as error:
            create_backup(Checkpoint.at(location), repository(place))
        assert error.value.path == gone
        assert gone in error.value.message
        assert error.value.hint
        assert store.count("walk") == module._SAME_COMPLAINTS + 1
        assert repository(place).backups() == []

    def test_a_table_of_the_wrong_size(self, place: Location) -> None:
        table = "state/0/1/SSTs/000003-10000000-0000-0000-0000-000000000000.sst"
        plant(place / "orders", stream() | {table: b""})
        with pytest.raises(MissingFileError) as error:
            back_up(place)
        assert error.value.message == f"{table}: has 0 bytes, state/0/1/3.zip needs 9"

    def test_a_damaged_zip(self, place: Location) -> None:
        plant(place / "orders", stream() | {"state/0/1/3.zip": b"PK"})
        with pytest.raises(UnreadableLogError, match=r"^state/0/1/3.zip: not a readable RocksDB snapshot"):
            back_up(place)

    def test_a_missing_commit_of_the_past_is_no_damage(self, place: Location) -> None:
        files = stream()
        del files["commits/2"], files["offsets/1"]
        assert back_up(place, files).batch_id == 4

    def test_listed_but_not_to_be_read(self, place: Location) -> None:
        plant(place / "orders", stream())

        def fail(asked: str, path: str) -> None:
            if asked == "read" and path.endswith("1/5.changelog"):
                raise FileNotFoundError(f"could not read {path}: it is not there")

        with pytest.raises(MissingFileError) as error:
            moving(place, fail)
        assert error.value.message.endswith("/orders/state/0/1/5.changelog: it is not there, though it is listed")
        assert error.value.message.startswith("could not read ")
        assert error.value.hint == "check the store; try again later"

    def test_damage_while_the_stream_goes_on(self, place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
        """It writes a batch between any two looks, so it is never seen standing still; it ends, and names the file."""
        monkeypatch.setattr(module, "_LOOKS", 5)
        spark = Spark(place, 7)
        spark.location.delete("metadata")

        def go_on(asked: str, path: str) -> None:
            if asked == "walk":
                spark.go_on()

        with pytest.raises(CkptError, match="metadata is missing"):
            moving(place, go_on)


class TestStorageFails:
    def test_reading(self, place: Location) -> None:
        plant(place / "orders", stream())

        def fail(asked: str, path: str) -> None:
            if asked == "read" and path.endswith(".sst"):
                raise StorageError("could not read it: AccessDenied", hint="ask for access")

        with pytest.raises(StorageError, match=r"^could not read it: AccessDenied\nHINT: ask for access$"):
            moving(place, fail)
        assert repository(place).backups() == []

    def test_a_full_disk(self, place: Location) -> None:
        """What was copied before is used by the next run."""
        plant(place / "orders", stream())
        repository(place)
        written = itertools.count()

        def full(asked: str, path: str) -> None:
            if asked == "create" and "/objects/" in path and next(written) >= 5:
                raise StorageError("could not create it: No space left on device", hint="free some space")

        location, _ = watched(place / "backups", full)
        with pytest.raises(StorageError, match="No space left on device"):
            create_backup(Checkpoint.at(place / "orders"), Repository.open(location), workers=1)
        assert repository(place).backups() == []
        assert len((place / "backups").walk("objects")) == 5
        again = back_up(place)
        assert len((place / "backups").walk("objects")) == objects_of(again)
        assert again.copied_files < again.files

    def test_a_read_only_repository(self, place: Location) -> None:
        plant(place / "orders", stream())
        repository(place)

        def refuse(asked: str, path: str) -> None:
            if asked in WRITES:
                raise StorageError("could not create it: Permission denied")

        location, _ = watched(place / "backups", refuse)
        with pytest.raises(StorageError, match="Permission denied"):
            create_backup(Checkpoint.at(place / "orders"), Repository.open(location))


def objects_of(result: BackupResult) -> int:
    return len({entry.object for entry in result.manifest.files})


def test_killed_at_every_write(place: Location) -> None:
    """No manifest until the end; the next run uses what is there and copies the rest."""
    files = stream(3, partitions=1)
    plant(place / "orders", files)
    expected = closure_of(files, place, 3)
    for writes in itertools.count():
        here = place / f"run{writes}"
        Repository.open_or_create(here / "backups")
        life = Life(writes)
        location, _ = watched(here / "backups", life.before)
        try:
            create_backup(Checkpoint.at(place / "orders"), Repository.open(location), workers=4)
            break
        except Killed:
            pass
        manifests = repository(here).backups()
        left = len((here / "backups").walk("objects"))
        bury(here)
        # The last write is the release of the lease: by then the backup is made.
        assert [files_in(m, here) for m in manifests] in ([], [expected])
        again = create_backup(Checkpoint.at(place / "orders"), repository(here))
        assert files_in(again.manifest, here) == expected
        assert again.copied_files == len({e.object for e in again.manifest.files}) - left or left == 0
        assert objects_of(again) == len((here / "backups").walk("objects"))
        assert verify_backup(repository(here), again.manifest, read_data=ReadData()).ok
    assert writes > 12


def test_an_orphan_that_a_killed_run_left_damaged(place: Location) -> None:
    """Cut off by a crash of a store that does not write whole: not trusted, not overwritten, and nothing is lost."""
    made = back_up(place, stream())
    for path in list((place / "backups").walk("objects")):
        content = place.read(f"backups/{path}")
        plant(place / "backups", {path: content[: len(content) // 2]})
    (place / "backups").delete(made.manifest.path)
    again = back_up(place)
    assert files_in(again.manifest, place) == closure_of(stream(), place, 4)
    assert verify_backup(repository(place), again.manifest, read_data=ReadData()).ok


def test_a_damaged_newest_manifest_does_not_stop_the_next_backup(place: Location) -> None:
    made = back_up(place, stream())
    (place / "backups").replace(made.manifest.path, b"{")
    again = back_up(place)
    assert again.copied_files == 0
    assert verify_backup(repository(place), again.manifest, read_data=ReadData()).ok


def test_a_store_that_copies_by_itself(place: Location) -> None:
    """State goes from the checkpoint to the repository without a byte through here; logs, which were read, are written."""
    checkpoint, there = watched(plant(place / "orders", stream()), copies_within=True)
    repository(place)
    location, here = watched(place / "backups", copies_within=True)
    result = create_backup(Checkpoint.at(checkpoint), Repository.open(location))
    assert files_in(result.manifest, place) == closure_of(stream(), place, 4)
    assert not [p for p in there.paths("read") if p.endswith((".sst", ".changelog"))]
    copied = [e for e in result.manifest.files if e.path.endswith((".sst", ".changelog"))]
    assert all(e.checksum and not e.sha256 for e in copied)
    assert here.count("copy") >= len({e.object for e in copied})
    report = verify_backup(repository(place), result.manifest, read_data=ReadData())
    assert (report.ok, report.read_files) == (True, result.files)
    again = create_backup(Checkpoint.at(checkpoint), Repository.open(location))
    assert again.copied_files == 0


def test_a_store_that_copies_by_itself_and_a_stream_that_replaces(place: Location) -> None:
    plant(place / "orders", stream())
    checkpoint, _ = watched(place / "orders", copies_within=True)
    repository(place)
    once = itertools.count()

    def replace_it(asked: str, path: str) -> None:
        if asked == "copy" and next(once) == 3:
            plant(
                place / "orders",
                {f"state/0/{p}/{v}.changelog": b"CHANGELOG %d %d" % (p, v) for p in (0, 1) for v in (4, 5)},
            )

    location, _ = watched(place / "backups", replace_it, copies_within=True)
    result = create_backup(Checkpoint.at(checkpoint), Repository.open(location), workers=1)
    now = visible(place / "orders")
    found = files_in(result.manifest, place)
    for path, content in found.items():
        assert content in (stream()[path], now[path])
    assert verify_backup(repository(place), result.manifest, read_data=ReadData()).ok


def test_what_an_earlier_look_copied_is_not_copied_again(place: Location) -> None:
    """Copied by the store: nothing of it passes through this process, so only a listing tells."""
    files = stream()
    plant(place / "orders", files)
    late = "state/0/1/5.changelog"
    happened: list[str] = []

    def vanish(operation: str, path: str) -> None:
        if operation == "copy" and not happened:
            happened.append("gone")
            (place / "orders").delete(late)
        if operation == "walk" and path.endswith("orders") and happened == ["gone"]:
            happened.append("back")
            (place / "orders").create(late, files[late])

    root, store = watched(place, vanish, copies_within=True)
    result = create_backup(Checkpoint.at(root / "orders"), Repository.open_or_create(root / "backups"), workers=1)
    assert happened == ["gone", "back"]
    copied = [entry.object for entry in result.manifest.files if entry.checksum]
    assert store.count("copy") == len(copied) + 1, "one was gone, and is copied by the second look"
    assert result.copied_files == result.files
