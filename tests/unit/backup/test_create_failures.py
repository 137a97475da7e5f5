"""create: damaged checkpoints, stores that fail, and a process that is killed at every write."""

from __future__ import annotations

import itertools

import pytest

from airflow_ckpt_provider.backup import closure_copy as module
from airflow_ckpt_provider.backup.create import BackupResult, create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import CkptError, MissingFileError, StorageError, UnreadableLogError
from airflow_ckpt_provider.storage.location import Location
from tests.support.backups import back_up, bury, closure_of, files_in, repository, stream
from tests.support.checkpoints import plant
from tests.support.moving_stream import Spark, moving
from tests.support.watched_stores import WRITES, Killed, Life, watched

pytestmark = pytest.mark.usefixtures("no_pauses")


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
                raise FileNotFoundError(f"could not read {path}: it does not exist")

        with pytest.raises(MissingFileError) as error:
            moving(place, fail)
        assert error.value.message.endswith("/orders/state/0/1/5.changelog: it does not exist, though it is listed")
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

    @pytest.mark.format_1("a disk that is full after so many objects; of packs: test_packs.py")
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


@pytest.mark.format_1("so many objects; of packs: test_packs.py")
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
    # What is in packs is known from manifests, and from nothing else.
    packs_since = repository(place).packs and not any(entry.is_packed for entry in made.manifest.files)
    assert again.copied_files == (again.files if packs_since else 0)
    assert verify_backup(repository(place), again.manifest, read_data=ReadData()).ok
