"""restore: refused without a trace, and stopped where somebody else interferes."""

from __future__ import annotations

import re
from typing import Any

import pytest

from airflow_ckpt_provider.backup.kept_contents import KeptContents
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.sealing import put_seal
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import (
    DamagedBackupError,
    QueryNotStoppedError,
    RefusedError,
    SealedError,
    StorageError,
)
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.location import Location
from tests.support.backups import entry_of, repository, stream, visible
from tests.support.checkpoints import Files, contents, plant
from tests.support.restores import loud_seal, module_create, restore, wanted
from tests.support.seals import seal_at
from tests.support.spoiled import flip, overwrite, spoil
from tests.support.stopped import STOPPED
from tests.support.watched_stores import watched


def but_notes(place: Location) -> Files:
    """All there is, but for the notes that somebody was at work, on what, and what damage they came upon."""
    notes = ("backups/claims/", "backups/changes/", "backups/plans/", "backups/damaged/")
    return {path: data for path, data in contents(place).items() if not path.startswith(notes)}


class TestRefusedAtTheLastMoment:
    def refused(self, place: Location, plan: Any, kind: type[Exception], message: str, hint: str) -> Exception:
        before = but_notes(place)
        with pytest.raises(kind) as error:
            apply_restore(plan, rest=STOPPED)
        assert type(error.value) is kind
        assert (error.value.message, error.value.hint) == (message, hint)  # type: ignore[attr-defined]
        assert but_notes(place) == before
        return error.value

    def test_a_flipped_bit_in_the_backup(self, place: Location, manifest: Manifest) -> None:
        """In each file in turn: refused, named, nothing changed."""
        plant(place / "target", stream(6))
        plan = plan_restore(repository(place), manifest, place / "target", replace=True)
        for entry in {e.object: e for e in plan.entries}.values():
            right = (place / "backups").read(entry.object)
            flip(place / "backups", entry.object)
            before = but_notes(place)
            with pytest.raises(DamagedBackupError) as error:
                apply_restore(plan, rest=STOPPED)
            assert f"its object {entry.object} has another content than was backed up" in error.value.findings[0]
            assert error.value.message.endswith("; nothing was changed")
            assert but_notes(place) == before
            overwrite(place / "backups", entry.object, right)

    def test_the_target_moved_since_the_plan(self, place: Location, manifest: Manifest) -> None:
        plant(place / "target", stream(6))
        plan = plan_restore(repository(place), manifest, place / "target", replace=True)
        plant(place / "target", {"offsets/7": b"v1\n{}\n7"})
        self.refused(
            place, plan, RefusedError,
            f"{place / 'target'} is not any more what plan {plan.plan_id} was made for; nothing was changed",
            "stop the query, then make a new plan",
        )  # fmt: skip

    @pytest.mark.parametrize("replace", [False, True])
    def test_an_empty_target_was_filled_since_the_plan(
        self, place: Location, manifest: Manifest, replace: bool
    ) -> None:
        """Planned for an empty place, so nobody has agreed to lose anything: nothing may be deleted."""
        plan = plan_restore(repository(place), manifest, place / "target", replace=replace)
        plant(place / "target", stream(6))
        self.refused(
            place, plan, RefusedError,
            f"{place / 'target'} is not any more what plan {plan.plan_id} was made for; nothing was changed",
            "stop the query, then make a new plan",
        )  # fmt: skip

    def test_sealed_in_the_meantime(self, place: Location, manifest: Manifest) -> None:
        plant(place / "target", stream(6))
        plan = plan_restore(repository(place), manifest, place / "target", replace=True)
        plant(place / "target", seal_at(7))
        self.refused(
            place, plan, SealedError,
            f"{place / 'target'} was sealed by plan 7f3a (an upgrade) in the meantime", "let that plan finish first",
        )  # fmt: skip

    def test_a_query_writes_to_it(self, place: Location, manifest: Manifest) -> None:
        plant(place / "target", stream(6))
        plan = None

        def write(operation: str, path: str) -> None:
            if plan and operation == "walk" and path == target.root and store.count("walk") == 3:
                plant(place / "target", {"offsets/7": b"v1\n{}\n7"})

        target, store = watched(place / "target", write)
        plan = plan_restore(repository(place), manifest, target, replace=True)
        with pytest.raises(QueryNotStoppedError) as error:
            apply_restore(plan, rest=STOPPED)
        assert error.value.message == (
            f"{place / 'target'} is in use: offsets/7 changed within 0 s, though a test says that the query is stopped"
        )
        assert str(error.value.hint).startswith("stop the query. Then (1) say so:")
        assert visible(place / "target") == dict(sorted((stream(6) | {"offsets/7": b"v1\n{}\n7"}).items()))

    def test_two_restores_at_once(self, place: Location, manifest: Manifest) -> None:
        """Both planned for the same empty place: the second one finds the first one's seal, or its files."""
        first = plan_restore(repository(place), manifest, place / "target")
        second = plan_restore(repository(place), manifest, place / "target")
        put_seal(place / "target", 5, plan_id=first.plan_id, reason=first.seal_reason, made_by="")
        self.refused(
            place, second, SealedError,
            f"{place / 'target'} was sealed by plan {first.plan_id} ({first.seal_reason}) in the meantime",
            "let that plan finish first",
        )  # fmt: skip
        apply_restore(first, rest=STOPPED)
        self.refused(
            place, second, RefusedError,
            f"{place / 'target'} is not any more what plan {second.plan_id} was made for; nothing was changed",
            "stop the query, then make a new plan",
        )  # fmt: skip


