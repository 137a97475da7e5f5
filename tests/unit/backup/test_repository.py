from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.beside import default_repository, repository_at, repository_for_change
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_check import check_repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import DamagedBackupError, NoSuchBackupError, RefusedError, RepositoryError
from airflow_ckpt_provider.storage.hidden_name import hidden_name
from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.signatures import Signing, new_signing_key, public_key
from tests.support.backups import back_up, repository, stream
from tests.support.checkpoints import contents, plant
from tests.support.damaged_bytes import truncated
from tests.support.watched_stores import watched


def test_made_in_an_empty_place_and_opened_again(place: Location) -> None:
    made = Repository.open_or_create(place)
    marker = json.loads(place.read("repository.json"))
    assert marker == {"format": "airflow-ckpt-repository", "version": made.format, "id": made.repository_id}
    assert Repository.open(place).repository_id == made.repository_id
    assert Repository.open_or_create(place).repository_id == made.repository_id
    assert repr(made) == f"Repository({place.uri!r})"


def test_none_there(place: Location) -> None:
    with pytest.raises(RepositoryError) as error:
        Repository.open(place)
    assert error.value.message == f"{place} is not a repository: it has no repository.json"
    assert error.value.hint == (
        "check the address, and that its disk or bucket is mounted; a new repository is made on purpose: "
        f"`airflow-ckpt init {place}` (in a DAG create=True)"
    )
    assert contents(place) == {}


def test_a_marker_that_was_deleted_is_no_reason_for_a_new_repository(place: Location) -> None:
    """``init`` was named as the next step, and then refused, with an empty place as the next step."""
    orders, there = plant(place / "orders", stream()), place / "orders.rewinds"
    made = create_backup(Checkpoint.at(orders), Repository.open_or_create(there))
    there.delete("repository.json")
    before = contents(there)
    for opening in (Repository.open, Repository.open_or_create, Repository.open_if_there):
        with pytest.raises(RepositoryError) as error:
            opening(there)
        assert error.value.message == f"{there} is a repository without its repository.json: it holds backups of orders"
        assert "init" not in str(error.value.hint)
    assert contents(there) == before
    secret = replace(place / "secret", key=b"k" * 32)
    create_backup(Checkpoint.at(orders), Repository.open_or_create(secret))
    secret.delete("repository.json")
    for opened in (secret, replace(secret, key=None)):  # the marker held the repository's own key
        with pytest.raises(RepositoryError) as encrypted:
            Repository.open(opened)
        assert str(encrypted.value.hint).endswith("airflow-ckpt key import REPOSITORY --file EXPORT")
    with pytest.raises(RepositoryError) as signed:
        Repository.open(replace(there, signing=Signing(None, (public_key(new_signing_key()),))))
    assert "any id will do" not in str(signed.value.hint)  # signatures would be of another id
    there.create("signatures/backups/orders/1", b"by somebody")
    with pytest.raises(RepositoryError) as signed:
        Repository.open(there)
    assert "any id will do" not in str(signed.value.hint)
    there.delete("signatures/backups/orders/1")
    there.create("repository.json", str(error.value.hint).partition("any id will do): ")[2].encode())
    assert check_repository(Repository.open(there)).ok
    assert Repository.open(there).manifest() == made.manifest
    there.delete("repository.json")
    with pytest.raises(RepositoryError, match="repository 5c is expected there"):
        Repository.open(replace(there, repository_id="5c"))


@pytest.mark.parametrize(
    ("files", "what"),
    [
        (stream(0), "a checkpoint"),
        ({"commits/0": b"v1"}, "a checkpoint"),
        ({"part-0.parquet": b"x", "b/c": b"y"}, "other files (part-0.parquet, b, …)"),
        ({"backups/july/a": b"x", "objects/b": b"y"}, "other files (backups, objects, …)"),
    ],
    ids=["checkpoint", "half a checkpoint", "a table", "directories with these names"],
)
def test_a_place_that_holds_something_else(place: Location, files: dict[str, bytes], what: str) -> None:
    plant(place, files)
    with pytest.raises(RepositoryError) as error:
        Repository.open_or_create(place)
    assert error.value.message == f"{place} holds {what}: a repository needs a place of its own"
    assert error.value.hint == "choose an empty place"
    assert contents(place) == dict(sorted(files.items()))


