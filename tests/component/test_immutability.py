"""Backups that nobody can delete before their time: S3 Object Lock on a real server."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_ckpt_provider.backup.claims import open_claims
from airflow_ckpt_provider.backup.create import BackupResult, create_backup
from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import ExpirePlan, plan_expire
from airflow_ckpt_provider.backup.immutability import Immutability
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.prune import apply_prune, plan_prune
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError, StorageError
from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import location_of, open_location
from airflow_ckpt_provider.storage.packs import file_of
from airflow_ckpt_provider.storage.signatures import Signing, new_signing_key, public_key
from tests.support.backups import stream
from tests.support.checkpoints import contents, plant, rocksdb_aggregation
from tests.support.command_line import run as command
from tests.support.s3_server import ADMIN, RESTRICTED, S3Server

DAY = timedelta(days=1)
RIGHTS = ("s3:ListBucket", "s3:GetObject", "s3:PutObject")
LOCKING = ("s3:GetBucketObjectLockConfiguration", "s3:GetObjectRetention", "s3:PutObjectRetention")


@dataclass
class Vault:
    """A bucket with Object Lock, with a checkpoint and a place for a repository in it."""

    server: S3Server
    bucket: str

    def place(self, path: str, identity: Any = ADMIN) -> Location:
        return open_location(f"s3://{self.bucket}/{path}", storage_options=self.server.options(identity))

    @property
    def repository(self) -> Repository:
        return Repository.open(self.place("backups"))

    def checkpoint(self, newest: int) -> Checkpoint:
        return Checkpoint.at(plant(self.place("orders"), stream(newest)))

    def back_up(self, newest: int, length: timedelta | None, **options: Any) -> BackupResult:
        there = Repository.open_or_create(self.place("backups", options.pop("identity", ADMIN)))
        return create_backup(self.checkpoint(newest), there, name="orders", immutable_for=length, **options)

    def locks(self, paths: list[str]) -> set[datetime | None]:
        return {self.place("backups").locked_until(path) for path in paths}

    def paths(self, made: BackupResult) -> list[str]:
        return ["repository.json", made.manifest.path, *self.objects(made)]

    def objects(self, made: BackupResult) -> set[str]:
        """The files that hold the contents of a backup."""
        return {file_of(entry.object) for entry in made.manifest.files}


@pytest.fixture
def vault(s3_server: S3Server) -> Vault:
    return Vault(s3_server, s3_server.make_bucket("vault", locks=True))


def about(moment: datetime | None, expected: datetime) -> bool:
    return moment is not None and abs(moment - expected) < timedelta(minutes=10)


def expire(vault: Vault, **options: Any) -> ExpirePlan:
    return plan_expire(vault.repository, Policy(last=1), **options)


@pytest.mark.parametrize("through", ["obstore", "s3fs"])
def test_all_of_a_backup_is_locked(vault: Vault, through: str) -> None:
    made = vault.back_up(4, 30 * DAY)
    if through == "s3fs":
        place = location_of(vault.server.filesystem(), f"{vault.bucket}/backups")
        made = create_backup(vault.checkpoint(5), Repository.open(place), name="orders", immutable_for=30 * DAY)
    assert about(made.immutable_until, datetime.now(UTC) + 30 * DAY)
    locks = vault.locks(vault.paths(made))
    assert None not in locks
    assert all(about(until, datetime.now(UTC) + 30 * DAY) for until in locks)
    client = vault.server.client()
    for path in vault.paths(made):
        key = f"backups/{path}"
        assert client.get_object_retention(Bucket=vault.bucket, Key=key)["Retention"]["Mode"] == "COMPLIANCE"
        version = client.head_object(Bucket=vault.bucket, Key=key)["VersionId"]
        with pytest.raises(Exception, match="AccessDenied"):
            client.delete_object(Bucket=vault.bucket, Key=key, VersionId=version, BypassGovernanceRetention=True)


def test_a_backup_without_it_locks_nothing(vault: Vault) -> None:
    made = vault.back_up(4, None)
    assert (made.immutable_until, vault.locks(vault.paths(made))) == (None, {None})


def test_objects_of_earlier_backups_are_locked_for_longer(repository_format: int, vault: Vault) -> None:
    first = vault.back_up(4, DAY)
    second = vault.back_up(5, 10 * DAY)
    shared = vault.objects(first) & vault.objects(second)
    assert shared
    assert all(about(until, datetime.now(UTC) + 10 * DAY) for until in vault.locks(vault.paths(second)))
    assert about(vault.place("backups").locked_until(first.manifest.path), datetime.now(UTC) + DAY)
    third = vault.back_up(6, DAY)
    kept = vault.objects(second) & vault.objects(third)
    assert kept
    assert all(about(until, datetime.now(UTC) + 10 * DAY) for until in vault.locks(sorted(kept))), "never shortened"


def test_a_backup_that_is_not_taken_again_is_locked_again(vault: Vault) -> None:
    first = vault.back_up(4, DAY)
    there = Checkpoint.at(
        vault.place("orders")
    )  # as it is: files that are written again may be those of an exact replay
    again = create_backup(there, vault.repository, name="orders", immutable_for=5 * DAY, skip_if_unchanged=True)
    assert (again.unchanged, again.backup_id) == (True, first.backup_id)
    assert all(about(until, datetime.now(UTC) + 5 * DAY) for until in vault.locks(vault.paths(first)))


def test_keys_of_an_encrypted_repository_are_locked_too(vault: Vault) -> None:
    from airflow_ckpt_provider.backup.keys import add_key

    place = replace(vault.place("backups"), key=b"1" * 32)
    Repository.open_or_create(place)
    add_key(place, b"2" * 32)
    made = create_backup(vault.checkpoint(4), Repository.open(place), name="orders", immutable_for=DAY)
    assert None not in vault.locks([*vault.paths(made), "keys/000001.json"])


def test_the_signatures_of_a_manifest_are_locked_too(vault: Vault) -> None:
    """Without a signature readers refuse the backup: whoever may delete could make it useless."""
    secret = new_signing_key()
    place = replace(vault.place("backups"), signing=Signing(secret, (public_key(secret),)))
    made = create_backup(vault.checkpoint(4), Repository.open_or_create(place), name="orders", immutable_for=DAY)
    (signature,) = place.walk(f"signatures/{made.manifest.path}")
    assert None not in vault.locks([*vault.paths(made), signature])


class TestRefused:
    def test_a_bucket_without_object_lock(self, s3_server: S3Server) -> None:
        vault = Vault(s3_server, s3_server.make_bucket())
        before = Repository.open_or_create(vault.place("backups")).location
        with pytest.raises(RefusedError, match=f"the bucket {vault.bucket} was made without Object Lock"):
            vault.back_up(4, DAY)
        assert list(contents(before)) == ["repository.json"]

    def test_a_store_without_it(self, tmp_path: Path) -> None:
        checkpoint = plant(open_location(str(tmp_path / "orders")), stream())
        repository = Repository.open_or_create(open_location(str(tmp_path / "backups")))
        with pytest.raises(RefusedError, match="cannot be made immutable: file:// has no Object Lock"):
            create_backup(Checkpoint.at(checkpoint), repository, immutable_for=DAY)
        assert list(contents(repository.location)) == ["repository.json"]

    @pytest.mark.parametrize("length", [timedelta(0), timedelta(days=-1), timedelta(days=3661)])
    def test_no_time_at_all_and_a_mistake(self, vault: Vault, length: timedelta) -> None:
        with pytest.raises(RefusedError, match="a lock cannot be removed"):
            vault.back_up(4, length)

    def test_without_the_right_there_is_no_backup(self, vault: Vault) -> None:
        """Better none than one that only seems to be protected."""
        vault.checkpoint(4)
        Repository.open_or_create(vault.place("backups"))
        vault.server.allow(vault.bucket, *((right, "*") for right in (*RIGHTS, *LOCKING[:2])))
        with pytest.raises(StorageError, match="s3:PutObjectRetention"):
            vault.back_up(4, DAY, identity=RESTRICTED)
        assert vault.repository.backups() == []
        vault.server.allow(vault.bucket, *((right, "*") for right in (*RIGHTS, *LOCKING)))
        assert vault.back_up(4, DAY, identity=RESTRICTED).immutable_until


class TestExpireAndPrune:
    def test_what_is_locked_stays_and_the_plan_says_until_when(self, vault: Vault) -> None:
        first = vault.back_up(4, 30 * DAY)
        for newest in (5, 6):
            vault.back_up(newest, None)
        plan = expire(vault)
        (kept,) = (d for d in plan.kept if d.backup.backup_id == first.backup_id)
        assert f"locked until {first.immutable_until:%Y-%m-%d %H:%M:%S} UTC" in kept.reasons
        assert "locked until" in plan.to_markdown()
        assert len(plan.going) == 1
        outcome = apply_expire(vault.repository, plan)
        assert len(outcome.removed) == 1
        apply_prune(vault.repository, plan_prune(vault.repository))
        assert verify_backup(vault.repository, first.manifest, read_data=ReadData()).ok

    def test_locked_objects_that_nobody_lists_stay(self, vault: Vault) -> None:
        """Left by a backup that was killed between its locks and its manifest."""
        vault.back_up(4, None)
        place = vault.place("backups")
        for name in ("locked", "loose"):
            place.create(f"objects/orders/aa/{name}", b"left")
        until = (datetime.now(UTC) + DAY).replace(microsecond=0)
        place.lock("objects/orders/aa/locked", until)
        plan = plan_prune(vault.repository)
        assert (plan.objects, plan.remarks) == (
            1,
            (f"orders: 1 objects are locked, the last until {until:%Y-%m-%d %H:%M:%S} UTC: they stay",),
        )
        assert apply_prune(vault.repository, plan).objects == 1
        assert place.find("objects/orders/aa/loose") is None
        assert place.find("objects/orders/aa/locked") is not None

    def test_they_go_when_the_lock_is_over(self, vault: Vault) -> None:
        first = vault.back_up(4, timedelta(seconds=5))
        # A newer snapshot, so that little of the first is still needed, wherever it lies.
        compacted = plant(vault.place("orders"), rocksdb_aggregation(9, zips=(3, 8)))
        second = create_backup(Checkpoint.at(compacted), vault.repository, name="orders")
        held = first.immutable_until
        assert held is not None
        assert expire(vault, now=held - timedelta(seconds=1)).going == ()
        while datetime.now(UTC) <= held:
            time.sleep(0.2)
        plan = expire(vault)
        assert [d.backup.backup_id for d in plan.going] == [first.backup_id]
        apply_expire(vault.repository, plan)
        assert vault.objects(first) <= vault.place("backups").walk("objects").keys()
        assert apply_prune(vault.repository, plan_prune(vault.repository)).objects > 0
        assert not vault.objects(first) <= vault.place("backups").walk("objects").keys()
        assert len(vault.repository.backups()) == 1
        assert verify_backup(vault.repository, second.manifest, read_data=ReadData()).ok

    def test_that_it_is_not_known_is_said(self, vault: Vault) -> None:
        for newest in (4, 5):
            vault.back_up(newest, None)
        vault.server.allow(vault.bucket, *((right, "*") for right in RIGHTS))
        plan = plan_expire(Repository.open(vault.place("backups", RESTRICTED)), Policy(last=1))
        assert len(plan.going) == 1
        assert any("whether Object Lock protects what is removed is not known" in finding for finding in plan.remarks)

    def test_no_request_more_where_nothing_is_removed(self, vault: Vault) -> None:
        vault.back_up(4, None)
        vault.server.allow(vault.bucket, *((right, "*") for right in RIGHTS))
        repository = Repository.open(vault.place("backups", RESTRICTED))
        assert plan_expire(repository, Policy(last=1)).remarks == ()
        assert plan_prune(repository).remarks == ()


def test_what_was_written_over_or_deleted_is_brought_back(vault: Vault) -> None:
    """By somebody with every right on the files, but not the one to lift a lock: the versions are all there."""
    made = vault.back_up(4, DAY)
    client = vault.server.client()
    place = vault.place("backups")
    for number, path in enumerate(vault.paths(made)):
        if number % 2:
            place.replace(path, b"\x00")
        else:
            place.delete(path)
    with pytest.raises(Exception, match="is a repository without its repository"):
        _ = vault.repository
    for path in vault.paths(made):
        # As docs/howto/immutable.md says: whatever lies over the locked version is removed.
        versions = client.list_object_versions(Bucket=vault.bucket, Prefix=f"backups/{path}")
        for each in [*versions.get("Versions", ()), *versions.get("DeleteMarkers", ())]:
            if each["Key"] == f"backups/{path}" and each["IsLatest"]:
                client.delete_object(Bucket=vault.bucket, Key=each["Key"], VersionId=each["VersionId"])
    assert verify_backup(vault.repository, vault.repository.manifest(), read_data=ReadData()).ok


def test_from_the_shell(vault: Vault) -> None:
    vault.checkpoint(4)
    options = vault.server.options()
    given = [f"{name}={options[name]}" for name in ("key", "secret", "endpoint_url")]
    words = [
        word for each in [*given, 'client_kwargs={"region_name": "us-east-1"}'] for word in ("--storage-option", each)
    ]
    places = (f"s3://{vault.bucket}/orders", f"s3://{vault.bucket}/backups")
    assert command("init", places[1], *words).code == 0
    finished = command("backup", *places, "--immutable-for", "30d", "--json", *words)
    assert finished.code == 0, finished.err
    assert about(datetime.fromisoformat(finished.document["immutable_until"]), datetime.now(UTC) + 30 * DAY)
    assert "locked until" in command("backup", *places, "--immutable-for", "30d", "--skip-if-unchanged", *words).out


@pytest.fixture
def unclaimed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Backups whose objects were locked while a prune might have deleted them."""
    found: list[str] = []
    lock_objects = Immutability.lock_objects

    def watched(self: Immutability, manifest: Manifest) -> None:
        if not open_claims(self.repository, manifest.name):
            found.append(manifest.backup_id)
        lock_objects(self, manifest)

    monkeypatch.setattr(Immutability, "lock_objects", watched)
    return found


