"""When a backup was last proven restorable."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.drills import Drill, last_drill, newest_drills, record_drill
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.storage.opening import open_location

B5, B9 = "20261120T083000Z-b000005", "20261121T083000Z-b000009"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository.open_or_create(open_location(str(tmp_path / "backups")))


def report(backup_id: str = B5, **more: object) -> dict[str, object]:
    return {"name": "orders", "backup_id": backup_id, "batch_id": 5, "starts": True, "batches": [1, 2], **more}


def test_the_newest_proof_counts_whatever_its_backup(repository: Repository, tmp_path: Path):
    assert last_drill(repository, "orders") is None
    made = record_drill(repository, report(seconds=12.5))
    assert (datetime.now(UTC) - made.at).total_seconds() < 60
    found = last_drill(repository, "orders")
    assert found == made
    assert found.to_json() == {
        "name": "orders",
        "backup_id": B5,
        "proven_at": made.at.isoformat(),
        "batch_id": 5,
        "batches": 2,
        "seconds": 12.5,
    }
    old = tmp_path / "backups" / "drills" / "orders" / B9 / "20200101T000000Z.json"
    old.parent.mkdir(parents=True)
    old.write_text((tmp_path / "backups" / "drills" / "orders" / B5).glob("*.json").__next__().read_text())
    newest = last_drill(repository, "orders")
    assert newest is not None
    assert newest.backup_id == B5
    of_one = last_drill(repository, "orders", backup_id=B9)
    assert of_one is not None
    assert of_one.backup_id == B9
    assert last_drill(repository, "payments") is None


def test_one_of_a_clock_that_was_ahead_hides_no_later_one(repository: Repository, caplog: pytest.LogCaptureFixture):
    ahead = drilled_ahead(repository, B5)
    assert last_drill(repository, "orders") == ahead, "there is no other"
    made = record_drill(repository, report(B9))
    assert last_drill(repository, "orders") == made
    assert newest_drills(repository, "orders", now=datetime.now(UTC)) == (made, (ahead,))
    assert f"drills/orders/{B5}/99991231T000000Z.json: a clock was wrong: it is dated 9999-12-31" in caplog.text


def drilled_ahead(repository: Repository, backup_id: str) -> Drill:
    """Record a drill as a machine does whose clock is ahead."""
    content = {"proven_at": "9999-12-31T00:00:00+00:00", "report": report(backup_id)}
    repository.location.create(f"drills/orders/{backup_id}/99991231T000000Z.json", json.dumps(content).encode())
    return Drill("orders", backup_id, datetime(9999, 12, 31, tzinfo=UTC), report(backup_id))


@pytest.mark.parametrize("starts", [False, None])
def test_what_did_not_run_proves_nothing(starts: bool | None, repository: Repository, tmp_path: Path):
    with pytest.raises(RefusedError, match="proves nothing"):
        record_drill(repository, report(starts=starts))
    assert not (tmp_path / "backups" / "drills").exists()


def test_a_damaged_record_is_named(repository: Repository, tmp_path: Path):
    record_drill(repository, report())
    (path,) = (tmp_path / "backups" / "drills").rglob("*.json")
    path.write_text("{}")
    with pytest.raises(RefusedError, match=rf"{path.name} is no record of a drill"):
        last_drill(repository, "orders")


@pytest.mark.parametrize(
    "wrong",
    [
        {"proven_at": "2026-11-20T08:30:00"},
        {"report": {**report(), "seconds": True}},
        {"report": {**report(), "seconds": -1}},
        {"report": {**report(), "seconds": 10**400}},
        {"report": {**report(), "seconds": "12"}},
        {"report": {**report(), "batches": 5}},
        {"proven_at": "0001-01-01T00:00:00+14:00"},
    ],
    ids=str,
)
def test_a_forged_record_is_named(wrong: dict[str, object], repository: Repository, tmp_path: Path):
    record_drill(repository, report())
    (path,) = (tmp_path / "backups" / "drills").rglob("*.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **wrong}))
    with pytest.raises(RefusedError, match=rf"{path.name} is no record of a drill"):
        last_drill(repository, "orders")
