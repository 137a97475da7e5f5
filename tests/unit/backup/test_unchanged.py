"""A backup that need not be taken: what is the same is known without a poll at the state, and whatever is not makes a new one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.create import BackupResult, create_backup
from airflow_ckpt_provider.backup.manifest import PINNED_AT, Manifest
from airflow_ckpt_provider.backup.notes import record_verification
from airflow_ckpt_provider.backup.repository import GIVEN_UP, Repository
from airflow_ckpt_provider.backup.unchanged import unchanged_backup
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import NotACheckpointError, RefusedError
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.store import Listing, StoredFile
from tests.support.backups import back_up, files_in, repository, stream
from tests.support.checkpoints import (
    BEGAN,
    QUERY_ID,
    batch_metadata,
    commit_log,
    contents,
    metadata,
    offsets_log,
    plant,
)
from tests.support.spoiled import lose, lying_with
from tests.support.watched_stores import WRITES, WatchedStore, watched

#: The same batch, run again after a rewind a second later.
PLANNED_ANEW = stream()["offsets/4"].replace(b"%d" % (BEGAN + 4000), b"%d" % (BEGAN + 5000))


def again(place: Location, **options: Any) -> BackupResult:
    return back_up(place, skip_if_unchanged=True, **options)


def test_nothing_was_committed_since(place: Location) -> None:
    first = back_up(place, stream(), tags={"release": "2.7"}, reason="before 2.7")
    before = contents(place)
    second = again(place, tags={"release": "2.8"}, reason="nightly")
    assert second.unchanged
    assert (second.backup_id, second.copied_files, second.copied_bytes) == (first.backup_id, 0, 0)
    assert (second.manifest.tags, second.manifest.reason) == ({"release": "2.7"}, "before 2.7")
    assert list(second.manifest.files) == list(first.manifest.files)
    assert contents(place) == before, "no claim, no lease, nothing"
    assert second.to_json()["unchanged"] is True
    assert first.to_json()["unchanged"] is False


@pytest.mark.parametrize("partitions", [1, 30])
def test_it_costs_the_same_whatever_there_is(place: Location, partitions: int) -> None:
    back_up(place, stream(partitions=partitions))
    checkpoint, asked_of_it = watched(place / "orders")
    kept, asked_of_backups = watched(place / "backups")
    assert create_backup(Checkpoint.at(checkpoint), Repository.open(kept), skip_if_unchanged=True).unchanged
    for asked, operations in (
        (asked_of_it, ["list", *3 * ["read"]]),
        (asked_of_backups, [*2 * ["list"], *2 * ["read"], "walk"]),
    ):
        assert sorted(operation for operation, _ in asked.requests) == operations
        assert not asked.count(*WRITES)


def test_a_batch_that_is_under_way_is_not_committed(place: Location) -> None:
    back_up(place, stream())
    (place / "orders").create("offsets/5", offsets_log('{"logOffset":5}', metadata=batch_metadata(5)))
    (place / "orders").create("state/0/0/6.changelog", b"half")
    assert again(place).unchanged


def test_what_was_restored_is_backed_up_once(place: Location) -> None:
    """Its commit was written again, and by whom cannot be known."""
    first = back_up(place, stream())
    for path in contents(place / "orders"):
        (place / "orders").delete(path)
    apply_restore(plan_restore(repository(place), first.manifest, place / "orders"))
    second = again(place)
    assert (second.unchanged, second.copied_files) == (False, 0)
    assert again(place).backup_id == second.backup_id


def _rewritten(path: str, data: bytes) -> Callable[[Location], None]:
    return lambda orders: orders.replace(path, data)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda orders: plant(orders, stream(5)), id="a batch was committed"),
        pytest.param(lambda orders: orders.delete("commits/4"), id="a commit was taken away"),
        pytest.param(_rewritten("offsets/4", PLANNED_ANEW), id="the batch was planned again"),
        pytest.param(_rewritten("commits/4", commit_log(watermark=7)), id="the batch was committed again"),
        pytest.param(_rewritten("metadata", metadata(QUERY_ID.replace("1", "2"))), id="another query"),
    ],
)
def test_what_was_changed_is_backed_up(place: Location, change: Callable[[Location], object]) -> None:
    first = back_up(place, stream())
    change(place / "orders")
    second = again(place, new_life=True)
    assert not second.unchanged
    assert second.backup_id != first.backup_id
    assert again(place).backup_id == second.backup_id


def test_another_place_of_the_same_name(place: Location) -> None:
    back_up(place, stream(), name="orders")
    plant(place / "copy", stream())
    copy = create_backup(
        Checkpoint.at(place / "copy"), repository(place), name="orders", skip_if_unchanged=True, new_life=True
    )
    assert not copy.unchanged
    assert copy.manifest.checkpoint == (place / "copy").uri


def test_more_batches_than_the_newest_was_to_restore(place: Location) -> None:
    back_up(place, stream())
    assert not again(place, restorable_batches=2).unchanged
    assert again(place, restorable_batches=1).manifest.restorable == (3, 4)
    assert again(place, restorable_batches=2).unchanged


def test_more_batches_than_there_are_to_restore(place: Location) -> None:
    """A stream at rest that keeps two batches is not backed up every hour because three were wished for."""
    back_up(place, stream(1), restorable_batches=9)
    assert again(place, restorable_batches=9).manifest.restorable == (0, 1)
    assert again(place, restorable_batches=9).unchanged


def test_sources_are_wanted_and_not_recorded(place: Location) -> None:
    back_up(place, stream())
    asked = []

    def observe(sources: tuple[Any, ...], *_: object) -> Mapping[str, Any]:
        asked.append(sources)
        return {"0": {"topic": "t"}}

    assert not again(place, observe=observe).unchanged
    assert again(place, observe=observe).unchanged
    assert again(place).unchanged
    assert len(asked) == 1


def _put(place: Location, manifest: Manifest, data: bytes) -> None:
    (place / "backups").replace(manifest.path, data)


def test_the_newest_is_damaged(place: Location, caplog: pytest.LogCaptureFixture) -> None:
    back_up(place, stream())
    newest = back_up(place).manifest
    _put(place, newest, newest.to_document()[:-1])
    with caplog.at_level(logging.WARNING):
        assert not again(place).unchanged
    assert f"manifest {newest.path} is damaged" in caplog.text
    assert again(place).unchanged


def test_the_newest_was_found_damaged(place: Location) -> None:
    """A stream at rest does not continue for ever with a backup that is known to be lost."""
    newest = back_up(place, stream()).manifest
    lost = next(entry for entry in newest.files if entry.path.startswith("state/"))
    lose(place / "backups", lost.object)
    assert again(place).unchanged, "nobody has looked"
    record_verification(repository(place), verify_backup(repository(place), newest))
    second = again(place)
    assert (second.unchanged, second.copied_files) == (False, len(lying_with(newest.files, lost.object)))
    assert verify_backup(repository(place), second.manifest, read_data=ReadData()).ok
    record_verification(repository(place), verify_backup(repository(place), second.manifest))
    assert again(place).backup_id == second.backup_id


class Listed(WatchedStore):
    """A real store that says of each writing as much as a test wants.

    :param said: what is made of each file that is listed.
    """

    said: Callable[[StoredFile], StoredFile]

    def list(self, path: str) -> Listing:
        found = super().list(path)
        return Listing(tuple(map(self.said, found.files)), found.directories)

    def walk(self, path: str) -> tuple[StoredFile, ...]:
        return tuple(map(self.said, super().walk(path)))


class TestAReplay:
    """A batch that ran again with the same offsets: the bytes of its logs are the same, its state is not."""

    @pytest.fixture
    def local(self, tmp_path: Path) -> Location:
        return Location(LocalStore(), str(tmp_path))

    def replay(self, place: Location, *, state: bytes = b"corrected 0 5") -> None:
        plant(place / "orders", {"state/0/0/5.changelog": state, "commits/4": stream()["commits/4"]})

    def seen(self, place: Location, said: Callable[[StoredFile], StoredFile]) -> tuple[Location, Listed]:
        store = Listed(place.store)
        store.said = said
        return Location(store, (place / "orders").root), store

    def again(self, place: Location, orders: Location) -> BackupResult:
        return create_backup(Checkpoint.at(orders), repository(place), skip_if_unchanged=True)

    def test_the_file_is_another_one(self, local: Location) -> None:
        back_up(local, stream())
        assert again(local).unchanged
        self.replay(local)
        second = again(local)
        assert not second.unchanged
        assert files_in(second.manifest, local)["state/0/0/5.changelog"] == b"corrected 0 5"
        assert again(local).unchanged

    def test_the_time_is_another_one(self, place: Location) -> None:
        back_up(place, stream())
        self.replay(place)
        assert not again(place).unchanged

    def test_within_the_second_the_files_are_compared(self, place: Location) -> None:
        """S3: an ETag made of the content, and a time in whole seconds."""
        now = datetime.now(UTC).replace(microsecond=0)
        orders, store = self.seen(place, lambda file: file._replace(modified=now))
        plant(place / "orders", stream())
        self.again(place, orders)
        store.requests.clear()
        assert self.again(place, orders).unchanged
        assert sorted(operation for operation, _ in store.requests) == ["list", *3 * ["read"], "walk"]
        self.replay(place)
        assert not self.again(place, orders).unchanged
        self.replay(place)
        assert self.again(place, orders).unchanged, "the same state byte for byte"

    def test_within_the_second_of_a_backup_that_took_long(self, place: Location) -> None:
        """The second in which the commit was read counts, not that in which the backup ended."""
        then = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=5)
        orders, _ = self.seen(place, lambda file: file._replace(modified=then))
        plant(place / "orders", stream())
        newest = self.again(place, orders).manifest
        _put(place, newest, replace(newest, facts={**newest.facts, PINNED_AT: then.isoformat()}).to_document())
        assert self.again(place, orders).unchanged
        self.replay(place)
        assert not self.again(place, orders).unchanged

    def test_and_not_once_the_second_is_over(self, place: Location) -> None:
        then = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=1)
        orders, store = self.seen(place, lambda file: file._replace(modified=then))
        plant(place / "orders", stream())
        self.again(place, orders)
        store.requests.clear()
        assert self.again(place, orders).unchanged
        assert store.count("walk") == 0

    @pytest.mark.parametrize("says", ["nothing", "content", "coarse"])
    def test_a_store_that_says_too_little_has_a_backup_taken(self, place: Location, says: str) -> None:
        now = datetime.now(UTC).replace(microsecond=0)
        orders, _ = self.seen(
            place,
            {
                "nothing": lambda file: file._replace(identity=None, checksum=None, modified=None),
                "content": lambda file: file._replace(modified=None),
                "coarse": lambda file: file._replace(identity=None, checksum=None, modified=now),
            }[says],
        )
        plant(place / "orders", stream())
        self.again(place, orders)
        assert not self.again(place, orders).unchanged

    def test_a_time_alone_is_enough(self, place: Location) -> None:
        orders, _ = self.seen(place, lambda file: file._replace(identity=None, checksum=None))
        plant(place / "orders", stream())
        self.again(place, orders)
        assert self.again(place, orders).unchanged
        self.replay(place)
        assert not self.again(place, orders).unchanged


def test_one_of_an_earlier_version_says_too_little(place: Location) -> None:
    newest = back_up(place, stream()).manifest
    facts = {key: value for key, value in newest.facts.items() if key not in ("log_sha256", "restorable_asked")}
    _put(place, newest, replace(newest, facts=facts).to_document())
    assert not again(place).unchanged


def test_one_that_says_nonsense_is_not_taken_for_the_same(place: Location) -> None:
    newest = back_up(place, stream()).manifest
    _put(place, newest, replace(newest, facts={**newest.facts, "restorable_asked": {}}).to_document())
    assert not again(place).unchanged


def test_one_of_version_0_1_0_does_not_know_its_commit_again(place: Location) -> None:
    newest = back_up(place, stream()).manifest
    facts = {key: value for key, value in newest.facts.items() if key != "commit_file"}
    _put(place, newest, replace(newest, facts=facts).to_document())
    assert not again(place).unchanged
    assert again(place).unchanged


def test_one_that_a_prune_has_given_up_is_none(place: Location) -> None:
    first = back_up(place, stream()).manifest
    given_up = replace(first, backup_id=first.backup_id.replace("20", "29", 1))
    (place / "backups").create(given_up.path, GIVEN_UP)
    assert again(place).backup_id == first.backup_id


def test_it_is_expired_while_it_is_looked_at(place: Location) -> None:
    first = back_up(place, stream()).manifest

    def expire(operation: str, path: str) -> None:
        if operation == "read" and path.endswith(first.path):
            (place / "backups").delete(first.path)

    kept, _ = watched(place / "backups", expire)
    found = unchanged_backup(Checkpoint.at(place / "orders"), Repository(kept, ""), "orders")
    assert found is None


def test_a_batch_is_purged_while_it_is_looked_at(place: Location) -> None:
    """By a stream that commits a hundred batches between two requests."""
    back_up(place, stream())

    def purge(operation: str, path: str) -> None:
        if operation == "read" and path.endswith("offsets/4"):
            (place / "orders").delete("offsets/4")

    orders, _ = watched(place / "orders", purge)
    assert unchanged_backup(Checkpoint.at(orders), repository(place), "orders") is None


def test_the_first_is_taken(place: Location) -> None:
    plant(place / "orders", stream())
    assert not again(place).unchanged


@pytest.mark.parametrize("files", [{}, {"metadata": metadata(), "offsets/0": offsets_log("{}")}])
def test_what_is_refused_is_refused_all_the_same(place: Location, files: dict[str, bytes]) -> None:
    plant(place / "orders", files)
    with pytest.raises(NotACheckpointError):
        again(place)
    with pytest.raises(RefusedError, match="cannot be the name"):
        again(place, name="../x")
