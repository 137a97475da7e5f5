"""Files of a restore written by tasks: the same target as by threads, and no write by whoever has lost the fence."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.attempts import LEASE_VARIABLE, attempts_place
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import DamagedBackupError, LeaseLostError, RefusedError, RepositoryError, StorageError
from airflow_ckpt_provider.jobs.restore_contents import _parser, restored, since_submitted
from airflow_ckpt_provider.jobs.spark_engine import Address
from airflow_ckpt_provider.jobs.spark_writes import SparkWrites
from airflow_ckpt_provider.recovery.restore.apply import RestoreOutcome, apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.clocks import Clocks
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.backups import stream, visible
from tests.support.checkpoints import Files, plant
from tests.support.packs import rot, with_big_files
from tests.support.spark_tasks import Tasks
from tests.support.stopped import ACCEPTED, STOPPED


class Backup:
    """A backup, and restores of it.

    :param root: an empty directory.
    """

    def __init__(self, root: Path, *, packs: bool, key: bytes | None) -> None:
        self.root = root
        self.address = Address(str(root / "backups"), {}, key)
        self.repository = Repository.open_or_create(self.address.open(), format=2 if packs else 1)
        self.files: Files = with_big_files(stream(6))
        checkpoint = plant(open_location(str(root / "orders")), self.files)
        self.manifest = create_backup(Checkpoint.at(checkpoint), self.repository).manifest
        self.tasks = Tasks()

    def restore(self, name: str, *, by_tasks: bool, **options: Any) -> RestoreOutcome:
        target = Address(str(self.root / name))
        writes = SparkWrites(self.tasks.session, target, self.address, files_per_task=4) if by_tasks else None
        plan = plan_restore(self.repository, self.manifest, target.open(), **options)
        return apply_restore(plan, rest=STOPPED, accept=ACCEPTED, writes=writes)

    def there(self, name: str) -> Files:
        return visible(open_location(str(self.root / name)))


@pytest.fixture(params=["format1", "packs", "encrypted"])
def backup(request: pytest.FixtureRequest, tmp_path: Path) -> Backup:
    is_encrypted = request.param == "encrypted"
    return Backup(tmp_path, packs=request.param != "format1", key=b"k" * 32 if is_encrypted else None)


def test_into_an_empty_place(backup: Backup) -> None:
    by_threads, by_tasks = (backup.restore(name, by_tasks=name == "tasks") for name in ("threads", "tasks"))
    assert backup.there("tasks") == backup.there("threads")
    assert (by_tasks.files, by_tasks.bytes, by_tasks.unchanged) == (by_threads.files, by_threads.bytes, 0)
    assert backup.tasks.ran > 2, "all in one task: the test shows nothing"
    (record,) = (r for r in backup.repository.records() if r["plan_id"] == by_tasks.plan_id)
    assert record["attempt"]["process"] == "", "an attempt whose writes others make does not end with its process"


def test_replacing_what_was_there(backup: Backup) -> None:
    """What is there already stays, what differs is set aside and written."""
    results = {}
    for name in ("threads", "tasks"):
        plant(open_location(str(backup.root / name)), stream(9))
        results[name] = backup.restore(name, by_tasks=name == "tasks", replace=True)
    assert backup.there("tasks") == backup.there("threads")
    assert results["tasks"].unchanged == results["threads"].unchanged > 0


def test_damage_changes_nothing(backup: Backup) -> None:
    plain = Address(backup.address.uri).open()
    rot(
        plain,
        next(e.object for e in backup.manifest.files if e.path.endswith(".sst")),
        encrypted=backup.address.key is not None,
    )
    with pytest.raises(DamagedBackupError):
        backup.restore("tasks", by_tasks=True)
    assert backup.there("tasks") == {}


@pytest.mark.parametrize("backup", ["format1", "packs"], indirect=True)
def test_lost_under_way_and_run_again(backup: Backup, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seal stays; the next attempt waits until nothing of the first one can arrive, and finishes."""
    monkeypatch.setenv(LEASE_VARIABLE, "2")

    def lose(number: int) -> None:
        if number == 2:
            raise StorageError("Spark gave up", hint="again")

    backup.tasks = Tasks(lose)
    with pytest.raises(StorageError, match="Spark gave up"):
        backup.restore("tasks", by_tasks=True)
    attempts = attempts_place(backup.repository, open_location(str(backup.root / "tasks")))
    assert not [path for path in attempts.walk() if path.endswith(".end.json")], "what was sent may still arrive"
    half = backup.there("tasks")
    assert any("seal" in str(data) for data in half.values())

    backup.tasks = Tasks()
    backup.restore("tasks", by_tasks=True)
    backup.restore("threads", by_tasks=False)
    assert backup.there("tasks") == backup.there("threads")


