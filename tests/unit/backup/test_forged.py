"""Whoever can write into a repository, with its key too, cannot make it read, write or delete anything elsewhere.

What is forged has the right hash, and in an encrypted repository the right key: a stolen credential of a backup has both.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup import manifest as manifest_module
from airflow_ckpt_provider.backup.copy import copy_backups
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.drills import record_drill
from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import plan_expire
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.prune import apply_prune, plan_prune
from airflow_ckpt_provider.backup.prune_marks import read_marks
from airflow_ckpt_provider.backup.repository import GIVEN_UP, Repository
from airflow_ckpt_provider.backup.repository_check import check_repository, readable
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.backup.verify import verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import CkptError, DamagedBackupError, RefusedError, RepositoryError
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.storage.packs import file_of
from tests.support.backups import stream
from tests.support.checkpoints import contents, plant
from tests.support.watched_stores import forget_all, in_memory

KEY = os.urandom(32)


@pytest.fixture(params=["memory", "local", "encrypted"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Location]:
    """A place with a checkpoint, one backup of it, and files of somebody else."""
    here = in_memory() if request.param == "memory" else open_location(str(tmp_path / "here"))
    if request.param == "encrypted":
        here = replace(here, key=KEY)
    plant(here, {"victim": b"theirs", "orders2/metadata": b"theirs"})
    plant(here / "orders", stream())
    create_backup(Checkpoint.at(here / "orders"), opened(here))
    yield here
    forget_all()


def opened(place: Location) -> Repository:
    return Repository.open_or_create(replace(place / "backups", key=place.key))


def the_backup(place: Location) -> Manifest:
    return opened(place).manifest()


def forge(place: Location, *files: FileEntry, table: bool = False, **changes: Any) -> Manifest:
    """Put a newer manifest beside the real one, with the files of that and more."""
    real = the_backup(place)
    forged = replace(real, backup_id="29991231T000000Z-b000099", files=(*real.files, *files))
    path = forged.path
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_module, "COMPACT_FROM", 0 if table else 10**9)
        opened(place).location.create(path, replace(forged, **changes).to_document())
    return forged


def _sealed(content: dict[str, Any]) -> bytes:
    """The document with the right hash."""
    del content["sha256"]
    body = json.dumps(content, separators=(",", ":")).encode()
    return body[:-1] + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'


def elsewhere(place: Location) -> dict[str, bytes]:
    """All that is neither the repository nor the target of a restore."""
    plain = Location(place.store, place.root)
    return {path: data for path, data in contents(plain).items() if not path.startswith(("backups/", "target/"))}


PATHS = ["../stolen", "/stolen", "state/../../stolen", "..", "a//b", "./x", "", "x\0y"]
BELOW = "objects/orders/"
OBJECTS = [
    "repository.json",
    "../victim",
    "/victim",
    "objects/orders/../../repository.json",
    "objects/other/aa/x",
    BELOW,
]


def forged_entries(place: Location) -> Iterator[FileEntry]:
    entry = the_backup(place).files[0]
    yield from (entry._replace(path=path) for path in PATHS)
    yield from (entry._replace(path="x", object=path) for path in OBJECTS)
    yield entry._replace(path="x", size=-1)
    yield entry._replace(path="x", size=True)


@pytest.mark.parametrize("table", [False, True], ids=["list", "table"])
def test_a_manifest_that_names_another_place(place: Location, table: bool) -> None:
    """Restore wrote outside its target, and verify said ok."""
    for entry in forged_entries(place):
        path = forge(place, entry, table=table).path
        before, repository = elsewhere(place), opened(place)
        assert check_repository(repository).damaged[0].problems[0].startswith(f"manifest {path} is damaged or forged")
        with pytest.raises(DamagedBackupError) as error:
            _restore(repository, place / "target")
        assert error.value.message.startswith(f"manifest {path} is damaged or forged, though its hash is right: ")
        assert error.value.hint
        assert elsewhere(place) == before
        assert not (place / "target").walk()
        assert plan_prune(repository).objects == 0, "what it needs is not known"
        target = Repository.open_or_create(place / "copies")
        lazy = repository.read_manifest("orders", "29991231T000000Z-b000099", with_files=False) if table else None
        if lazy is not None:
            with pytest.raises(DamagedBackupError):
                copy_backups(repository, target, [lazy])
            assert not target.backup_ids("orders")
        repository.location.delete(path)


def _restore(repository: Repository, target: Location) -> None:
    apply_restore(plan_restore(repository, repository.read_manifest("orders", "29991231T000000Z-b000099"), target))


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "returns"},
        {"name": "../orders"},
        {"backup_id": "20200101T000000Z-b000001"},
        {"backup_id": "../../repository"},
        {"batch_id": "4"},
        {"restorable_batches": ["4"]},
        {"restorable_batches": 4},
        {"facts": []},
        {"facts": {"batch_times": ["x"]}},
        {"facts": {"batch_times": {"4": None}}},
        {"facts": {"batch_times": {"4": "2026-11-21T08:30:00"}}},
        {"facts": {"watermark_ms": "x"}},
        {"facts": {"start_offsets": {}}},
        {"facts": {"end_offsets": [[]]}},
        {"facts": {"end_offsets": [{}]}},
        {"facts": {"sources": {"0": None}}},
        {"tags": None},
        {"checkpoint": None},
        {"created": "2999-12-31T00:00:00"},
        {"created": 1},
        {"created": "0001-01-01T00:00:00+14:00"},
        {"claim": []},
        {"version": {}},
        {"version": None},
        {"checkpoint": "/lake/\ud800"},
    ],
)
def test_a_manifest_of_another_backup_or_with_other_types(place: Location, changes: dict[str, Any]) -> None:
    """An expire would delete what it says that it is."""
    path, repository = forge(place).path, opened(place)
    content = json.loads(repository.location.read(path)) | changes
    repository.location.replace(path, _sealed(content))
    before = contents(Location(place.store, place.root))
    with pytest.raises(DamagedBackupError) as error:
        repository.read_manifest("orders", "29991231T000000Z-b000099", with_files=False)
    assert error.value.message.startswith(f"manifest {path} is damaged or forged, though its hash is right: ")
    plan = plan_expire(repository, Policy(last=1))
    apply_expire(repository, plan)
    after = contents(Location(place.store, place.root))
    assert {p for p in {*before, *after} if before.get(p) != after.get(p) and "/audit/" not in p} <= {path}


@pytest.mark.parametrize(
    "end",
    [
        {"manifest": "../victim", "given_up": False},
        {"manifest": "objects/orders/aa/x", "given_up": False},
        {"manifest": "repository.json", "given_up": False},
        {"manifest": "backups/orders/../../stolen.json", "given_up": False},
        {"manifest": "backups/returns/x.json", "given_up": False},
        {"manifest": "backups/orders/deeper/x.json", "given_up": False},
        {"manifest": "backups/orders/x", "given_up": False},
        {"manifest": 1, "given_up": False},
        {"given_up": False},
        {"manifest": None},
        [],
    ],
)
def test_a_claim_that_ends_elsewhere(place: Location, end: Any) -> None:
    """A prune that gives a backup up takes the path of its manifest: a file of the forger's choice."""
    repository = opened(place)
    repository.location.create("claims/orders/abc.json", b'{"what": "backup", "made_by": "", "at": "now"}')
    repository.location.create("claims/orders/abc.end.json", json.dumps(end).encode())
    path = _unused(place)
    before = contents(Location(place.store, place.root))
    with pytest.raises(RepositoryError, match=r"claims/orders/abc\.end\.json"):
        apply_prune(repository, plan_prune(repository), abandoned_after=timedelta(0))
    after = contents(Location(place.store, place.root))
    made = {p for p in {*before, *after} if before.get(p) != after.get(p)}
    assert all(p.startswith(("backups/prune/", "backups/claims/")) for p in made), made
    assert opened(place).location.read(path)