def test_a_task_that_is_tried_again_locks_what_no_prune_deletes_meanwhile(
    vault: Vault, monkeypatch: pytest.MonkeyPatch, unclaimed: list[str]
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_VAULT", vault.server.airflow_connection())
    vault.checkpoint(4)
    where = {"checkpoint": f"s3://{vault.bucket}/orders", "repository": f"s3://{vault.bucket}/backups"}
    conn: dict[str, Any] = {"checkpoint_conn_id": "vault", "repository_conn_id": "vault"}
    operator = CheckpointBackupOperator(
        task_id="b", immutable_for=2 * DAY, skip_if_unchanged=True, create=True, **where, **conn
    )
    about = {"dag_id": "nightly", "run_id": "r1", "task_id": "b", "map_index": -1, "xcom_push": lambda key, value: None}
    told = [operator.execute({"ti": SimpleNamespace(**about, try_number=number)}) for number in (1, 2)]  # type: ignore[arg-type]
    told.append(operator.execute({}))
    assert [(each["already_done"], each["unchanged"]) for each in told] == [
        (False, False),
        (True, False),
        (False, True),
    ]
    assert all(each["immutable_until"] for each in told)
    assert unclaimed == []


def test_from_a_dag(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_VAULT", vault.server.airflow_connection())
    vault.checkpoint(4)
    conn: dict[str, Any] = {"checkpoint_conn_id": "vault", "repository_conn_id": "vault"}
    where = {"checkpoint": f"s3://{vault.bucket}/orders", "repository": f"s3://{vault.bucket}/backups"}
    for given in ("2d", 2 * DAY):
        operator = CheckpointBackupOperator(
            task_id="b", immutable_for=given, skip_if_unchanged=True, create=True, **where, **conn
        )
        made = operator.execute({})
        assert about(datetime.fromisoformat(made["immutable_until"]), datetime.now(UTC) + 2 * DAY)
    assert made["unchanged"] is True
