"""create: backups of checkpoints that move, are rewound or deleted meanwhile."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup import closure_copy as module
from airflow_ckpt_provider.backup.create import BackupResult, create_backup
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import HistoryRewrittenError, NotACheckpointError
from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.storage.location import Location
from tests.support.backups import back_up, closure_of, entry_of, files_in, repository, stream, visible
from tests.support.checkpoints import Files, commit_log, metadata, plant
from tests.support.moving_stream import Spark, all_of, moving
from tests.support.watched_stores import watched

pytestmark = pytest.mark.usefixtures("no_pauses")


_BATCHES = 40


class TestLive:
    def check(self, place: Location, result: BackupResult) -> None:
        """Whatever happened meanwhile: the backup is the closure of its batch, byte for byte."""
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
            # For so many batches: one that is always done at the wrong moment would never let a backup end.
            if next(seen) % every == 0 and spark.newest < _BATCHES:
                spark.go_on()

        result = moving(place, maybe)
        assert 7 <= result.batch_id <= _BATCHES
        self.check(place, result)

    def test_what_was_copied_before_is_used_again(self, place: Location) -> None:
        """A file vanishes at the very end: the next poll copies only what is new then."""
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
        if not repository(place).packs:
            assert result.copied_files <= len((place / "backups").walk("objects"))

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
        assert (place / "backups").read(entry.object) in (b"changelog 1 5", b"CHANGELOG 1 5")
        assert verify_backup(repository(place), result.manifest, read_data=ReadData()).ok
        # The next backup has what is there now, though nothing else is new.
        entry = entry_of(back_up(place).manifest, "state/0/1/5.changelog")
        assert (place / "backups").read(entry.object) == b"CHANGELOG 1 5"

    def test_a_file_replaced_by_another_size_while_it_is_read(self, place: Location) -> None:
        plant(place / "orders", stream())
        once = itertools.count()

        def grow(asked: str, path: str) -> None:
            if asked == "read" and path.endswith("1/5.changelog") and next(once) == 0:
                plant(place / "orders", {"state/0/1/5.changelog": b"a longer changelog than before"})

        result = moving(place, grow)
        entry = entry_of(result.manifest, "state/0/1/5.changelog")
        assert (place / "backups").read(entry.object) == b"a longer changelog than before"
        assert entry.size == 30

    def test_the_newest_commit_is_young(self, place: Location) -> None:
        """Its commit is seen, the listing that follows is older in parts: list it again."""
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
        """Batch 4 is undone: the backup is of batch 3, or of nothing, never of a batch that does not exist."""
        plant(place / "orders", stream())
        once = itertools.count()

        def rewind(asked: str, path: str) -> None:
            if asked == "read" and path.endswith("sources/0/4") and next(once) == 0:
                for name in ("commits/4", "offsets/4", "sources/0/4", "state/0/0/5.changelog", "state/0/1/5.changelog"):
                    (place / "orders").delete(name)

        result = moving(place, rewind, workers=1)
        assert result.batch_id == 3
        assert files_in(result.manifest, place) == closure_of(stream(4), place, 3)

    def test_replayed_while_it_is_copied(self, tmp_path: Path) -> None:
        """Batch 4 runs again with corrected code: the bytes of its logs are the same, its state is not."""
        place = Location(LocalStore(), str(tmp_path))
        plant(place / "orders", stream())
        new = {f"state/0/{n}/5.changelog": b"corrected %d 5" % n for n in range(2)}
        once = itertools.count()

        def replay(asked: str, path: str) -> None:
            if asked == "read" and path.endswith("state/0/1/5.changelog") and next(once) == 0:
                (place / "orders").delete("commits/4")
                plant(place / "orders", {**new, "commits/4": stream()["commits/4"]})

        result = moving(place, replay, workers=1)
        assert {path: files_in(result.manifest, place)[path] for path in new} == new

    def test_deleted_while_it_is_copied(self, place: Location) -> None:
        plant(place / "orders", stream())

        def lose(asked: str, path: str) -> None:
            if asked == "read" and path.endswith("sources/0/4"):
                for name in visible(place / "orders"):
                    (place / "orders").delete(name)

        with pytest.raises(NotACheckpointError):
            moving(place, lose, workers=1)
        assert repository(place).backups() == []