def _unused(place: Location) -> str:
    """Put an object there that no backup lists, so that a prune has something to do."""
    path = "objects/orders/aa/unused"
    opened(place).location.create(path, b"x")
    return path


def mark(place: Location, document: Any, *, number: int = 1) -> None:
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    opened(place).location.create(f"prune/orders/{number:06d}.json", data)


@pytest.mark.parametrize(
    "named",
    [
        "../orders/offsets/4",
        "../victim",
        "/victim",
        "repository.json",
        "backups/orders/{backup}.json",
        "objects/orders/../../repository.json",
        "objects/returns/aa/x",
        "objects/orders",
        "objects/orders/",
        1,
        None,
    ],
)
def test_a_mark_of_a_prune_that_names_something_else(place: Location, named: Any) -> None:
    """The next prune deleted it, while the plan said 0 objects."""
    repository = opened(place)
    unused = _unused(place)
    named = named.format(backup=the_backup(place).backup_id) if isinstance(named, str) else named
    plan = plan_prune(repository)
    mark(place, {"id": "x", "at": "now", "made_by": "", "objects": [unused, named]})
    before = contents(Location(place.store, place.root))
    for prune in (lambda: plan_prune(repository), lambda: apply_prune(repository, plan)):
        with pytest.raises(RepositoryError) as error:
            prune()
        assert "prune/orders/000001.json" in error.value.message
        assert repr(named) in error.value.message
        assert error.value.hint
    with pytest.raises(RepositoryError, match=r"prune/orders/000001\.json"):
        create_backup(Checkpoint.at(place / "orders"), repository)
    after = contents(Location(place.store, place.root))
    assert {p for p in before if before[p] != after.get(p)} <= {"backups/running/orders.json"}