@pytest.mark.parametrize("left", ["000002.json", "000001.end.json", "000001.written.json"])
def test_a_task_that_comes_late_writes_nothing(backup: Backup, left: str) -> None:
    """Another attempt has begun, or this one has ended or has all its files: a lost task that wakes up is refused."""
    attempts = attempts_place(backup.repository, open_location(str(backup.root / "tasks")))
    at: list[int] = []

    def take_over(number: int) -> None:
        if number == 2:
            at.append(len(backup.there("tasks")))
            document = attempts.read("000001.json").replace(b'"nonce": "', b'"nonce": "other')
            attempts.create(left, document)

    backup.tasks = Tasks(take_over)
    with pytest.raises((LeaseLostError, StorageError)):
        backup.restore("tasks", by_tasks=True)
    assert [len(backup.there("tasks"))] == at


def test_another_repository_at_the_address_of_executors(backup: Backup) -> None:
    """As where an executor has something else mounted there: it writes nothing."""
    key = backup.address.key
    address = Address(str(backup.root / "another"), {}, key)
    another = Repository.open_or_create(address.open(), format=backup.repository.format)
    create_backup(Checkpoint.at(open_location(str(backup.root / "orders"))), another)
    backup.address = address
    with pytest.raises(RepositoryError) as e:
        backup.restore("tasks", by_tasks=True)
    assert e.value.message == (
        f"{address.uri} is repository {another.repository_id}, and repository {backup.repository.repository_id} is "
        "expected there"
    )
    assert backup.tasks.ran
    assert not [path for path in backup.there("tasks") if path.startswith("state/")]


def test_a_driver_that_was_started_late_or_again(backup: Backup, tmp_path: Path) -> None:
    """What it was given says that the query is stopped: that was before another change, after which the query was started."""
    said = Clocks()
    backup.restore("tasks", by_tasks=False)
    target = open_location(str(tmp_path / "tasks"))
    plant(target, stream(9))  # the query continued
    running = visible(target)
    args = _parser().parse_args(
        [backup.address.uri, target.uri, "--replace", "--query-is-stopped", "--apply", "--quiet-for=0"]
        + [f"--accept={word}" for word in ACCEPTED]
    )
    writes = SparkWrites(backup.tasks.session, Address(target.uri), backup.address)
    with pytest.raises(RefusedError, match=r"took over.*changed the checkpoint since"):
        restored(backup.repository, target, writes, args, said=said)
    assert visible(target) == running


def test_since_when_the_query_is_said_to_be_stopped() -> None:
    began = Clocks(passed=60)
    hour = {"spark.app.submitTime": str(int((time.time() - 3600) * 1000))}
    assert since_submitted(hour | {"spark.submit.deployMode": "cluster"}, began).elapsed > 3599
    assert since_submitted(hour | {"spark.submit.deployMode": "client"}, began) is began
    assert since_submitted({"spark.submit.deployMode": "cluster"}, began) is began
    ahead = {"spark.app.submitTime": str(int((time.time() + 3600) * 1000)), "spark.submit.deployMode": "cluster"}
    with pytest.raises(RefusedError, match="which is in the future"):
        since_submitted(ahead, began)


@pytest.mark.parametrize("backup", ["packs"], indirect=True)
@pytest.mark.parametrize("speculation", ["true", "True"])  # as spark-defaults.conf and as SparkConf.set(…, True) has it
def test_a_task_that_ran_twice_is_waited_for(
    backup: Backup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, speculation: str
) -> None:
    """Its lost run may still write: the seal is lifted when that cannot be any more."""
    monkeypatch.setenv(LEASE_VARIABLE, "2")
    monkeypatch.setattr(Tasks, "getConf", lambda self: {"spark.speculation": speculation})
    with caplog.at_level("INFO"):
        backup.restore("tasks", by_tasks=True)
    assert "somebody who was lost may still write for it" in caplog.text
    attempts = attempts_place(backup.repository, open_location(str(backup.root / "tasks")))
    assert {"000001.written.json", "000001.end.json"} <= set(attempts.walk())