@pytest.mark.parametrize("opening", [Repository.open, Repository.open_or_create])
@pytest.mark.parametrize(
    ("marker", "format_", "version"),
    [
        ({"format": "airflow-ckpt-repository", "version": 3, "id": "x"}, "airflow-ckpt-repository", 3),
        ({"format": "other", "version": 1, "id": "x"}, "other", 1),
    ],
)
def test_another_format(place: Location, opening: Any, marker: dict[str, Any], format_: str, version: int) -> None:
    plant(place, {"repository.json": json.dumps(marker).encode()})
    with pytest.raises(RepositoryError) as error:
        opening(place)
    assert error.value.message == (
        f"{place} is a repository of format {format_} version {version}, known here: airflow-ckpt-repository versions 1 and 2"
    )
    assert error.value.hint == "upgrade airflow-ckpt-provider, or use another repository"
    assert list(contents(place)) == ["repository.json"]


@pytest.mark.parametrize("opening", [Repository.open, Repository.open_or_create])
def test_a_damaged_marker(place: Location, opening: Any) -> None:
    Repository.open_or_create(place)
    for data in truncated(place.read("repository.json")):
        place.replace("repository.json", data)
        with pytest.raises(RepositoryError) as error:
            opening(place)
        assert error.value.message == f"{place}/repository.json cannot be read: {data[:80]!r}"
        assert "airflow-ckpt key import" in (error.value.hint or "")


def test_the_id_that_is_expected(place: Location) -> None:
    made = Repository.open_or_create(place)
    right, wrong = replace(place, repository_id=made.repository_id), replace(place, repository_id="another")
    for opening in (Repository.open, Repository.open_or_create, Repository.open_if_there):
        assert opening(right).repository_id == made.repository_id
        with pytest.raises(RepositoryError) as error:
            opening(wrong)
        assert (
            error.value.message
            == f"{place} is repository {made.repository_id}, and repository another is expected there"
        )


def test_none_is_made_inside_another_or_inside_a_checkpoint(place: Location) -> None:
    """Not below ``orders-1`` beside ``orders`` on an object store, for example: the same beginning is no place inside."""
    plant(place / "orders", stream(0))
    Repository.open_or_create(place / "backups")
    for beside in ("orders-1", "orders.rewinds", "backups-2"):
        Repository.open_or_create(place / beside)
    for inner, outer in (("orders/a/b", "checkpoint"), ("backups/more", "repository"), ("orders-1/x", "repository")):
        with pytest.raises(RepositoryError) as refused:
            Repository.open_or_create(place / inner)
        outside = place / inner.partition("/")[0]
        assert refused.value.message == f"{place / inner} lies inside the {outer} {outside}"
        assert not (place / inner).walk()
    with pytest.raises(RepositoryError, match=r"holds other files .*: a repository needs a place of its own"):
        Repository.open_or_create(place)


def test_where_one_is_expected_none_is_made(place: Location) -> None:
    with pytest.raises(RepositoryError, match=r"it has no repository\.json; repository another is expected there"):
        Repository.open_or_create(replace(place, repository_id="another"))
    assert contents(place) == {}


def test_one_that_was_named_has_to_be_there_and_the_one_beside_a_checkpoint_is_made(place: Location) -> None:
    checkpoint = place / "orders"
    for opening in (repository_at, repository_for_change):
        with pytest.raises(RepositoryError, match="is not a repository"):
            opening(place / "backups", checkpoint)
    assert repository_at(None, checkpoint) is None
    assert repository_at(default_repository(checkpoint), checkpoint) is None
    assert contents(place) == {}
    made = repository_for_change(None, checkpoint)
    assert list(contents(place)) == ["orders.rewinds/repository.json"]
    for opening, named in ((repository_at, None), (repository_for_change, default_repository(checkpoint))):
        found = opening(named, checkpoint)
        assert found
        assert found.repository_id == made.repository_id


