"""create: what a backup of a checkpoint that does not change holds, what is refused, and how files are copied."""

from __future__ import annotations

import hashlib
import itertools
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_ckpt_provider.backup import create as module
from airflow_ckpt_provider.backup.copy_progress import CopyProgress
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import (
    BackupRunningError,
    CkptError,
    MissingFileError,
    NotACheckpointError,
    RefusedError,
    RepositoryError,
    UnreadableLogError,
)
from airflow_ckpt_provider.storage.location import Location
from tests.support.backups import back_up, closure_of, files_in, repository, stream, visible
from tests.support.checkpoints import BEGAN, contents, logs, plant
from tests.support.moving_stream import moving
from tests.support.seals import seal_at
from tests.support.watched_stores import WRITES, watched

pytestmark = pytest.mark.usefixtures("no_pauses")


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
    manifest = back_up(place, stream(), restorable_batches=2).manifest
    facts = dict(manifest.facts)
    assert timedelta(0) < manifest.created - datetime.fromisoformat(facts.pop("pinned_at")) < timedelta(minutes=1)
    commit = (place / "orders").find("commits/4")
    assert commit
    assert commit.modified
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
        "commit_file": {"identity": commit.identity, "modified": commit.modified.isoformat()},
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
    """Within one second too, whatever the batch, and also after a backup that a wrong clock has dated far ahead."""

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
        "20261121T083200Z-b000003",
        "20261121T083201Z-b000003",
        "20261121T083201Z-b000005",
    ]
    assert repository(place).manifest() == newer.manifest
    assert {each.manifest.created for each in (older, same, newer)} == {ahead.created}, "the time is as it was"


@pytest.mark.parametrize("last", ["99991231T235959Z-b999999", "zzz"])
def test_no_id_sorts_after_a_forged_one(place: Location, last: str) -> None:
    """A backup with an earlier id would not be the latest, so there is none."""
    (place / "backups").create(f"backups/orders/{last}.json", b"{}") if back_up(place, stream()) else None
    with pytest.raises(RefusedError, match=rf"no new backup can follow backups/orders/{last}\.json") as error:
        back_up(place)
    assert "move it out of the repository" in str(error.value.hint)
    (place / "backups").delete(f"backups/orders/{last}.json")
    assert back_up(place).manifest.sequence == 2


def test_sequence_numbers(place: Location) -> None:
    """One more than that of the newest backup that can be read; it is 0 in manifests of version 0.1."""
    first, second = back_up(place, stream()).manifest, back_up(place).manifest
    assert [first.sequence, second.sequence, second.summary()["sequence"]] == [1, 2, 2]
    (place / "backups").replace(second.path, b"rubbish")
    assert back_up(place).manifest.sequence == 2
    assert back_up(place).manifest.sequence == 3
    old = replace(first, name="old", sequence=0, files=())
    (place / "backups").create(old.path, old.to_document())
    assert back_up(place, name="old").manifest.sequence == 1


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
    # Of the state that was there: the zips, which tell their tables, and what shows the operator. Each once.
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
            found = {e.path: (place / "backups").read(e.object) for e in result.manifest.files_of(batch_id)}
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

    def test_an_older_entry_is_torn(self, place: Location) -> None:
        """Batches 4 and 3 cannot be started from: a start after either reads ``offsets/3``."""
        result = back_up(place, stream(6) | {"offsets/3": b""}, restorable_batches=4)
        assert result.manifest.restorable == (5, 6)

    @pytest.mark.parametrize("path", ["offsets/5", "offsets/6", "commits/6"])
    def test_an_entry_that_the_next_start_reads_is_torn(self, place: Location, path: str) -> None:
        with pytest.raises(UnreadableLogError, match=path):
            back_up(place, stream(6) | {path: b""})

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
            place, NotACheckpointError, f"{place / 'orders'} has no committed batch yet: there is nothing to restore"
        )

    def test_an_operator_that_lost_its_state(self, place: Location) -> None:
        """It was a backup like any other, without the state."""
        first = back_up(place, stream())
        for path in [p for p in (place / "orders").walk("") if p.startswith("state/")]:
            (place / "orders").delete(path)
        with pytest.raises(MissingFileError) as error:
            back_up(place)
        assert error.value.message == (
            f"state/0 is missing, which backup {first.backup_id} of orders has: operator 0 has no state at all"
        )
        assert back_up(place, new_life=True).manifest.facts["operators"] == []
        assert back_up(place).manifest.facts["operators"] == []

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

    def test_the_checkpoint_inside_another_repository(self, place: Location) -> None:
        other, kept = Repository.open_or_create(place / "other"), Repository.open_or_create(place / "kept")
        checkpoint = plant(place / "other" / "orders", stream(3))
        with pytest.raises(RefusedError) as error:
            create_backup(Checkpoint.at(checkpoint), kept)
        assert error.value.message == f"{checkpoint} lies inside the repository {other.location}"
        assert not kept.names()

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
            "state/0/0: the state store provider com.example.Mine is not known here, so its files cannot be distinguished",
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


@pytest.mark.format_1("the store copies the small files of this test")
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


@pytest.mark.format_1("the store copies the small files of this test")
def test_what_an_earlier_look_copied_is_not_copied_again(place: Location) -> None:
    """Copied by the store: nothing of it passes through this process, so only a listing shows."""
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
