"""Sets of backups: whole only where every backup of them is, resumed by their id, and never of other streams."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from airflow_ckpt_provider.backup.copy import copy_backups
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.sets import SET, SET_OF, all_sets, create_set, find_set
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import DamagedBackupError, NoSuchBackupError, RefusedError, StorageError
from tests.support.backups import stream
from tests.support.checkpoints import plant
from tests.support.damaged_sets import application as application
from tests.support.damaged_sets import damaged_object
from tests.support.several_sinks import IDS, NEWEST, Application
from tests.support.watched_stores import Killed, Life

NAMES = tuple(IDS)


def test_each_backup_names_the_set(application: Application) -> None:
    made = application.backed_up(tags={"env": "prod"}, reason="nightly", made_by="me")
    assert made.is_whole
    assert {name: m.batch_id for name, m in made.backups.items()} == NEWEST
    for manifest in made.backups.values():
        assert manifest.tags == {"env": "prod", SET: made.set_id, SET_OF: "orders,returns"}
        assert (manifest.reason, manifest.made_by) == ("nightly", "me")
    assert find_set(application.repository, "latest", NAMES) == made
    assert all_sets(application.repository) == [made]
    assert made.to_json()["whole"] is True


@pytest.mark.format_1("so many writes")
@pytest.mark.parametrize("writes", [0, 12, 25, 30, 45])
def test_killed_and_resumed(application: Application, writes: int) -> None:
    """What was taken is not taken again."""
    with pytest.raises(Killed):
        create_set(
            application.checkpoints(), application.watched_repository(Life(writes).before), set_id="5e7", workers=1
        )
    begun = find_set(application.repository, "5e7", NAMES)
    assert not begun.is_whole
    with pytest.raises(NoSuchBackupError, match="has no whole set"):
        find_set(application.repository, "latest", NAMES)
    release(application.repository)
    made = application.backed_up(set_id="5e7")
    assert made.is_whole
    assert [len(application.repository.backup_ids(name)) for name in NAMES] == [1, 1]
    assert begun.backups.items() <= made.backups.items()


def release(repository: Repository) -> None:
    """The process that held the leases is dead."""
    for path in repository.location.walk("running"):
        repository.location.delete(path)


def test_one_that_cannot_be_backed_up(application: Application) -> None:
    """It is found before the first backup is taken."""
    place = application.root / "returns"
    for path in [path for path in place.walk() if path.startswith("commits/")]:
        place.delete(path)
    with pytest.raises(RefusedError, match=r"returns \(.*\) has nothing to back up: .*no backup was taken"):
        application.backed_up()
    assert application.repository.names() == ()


def test_one_that_fails(application: Application) -> None:
    """A file that Spark needs is missing: the message says how the set is resumed."""
    (application.root / "returns").delete("state/0/0/7.changelog")
    with pytest.raises(Exception, match="--set 5e7"):
        application.backed_up(set_id="5e7")
    assert find_set(application.repository, "5e7", NAMES).missing == ("returns",)
    plant(application.root / "returns", {"state/0/0/7.changelog": b"changelog 0 7"})
    assert application.backed_up(set_id="5e7").is_whole


def test_of_other_streams(application: Application) -> None:
    made = application.backed_up()
    with pytest.raises(RefusedError, match="is of orders,returns, not of orders"):
        find_set(application.repository, made.set_id, ["orders"])
    plant(application.root / "third", stream(2))
    more = {**application.checkpoints(), "third": Checkpoint.at(application.root / "third")}
    with pytest.raises(RefusedError, match="not of orders,returns,third"):
        create_set(more, application.repository, set_id=made.set_id)
    assert "third" not in application.repository.names()
    with pytest.raises(NoSuchBackupError):
        find_set(application.repository, "latest", ["orders"])
    with pytest.raises(RefusedError, match="no stream is named"):
        create_set({}, application.repository)


@pytest.mark.parametrize("set_id", ["../up", "", "a b"])
def test_ids_that_can_be_none(application: Application, set_id: str) -> None:
    if not set_id:
        assert application.backed_up(set_id=set_id).is_whole  # an empty one is none: a new one is made
        return
    with pytest.raises(RefusedError, match="cannot be the id"):
        application.backed_up(set_id=set_id)


def test_a_tag_of_somebody_else(application: Application) -> None:
    with pytest.raises(RefusedError, match="the tag backup_set names the set"):
        application.backed_up(tags={SET: "mine"})


def expired(application: Application, name: str, backup_id: str) -> None:
    application.repository.location.delete(f"backups/{name}/{backup_id}.json")


def damaged_manifest(application: Application, name: str, backup_id: str) -> None:
    application.repository.location.replace(f"backups/{name}/{backup_id}.json", b"{}")


@pytest.mark.parametrize("harm", [expired, damaged_object, damaged_manifest])
def test_the_latest_is_one_that_is_whole(
    application: Application, harm: Callable[[Application, str, str], None], caplog: pytest.LogCaptureFixture
) -> None:
    first = application.backed_up()
    application.go_on()
    second = application.backed_up()
    assert find_set(application.repository, "latest", NAMES) == second
    harm(application, "returns", second.backups["returns"].backup_id)
    assert find_set(application.repository, "latest", NAMES).set_id == first.set_id
    broken = find_set(application.repository, second.set_id, NAMES)
    with pytest.raises(DamagedBackupError, match=f"set {second.set_id} of orders, returns is not whole: .*returns"):
        broken.check_whole()
    assert [each.is_whole for each in all_sets(application.repository)] == [False, True]


def test_a_damaged_backup_is_taken_again(application: Application) -> None:
    first = application.backed_up()
    damaged_object(application, "returns", first.backups["returns"].backup_id)
    assert not find_set(application.repository, first.set_id, NAMES).is_whole
    made = application.backed_up(set_id=first.set_id)
    assert made.is_whole
    assert made.backups["orders"] == first.backups["orders"]
    assert made.backups["returns"] != first.backups["returns"]


def test_one_that_cannot_be_read_is_not_passed_over(application: Application) -> None:
    """Nobody knows whether it belongs to the set."""
    made = application.backed_up()
    path = made.backups["returns"].path

    def before(operation: str, asked: str) -> None:
        if operation == "read" and asked.endswith(path):
            raise StorageError("the store does not answer")

    with pytest.raises(StorageError, match="the store does not answer"):
        find_set(application.watched_repository(before), made.set_id, NAMES)


def test_a_copy_of_its_backups_is_a_copy_of_the_set(application: Application) -> None:
    made = application.backed_up()
    other = Repository.open_or_create(application.root / "second")
    copy_backups(application.repository, other, application.repository.backups())
    copied = find_set(other, made.set_id, NAMES)
    assert copied.is_whole
    assert {n: m.backup_id for n, m in copied.backups.items()} == {n: m.backup_id for n, m in made.backups.items()}


def test_tags_that_name_no_stream_of_theirs(application: Application) -> None:
    """A forged manifest: its set is not one."""
    made = application.backed_up()
    manifest = dataclasses.replace(
        made.backups["orders"], backup_id="29990101T000000Z-b000004", tags={SET: "f0", SET_OF: "returns"}, sequence=2
    )
    application.repository.location.create(manifest.path, manifest.to_document())
    assert [each.set_id for each in all_sets(application.repository)] == [made.set_id]
    assert find_set(application.repository, "latest", NAMES) == made
