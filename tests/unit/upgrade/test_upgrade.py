"""The beginning, the fence and the way back of an upgrade: as it was, whatever new code has done, stopped after every write."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.sealing import seal, unseal
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError, RepositoryError, SealedError
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.upgrade.drained import tags_of
from airflow_ckpt_provider.upgrade.fence import begin, fence, release
from airflow_ckpt_provider.upgrade.going_back import Back, WayBack, begin_way_back, go_back_all
from airflow_ckpt_provider.upgrade.outcome import outcome_of
from airflow_ckpt_provider.upgrade.page import page_of
from airflow_ckpt_provider.upgrade.record import (
    Event,
    Upgrade,
    end_upgrade,
    is_needed,
    newest_upgrade,
    note,
    upgrade_of,
)
from tests.support.backups import stream
from tests.support.checkpoints import QUERY_ID, contents, plant
from tests.support.delta_batches import append, batches_in, delta_table
from tests.support.restores import loud_seal
from tests.support.stopped import STOPPED
from tests.support.upgrade_records import RUN, begun
from tests.support.watched_stores import Killed, lives, watched

DRAINED = 3
NEW_ID = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def orders(place: Location) -> Location:
    return plant(place / "orders", stream(DRAINED))


@pytest.fixture
def table(tmp_path: Path) -> Location:
    return delta_table(tmp_path / "table", range(DRAINED + 1))


def backed_up(orders: Location, kept: Repository) -> dict[str, bytes]:
    """What the backup of the drained checkpoint holds."""
    return {entry.path: kept.location.read(entry.object) for entry in kept.manifest(name="orders").files_of(DRAINED)}


def released(orders: Location, kept: Repository, run: str = RUN, *, lift: bool = True) -> Upgrade:
    checkpoint, upgrade = Checkpoint.at(orders), begun(kept, run)
    fence(checkpoint, kept, upgrade)
    manifest = create_backup(checkpoint, kept, name="orders").manifest
    upgrade = upgrade_of(kept, "orders", run)
    return release(checkpoint, kept, upgrade, backup_id=manifest.backup_id, lift=lift)


def new_code_runs(orders: Location, table: Location, *, rewrites: bool = True) -> None:
    """Two batches of the new code, the last one half-done; it leaves another schema behind, as an upgrade may."""
    for path, data in stream(DRAINED + 2).items():
        if path not in orders.walk() and path != f"commits/{DRAINED + 2}":
            orders.replace(path, data)
    if rewrites:
        orders.replace(f"commits/{DRAINED}", b'v1\n{"nextBatchWatermarkMs":99}')
        orders.replace("state/0/_metadata/schema", b"another")
    append(table.uri, DRAINED + 1)
    append(table.uri, DRAINED + 2)


def taken_back(
    orders: Location, kept: Repository, table: Location | None, run: str = RUN, *, accept: tuple[str, ...] = ()
) -> WayBack:
    fence(Checkpoint.at(orders), kept, upgrade_of(kept, "orders", run))
    return way_back(orders, kept, table, run, accept=accept)


def way_back(
    orders: Location, kept: Repository, table: Location | None, run: str = RUN, *, accept: tuple[str, ...] = ()
) -> WayBack:
    back = Back(
        Checkpoint.at(orders),
        kept,
        upgrade_of(kept, "orders", run),
        sink=Sink(place=table) if table else Sink(kind="foreachBatch"),
        sink_policy=SinkPolicy.ROLLBACK if table else SinkPolicy.ACCEPT,
    )
    return go_back_all([back], accept=accept, rest=STOPPED)[0]


class TestTheBeginning:
    def test_nobody_else_is_at_work(self, orders: Location, kept: Repository) -> None:
        checkpoint = Checkpoint.at(orders)
        seal(checkpoint, reason="maintenance", plan_id="other")
        with pytest.raises(SealedError, match="sealed by plan other"):
            begin(checkpoint, kept, "orders", RUN)
        assert newest_upgrade(kept, "orders") is None

    def test_begun_again_under_its_own_seal(self, orders: Location, kept: Repository) -> None:
        """The whole run is cleared while it is unfinished."""
        checkpoint = Checkpoint.at(orders)
        fence(checkpoint, kept, begin(checkpoint, kept, "orders", RUN))
        assert begin(checkpoint, kept, "orders", RUN).has(Event.SEALED)

    def test_one_checkpoint_has_one_upgrade_under_whatever_name(self, orders: Location, kept: Repository) -> None:
        first = begin(Checkpoint.at(orders), kept, "orders", RUN)
        with pytest.raises(
            RefusedError, match=r"orders, under the name orders, is being upgraded by upgrade_orders/run 1"
        ):
            begin(Checkpoint.at(orders), kept, "orders_eu", "other/run")
        assert newest_upgrade(kept, "orders_eu") is None
        end_upgrade(kept, first, kind="kept", made_by="", reason="")
        begin(Checkpoint.at(orders), kept, "orders_eu", "other/run")

    def test_under_two_names_at_one_moment(self, orders: Location, kept: Repository) -> None:
        """Both have seen that nobody upgrades; the other one writes first, and this one is as if it had not begun."""

        def meddle(operation: str, path: str) -> None:
            if operation == "create" and "upgrades/orders_eu/" in path and newest_upgrade(kept, "orders") is None:
                begin(Checkpoint.at(orders), kept, "orders", RUN)

        slow, _ = watched(kept.location, meddle)
        with pytest.raises(RefusedError, match="under the name orders, is being upgraded"):
            begin(Checkpoint.at(orders), Repository.open(slow), "orders_eu", "other/run")
        later = newest_upgrade(kept, "orders_eu")
        assert later
        assert later.fact(Event.ENDED, "kind") == "untouched"
        assert upgrade_of(kept, "orders", RUN).is_open

    @pytest.mark.parametrize("is_open", [True, False])
    def test_an_open_one_of_an_older_release_under_another_name(
        self, orders: Location, kept: Repository, is_open: bool
    ) -> None:
        """It did not note its checkpoint; its backups have it."""
        create_backup(Checkpoint.at(orders), kept, name="orders")
        upgrade = begun(kept)
        if not is_open:
            note(kept, upgrade, Event.ENDED)
        with pytest.raises(RefusedError, match="under the name orders") if is_open else nullcontext():
            begin(Checkpoint.at(orders), kept, "orders_eu", "other/run")

    def test_a_damaged_record_of_another_stream(self, orders: Location, kept: Repository, place: Location) -> None:
        """It is in the way where it may be of this checkpoint."""
        kept.location.create("upgrades/other/000001.json", b"{")
        with pytest.raises(RepositoryError, match=r"upgrades/other/000001\.json cannot be read"):
            begin(Checkpoint.at(orders), kept, "orders", RUN)
        create_backup(Checkpoint.at(plant(place / "other", stream(1))), kept, name="other")
        assert begin(Checkpoint.at(orders), kept, "orders", RUN).is_open


def test_the_page_has_all_that_is_known() -> None:
    begun = {"name": "orders", "mode": "savepoint", "version": "2.7", "skipped": ["checks: nobody looks"]}
    page = page_of(begun, ["### Sources"], {"verdict": "SAFE", "markdown": "### Rehearsal"}, ["stop", "start"])
    assert page.splitlines() == [
        *("### Upgrade of orders to 2.7, savepoint", "", "* left out: checks: nobody looks", ""),
        *("### Sources", "", "### Rehearsal", "", "### Then", "", "1. stop", "2. start"),
    ]
    assert "Rehearsal: **UNKNOWN**" in page_of(begun, [], {"verdict": "UNKNOWN"}, [])


class TestTheFence:
    def test_it_is_put_once(self, orders: Location, kept: Repository) -> None:
        checkpoint, upgrade = Checkpoint.at(orders), begun(kept)
        mark = fence(checkpoint, kept, upgrade)
        assert fence(checkpoint, kept, upgrade_of(kept, "orders", RUN)).plan_id == mark.plan_id
        assert loud_seal(orders)

    @pytest.mark.parametrize("ended", [True, False])
    @pytest.mark.parametrize("batches", [0, 2])
    def test_a_task_that_wakes_after_the_release_leaves_the_new_code_alone(
        self, orders: Location, kept: Repository, batches: int, ended: bool
    ) -> None:
        """It was suspended right before its request, whose number may be free still."""
        checkpoint, upgrade = Checkpoint.at(orders), begun(kept)
        asleep = []

        def release_meanwhile(operation: str, path: str) -> None:
            if operation == "create" and path.startswith(f"{orders.root}/offsets/") and not asleep:
                asleep.append(path)
                fence(checkpoint, kept, upgrade_of(kept, "orders", RUN))
                backup_id = create_backup(checkpoint, kept, name="orders").manifest.backup_id
                released = release(checkpoint, kept, upgrade_of(kept, "orders", RUN), backup_id=backup_id)
                plant(orders, stream(DRAINED + batches))
                if ended:
                    end_upgrade(kept, released, kind="kept", made_by="", reason="")

        with pytest.raises(RefusedError, match="has ended" if ended else "another attempt has continued"):
            fence(Checkpoint.at(watched(orders, release_meanwhile)[0]), kept, upgrade)
        assert asleep
        assert checkpoint.progress().seal is None
        assert not loud_seal(orders)

    def test_somebody_elses_stays(self, orders: Location, kept: Repository) -> None:
        seal(Checkpoint.at(orders), reason="maintenance", plan_id="other")
        with pytest.raises(SealedError, match="sealed by plan other"):
            fence(Checkpoint.at(orders), kept, begun(kept))
        assert not is_needed(upgrade_of(kept, "orders", RUN))

    def test_one_that_was_lifted_by_hand(self, orders: Location, kept: Repository) -> None:
        """Somebody may have started the stream: what was backed up is not what is there."""
        upgrade = begun(kept)
        mark = fence(Checkpoint.at(orders), kept, upgrade)
        backup_id = create_backup(Checkpoint.at(orders), kept, name="orders").manifest.backup_id
        unseal(Checkpoint.at(orders), plan_id=mark.plan_id)
        with pytest.raises(RefusedError, match="is not sealed any more"):
            release(Checkpoint.at(orders), kept, upgrade_of(kept, "orders", RUN), backup_id=backup_id)

    def test_nothing_is_released_under_somebody_elses(self, orders: Location, kept: Repository) -> None:
        checkpoint = Checkpoint.at(orders)
        mark = fence(checkpoint, kept, begun(kept))
        backup_id = create_backup(checkpoint, kept, name="orders").manifest.backup_id
        unseal(checkpoint, plan_id=mark.plan_id)
        seal(checkpoint, reason="maintenance", plan_id="other")
        with pytest.raises(SealedError, match="sealed by plan other"):
            release(checkpoint, kept, upgrade_of(kept, "orders", RUN), backup_id=backup_id)
        assert not upgrade_of(kept, "orders", RUN).has(Event.RELEASED)

    def test_a_backup_of_another_batch(self, orders: Location, kept: Repository) -> None:
        """Of a task that was not run again."""
        old = create_backup(Checkpoint.at(orders), kept, name="orders").manifest.backup_id
        plant(orders, stream(DRAINED + 1))
        fence(Checkpoint.at(orders), kept, begun(kept))
        with pytest.raises(RefusedError, match=r"is of batch 3, and .* is at 4"):
            release(Checkpoint.at(orders), kept, upgrade_of(kept, "orders", RUN), backup_id=old)

    def test_sealed_again_after_it_was_let_start_it_is_let_start_again(
        self, orders: Location, kept: Repository, table: Location
    ) -> None:
        """Its run was cleared from the stop on. The way back still goes to where the old code was drained."""
        released(orders, kept)
        for path, data in stream(DRAINED + 2).items():
            if path not in orders.walk():
                orders.replace(path, data)
        append(table.uri, DRAINED + 1)
        append(table.uri, DRAINED + 2)
        checkpoint = Checkpoint.at(orders)
        fence(checkpoint, kept, upgrade_of(kept, "orders", RUN))
        later = create_backup(checkpoint, kept, name="orders").manifest
        upgrade = release(checkpoint, kept, upgrade_of(kept, "orders", RUN), backup_id=later.backup_id)
        assert inspect_target(orders).seal is None
        assert upgrade.fact(Event.RELEASED, "batch_id") == DRAINED
        taken_back(orders, kept, table)
        assert Checkpoint.at(orders).progress().latest_committed == DRAINED
        assert batches_in(table) == [batch for batch in range(DRAINED + 1) for _ in range(2)]

    def test_after_the_way_back_new_code_is_not_let_start(
        self, orders: Location, kept: Repository, table: Location
    ) -> None:
        upgrade = released(orders, kept)
        taken_back(orders, kept, table)
        with pytest.raises(RefusedError, match="was rolled back"):
            release(
                Checkpoint.at(orders),
                kept,
                upgrade_of(kept, "orders", RUN),
                backup_id=upgrade.fact(Event.RELEASED, "backup_id"),
            )


class TestTheWayBack:
    def test_nothing_was_started(self, orders: Location, kept: Repository, table: Location) -> None:
        before = contents(orders)
        fence(Checkpoint.at(orders), kept, begun(kept))
        assert taken_back(orders, kept, table) == WayBack(False, None, None)
        assert contents(orders) == before
        assert outcome_of(upgrade_of(kept, "orders", RUN), Checkpoint.at(orders)).kind == "taken_back"

    def test_what_the_old_code_left_undone_stays(self, place: Location, kept: Repository) -> None:
        """It was stopped in the middle of a batch, and the new code never started: the old one ends that batch."""
        orders = plant(place / "orders", stream(DRAINED))
        orders.delete(f"commits/{DRAINED}")
        before = contents(orders)
        fence(Checkpoint.at(orders), kept, begun(kept))
        taken_back(orders, kept, None)
        assert contents(orders) == before

    @pytest.mark.parametrize("rewrites", [False, True])
    def test_the_new_code_has_run(self, orders: Location, kept: Repository, table: Location, rewrites: bool) -> None:
        released(orders, kept)
        new_code_runs(orders, table, rewrites=rewrites)
        way = taken_back(orders, kept, table)
        assert (way.restored, way.batch_id) == (True, DRAINED)
        assert contents(orders) == backed_up(orders, kept)
        assert batches_in(table) == [b for b in range(DRAINED + 1) for _ in range(2)]
        assert outcome_of(upgrade_of(kept, "orders", RUN), Checkpoint.at(orders)).kind == "taken_back"

    def test_the_new_code_began_anew(self, orders: Location, kept: Repository, table: Location) -> None:
        """A new checkpoint, under a new query id, whose batches count from nought."""
        upgrade = released(orders, kept, lift=False)
        for path in orders.walk():
            orders.delete(path)
        plant(orders, stream(1))
        orders.replace("metadata", f'{{"id":"{NEW_ID}"}}'.encode())
        for batch in (0, 1):
            append(table.uri, batch, app_id=NEW_ID, value=50)
        assert upgrade.fact(Event.RELEASED, "query_id") == QUERY_ID
        taken_back(orders, kept, table)
        assert contents(orders) == backed_up(orders, kept)
        assert batches_in(table) == [b for b in range(DRAINED + 1) for _ in range(2)]

    def test_the_new_code_left_nothing(self, orders: Location, kept: Repository, table: Location) -> None:
        """It died before it had written its first file into the new, empty place."""
        released(orders, kept, lift=False)
        for path in orders.walk():
            orders.delete(path)
        taken_back(orders, kept, table)
        assert contents(orders) == backed_up(orders, kept)

    def test_rows_of_others(self, orders: Location, kept: Repository, table: Location) -> None:
        released(orders, kept)
        new_code_runs(orders, table)
        append(table.uri, 77, app_id=None)
        with pytest.raises(RefusedError, match="others have written"):
            taken_back(orders, kept, table)
        assert loud_seal(orders)
        upgrade = upgrade_of(kept, "orders", RUN)
        outcome = outcome_of(upgrade, Checkpoint.at(orders))
        assert outcome.kind == "half_way"
        assert outcome.commands[0].startswith(f"airflow-ckpt unseal {orders} --plan ")
        taken_back(orders, kept, table, accept=("foreign_loss",))
        assert batches_in(table) == [b for b in range(DRAINED + 1) for _ in range(2)]

    @pytest.mark.parametrize("is_released", [False, True])
    def test_a_colleague_has_sealed_it_meanwhile(
        self, orders: Location, kept: Repository, table: Location, is_released: bool
    ) -> None:
        """Our seal was lifted by hand and his is there: nothing is put back under it, and it stays."""
        checkpoint = Checkpoint.at(orders)
        if is_released:
            released(orders, kept)
            new_code_runs(orders, table)
            orders.replace(f"commits/{DRAINED + 2}", b'v1\n{"nextBatchWatermarkMs":0}')
        mark = fence(checkpoint, kept, begun(kept))
        unseal(checkpoint, plan_id=mark.plan_id)
        seal(checkpoint, reason="maintenance", plan_id="other")
        before, rows = contents(orders), batches_in(table)
        with pytest.raises(SealedError, match="sealed by plan other"):
            way_back(orders, kept, table)
        assert (contents(orders), batches_in(table)) == (before, rows)
        assert not upgrade_of(kept, "orders", RUN).has(Event.BACK)

    def test_it_is_done_once(self, orders: Location, kept: Repository, table: Location) -> None:
        released(orders, kept)
        new_code_runs(orders, table)
        taken_back(orders, kept, table)
        plant(orders, stream(DRAINED + 1))  # the old code continues
        after = contents(orders)
        assert way_back(orders, kept, table).restored
        assert contents(orders) == after

    def test_the_seal_of_the_way_forward_was_never_lifted(
        self, orders: Location, kept: Repository, table: Location
    ) -> None:
        """Killed between the note and the lifting; and again after the way back, before that could be noted."""
        released(orders, kept, lift=False)
        append(table.uri, DRAINED + 1)
        noted, _ = watched(kept.location, _dies_noting_the_way_back)
        with pytest.raises(Killed):
            taken_back(orders, Repository.open(noted), table)
        assert loud_seal(orders)  # no Spark starts before it is noted
        assert way_back(orders, kept, table).restored
        assert Checkpoint.at(orders).progress().seal is None
        assert batches_in(table) == [b for b in range(DRAINED + 1) for _ in range(2)]

    def test_the_seal_was_lifted_by_hand(self, orders: Location, kept: Repository, table: Location) -> None:
        released(orders, kept)
        new_code_runs(orders, table)
        before = contents(orders)
        with pytest.raises(RefusedError, match="not sealed any more"):
            way_back(orders, kept, table)
        assert contents(orders) == before

    @pytest.mark.parametrize("is_backed_up", [True, False])
    @pytest.mark.parametrize("way", ["lifted by hand", "never sealed", "note lost", "older release"])
    def test_the_new_code_ran_though_nobody_released_it(
        self, orders: Location, kept: Repository, table: Location, way: str, is_backed_up: bool
    ) -> None:
        """A cluster manager has started it: what it wrote is put back, or stays sealed."""
        unreleased(orders, kept, way, is_backed_up=is_backed_up)
        new_code_runs(orders, table)
        for backup_id in kept.backup_ids("orders"):
            with pytest.raises(RefusedError, match="is not sealed any more"):
                release(Checkpoint.at(orders), kept, upgrade_of(kept, "orders", RUN), backup_id=backup_id)
        begin_way_back([(kept, upgrade_of(kept, "orders", RUN))])
        if not is_backed_up:
            found, rows = contents(orders), batches_in(table)
            unknown = way in ("never sealed", "older release")
            said = "is UNKNOWN" if unknown else f"somebody has continued it since upgrade {RUN} sealed it"
            with pytest.raises(RefusedError, match=rf"orders is at batch {DRAINED + 2}.*{said}"):
                taken_back(orders, kept, table)
            assert loud_seal(orders)
            assert (visible(orders), batches_in(table)) == (found, rows)
            assert outcome_of(upgrade_of(kept, "orders", RUN), Checkpoint.at(orders)).kind == "half_way"
            return
        way_taken = taken_back(orders, kept, table)
        assert (way_taken.restored, way_taken.batch_id) == (True, DRAINED)
        assert contents(orders) == backed_up(orders, kept)
        assert batches_in(table) == [b for b in range(DRAINED + 1) for _ in range(2)]
        outcome = outcome_of(upgrade_of(kept, "orders", RUN), Checkpoint.at(orders))
        assert outcome.kind == "taken_back"
        assert f"were put back to batch {DRAINED} (rewind " in outcome.message
        assert kept.backup_ids("orders")[0] in outcome.message

    @pytest.mark.parametrize("way", ["lifted by hand", "never sealed", "older release"])
    def test_nobody_ran_though_the_seal_was_gone(
        self, orders: Location, kept: Repository, table: Location, way: str
    ) -> None:
        unreleased(orders, kept, way, is_backed_up=True)
        before = contents(orders)
        begin_way_back([(kept, upgrade_of(kept, "orders", RUN))])
        assert taken_back(orders, kept, table) == WayBack(False, None, None)
        assert contents(orders) == before

    @pytest.mark.parametrize("purged", [False, True])
    def test_the_old_code_ended_the_batch_in_which_it_met_the_seal(
        self, place: Location, kept: Repository, purged: bool
    ) -> None:
        """With `minBatchesToRetain=1` the commit that was the newest is gone by then."""
        orders, whole = plant(place / "orders", stream(DRAINED)), stream(DRAINED)
        orders.delete(f"commits/{DRAINED}")
        fence(Checkpoint.at(orders), kept, begun(kept))
        orders.create(f"commits/{DRAINED}", whole[f"commits/{DRAINED}"])
        if purged:
            orders.delete(f"commits/{DRAINED - 1}")
        assert taken_back(orders, kept, None) == WayBack(False, None, None)

    def test_another_checkpoint_has_the_numbers_of_the_drained_one(
        self, orders: Location, kept: Repository, table: Location
    ) -> None:
        """The new code began anew, and has come as far."""
        unreleased(orders, kept, "lifted by hand", is_backed_up=False)
        orders.delete(f"commits/{DRAINED}")
        orders.create(f"commits/{DRAINED}", b'v1\n{"nextBatchWatermarkMs":99}')
        with pytest.raises(RefusedError, match="somebody has continued it"):
            taken_back(orders, kept, table)

    @pytest.mark.slow
    def test_stopped_anywhere(self, place: Location, tmp_path: Path) -> None:
        """After every single write: no Spark starts, or nothing has begun, or all is done; the same again ends it."""
        for life in lives(range(200), least=15):
            orders = plant(place / f"k{life.writes}" / "orders", stream(DRAINED))
            table = delta_table(tmp_path / f"t{life.writes}", range(2, DRAINED + 1))
            kept = Repository.open_or_create(place / f"k{life.writes}" / "backups")
            released(orders, kept)
            before = backed_up(orders, kept)
            new_code_runs(orders, table)
            begun_with = contents(orders)
            dying, _ = watched(orders, life.before)
            held, _ = watched(kept.location, life.before)
            with suppress(Killed):
                taken_back(dying, Repository.open(held), table)
            if not life.dead:
                continue
            assert loud_seal(orders) or contents(orders) in (begun_with, before), f"after write {life.writes}"
            taken_back_unless_done(orders, kept, table)
            assert contents(orders) == before
            assert batches_in(table) == [2, 2, 3, 3]


def unreleased(orders: Location, kept: Repository, way: str, *, is_backed_up: bool) -> None:
    """An upgrade as far as its deploy, whose checkpoint has lost its seal.

    :param way: how it has come to that.
    :param is_backed_up: its final backup was taken.
    """
    checkpoint, upgrade = Checkpoint.at(orders), note(kept, begun(kept), Event.STOPPING)
    if way == "older release":
        mark = seal(checkpoint, reason="upgrade", plan_id=upgrade.plan_id(back=False))
        note(kept, upgrade, Event.SEALED, plan_id=mark.plan_id)
    elif way != "never sealed":
        fence(checkpoint, kept, upgrade)
    if is_backed_up or way == "note lost":
        made = create_backup(checkpoint, kept, name="orders", tags=tags_of(RUN) if is_backed_up else {})
        if way == "note lost":
            number = release(checkpoint, kept, upgrade_of(kept, "orders", RUN), backup_id=made.backup_id).number
            kept.location.delete(f"upgrades/orders/{number:06d}.json")
    if way in ("lifted by hand", "older release"):
        unseal(checkpoint, plan_id=upgrade.plan_id(back=False))


def visible(orders: Location) -> dict[str, bytes]:
    """The files, the seal left out."""
    return {path: orders.read(path) for path in inspect_target(orders).visible}


def _dies_noting_the_way_back(operation: str, path: str) -> None:
    if operation == "create" and path.endswith("upgrades/orders/000005.json"):
        raise Killed(path)


def taken_back_unless_done(orders: Location, kept: Repository, table: Location) -> None:
    """As the tasks do when they are run again: the seal has its own, which is not run once it was successful."""
    upgrade = upgrade_of(kept, "orders", RUN)
    checkpoint = Checkpoint.at(orders)
    if not upgrade.has(Event.BACK) and checkpoint.progress().seal is None and not _was_sealed(kept, upgrade):
        fence(checkpoint, kept, upgrade)
    way_back(orders, kept, table)


def _was_sealed(kept: Repository, upgrade: Upgrade) -> bool:
    return kept.kept_plan(upgrade.plan_id(back=True)) is not None
