"""copy: one that was killed, given up, or meets a damaged backup in the target does not keep later copies from working."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest

from airflow_ckpt_provider.backup.claims import Claim, open_claims
from airflow_ckpt_provider.backup.copy import copy_backups
from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import plan_expire
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.prune import MaxUnused, apply_prune, plan_prune
from airflow_ckpt_provider.backup.repository import GIVEN_UP, Repository
from airflow_ckpt_provider.backup.repository_check import check_repository
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.errors import BackupRunningError, DamagedBackupError, RefusedError, StorageError
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import file_of
from airflow_ckpt_provider.storage.signatures import Signing, public_key
from tests.support.backups import back_up, stream
from tests.support.repository_histories import opened
from tests.support.spoiled import lose
from tests.support.watched_stores import Killed, Life, watched

_AT_ONCE = timedelta(0)
_KEY = b"\x01" * 32


def _second(place: Location, before: Callable[[str, str], None] | None = None) -> Repository:
    return Repository.open_or_create(watched(place / "second", before)[0])


@pytest.fixture
def made(place: Location) -> list[Manifest]:
    return [back_up(place, stream(newest)).manifest for newest in (4, 5, 6)]


def _prune(target: Repository) -> None:
    apply_prune(target, plan_prune(target, max_unused=MaxUnused(0)), abandoned_after=_AT_ONCE)


def _whole(target: Repository) -> None:
    assert check_repository(target).ok
    for manifest in target.backups("orders"):
        assert verify_backup(target, manifest, read_data=ReadData()).ok


def _killed_before_its_manifest(place: Location, manifest: Manifest) -> None:
    """Copy a backup; the process is killed after it has said which manifest it will write."""

    def die(operation: str, path: str) -> None:
        if operation == "create" and path.endswith(manifest.path):
            raise Killed

    with pytest.raises(Killed):
        copy_backups(opened(place), _second(place, die), [manifest])


class TestGivenUp:
    def test_the_next_copy_takes_the_place(self, place: Location, made: list[Manifest]) -> None:
        target = _second(place)
        copy_backups(opened(place), target, made[:1])
        _killed_before_its_manifest(place, made[1])
        _prune(target)
        assert target.location.read(made[1].path) == GIVEN_UP
        copied = copy_backups(opened(place), target, made)
        assert [c.already_there for c in copied] == [True, False, False]
        assert target.backup_ids("orders") == tuple(m.backup_id for m in made)
        assert [m.sequence for m in target.backups("orders")] == [1, 2, 3]
        assert open_claims(target, "orders", finished={m.claim for m in target.backups("orders")}) == []
        _prune(target)
        _whole(target)
        assert all(c.already_there for c in copy_backups(opened(place), target, made))

    def test_in_a_signed_repository(self, place: Location, made: list[Manifest]) -> None:
        second = place / "second"
        signed = Location(second.store, second.root, signing=Signing(_KEY, (public_key(_KEY),)))
        target = Repository.open_or_create(signed)
        copy_backups(opened(place), target, made[:1])
        target.location.create(made[1].path, GIVEN_UP)
        copy_backups(opened(place), target, made)
        assert target.backup_ids("orders") == tuple(m.backup_id for m in made)
        _whole(target)

    @pytest.mark.parametrize("writes", range(12))
    def test_killed_as_it_takes_the_place_the_same_command_continues(
        self, place: Location, made: list[Manifest], writes: int
    ) -> None:
        target = _second(place)
        copy_backups(opened(place), target, made[:1])
        _killed_before_its_manifest(place, made[1])
        _prune(target)
        life = Life(writes)
        try:
            copy_backups(opened(place), _second(place, life.before), made[1:2], workers=1)
        except Killed:
            _whole(target)
        _prune(target)
        _whole(target)
        copy_backups(opened(place), target, made)
        assert target.backup_ids("orders") == tuple(m.backup_id for m in made)
        _prune(target)
        _whole(target)

    def test_a_prune_waits_for_the_copy_that_takes_the_place(self, place: Location, made: list[Manifest]) -> None:
        """Before and after each of its writes a prune finds it at work, or its manifest."""
        target = _second(place)
        copy_backups(opened(place), target, made[:1])
        _killed_before_its_manifest(place, made[1])
        _prune(target)
        pruned: list[bool] = []

        def prune(operation: str, path: str) -> None:
            if operation in ("create", "replace_listed"):
                plan = plan_prune(target, max_unused=MaxUnused(0))
                pruned.append(bool(apply_prune(target, plan, abandoned_after=timedelta(days=1)).objects))

        copy_backups(opened(place), _second(place, prune), made[1:2], workers=1)
        assert pruned
        _whole(target)
        assert made[1].backup_id in target.backup_ids("orders")

    def test_two_copies_that_take_the_place_at_once(self, place: Location, made: list[Manifest]) -> None:
        target = _second(place)
        target.location.create(made[0].path, GIVEN_UP)
        others: list[str] = []

        def meanwhile(operation: str, path: str) -> None:
            if operation == "replace_listed" and not others:
                others.extend(c.backup_id for c in copy_backups(opened(place), target, made[:1]))

        copied = copy_backups(opened(place), _second(place, meanwhile), made[:1])
        assert [c.backup_id for c in copied] == others == [made[0].backup_id]
        _whole(target)
        assert open_claims(target, "orders", finished={m.claim for m in target.backups("orders")}) == []


class TestItWakesUp:
    """A copy was suspended for days, and a prune has given it up: what it copied is gone."""

    def _suspended(
        self,
        place: Location,
        manifest: Manifest,
        meanwhile: Callable[[], None],
        operation: str = "create",
        *,
        after: str = "",
    ) -> None:
        """Copy a backup, suspended just before it writes the manifest.

        :param operation: before which it is suspended, on the manifest.
        :param after: the operation on the manifest that has to come first.
        """
        done: list[str] = []
        seen = {""}

        def suspend(asked: str, path: str) -> None:
            if not path.endswith(manifest.path) or "/signatures/" in path:
                return
            if asked == operation and after in seen and not done:
                done.append(path)
                meanwhile()
            seen.add(asked)

        try:
            copy_backups(opened(place), _second(place, suspend), [manifest], workers=1)
        finally:
            assert done

    def test_it_fails(self, place: Location, made: list[Manifest]) -> None:
        target = _second(place)
        copy_backups(opened(place), target, made[:1])
        with pytest.raises(BackupRunningError, match="a prune has given this backup up"):
            self._suspended(place, made[1], lambda: _prune(target))
        assert target.backup_ids("orders") == (made[0].backup_id,)
        _whole(target)

    def test_another_copy_was_made_meanwhile_and_that_one_stays(self, place: Location, made: list[Manifest]) -> None:
        target = _second(place)
        copy_backups(opened(place), target, made[:1])
        kept: list[bytes] = []

        def meanwhile() -> None:
            _prune(target)
            copy_backups(opened(place), target, made[1:2])
            kept.append(target.location.read(made[1].path))

        self._suspended(place, made[1], meanwhile)
        assert target.location.read(made[1].path) == kept[0]
        _prune(target)
        _whole(target)

    @pytest.mark.parametrize("given_up", [True, False])
    def test_the_other_copy_has_expired_since(self, place: Location, made: list[Manifest], given_up: bool) -> None:
        """The place of the manifest is free then, and what it would list was pruned."""
        target = _second(place)
        copy_backups(opened(place), target, made[:1])

        def meanwhile() -> None:
            if given_up:
                _prune(target)
            copy_backups(opened(place), target, made[1:])
            apply_expire(target, plan_expire(target, Policy(last=1)))
            _prune(target)
            assert target.backup_ids("orders") == (made[2].backup_id,)

        with pytest.raises(BackupRunningError, match="a prune has given this backup up"):
            self._suspended(place, made[1], meanwhile)
        assert target.backup_ids("orders") == (made[2].backup_id,)
        _whole(target)
        copy_backups(opened(place), target, made)
        _prune(target)
        _whole(target)

    @pytest.mark.parametrize("operation", ["find", "read", "replace_listed"])
    def test_it_was_about_to_take_the_place_of_one_that_was_given_up(
        self, place: Location, made: list[Manifest], operation: str
    ) -> None:
        target = _second(place)
        copy_backups(opened(place), target, made[:1])
        target.location.create(made[1].path, GIVEN_UP)
        before = set(target.location.walk("objects"))

        def meanwhile() -> None:
            assert set(target.location.walk("objects")) > before
            _prune(target)
            assert set(target.location.walk("objects")) <= before

        # Listings read it too, before it is asked for by name.
        with pytest.raises(BackupRunningError, match="a prune has given this backup up"):
            self._suspended(place, made[1], meanwhile, operation, after="" if operation == "find" else "find")
        assert target.location.read(made[1].path) == GIVEN_UP
        assert target.backup_ids("orders") == (made[0].backup_id,)
        _whole(target)
        copy_backups(opened(place), target, made)
        _prune(target)
        _whole(target)


class TestADamagedManifestInTheTarget:
    @pytest.mark.parametrize("damaged", [(0,), (1,), (0, 1)])
    def test_newer_backups_are_copied(
        self, place: Location, made: list[Manifest], damaged: tuple[int, ...], caplog: pytest.LogCaptureFixture
    ) -> None:
        target = _second(place)
        copy_backups(opened(place), target, made[:2])
        for number in damaged:
            data = target.location.read(made[number].path)
            target.location.replace(made[number].path, data[:-40])
        with caplog.at_level(logging.WARNING):
            (copied,) = copy_backups(opened(place), target, made[2:])
        assert (made[1].path in caplog.text) == (1 in damaged)
        if len(damaged) == 1:
            assert copied.copied_files < copied.files, "what it shares with one that can be read is not copied again"
        there = target.read_manifest("orders", made[2].backup_id)
        assert verify_backup(target, there, read_data=ReadData()).ok

    def test_the_others_are_copied_and_it_is_named(self, place: Location, made: list[Manifest]) -> None:
        target = _second(place)
        copy_backups(opened(place), target, made[:1])
        target.location.replace(made[0].path, target.location.read(made[0].path)[:-40])
        with pytest.raises(DamagedBackupError, match=made[0].path) as error:
            copy_backups(opened(place), target, made)
        assert error.value.hint is not None
        assert "move this file out of the target" in error.value.hint
        assert set(target.backup_ids("orders")) == {m.backup_id for m in made}
        target.location.delete(made[0].path)
        copied = copy_backups(opened(place), target, made)
        assert [c.already_there for c in copied] == [False, True, True]
        _whole(target)


class TestSeveralThatFail:
    def test_all_are_named(self, place: Location, made: list[Manifest]) -> None:
        newest = back_up(place, stream(9)).manifest
        # Each lists the first file of a checkpoint.
        lose(place / "backups", file_of(made[0].files[0].object))
        target = _second(place)
        with pytest.raises(DamagedBackupError) as error:
            copy_backups(opened(place), target, [*made, newest])
        there = set(target.backup_ids("orders"))
        failed = [m for m in [*made, newest] if m.backup_id not in there]
        assert len(failed) > 1
        assert error.value.message.startswith(f"{len(failed)} of 4 backups were not copied: ")
        for manifest in failed:
            assert f"orders {manifest.backup_id}: " in error.value.message
        assert all(any(m.backup_id in finding for m in failed) for finding in error.value.findings)

    def test_one_of_another_kind(self, place: Location, made: list[Manifest]) -> None:
        for manifest in made[:2]:
            (place / "backups").delete(manifest.path)
        with pytest.raises(RefusedError, match="2 of 3 backups were not copied") as error:
            copy_backups(opened(place), _second(place), made)
        assert not isinstance(error.value, DamagedBackupError)
        assert _second(place).backup_ids("orders") == (made[2].backup_id,)

    def test_a_store_that_fails_ends_it_at_once(self, place: Location, made: list[Manifest]) -> None:
        asked: list[str] = []

        def fail(operation: str, path: str) -> None:
            if "/backups/" in path and "/second/" in path and operation == "create":
                asked.append(path)
                raise StorageError(f"could not write {path}")

        with pytest.raises(StorageError, match="could not write"):
            copy_backups(opened(place), _second(place, fail), made)
        assert len(asked) == 1


def test_a_claim_that_was_tidied_counts_as_given_up(place: Location, made: list[Manifest]) -> None:
    location = place / "second"
    claim = Claim(location, "orders")
    claim.begin("copy", "me")
    write = partial(claim.write_copy, made[0].path, made[0].to_document(), was_given_up=False)
    bind = claim.bind

    def bind_and_lose(path: str) -> None:
        bind(path)
        location.delete(f"claims/orders/{claim.claim_id}.json")
        location.delete(f"claims/orders/{claim.claim_id}.end.json")

    claim.bind = bind_and_lose  # type: ignore[method-assign]
    with pytest.raises(BackupRunningError, match="a prune has given this backup up"):
        write()
    assert location.read(made[0].path) == GIVEN_UP
