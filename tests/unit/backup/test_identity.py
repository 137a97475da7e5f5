"""A stream in a repository has an identity: two streams never become one, and one stream never two silently."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.backup.copy import copy_backups
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import plan_expire
from airflow_ckpt_provider.backup.lease import lease
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.backup.stream_names import new_name, path_mark, stream_name
from airflow_ckpt_provider.backup.streams import streams_among
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import (
    BackupRunningError,
    DamagedBackupError,
    NoSuchBackupError,
    OtherStreamError,
    RepositoryError,
)
from airflow_ckpt_provider.recovery.reset.apply import apply_reset
from airflow_ckpt_provider.recovery.reset.plan import ResetPlan
from airflow_ckpt_provider.recovery.reset.planning import plan_reset
from airflow_ckpt_provider.recovery.reset.way import ResetWay
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.backups import repository
from tests.support.checkpoints import QUERY_ID, contents, plant
from tests.support.replaced_queries import OTHER, back_up, begin, files_of
from tests.support.stopped import ACCEPTED, STOPPED

THIRD = "3f1d8f3e-0b52-4a53-9a7b-000000000003"


def made_by_version_0_1(place: Location, name: str) -> None:
    """Write the manifests of a name as version 0.1.0 did, without a chain of ids."""
    repo = repository(place)
    for manifest in repo.backups(name):
        old = replace(manifest, query_ids=())
        assert b"query_ids" not in old.to_document()
        repo.location.replace(old.path, old.to_document())


def ids(place: Location, name: str) -> list[tuple[str, tuple[str, ...]]]:
    return [(m.query_id, m.lives) for m in repository(place).backups(name)]


# ---- names ------------------------------------------------------------------------------------------


def test_a_path_that_is_no_utf_8_has_a_mark() -> None:
    assert path_mark("/ck/x\udcff") != path_mark("/ck/x\udcfe")
    assert path_mark("/ck/x") == "d704e40e"


def test_two_checkpoints_with_the_same_last_segment_are_two_streams(place: Location) -> None:
    begin(place / "orders/_checkpoint")
    begin(place / "payments/_checkpoint", OTHER)
    for _ in range(2):
        assert back_up(place, "orders/_checkpoint").name == "_checkpoint"
        assert back_up(place, "payments/_checkpoint").name == "payments._checkpoint"
    assert {m.query_id for m in repository(place).backups("_checkpoint")} == {QUERY_ID}
    assert {m.query_id for m in repository(place).backups("payments._checkpoint")} == {OTHER}

    plan = plan_expire(repository(place), Policy(last=1))
    apply_expire(repository(place), plan)
    assert [m.query_id for m in repository(place).backups()] == [QUERY_ID, OTHER]


def test_an_ending_is_as_long_as_it_has_to_be(place: Location) -> None:
    paths = ["x/orders", "a/x/orders", "b/x/orders", "b/x/y orders/orders", "c/x/orders"]
    names = []
    for number, path in enumerate(paths):
        begin(place / path, str(uuid.UUID(int=number)))
        names.append(back_up(place, path).name)
    assert names == ["orders", "x.orders", "b.x.orders", "y_orders.orders", "c.x.orders"]
    assert [back_up(place, path).name for path in reversed(paths)] == names[::-1]


def test_when_all_endings_are_taken(place: Location) -> None:
    begin(place / "y orders/orders", OTHER)
    for number, name in enumerate(["orders", "y_orders.orders"]):
        begin(place / "elsewhere", str(uuid.UUID(int=number)))
        back_up(place, "elsewhere", name=name, new_life=True)
    names = set()
    while (made := back_up(place, "y orders/orders").name) not in names and len(names) < 5:
        names.add(made)
    assert len(names) == 1
    assert made.endswith("y_orders.orders")


def test_a_checkpoint_keeps_the_name_that_it_was_given(place: Location) -> None:
    begin(place / "orders")
    back_up(place, "orders", name="sales")
    assert back_up(place, "orders").name == "sales"
    begin(place / "other/orders", OTHER)
    assert back_up(place, "other/orders").name == "orders"
    assert back_up(place, "orders").name == "sales"
    assert stream_name(repository(place), place / "orders") == "sales"
    assert stream_name(repository(place), place / "other/orders") == "orders"
    assert stream_name(repository(place), place / "third/orders") == "third.orders"
    assert stream_name(None, place / "third/orders") == "orders"


def test_a_name_that_the_fleet_gave_is_kept(place: Location) -> None:
    """It leaves ``_checkpoint`` out."""
    begin(place / "orders/_checkpoint")
    back_up(place, "orders/_checkpoint", name="orders")
    assert back_up(place, "orders/_checkpoint").name == "orders"


def test_the_name_of_another_stream_whose_backup_runs_is_no_obstacle(place: Location) -> None:
    begin(place / "orders/_checkpoint")
    begin(place / "payments/_checkpoint", OTHER)
    back_up(place, "orders/_checkpoint")
    with lease(place / "backups", "_checkpoint", made_by="orders"):
        assert back_up(place, "payments/_checkpoint").name == "payments._checkpoint"
        with pytest.raises(BackupRunningError):
            back_up(place, "orders/_checkpoint")


def test_nothing_committed_since_under_a_longer_name(place: Location) -> None:
    begin(place / "orders/_checkpoint")
    begin(place / "payments/_checkpoint", OTHER)
    for path in ("orders/_checkpoint", "payments/_checkpoint"):
        first = back_up(place, path)
        again = back_up(place, path, skip_if_unchanged=True)
        assert again.unchanged
        assert (again.name, again.backup_id) == (first.name, first.backup_id)


# ---- another stream under a given name --------------------------------------------------------------


def test_another_stream_is_refused_with_the_name_to_give(place: Location) -> None:
    begin(place / "orders/_checkpoint")
    begin(place / "payments/_checkpoint", OTHER)
    first = back_up(place, "orders/_checkpoint", name="sales")
    before = {p: d for p, d in contents(place / "backups").items() if p.startswith(("backups/", "objects/"))}
    with pytest.raises(OtherStreamError) as error:
        back_up(place, "payments/_checkpoint", name="sales")
    orders, payments = (place / "orders/_checkpoint").uri, (place / "payments/_checkpoint").uri
    assert error.value.message == (
        f"the backups named 'sales' in {place / 'backups'} are of another stream: query {QUERY_ID} of {orders} "
        f"(newest: {first.backup_id}); this is query {OTHER} of {payments}"
    )
    assert error.value.hint == (
        "if it continues that stream, say so (--new-life, or new_life=True, with --name sales); for another one, give another "
        "name (--name _checkpoint, or name='_checkpoint')"
    )
    after = {p: d for p, d in contents(place / "backups").items() if p.startswith(("backups/", "objects/"))}
    assert after == before
    assert back_up(place, "orders/_checkpoint", name="sales").manifest.query_ids == (QUERY_ID,)


def test_new_life_without_a_name_is_no_word_for_another_stream(place: Location) -> None:
    begin(place / "orders/_checkpoint")
    begin(place / "payments/_checkpoint", OTHER)
    back_up(place, "orders/_checkpoint")
    assert back_up(place, "payments/_checkpoint", new_life=True).name == "payments._checkpoint"


def test_a_checkpoint_that_was_begun_anew(place: Location) -> None:
    begin(place / "orders")
    back_up(place, "orders")
    begin(place / "orders", OTHER)
    with pytest.raises(OtherStreamError) as error:
        back_up(place, "orders")
    other = new_name(["orders"], place / "orders")
    assert error.value.hint == (
        "if the stream was reset, say so (--new-life, or new_life=True); for another stream, give another name "
        f"(--name {other}, or name='{other}')"
    )
    assert back_up(place, "orders", new_life=True).manifest.lives == (QUERY_ID, OTHER)
    assert back_up(place, "orders").manifest.lives == (QUERY_ID, OTHER)
    begin(place / "orders", THIRD)
    with pytest.raises(OtherStreamError):
        back_up(place, "orders")
    assert back_up(place, "orders", new_life=True).manifest.lives == (QUERY_ID, OTHER, THIRD)
    assert repository(place).manifest().query_id == THIRD
    assert len(streams_among(repository(place).backups("orders"))) == 1


def test_an_earlier_life_that_came_back(place: Location) -> None:
    begin(place / "orders")
    back_up(place, "orders")
    begin(place / "orders", OTHER)
    back_up(place, "orders", new_life=True)
    begin(place / "orders", QUERY_ID)
    assert back_up(place, "orders").manifest.lives == (OTHER, QUERY_ID)


def test_a_moved_checkpoint_and_a_copy_need_a_word(place: Location) -> None:
    begin(place / "old/orders")
    begin(place / "new/orders")
    back_up(place, "old/orders")
    for options in ({}, {"name": "orders"}):
        with pytest.raises(OtherStreamError) as error:
            back_up(place, "new/orders", **options)
        assert error.value.hint == (
            "if the checkpoint was moved here, say so (--new-life, or new_life=True, with --name orders); for a copy of it, give "
            "another name (--name new.orders, or name='new.orders')"
        )
    moved = back_up(place, "new/orders", name="orders", new_life=True)
    assert moved.manifest.checkpoint == (place / "new/orders").uri
    assert back_up(place, "new/orders").name == "orders"
    with pytest.raises(OtherStreamError):
        back_up(place, "old/orders", name="orders")


def test_a_recorded_restore_explains_another_place(place: Location) -> None:
    begin(place / "old/orders")
    first, second = back_up(place, "old/orders"), back_up(place, "old/orders")
    repo = repository(place)
    apply_restore(plan_restore(repo, first.manifest, place / "first/orders"))
    apply_restore(plan_restore(repo, second.manifest, place / "new/orders"))
    with pytest.raises(OtherStreamError):
        back_up(place, "first/orders", name="orders")  # the stream continued after that backup
    with pytest.raises(OtherStreamError):
        back_up(place, "new/orders")  # a copy beside has the same ending
    assert back_up(place, "new/orders", name="orders").manifest.lives == (QUERY_ID,)
    with pytest.raises(OtherStreamError):
        back_up(place, "old/orders", name="orders")


def test_a_restore_that_was_taken_back_explains_nothing(place: Location) -> None:
    begin(place / "old/orders")
    made = back_up(place, "old/orders")
    begin(place / "new/orders", OTHER)
    plan = plan_restore(repository(place), made.manifest, place / "new/orders", replace=True)
    apply_restore(plan, accept=ACCEPTED, rest=STOPPED)
    undo(place / "new/orders", repository(place), rest=STOPPED)
    begin(place / "new/orders", QUERY_ID)
    with pytest.raises(OtherStreamError):
        back_up(place, "new/orders", name="orders")


@pytest.mark.parametrize("flow", ["db/orders/flow", "c/db/orders/flow"])
def test_the_next_version_of_a_flow(place: Location, flow: str) -> None:
    """A full refresh makes it, with a query id of its own. Anything with less than four levels is no flow."""
    versions = [begin(place / f"storage/_checkpoints/{flow}/{n}", str(uuid.UUID(int=n))) for n in (0, 1, 2)]
    path = [f"storage/_checkpoints/{flow}/{n}" for n in (0, 1, 2)]
    back_up(place, path[1], name="orders")
    if flow.count("/") == 2:
        with pytest.raises(OtherStreamError):
            back_up(place, path[2], name="orders")
        return
    assert back_up(place, path[2], name="orders").manifest.lives == (str(uuid.UUID(int=1)), str(uuid.UUID(int=2)))
    with pytest.raises(OtherStreamError):
        back_up(place, path[0], name="orders")
    assert back_up(place, path[1], name="orders").manifest.lives == (str(uuid.UUID(int=2)), str(uuid.UUID(int=1)))
    assert len(versions) == 3


# ---- what the package itself did --------------------------------------------------------------------


def reset(place: Location, way: ResetWay, kept: Repository) -> ResetPlan:
    plan = plan_reset(place / "orders", way, repository=kept.location)
    apply_reset(plan, place / "orders", kept, accept=ACCEPTED, rest=STOPPED)
    return plan


@pytest.mark.parametrize("kept", ["backups", "orders.rewinds"])
def test_a_new_id_that_a_reset_gave_needs_no_word(place: Location, kept: str) -> None:
    begin(place / "orders")
    back_up(place, "orders")
    held = Repository.open_or_create(place / kept)
    assert default_repository(place / "orders") == place / "orders.rewinds"
    second = reset(place, ResetWay.NEW_QUERY_ID, held).new_query_id
    third = reset(place, ResetWay.NEW_QUERY_ID, held).new_query_id
    assert back_up(place, "orders").manifest.lives == (QUERY_ID, third)
    undo(place / "orders", held, rest=STOPPED)
    assert back_up(place, "orders").manifest.lives == (QUERY_ID, third, second)


@pytest.mark.parametrize("kept", ["backups", "orders.rewinds"])
def test_the_id_that_spark_makes_after_a_reset_needs_no_word(place: Location, kept: str) -> None:
    begin(place / "orders")
    back_up(place, "orders")
    held = Repository.open_or_create(place / kept)
    reset(place, ResetWay.FROM_SCRATCH, held)
    plant(place / "orders", files_of(OTHER, 1))
    assert back_up(place, "orders").manifest.lives == (QUERY_ID, OTHER)
    begin(place / "orders", THIRD)
    with pytest.raises(OtherStreamError):
        back_up(place, "orders")


def test_a_reset_of_another_checkpoint_explains_nothing(place: Location) -> None:
    begin(place / "orders")
    back_up(place, "orders")
    begin(place / "copy")
    plan = plan_reset(place / "copy", ResetWay.FROM_SCRATCH, repository=place / "backups")
    apply_reset(plan, place / "copy", repository(place), accept=ACCEPTED, rest=STOPPED)
    begin(place / "orders", OTHER)
    with pytest.raises(OtherStreamError):
        back_up(place, "orders")


def test_a_reset_that_was_taken_back_explains_nothing(place: Location) -> None:
    begin(place / "orders")
    back_up(place, "orders")
    reset(place, ResetWay.FROM_SCRATCH, repository(place))
    undo(place / "orders", repository(place), rest=STOPPED)
    begin(place / "orders", OTHER)
    with pytest.raises(OtherStreamError):
        back_up(place, "orders")


def test_a_damaged_plan_is_named(place: Location) -> None:
    begin(place / "orders")
    back_up(place, "orders")
    plan = reset(place, ResetWay.NEW_QUERY_ID, repository(place))
    path = f"plans/{plan.plan_id}.json"
    document = json.loads((place / "backups").read(path))
    for damaged in (
        b"{",
        json.dumps(document | {"newest": "x"}).encode(),
        json.dumps(document | {"start": "x"}).encode(),
    ):
        (place / "backups").replace(path, damaged)
        with pytest.raises(RepositoryError, match=path):
            back_up(place, "orders")
    assert back_up(place, "orders", new_life=True).manifest.lives == (QUERY_ID, plan.new_query_id)


# ---- repositories of earlier versions ---------------------------------------------------------------


def test_an_old_repository_keeps_its_names(place: Location) -> None:
    begin(place / "orders/_checkpoint")
    back_up(place, "orders/_checkpoint")
    made_by_version_0_1(place, "_checkpoint")
    assert repository(place).manifest().query_ids == ()
    made = back_up(place, "orders/_checkpoint")
    assert (made.name, made.manifest.lives) == ("_checkpoint", (QUERY_ID,))


def mixed(place: Location) -> None:
    """What version 0.1.0 made of two streams with one name."""
    for path, query_id in (("orders/_checkpoint", QUERY_ID), ("payments/_checkpoint", OTHER)):
        begin(place / path, query_id)
    for path in ("orders/_checkpoint", "payments/_checkpoint", "orders/_checkpoint", "payments/_checkpoint"):
        back_up(place, path, name="_checkpoint", new_life=True)
    made_by_version_0_1(place, "_checkpoint")


def test_latest_of_an_old_name_of_two_streams_is_refused(place: Location) -> None:
    mixed(place)
    repo = repository(place)
    newest = [m.backup_id for m in repo.backups("_checkpoint")][:1:-1]
    with pytest.raises(NoSuchBackupError) as error:
        repo.manifest(name="_checkpoint")
    assert error.value.message == (
        f"the backups named '_checkpoint' in {repo.location} are of 2 streams: "
        f"query {OTHER} of {(place / 'payments/_checkpoint').uri} (newest: {newest[0]}); "
        f"query {QUERY_ID} of {(place / 'orders/_checkpoint').uri} (newest: {newest[1]})"
    )
    assert error.value.hint == "give the id of the backup, and back each stream up under a name of its own"
    assert repo.manifest(newest[1], name="_checkpoint").query_id == QUERY_ID


def test_streams_with_one_old_name_come_apart(place: Location) -> None:
    mixed(place)
    for _ in range(2):
        assert back_up(place, "orders/_checkpoint").name == "orders._checkpoint"
        assert back_up(place, "payments/_checkpoint").name == "_checkpoint"
    assert repository(place).manifest(name="_checkpoint").query_id == OTHER
    assert repository(place).manifest(name="orders._checkpoint").query_id == QUERY_ID


def test_an_expire_keeps_to_one_stream(place: Location) -> None:
    mixed(place)
    plan = plan_expire(repository(place), Policy(last=1))
    assert sorted(d.backup.lives for d in plan.kept) == [(QUERY_ID,), (OTHER,)]
    assert sorted(d.backup.lives for d in plan.going) == [(QUERY_ID,), (OTHER,)]
    assert plan.findings == (
        f"the backups named _checkpoint are of 2 streams, and the rules are for each: query {OTHER} of "
        f"{(place / 'payments/_checkpoint').uri}; query {QUERY_ID} of {(place / 'orders/_checkpoint').uri}",
    )


def test_an_expire_says_which_life_ends(place: Location) -> None:
    begin(place / "orders")
    back_up(place, "orders")
    last = back_up(place, "orders")
    begin(place / "orders", OTHER)
    back_up(place, "orders", new_life=True)
    assert not plan_expire(repository(place), Policy(last=2)).findings
    plan = plan_expire(repository(place), Policy(last=1))
    assert plan.findings == (
        f"no backup of query {QUERY_ID} of {(place / 'orders').uri} stays: {last.backup_id} of orders is the last",
    )
    assert [d.reasons for d in plan.going] == [
        ("no rule keeps it", f"the last of query {QUERY_ID}"),
        ("no rule keeps it",),
    ]
    assert f"the last of query {QUERY_ID}" in plan.to_markdown()


def test_streams_among_what_is_connected() -> None:
    def backup(place: str, *lives: str) -> Manifest:
        return replace(_MANIFEST, checkpoint=place, query_id=lives[-1], query_ids=lives)

    a, b, c = backup("/a", "1"), backup("/b", "2"), backup("/c", "3")
    assert streams_among([a, b, c]) == [[a], [b], [c]]
    moved, reborn, chained = backup("/b", "1"), backup("/a", "3"), backup("/d", "1", "4")
    assert streams_among([a, c, moved]) == [[a, moved], [c]]
    assert streams_among([c, a, reborn]) == [[c, a, reborn]]
    assert streams_among([b, chained, a]) == [[b], [chained, a]]
    assert streams_among([a, b, moved]) == [[a, b, moved]]
    assert streams_among([]) == []


# ---- copies and damage ------------------------------------------------------------------------------


def test_a_copy_onto_another_stream_is_refused(place: Location) -> None:
    begin(place / "orders")
    begin(place / "b/orders", OTHER, newest=3)
    target = Repository.open_or_create(place / "second")
    theirs = create_backup(Checkpoint.at(place / "b/orders"), target).manifest
    ours = back_up(place, "orders").manifest
    with pytest.raises(
        OtherStreamError, match=f"of another stream: query {OTHER} of {(place / 'b/orders').uri}"
    ) as error:
        copy_backups(repository(place), target, [ours])
    assert error.value.hint == "copy into another repository"
    assert target.backups() == [theirs]


def test_a_copy_of_an_old_name_of_two_streams_is_a_copy(place: Location) -> None:
    mixed(place)
    target = Repository.open_or_create(place / "second")
    manifests = repository(place).backups()
    copy_backups(repository(place), target, manifests)
    assert [m.backup_id for m in target.backups()] == [m.backup_id for m in manifests]


_MANIFEST = Manifest(
    backup_id="20261121T083000Z-b000223",
    name="orders",
    created=datetime(2026, 11, 21, 8, 30, tzinfo=UTC),
    checkpoint="/lake/orders",
    query_id=QUERY_ID,
    batch_id=223,
    restorable=(223,),
    files=(),
)


@pytest.mark.parametrize("lives", [(OTHER,), (QUERY_ID, OTHER), (QUERY_ID, QUERY_ID), ("", QUERY_ID), (1, QUERY_ID)])
def test_a_forged_chain_is_refused_by_name(place: Location, lives: tuple[Any, ...]) -> None:
    begin(place / "orders")
    made = back_up(place, "orders").manifest
    forged = replace(made, query_ids=lives)
    repo = repository(place)
    repo.location.replace(made.path, forged.to_document())
    with pytest.raises(DamagedBackupError, match=f"^manifest {made.path} is damaged"):
        repo.manifest()


def test_the_newest_that_can_be_read_is_asked(place: Location) -> None:
    begin(place / "orders")
    back_up(place, "orders")
    damaged = back_up(place, "orders").manifest
    (place / "backups").replace(damaged.path, b"{")
    begin(place / "orders", OTHER)
    with pytest.raises(OtherStreamError):
        back_up(place, "orders")


def test_the_same_place_by_another_path(tmp_path: Path) -> None:
    disk = open_location(str(tmp_path))
    begin(disk / "lake/orders")
    (tmp_path / "link").symlink_to(tmp_path / "lake")
    assert back_up(disk, "lake/orders").name == "orders"
    assert back_up(disk, "link/orders").manifest.lives == (QUERY_ID,)