def test_the_next_makes_it_where_a_process_was_killed_while_it_did(tmp_path: Path) -> None:
    """What the killed one leaves is half of the marker under a hidden name."""
    place = Location(LocalStore(), str(tmp_path))
    for directory, opening in (
        (tmp_path / "backups", lambda: Repository.open_or_create(place / "backups")),
        (tmp_path / "orders.rewinds", lambda: repository_for_change(None, place / "orders")),
    ):
        directory.mkdir()
        Path(hidden_name(str(directory / "repository.json"))).write_bytes(b'{"format": "airflow-ckpt-rep')
        made = opening()
        assert Repository.open(Location(LocalStore(), str(directory))).repository_id == made.repository_id


def test_two_make_it_at_the_same_moment(place: Location) -> None:
    """The one who comes second opens what the first one made."""
    first: list[Repository] = []

    def be_faster(operation: str, path: str) -> None:
        if operation == "create" and not first:
            first.append(Repository.open_or_create(place))

    location, _ = watched(place, be_faster)
    second = Repository.open_or_create(location)
    assert second.repository_id == first[0].repository_id


def test_names_and_ids_and_manifests_in_order(place: Location) -> None:
    first = back_up(place, stream(3), name="b")
    second = back_up(place, stream(4), name="b")
    other = back_up(place, name="a")
    repo = repository(place)
    assert repo.names() == ("a", "b")
    assert repo.backup_ids("b") == tuple(sorted([first.backup_id, second.backup_id]))
    assert [m.backup_id for m in repo.backups("b")] == [first.backup_id, second.backup_id]
    assert [(m.name, m.backup_id) for m in repo.backups()] == [
        ("a", other.backup_id), ("b", first.backup_id), ("b", second.backup_id),
    ]  # fmt: skip
    assert repo.backups("none") == []


def test_debris_is_no_backup(place: Location) -> None:
    made = back_up(place, stream())
    plant(place / "backups/backups/orders", {".x.json.123.tmp": b"", ".y.json": b"", "z.txt": b""})
    assert repository(place).backup_ids("orders") == (made.backup_id,)


def test_finding_one(place: Location) -> None:
    first = back_up(place, stream(3))
    second = back_up(place, stream(4))
    repo = repository(place)
    assert repo.manifest().backup_id == second.backup_id
    assert repo.manifest("latest", name="orders").backup_id == second.backup_id
    assert repo.manifest(first.backup_id) == first.manifest
    assert repo.manifest(first.backup_id, name="orders") == first.manifest


@pytest.mark.parametrize(
    ("backup_id", "name", "what"),
    [
        ("20200101T000000Z-b000001", None, "20200101T000000Z-b000001"),
        ("20200101T000000Z-b000001", "orders", "20200101T000000Z-b000001 of orders"),
    ],
)
def test_no_such_backup(place: Location, backup_id: str, name: str | None, what: str) -> None:
    back_up(place, stream())
    repo = repository(place)
    with pytest.raises(NoSuchBackupError) as error:
        repo.manifest(backup_id, name=name)
    assert error.value.message == f"{repo.location} holds no backup {what}"
    assert error.value.hint == "`airflow-ckpt backups REPOSITORY` lists what there is"


@pytest.mark.parametrize(("name", "what"), [(None, ""), ("returns", " of returns")])
def test_no_backup_at_all(place: Location, name: str | None, what: str) -> None:
    repo = repository(place)
    with pytest.raises(NoSuchBackupError) as error:
        repo.manifest(name=name)
    assert error.value.message == f"{repo.location} holds no backup{what}"