def test_a_mark_that_names_what_backups_need(place: Location) -> None:
    """It is deleted by nobody, and the plan does not promise it."""
    repository, unused = opened(place), _unused(place)
    needed = {file_of(entry.object) for entry in the_backup(place).files}
    mark(place, {"id": "x", "objects": [*needed, unused, "objects/orders/aa/not-there"]})
    plan = plan_prune(repository)
    assert set(plan.streams[0].objects) == {unused}
    outcome = apply_prune(repository, plan)
    assert outcome.objects == plan.objects == 1
    assert needed <= set(repository.location.walk("objects"))
    assert read_marks(repository.location, "orders").unfinished == ()


def test_a_mark_that_came_after_the_plan_adds_nothing_to_it(place: Location) -> None:
    repository, unused = opened(place), _unused(place)
    plan = plan_prune(repository)
    repository.location.create("objects/orders/aa/later", b"x")
    mark(place, {"id": "x", "objects": ["objects/orders/aa/later"]})
    assert apply_prune(repository, plan).objects == 1
    assert repository.location.read("objects/orders/aa/later") == b"x"
    with pytest.raises(FileNotFoundError):
        repository.location.read(unused)


def test_a_plan_of_a_prune_that_names_something_else(place: Location) -> None:
    repository = opened(place)
    _unused(place)
    plan = plan_prune(repository)
    (stream,) = plan.streams
    before = contents(Location(place.store, place.root))
    for path in ("repository.json", the_backup(place).path, "../victim"):
        with pytest.raises(RefusedError):
            apply_prune(repository, replace(plan, streams=(replace(stream, objects={path: 1}),)))
    assert contents(Location(place.store, place.root)) == before


@pytest.mark.parametrize("data", [b"", b'{"id": "x", "obje', b"[]", b'{"objects": 1}', b'{"objects": "ab"}'])
def test_a_mark_that_was_cut_off(place: Location, data: bytes) -> None:
    """Its prune was killed as it wrote: it deletes nothing, but what it was going to name is not known."""
    repository, unused = opened(place), _unused(place)
    mark(place, data)
    with pytest.raises(RepositoryError) as error:
        create_backup(Checkpoint.at(place / "orders"), repository)
    assert "prune/orders/000001.json" in error.value.message
    assert "airflow-ckpt prune" in (error.value.hint or "")
    assert apply_prune(repository, plan_prune(repository)).objects == 1
    with pytest.raises(FileNotFoundError):
        repository.location.read(unused)
    create_backup(Checkpoint.at(place / "orders"), repository)
    assert check_repository(repository).ok


