"""The numbers of prunes are part of the names of objects: one that no prune has given must not get there."""

from __future__ import annotations

import re

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.objects import Objects
from airflow_ckpt_provider.backup.prune import MaxUnused, apply_prune, plan_prune
from airflow_ckpt_provider.backup.prune_marks import Marks, read_marks, write_mark
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RepositoryError
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import content_path, part_of
from airflow_ckpt_provider.storage.signatures import Signing, public_key
from airflow_ckpt_provider.storage.store import StoredFile
from tests.support.backups import back_up, stream
from tests.support.checkpoints import Files, contents, plant

_KEY = b"\x01" * 32
_FIRST_REFUSED = 100_000_000


def _repository(place: Location, *, format: int, signed: bool = False) -> Repository:
    backups = place / "backups"
    signing = Signing(_KEY, (public_key(_KEY),)) if signed else None
    return Repository.open_or_create(Location(backups.store, backups.root, signing=signing), format=format)


def _without_lease(place: Location) -> Files:
    return {path: data for path, data in contents(place / "backups").items() if not path.startswith("running/")}


def _prune(repository: Repository) -> None:
    apply_prune(repository, plan_prune(repository, max_unused=MaxUnused(0)))


class TestANumberThatNoPruneGives:
    @pytest.mark.parametrize("signed", [False, True])
    @pytest.mark.parametrize("format", [1, 2])
    @pytest.mark.parametrize("ending", [".done.json", ".json"])
    @pytest.mark.parametrize("number", [_FIRST_REFUSED, 999_999_998, 1_000_000_000])
    def test_it_is_refused_by_name_and_nothing_is_changed(
        self, place: Location, number: int, ending: str, format: int, signed: bool
    ) -> None:
        repository = _repository(place, format=format, signed=signed)
        plant(place / "orders", stream(4))
        create_backup(Checkpoint.at(place / "orders"), repository)
        forged = f"prune/orders/{number}{ending}"
        (place / "backups").create(forged, b"")
        before = _without_lease(place)
        plant(place / "orders", stream(6))
        for act in (lambda: create_backup(Checkpoint.at(place / "orders"), repository), lambda: _prune(repository)):
            with pytest.raises(RepositoryError, match=re.escape(f"{forged} has the number {number}")) as error:
                act()
            assert error.value.hint is not None
            assert "delete this file" in error.value.hint
        after = _without_lease(place)
        assert {path: after[path] for path in before} == before
        assert not {path for path in after.keys() - before.keys() if path.startswith(("objects/", "backups/"))}
        (place / "backups").delete(forged)
        made = create_backup(Checkpoint.at(place / "orders"), repository).manifest
        assert verify_backup(repository, made, read_data=ReadData()).ok

    @pytest.mark.parametrize("format", [1, 2])
    @pytest.mark.parametrize("ending", [".done.json", ".json"])
    def test_the_highest_number_is_stepped_over_by_nobody(self, place: Location, ending: str, format: int) -> None:
        """Backups can be read with it; the prune that would get the next number refuses."""
        repository = _repository(place, format=format)
        back_up(place, stream(4))
        forged = f"prune/orders/{_FIRST_REFUSED - 1}{ending}"
        (place / "backups").create(forged, b'{"objects": []}')
        made = back_up(place, {**stream(6), "_schema/new": b"new"}).manifest
        assert any(f"-g{_FIRST_REFUSED - 1}" in entry.object for entry in made.files)
        assert verify_backup(repository, made, read_data=ReadData()).ok
        marks = read_marks(place / "backups", "orders")
        with pytest.raises(RepositoryError, match=re.escape(f"{forged} has the highest number")) as error:
            write_mark(place / "backups", "orders", marks, [], made_by="a prune")
        assert error.value.hint is not None
        assert "delete this file" in error.value.hint
        assert verify_backup(repository, made, read_data=ReadData()).ok

    def test_digits_of_other_scripts_are_no_number(self, place: Location) -> None:
        (place / "backups").create("prune/orders/٣.done.json", b"")
        (place / "backups").create("prune/orders/٤.json", b"")
        assert read_marks(place / "backups", "orders") == Marks()


class TestAPackThatReadersWouldNotFind:
    def test_it_is_not_written(self, place: Location) -> None:
        repository = _repository(place, format=2)
        objects = Objects(repository.location, "orders", vouched=(), marks=Marks(10**9), packs=True)
        entry = objects.write(StoredFile("offsets/1", 3), b"abc").entry
        with pytest.raises(RepositoryError, match=r"\.pack would not be taken for a pack") as error:
            list(objects.settled([entry]))
        assert error.value.hint
        with pytest.raises(RepositoryError, match="would not be taken for a pack"):
            objects.write_pack(b"a whole pack")
        assert not list(repository.location.walk("objects"))

    @pytest.mark.parametrize("ending", ["-g1000000000.pack", "-g1000000000.pack.1", ".pack.100", "-gx.pack", ".pack/a"])
    def test_a_manifest_that_lists_a_content_of_it_is_damaged(self, ending: str) -> None:
        sha256 = "ab" * 32
        path = content_path(f"objects/orders/ab/{sha256}-100{ending}", sha256, 0, 3)
        assert part_of(path) is None
        with pytest.raises(ValueError, match="no such pack can be read here"):
            FileEntry("offsets/1", 3, path, sha256=sha256).checked()

    @pytest.mark.parametrize("path", ["objects/a.pack/ab/key", "objects/a.pack.1/ab/key", "objects/a/ab/key.pack"])
    def test_a_stream_or_an_object_may_be_called_that(self, path: str) -> None:
        assert FileEntry("offsets/1", 3, path).checked().object == path