def test_latest_of_several_streams_has_to_be_named(place: Location) -> None:
    back_up(place, stream(), name="a")
    newest = back_up(place, name="b")
    repo = repository(place)
    with pytest.raises(NoSuchBackupError) as error:
        repo.manifest()
    assert error.value.message == f"{repo.location} holds backups of 2 streams: a, b"
    assert error.value.hint == "name the stream (name / --name)"
    assert repo.manifest(name="b").backup_id == newest.backup_id


def test_latest_is_never_a_safety_backup(place: Location) -> None:
    """Nor do they make a repository of one stream one of two."""
    made = back_up(place, stream())
    back_up(place, name="orders.before-restore")
    assert repository(place).manifest().backup_id == made.backup_id
    assert repository(place).manifest(name="orders").backup_id == made.backup_id


@pytest.mark.parametrize("name", ["..", "a/b", ""])
def test_a_name_that_is_none(place: Location, name: str) -> None:
    repo = repository(place)
    for question in (
        repo.backup_ids,
        repo.backups,
        lambda n: repo.manifest(name=n),
        lambda n: repo.read_manifest(n, "x"),
    ):
        with pytest.raises(RefusedError, match=r"cannot be the name of a stream"):
            question(name)


def test_a_damaged_manifest_is_named(place: Location) -> None:
    made = back_up(place, stream())
    repo = repository(place)
    repo.location.replace(made.manifest.path, b"{")
    for question in (repo.backups, repo.manifest, lambda: repo.read_manifest("orders", made.backup_id)):
        with pytest.raises(DamagedBackupError, match=rf"^manifest {made.manifest.path} is damaged"):
            question()


def test_a_run_finds_its_own_backup(place: Location) -> None:
    first = back_up(place, stream(3), made_by="run 1")
    again = back_up(place, stream(4), made_by="run 1")
    back_up(place, made_by="run 2")
    found = repository(place).made_by("orders", "run 1")
    assert found is not None
    assert found.backup_id == again.backup_id != first.backup_id
    assert repository(place).made_by("orders", "run 3") is None


def test_a_damaged_backup_does_not_keep_a_run_from_its_own(place: Location, caplog: pytest.LogCaptureFixture) -> None:
    """A retry of a backup would fail for good, where its first attempt has passed the damage over."""
    own, damaged = back_up(place, stream(3), made_by="run 1"), back_up(place, stream(4), made_by="run 2")
    repository(place).location.replace(damaged.manifest.path, b"{")
    found = repository(place).made_by("orders", "run 1")
    assert found is not None
    assert found.backup_id == own.backup_id
    assert f"manifest {damaged.manifest.path} is damaged" in caplog.text


def test_audit_records(place: Location) -> None:
    repo = repository(place)
    repo.record("plan1", {"kind": "restore", "made_by": "run 1"})
    repo.record("plan1", {"kind": "restore", "made_by": "run 1"})
    repo.record("plan2", {"kind": "restore", "made_by": "run 2"})
    assert next(repo.records())["plan_id"] == "plan2"
    assert {r["plan_id"] for r in repo.records()} == {"plan1", "plan2"}
    found = repo.audit("run 1")
    assert found is not None
    assert (found["plan_id"], found["kind"]) == ("plan1", "restore")
    assert found["at"].endswith("+00:00")
    assert repo.audit("run 3") is None


def test_an_audit_record_names_the_one_before_also_within_one_second(place: Location) -> None:
    """Their names are in the order of their plan ids then."""
    held = Repository.open_or_create(place)
    for plan_id in ("ffff", "0000", "8888", "4444"):
        held.record(plan_id, {"kind": "test"})
    written = sorted(
        (json.loads(data)["at"], data) for path, data in contents(place).items() if path.startswith("audit/")
    )
    hashes = [hashlib.sha256(data).hexdigest() for _, data in written]
    assert [json.loads(data)["previous"] for _, data in written] == ["", *hashes[:-1]]