def test_names_that_are_no_numbers_do_not_stop_a_backup(place: Location) -> None:
    for name in ("\u00b2.json", "\u00b2.done.json", "x.json", "-1.json"):
        opened(place).location.create(f"prune/orders/{name}", b"{}")
    create_backup(Checkpoint.at(place / "orders"), opened(place))


def test_a_claim_of_a_real_backup_is_still_given_up(place: Location) -> None:
    repository = opened(place)
    repository.location.create("claims/orders/abc.json", b'{"what": "backup", "made_by": "", "at": "now"}')
    end = {"manifest": "backups/orders/20261121T083000Z-b000223.json", "given_up": False}
    repository.location.create("claims/orders/abc.end.json", json.dumps(end).encode())
    _unused(place)
    assert apply_prune(repository, plan_prune(repository), abandoned_after=timedelta(0)).objects == 1
    assert repository.location.read(str(end["manifest"])) == GIVEN_UP


@pytest.mark.parametrize("backup_id", ["../../../victim", "a/b", "/x", ".."])
def test_a_report_of_a_drill_that_names_another_place(place: Location, backup_id: str) -> None:
    before = contents(Location(place.store, place.root))
    with pytest.raises(RefusedError):
        record_drill(opened(place), {"name": "orders", "backup_id": backup_id, "starts": True})
    assert contents(Location(place.store, place.root)) == before


@pytest.mark.parametrize("name", ["a b", ".x", "..x", "a..b"])
def test_a_directory_that_is_no_stream_hides_none(place: Location, name: str, caplog: pytest.LogCaptureFixture) -> None:
    repository = opened(place)
    repository.location.create(f"backups/{name}/x.json", b"{}")
    repository.location.create(f"objects/{name}/x", b"{}")
    assert repository.names() == ("orders",)
    assert f"{name!r} in" in caplog.text
    assert repository.manifest().name == "orders"
    assert check_repository(repository).ok
    assert plan_prune(repository).objects == 0


def test_plans_and_records_that_are_no_json_are_named(place: Location) -> None:
    from airflow_ckpt_provider.recovery.query_ids import id_changes

    repository = opened(place)
    for path in ("plans/abc.json", "audit/20260101T000000Z-abc.json"):
        for data in (b"", b"[", b"[]", b"\xff"):
            repository.location.replace(path, data)
            if path.startswith("audit"):
                plan = {"plan_id": "abc", "kind": "reset", "query_id": "1", "new_query_id": "2", "start": 1}
                repository.location.replace("plans/abc.json", json.dumps(plan).encode())
            with pytest.raises(CkptError, match=path.partition("/")[0]):
                id_changes(repository)


@pytest.mark.parametrize("key", ["files", "bytes"])
@pytest.mark.parametrize("value", [-1, "2", True, None])
def test_a_table_of_no_size(place: Location, key: str, value: object) -> None:
    """Its size is believed before it is read; a list of backups ended with an error of Python."""
    made = forge(place, table=True)
    repository = opened(place)
    content = json.loads(repository.location.read(made.path))
    repository.location.replace(made.path, _sealed({**content, key: value}))
    ids = tuple(repository.backup_ids("orders"))
    damaged = [each for each in readable(repository, "orders", ids, with_files=False) if not isinstance(each, Manifest)]
    assert [each.backup_id for each in damaged] == [made.backup_id]


@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"path": "metadata"}, "metadata is listed twice"),
        ({"path": "metadata/x"}, "metadata is listed as a file, and as a directory with files in it"),
        ({"path": "state/0/.0.delta.crc"}, "state/0/.0.delta.crc is a hidden file"),
    ],
)
def test_files_that_no_restore_can_write(place: Location, table: bool, changed: dict[str, str], why: str) -> None:
    """They are found before anything is changed; before, the live checkpoint was set aside and stayed sealed."""
    forge(place, the_backup(place).files[-1]._replace(**changed), table=table)
    report = verify_backup(opened(place), the_backup(place))
    assert [finding.message for finding in report.findings if why in finding.message]
    before = contents(place / "orders")
    with pytest.raises(DamagedBackupError, match=re.escape(why)):
        plan_restore(opened(place), the_backup(place), place / "orders", replace=True)
    assert contents(place / "orders") == before
