"""A seal is lifted for a start, and never one under which files are being changed."""

from __future__ import annotations

import pytest

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.lifting import begun_by_plans
from airflow_ckpt_provider.change.sealing import put_seal, seal, unseal
from airflow_ckpt_provider.change.stopping import stop_plan_and_apply
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.storage.location import Location
from tests.support.checkpoints import contents, logs, metadata, plant
from tests.support.stopped import STOPPED

#: What the seal of each change says.
OF_CHANGES = (
    "restore of 20261121T083000Z-b000223 batch 223 replacing what was there",
    "rewind to batch 3",
    "repair to batch 3",
    "reset, from scratch",
    "undo of rewind 7f3a",
    "undo of flow-reset 7f3a",
    "flow orders reset into version 2 (keep position)",
    "upgrade manual__1",
)


@pytest.fixture
def checkpoint(place: Location) -> Checkpoint:
    return Checkpoint.at(plant(place, logs(range(5))))


def repository_at(checkpoint: Checkpoint, beside: str) -> Repository:
    location = checkpoint.location
    return Repository.open_or_create(Location(location.store, location.root + beside))


def lift(checkpoint: Checkpoint, repository: Repository | None = None) -> Seal | None:
    return unseal(checkpoint, for_start=True, begun=begun_by_plans(checkpoint.location, repository))


def refused(checkpoint: Checkpoint, repository: Repository | None = None) -> RefusedError:
    before = contents(checkpoint.location)
    with pytest.raises(RefusedError) as error:
        lift(checkpoint, repository)
    assert contents(checkpoint.location) == before
    return error.value


def stopped(checkpoint: Checkpoint) -> Seal:
    """As the seal that stops a query before a rewind is left, when that is not known to have stopped."""
    found = []

    def plan(_: str | None) -> None:
        found.append(checkpoint.progress().seal)

    repository = repository_at(checkpoint, "-for-the-reason")
    stop_plan_and_apply(
        checkpoint.location,
        repository,
        plan,
        lambda _plan, **_how: None,
        change="rewind",
        stop_running=True,
        rest=STOPPED,
        made_by="me",
    )
    assert found[0] is not None
    return seal(checkpoint, reason=found[0].reason, made_by="me", plan_id="7f3a")


def test_somebody_s_own_seal(checkpoint: Checkpoint) -> None:
    before = contents(checkpoint.location)
    mark = seal(checkpoint, reason="broken producer", made_by="me")
    assert lift(checkpoint) == mark
    assert contents(checkpoint.location) == before
    assert lift(checkpoint) is None


def test_a_seal_that_stopped_a_query(checkpoint: Checkpoint) -> None:
    mark = stopped(checkpoint)
    assert "it is not known whether that plan has begun" in refused(checkpoint).message
    assert lift(checkpoint, repository_at(checkpoint, "-backups")) == mark
    Repository.open_or_create(default_repository(checkpoint.location))
    mark = stopped(checkpoint)
    assert lift(checkpoint) == mark


@pytest.mark.parametrize("beside", [".rewinds", ".repairs", None])
def test_a_change_that_has_begun(checkpoint: Checkpoint, beside: str | None) -> None:
    location = checkpoint.location
    repository = repository_at(checkpoint, beside or "-backups")
    repository.keep_plan("7f3a", {})
    stopped(checkpoint)
    error = refused(checkpoint, None if beside else repository)
    assert error.message == (
        f"{location} is sealed by plan 7f3a (stopping the query for a rewind), which has begun to change files and is not "
        "finished: a query must not start from it"
    )


@pytest.mark.parametrize("reason", OF_CHANGES)
def test_a_change_of_which_nothing_is_known(checkpoint: Checkpoint, reason: str) -> None:
    """It was carried out with another repository, or keeps no plan."""
    Repository.open_or_create(default_repository(checkpoint.location))
    seal(checkpoint, reason=reason, made_by="me", plan_id="7f3a")
    error = refused(checkpoint)
    assert error.message.endswith("it is not known whether that plan has begun to change files")
    assert "--plan 7f3a" in str(error.hint)
    refused(checkpoint, repository_at(checkpoint, "-backups"))


def test_nobody_to_tell(checkpoint: Checkpoint) -> None:
    seal(checkpoint, reason="broken producer", made_by="me")
    with pytest.raises(RefusedError, match="it is not known whether"):
        unseal(checkpoint, for_start=True)


def test_a_seal_cut_off(checkpoint: Checkpoint) -> None:
    checkpoint.location.replace("offsets/5", b"airflow-ckpt: sealed by pl")
    assert "it is not known whether" in refused(checkpoint).message


def test_what_spark_would_refuse_is_not_ready(checkpoint: Checkpoint) -> None:
    """Half-way through a rewind that was begun with another repository: the state of the files is the second lock."""
    seal(checkpoint, reason="broken producer", made_by="me")
    checkpoint.location.delete("offsets/3")
    assert "a start from what is there is not safe (UNKNOWN)" in refused(checkpoint).message


def test_a_repository_that_cannot_be_opened(checkpoint: Checkpoint) -> None:
    """It may keep the plan."""
    location = checkpoint.location
    plant(Location(location.store, location.root + ".rewinds"), {"repository.json": b"{}"})
    seal(checkpoint, reason="broken producer", made_by="me")
    refused(checkpoint)


def test_nothing_but_the_seal(place: Location) -> None:
    put_seal(place, 5, plan_id="7f3a", reason="broken producer", made_by="me")
    assert "holds nothing but its seal offsets/5" in refused(Checkpoint.at(place)).message
    place.replace("metadata", metadata())
    assert lift(Checkpoint.at(place)) is not None
