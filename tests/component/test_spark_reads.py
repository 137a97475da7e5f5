"""Contents read by tasks: the same report and the same records as by threads; the tasks run in this process.

What Spark adds to that (processes, their death) is in ``tests/integration/test_executors.py``.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.engine import TooMuchForThreadsError
from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import plan_expire
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.notes import note_verification
from airflow_ckpt_provider.backup.prune import MaxUnused, apply_prune, plan_prune
from airflow_ckpt_provider.backup.read_engine import ReadUpTo, ThreadReads
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.backup.verify_repository import verify_repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RepositoryError
from airflow_ckpt_provider.jobs.spark_engine import Address
from airflow_ckpt_provider.jobs.spark_reads import SparkReads
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.storage.packs import file_of, read_moved
from tests.support.backups import stream
from tests.support.checkpoints import plant
from tests.support.packs import cut_off, rot, with_big_files
from tests.support.spark_tasks import Tasks

Damaging = Callable[[Location, Manifest], None]


class Twins:
    """Two copies of one repository with three backups: in one of them threads read, in the other tasks.

    :param root: an empty directory.
    """

    def __init__(self, root: Path, *, packs: bool, key: bytes | None) -> None:
        self.root, self.key = root, key
        checkpoint = open_location(str(root / "orders"))
        repository = Repository.open_or_create(self.address("threads").open(), format=2 if packs else 1)
        waste = {f"_schema/waste{n}": bytes([n]) * 3000 for n in range(20)}
        for newest in (3, 5, 8):
            plant(checkpoint, with_big_files(stream(newest), count=newest // 2) | (waste if newest == 3 else {}))
            create_backup(Checkpoint.at(checkpoint), repository)
            for path in waste if newest == 3 else ():
                checkpoint.delete(path)
        if packs:  # some contents are elsewhere than their manifests say
            apply_expire(repository, plan_expire(repository, Policy(last=2)))
            apply_prune(repository, plan_prune(repository, max_unused=MaxUnused(0)))
            assert read_moved(repository.location, "orders").paths
        self.tasks = Tasks()

    def address(self, kind: str) -> Address:
        return Address(str(self.root / kind), {}, self.key)

    def damage(self, damaging: Damaging) -> None:
        plain = replace(self.address("threads"), key=None).open()
        repository = Repository.open(self.address("threads").open())
        damaging(plain, _as_moved(repository, repository.manifest("latest", name="orders")))

    def twin(self) -> dict[str, tuple[Repository, Any]]:
        """Each of the repositories, and who reads in it."""
        shutil.rmtree(self.root / "tasks", ignore_errors=True)
        shutil.copytree(self.root / "threads", self.root / "tasks", copy_function=shutil.copy2)
        reads = SparkReads(self.tasks.session, self.address("tasks"), files_per_task=5, bytes_per_task=10**6)
        engines = {"threads": ThreadReads(), "tasks": reads}
        return {kind: (Repository.open(self.address(kind).open()), engine) for kind, engine in engines.items()}

    def records(self, kind: str) -> dict[str, Any]:
        """What is noted, without times."""
        place = Repository.open(self.address(kind).open()).location
        found = {}
        for directory in ("damaged", "verified", "read"):
            for path in place.walk(directory):
                found[path] = plain(json.loads(place.read(path)))
        return found


def plain(report: Any) -> Any:
    """A report or a record as plain JSON, without times and without saying which of the twins it is of."""
    text = json.dumps(report if isinstance(report, dict) else report.to_json())
    return json.loads(re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+(\+00:00)?", "TIME", text).replace("/tasks", "/threads"))


def _as_moved(repository: Repository, manifest: Manifest) -> Manifest:
    """The manifest as if its contents had always been where they are now."""
    now = read_moved(repository.location, "orders").now
    return replace(manifest, files=tuple(e._replace(object=now(e.object)) for e in manifest.files))


@pytest.fixture(params=["format1", "packs", "encrypted"])
def twins(request: pytest.FixtureRequest, tmp_path: Path) -> Twins:
    is_encrypted = request.param == "encrypted"
    return Twins(tmp_path, packs=request.param != "format1", key=b"k" * 32 if is_encrypted else None)


def _rotten(files: Location, manifest: Manifest) -> None:
    for path in ("metadata", "_schema/big0"):
        rot(files, next(e.object for e in manifest.files if e.path == path), encrypted=True)


def _missing(files: Location, manifest: Manifest) -> None:
    files.delete(file_of(next(e.object for e in manifest.files if e.path.endswith(".sst"))))


def _cut_off(files: Location, manifest: Manifest) -> None:
    for path in sorted({file_of(e.object) for e in manifest.files})[:2]:
        files.replace(path, files.read(path)[:-40])


def _nothing(files: Location, manifest: Manifest) -> None:
    pass


@pytest.mark.parametrize("damaging", [_nothing, _rotten, _missing, _cut_off])
def test_findings_and_records_are_the_same(twins: Twins, damaging: Damaging) -> None:
    twins.damage(damaging)
    reports: dict[str, Any] = {}
    for kind, (repository, engine) in twins.twin().items():
        manifest = repository.manifest("latest", name="orders", whole=False)
        for part in (ReadData(), ReadData(1, 3), ReadData()):
            report = verify_backup(repository, manifest, read_data=part, engine=engine)
            note_verification(repository, report)
            reports.setdefault(kind, []).append(plain(report))
    assert reports["tasks"] == reports["threads"]
    assert reports["tasks"][0]["ok"] is (damaging is _nothing)
    assert twins.records("tasks") == twins.records("threads") != {}
    assert twins.tasks.ran > 3, "all in one task: the test shows nothing"


@pytest.mark.parametrize("damaging", [_nothing, _rotten, _missing])
def test_all_backups(twins: Twins, damaging: Damaging) -> None:
    twins.damage(damaging)
    reports: dict[str, Any] = {}
    for kind, (repository, engine) in twins.twin().items():
        report = verify_repository(repository, read_data=ReadData(), engine=engine)
        reports[kind] = plain(report)
    assert reports["tasks"] == reports["threads"]
    assert reports["tasks"]["ok"] is (damaging is _nothing)
    assert twins.records("tasks") == twins.records("threads") != {}


def test_another_repository_at_the_address_of_executors(tmp_path: Path) -> None:
    """As where an executor has something else mounted there: nothing is reported as damaged, and nothing is noted."""
    twins = Twins(tmp_path, packs=True, key=None)
    repository = Repository.open(twins.address("threads").open())
    other = Repository.open_or_create(twins.address("other").open())
    engine = SparkReads(twins.tasks.session, twins.address("other"))
    manifest = repository.manifest("latest", name="orders")
    with pytest.raises(RepositoryError) as e:
        verify_backup(repository, manifest, read_data=ReadData(), engine=engine)
    assert e.value.message == (
        f"{tmp_path}/other is repository {other.repository_id}, and repository {repository.repository_id} is expected there"
    )
    assert twins.tasks.ran
    assert twins.records("threads") == {}


def test_a_pack_is_read_by_one_task(tmp_path: Path) -> None:
    """However many files a task may have; so it is read once, and its index is compared."""
    twins = Twins(tmp_path, packs=True, key=None)
    repository, engine = twins.twin()["tasks"]
    manifest = _as_moved(repository, repository.manifest("latest", name="orders"))
    report = verify_backup(repository, manifest, read_data=ReadData(), engine=engine)
    assert report.ok
    assert report.learned
    (most,) = {file_of(e.object) for e in manifest.files if e.path.endswith("/8.changelog")}
    assert most in report.learned.contents.packs


def test_a_pack_that_is_cut_off_at_its_end(tmp_path: Path) -> None:
    twins = Twins(tmp_path, packs=True, key=None)
    twins.damage(lambda files, manifest: cut_off(files, max(e.object for e in manifest.files if e.is_packed)))
    found: dict[str, Any] = {}
    for kind, (repository, engine) in twins.twin().items():
        manifest = repository.manifest("latest", name="orders", whole=False)
        found[kind] = verify_backup(repository, manifest, read_data=ReadData(), engine=engine)
    assert found["tasks"] == found["threads"]
    assert not found["tasks"].ok


def test_up_to_a_limit(tmp_path: Path) -> None:
    """More than that is read by nobody, and nothing is noted."""
    twins = Twins(tmp_path, packs=False, key=None)
    repository, _ = twins.twin()["threads"]
    manifest = repository.manifest("latest", name="orders")
    for limit in ({"files": 3, "size": 10**12}, {"files": 10**6, "size": 100}):
        with pytest.raises(TooMuchForThreadsError) as e:
            verify_backup(repository, manifest, read_data=ReadData(), engine=ReadUpTo(ThreadReads(), **limit))
        assert (e.value.files, "verify_contents.py" in str(e.value)) == (len(manifest.files), True)
    assert twins.records("threads") == {}
    assert verify_backup(
        repository, manifest, read_data=ReadData(), engine=ReadUpTo(ThreadReads(), files=10**6, size=10**12)
    ).ok
