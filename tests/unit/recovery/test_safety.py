"""safety: what is about to be replaced is kept, whole or broken, once for each plan."""

from __future__ import annotations

import json

import pytest

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.recovery.restore.safety import keep_what_is_there, kept_for
from airflow_ckpt_provider.storage.location import Location
from tests.unit.backup.backups import files_in, repository, stream, visible
from tests.unit.checkpoint.builders import Files, contents, plant
from tests.unit.checkpoint.stores import Killed, Life, watched
from tests.unit.checkpoint.test_progress import seal_at


def keep(place: Location, repo: Repository | None = None, plan_id: str = "7f3a") -> str:
    target = inspect_target(place / "orders")
    return keep_what_is_there(repo or repository(place), target, name="orders", plan_id=plan_id, made_by="me")


def test_a_whole_checkpoint_becomes_a_backup(place: Location) -> None:
    plant(place / "orders", stream() | seal_at(5))
    kept = keep(place)
    manifest = repository(place).manifest(name="orders.before-restore")
    assert kept == f"backup {manifest.backup_id} of orders.before-restore"
    assert (manifest.tags, manifest.made_by, manifest.batch_id) == ({"plan": "7f3a"}, "me", 4)
    assert manifest.reason == "safety backup before plan 7f3a"
    assert files_in(manifest, place).items() <= stream().items()


def broken() -> dict[str, Files]:
    whole = stream()
    return {
        "state file missing": {p: d for p, d in whole.items() if p != "state/0/1/5.changelog"},
        "newest offsets empty": whole | {"offsets/4": b""},
        "newest offsets cut off": whole | {"offsets/4": whole["offsets/4"][:50]},
        "no commits": {p: d for p, d in whole.items() if not p.startswith("commits/")},
        "no offsets": {p: d for p, d in whole.items() if not p.startswith("offsets/")},
        "no query id": {p: d for p, d in whole.items() if p != "metadata"},
        "zip damaged": whole | {"state/0/0/3.zip": b"PK"},
        "only some commits": {"commits/3": b"v1"},
        "two seals": whole | seal_at(5) | seal_at(9),
        "offsets without entries": whole | {"offsets/4": b"v1"},
    }


@pytest.mark.parametrize("name", broken())
def test_a_broken_one_is_kept_whatever_it_is(place: Location, name: str) -> None:
    """Every file that Spark could see is either in a safety backup's closure or copied as it is."""
    files = broken()[name]
    plant(place / "orders", files | {".metadata.crc": b"hidden"})
    kept = keep(place)
    if kept == "set-aside/orders/7f3a":
        aside = contents(place / "backups" / kept / "files")
        assert aside == {
            p: d for p, d in visible(place / "orders").items() if p in inspect_target(place / "orders").visible
        }
        marker = json.loads(place.read(f"backups/{kept}/COMPLETE"))
        assert marker == {"from": (place / "orders").uri, "files": {path: len(data) for path, data in aside.items()}}
    else:
        assert name == "two seals"
        assert repository(place).manifest(name="orders.before-restore").batch_id == 4
    assert kept_for(repository(place), name="orders", plan_id="7f3a") == kept


@pytest.mark.parametrize("files", [stream(), broken()["no commits"]], ids=["whole", "broken"])
def test_asked_again_it_finds_what_it_kept(place: Location, files: Files) -> None:
    """By then the target may be half replaced: that must not be kept over the original."""
    plant(place / "orders", files)
    kept = keep(place)
    before = contents(place / "backups")
    plant(place / "orders", {"offsets/4": b"half a restore"})
    assert keep(place) == kept
    assert contents(place / "backups") == before
    assert kept_for(repository(place), name="orders", plan_id="beef") is None


def test_of_another_plan_it_is_kept_anew(place: Location) -> None:
    plant(place / "orders", stream())
    assert keep(place) != keep(place, plan_id="beef")


def test_stopped_half_way_nothing_counts_as_kept(place: Location) -> None:
    files = broken()["no commits"]
    plant(place / "orders", files)
    whole = len(files)
    for writes in range(whole + 1):
        plan_id = f"plan{writes}"
        life = Life(writes)
        location, _ = watched(repository(place).location, life.before)
        with pytest.raises(Killed):
            keep(place, Repository.open(location), plan_id)
        assert kept_for(repository(place), name="orders", plan_id=plan_id) is None
    assert keep(place, plan_id=plan_id) == f"set-aside/orders/{plan_id}"


def test_a_store_that_fails_is_no_broken_checkpoint(place: Location) -> None:
    """Full disk, no access: nothing is kept, so nothing may be replaced."""
    plant(place / "orders", stream())

    def full(operation: str, path: str) -> None:
        if operation in ("create", "replace") and "/objects/" in path:
            raise StorageError("could not create it: No space left on device")

    repository(place)
    location, _ = watched(place / "backups", full)
    with pytest.raises(StorageError, match="No space left"):
        keep(place, Repository.open(location))