def test_an_object_that_is_damaged_while_it_is_restored(
    place: Location, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was right when it was checked, and did not fit into memory: stop, stay sealed, say so."""
    monkeypatch.setattr(KeptContents.__init__, "__defaults__", (0,))
    entry = entry_of(manifest, "state/0/1/5.changelog")

    def damage(operation: str, path: str) -> None:
        if operation == "create" and path.endswith("/metadata"):
            spoil(place / "backups", entry)

    target, _ = watched(place / "target", damage)
    plan = plan_restore(repository(place), manifest, target)
    right = (place / "backups").read(entry.object)
    with pytest.raises(StorageError) as error:
        apply_restore(plan, rest=STOPPED)
    assert error.value.message == (
        f"{entry.path}: its object {entry.object} has another content than was backed up; it was right when the restore began"
    )
    assert error.value.hint == "the seal stays; fix the store, then run the same command again"
    assert loud_seal(place / "target")
    overwrite(place / "backups", entry.object, right)
    restore(place, manifest)
    assert contents(place / "target") == wanted(place, manifest)


@pytest.mark.parametrize(
    "damage", [{"stray": b"x"}, {"state/0/1/5.changelog": b"cut"}], ids=["one more", "another size"]
)
def test_somebody_else_writes_while_it_is_restored(place: Location, manifest: Manifest, damage: Files) -> None:
    def meddle(operation: str, path: str) -> None:
        if operation == "create" and path.endswith("/offsets/3"):
            plant(place / "target", damage)

    target, _ = watched(place / "target", meddle)
    plan = plan_restore(repository(place), manifest, target)
    with pytest.raises(StorageError) as error:
        apply_restore(plan, rest=STOPPED)
    (path,) = damage
    assert error.value.message == f"{place / 'target'}/{path} is not what was written (1 files differ)"
    assert error.value.hint == (
        f"it stays sealed by plan {plan.plan_id}; see who else writes there, then run the same command again; or undo it: "
        f"`{plan.command_to_undo(repository(place))}`"
    )
    assert loud_seal(place / "target")


@pytest.mark.format_1("the store copies the small files of this test")
def test_a_wrong_copy_by_the_store_is_noticed(place: Location) -> None:
    """Same size, other content: the store's checksum shows."""
    plant(place / "orders", stream())
    checkpoint, _ = watched(place / "orders", copies_within=True)
    repository(place)
    backups, _ = watched(place / "backups", copies_within=True)
    repo = Repository.open(backups)
    made = module_create(Checkpoint.at(checkpoint), repo).manifest
    entry = entry_of(made, "state/0/1/5.changelog")

    def corrupt(operation: str, path: str) -> None:
        if operation in ("create", "copy_new") and path.endswith("/offsets/3"):
            plant(place / "target", {entry.path: b"x" * entry.size})

    target, _ = watched(place / "target", corrupt, copies_within=True)
    message = f"{place / 'target'}/{entry.path} is not what {entry.object} holds: the store copied it wrongly"
    with pytest.raises(StorageError, match=f"^{re.escape(message)}"):
        apply_restore(plan_restore(repo, made, target))
    assert loud_seal(place / "target")
