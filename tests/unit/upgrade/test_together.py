"""The upgrade of an application with two queries: all streams are taken, let start, kept and put back together, or none is."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.sealing import seal, unseal
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError, SealedError
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.upgrade.fence import Release, fence, release_all
from airflow_ckpt_provider.upgrade.going_back import Back, WayBack, begin_way_back, go_back_all
from airflow_ckpt_provider.upgrade.record import Event, Upgrade, begin_upgrade, newest_upgrade, note, upgrade_of
from airflow_ckpt_provider.upgrade.together import (
    Member,
    begin_all,
    decide_to_go_back,
    end_all,
    has_to_go_back,
    keep_all,
)
from tests.support.backups import stream
from tests.support.checkpoints import metadata, plant
from tests.support.delta_batches import append, batches_in, delta_table
from tests.support.several_sinks import IDS, files
from tests.support.stopped import STOPPED
from tests.support.watched_stores import Before, Killed, forget_all, in_memory, lives, watched

DRAINED = {"orders": 3, "returns": 2}
RUN = "upgrade_shop/run 1"
NOTHING: dict[str, Any] = {"accepted": [], "way_back": {"obstacles": []}, "baseline": {}}


class Shop:
    """The application, with a Delta table of each query.

    :param root: the place of checkpoints and repository.
    :param tables: the directory of the tables.
    """

    def __init__(self, root: Location, tables: Path) -> None:
        self.root, self.tables = root, tables
        for name, newest in DRAINED.items():
            plant(root / name, files(name, newest))
            delta_table(tables / name, range(newest + 1), app_id=IDS[name])
        self.kept = Repository.open_or_create(root / "backups")

    def members(self, before: Before | None = None) -> list[Member]:
        def seen(place: Location) -> Location:
            return watched(place, before)[0] if before else place

        kept = Repository.open(seen(self.root / "backups"))
        return [Member(name, Checkpoint.at(seen(self.root / name)), kept) for name in DRAINED]

    def begun(self, run: str = RUN) -> list[Upgrade]:
        return begin_all(self.members(), run, dict.fromkeys(DRAINED, NOTHING))

    def upgrades(self) -> list[Upgrade]:
        return [upgrade_of(self.kept, name, RUN) for name in DRAINED]

    def sealed(self) -> list[str]:
        return [name for name in DRAINED if inspect_target(self.root / name).seal]

    def seal_all(self, members: list[Member] | None = None) -> None:
        for member in members or self.members():
            upgrade = upgrade_of(member.repository, member.name, RUN)
            if not upgrade.has(Event.BACK):
                fence(member.checkpoint, member.repository, upgrade)

    def drained(self) -> dict[str, str]:
        self.begun()
        for upgrade in self.upgrades():
            note(self.kept, upgrade, Event.STOPPING)
        self.seal_all()
        return {m.name: create_backup(m.checkpoint, self.kept, name=m.name).backup_id for m in self.members()}

    def release(self, backups: dict[str, str], before: Before | None = None) -> list[Upgrade]:
        members = self.members(before)
        return release_all(
            [
                Release(m.checkpoint, m.repository, upgrade_of(m.repository, m.name, RUN), backups[m.name])
                for m in members
            ]
        )

    def new_code_runs(self) -> None:
        for name, newest in DRAINED.items():
            more = {**stream(newest + 2), "metadata": metadata(IDS[name])}
            there = (self.root / name).walk()
            plant(self.root / name, {path: data for path, data in more.items() if path not in there})
            for batch in (newest + 1, newest + 2):
                append(self.tables / name, batch, app_id=IDS[name])

    def back(self, before: Before | None = None, **options: Any) -> list[WayBack]:
        members = self.members(before)
        decide_to_go_back(members, RUN)
        self.seal_all(members)
        return self.put_back(members, **options)

    def put_back(self, members: list[Member] | None = None, **options: Any) -> list[WayBack]:
        backs = []
        for member in members or self.members():
            upgrade = upgrade_of(member.repository, member.name, RUN)
            sink = Sink(place=self.table(member.name))
            backs.append(Back(member.checkpoint, member.repository, upgrade, sink, SinkPolicy.ROLLBACK))
        return go_back_all(backs, rest=STOPPED, **options)

    def table(self, name: str) -> Location:
        from airflow_ckpt_provider.storage.opening import open_location

        return open_location(str(self.tables / name))

    def content(self) -> dict[str, Any]:
        """What the checkpoints hold, the seals left out, and what readers see of the tables."""
        found: dict[str, Any] = {f"{name} rows": batches_in(self.table(name)) for name in DRAINED}
        for name in DRAINED:
            place = self.root / name
            found[name] = {path: place.read(path) for path in inspect_target(place).visible}
        return found


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    yield Shop(in_memory("shop"), tmp_path)
    forget_all()


@pytest.fixture
def released(shop: Shop) -> Shop:
    shop.release(shop.drained())
    return shop


class TestTheBeginning:
    def test_all_are_taken(self, shop: Shop) -> None:
        begun = shop.begun()
        assert [upgrade.together for upgrade in begun] == [("orders", "returns")] * 2
        assert len({upgrade.plan_id(back=back) for upgrade in begun for back in (False, True)}) == 4
        assert [upgrade.number for upgrade in shop.begun()] == [1, 1]  # tried again

    def test_begun_at_one_moment_they_have_seals_of_their_own(self, shop: Shop) -> None:
        orders, returns = shop.begun()
        same = {Event.BEGUN: {**orders.events[Event.BEGUN]}}
        other = Upgrade(returns.name, returns.upgrade_id, 1, same)
        assert other.plan_id(back=False) != orders.plan_id(back=False)

    def test_one_is_being_upgraded(self, shop: Shop) -> None:
        """By somebody who upgrades this stream alone: the other one is free again."""
        begin_upgrade(shop.kept, "returns", "returns_upgrade/1", baseline={})
        with pytest.raises(RefusedError, match="returns is being upgraded by returns_upgrade/1"):
            shop.begun()
        orders = newest_upgrade(shop.kept, "orders")
        assert orders
        assert orders.fact(Event.ENDED, "kind") == "untouched"

    def test_one_is_sealed(self, shop: Shop) -> None:
        seal(Checkpoint.at(shop.root / "returns"), reason="maintenance", plan_id="other")
        with pytest.raises(SealedError, match="sealed by plan other"):
            shop.begun()
        orders = newest_upgrade(shop.kept, "orders")
        assert orders
        assert not orders.is_open

    def test_begun_again_with_other_streams(self, shop: Shop) -> None:
        """The DAG was changed, and the task cleared: what was begun alone is begun anew."""
        alone = begin_all(shop.members()[:1], RUN, {"orders": NOTHING})
        assert alone[0].together == ()
        assert shop.begun()[0].together == ("orders", "returns")

    def test_what_was_stopped_already_is_not_given_up(self, shop: Shop) -> None:
        """`begin` is cleared half-way, and the other stream has been taken by somebody."""
        shop.drained()
        returns = shop.upgrades()[1]
        note(shop.kept, returns, Event.ENDED)
        begin_upgrade(shop.kept, "returns", "other/1", baseline={})
        with pytest.raises(RefusedError, match="returns is sealed by plan"):
            shop.begun()
        assert upgrade_of(shop.kept, "orders", RUN).is_open


class TestTheRelease:
    def test_all_are_let_start(self, shop: Shop) -> None:
        upgrades = shop.release(shop.drained())
        assert [upgrade.fact(Event.RELEASED, "batch_id") for upgrade in upgrades] == list(DRAINED.values())
        assert shop.sealed() == []

    def test_one_of_them_is_not(self, shop: Shop) -> None:
        """Somebody has lifted the seal of the second: the first one stays sealed, and nothing is noted."""
        backups = shop.drained()
        unseal(Checkpoint.at(shop.root / "returns"), force=True)
        with pytest.raises(RefusedError, match="returns is not sealed any more"):
            shop.release(backups)
        assert shop.sealed() == ["orders"]
        assert not any(upgrade.has(Event.RELEASED) for upgrade in shop.upgrades())

    def test_stopped_anywhere(self, tmp_path: Path) -> None:
        """After every single write: no seal is lifted before all streams have a way back; the same again ends it."""
        for life in lives(range(40), least=3):
            shop = Shop(in_memory("shop"), tmp_path / str(life.writes))
            backups = shop.drained()
            with suppress(Killed):
                shop.release(backups, life.before)
            if not life.dead:
                continue
            if len(shop.sealed()) < 2:
                assert all(upgrade.has(Event.RELEASED) for upgrade in shop.upgrades()), f"after write {life.writes}"
            shop.release(backups)
            assert shop.sealed() == []


class TestTheWayBack:
    def test_all_are_put_back(self, shop: Shop) -> None:
        before = shop.content()
        shop.release(shop.drained())
        shop.new_code_runs()
        ways = shop.back()
        assert [(way.restored, way.batch_id) for way in ways] == [(True, 3), (True, 2)]
        now = shop.content()
        assert {key: now[key] for key in ("orders rows", "returns rows")} == {
            key: before[key] for key in ("orders rows", "returns rows")
        }
        assert all(now[name].items() <= before[name].items() for name in DRAINED)
        assert shop.sealed() == []
        assert [(way.restored, way.plan) for way in shop.put_back()] == [(True, None), (True, None)]
        outcome = end_all(shop.members(), shop.upgrades(), reason="", facts={})
        assert outcome.kind == "taken_back"
        assert outcome.message.startswith("orders: The upgrade was rolled back")

    def test_one_had_written_nothing(self, released: Shop) -> None:
        """The new code was started, and failed before the first batch of either."""
        before = released.content()
        ways = released.back()
        assert [way.batch_id for way in ways] == [3, 2]
        now = released.content()
        assert all(now[f"{name} rows"] == before[f"{name} rows"] for name in DRAINED)
        assert released.sealed() == []

    def test_nothing_was_released(self, shop: Shop) -> None:
        before = shop.content()
        shop.drained()
        assert shop.back() == [WayBack(False, None, None)] * 2
        assert shop.content() == before
        assert shop.sealed() == []

    def test_one_of_them_cannot(self, released: Shop) -> None:
        """Others have written into its table: nothing is changed, of neither, until somebody accepts it."""
        released.new_code_runs()
        append(released.tables / "returns", 77, app_id=None)
        before = released.content()
        with pytest.raises(RefusedError, match="others have written"):
            released.back()
        assert released.content() == before
        assert released.sealed() == ["orders", "returns"]
        outcome = end_all(released.members(), released.upgrades(), reason="", facts={})
        assert (outcome.kind, outcome.clear, len(outcome.commands)) == ("half_way", "take_back", 2)
        assert all(upgrade.is_open for upgrade in released.upgrades())
        released.back(accept=["foreign_loss"])
        assert released.sealed() == []

    def test_the_seal_of_one_was_lifted(self, released: Shop) -> None:
        released.new_code_runs()
        released.seal_all()
        unseal(Checkpoint.at(released.root / "returns"), force=True)
        before = released.content()
        with pytest.raises(RefusedError, match="returns is not sealed any more"):
            released.put_back()
        assert released.content() == before

    def test_somebody_writes_into_the_second_meanwhile(self, released: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        """After all were judged: the first one is back, both stay sealed, and the next try ends it."""
        from airflow_ckpt_provider.upgrade import going_back

        released.new_code_runs()
        real = going_back.apply_rewind

        def writes(plan: Any, *more: Any, **how: Any) -> Any:
            if plan.name == "returns" and not done:
                done.append(append(released.tables / "returns", 77, app_id=None))
            return real(plan, *more, **how)

        done: list[None] = []
        monkeypatch.setattr(going_back, "apply_rewind", writes)
        with pytest.raises(RefusedError, match="somebody wrote into it"):
            released.back()
        assert released.sealed() == ["orders", "returns"]
        assert not any(upgrade.has(Event.BACK) for upgrade in released.upgrades())
        with pytest.raises(RefusedError, match="others have written"):
            released.back()
        ways = released.back(accept=["foreign_loss"])
        assert [way.restored for way in ways] == [True, True]
        assert released.sealed() == []
        assert batches_in(released.table("returns")) == [0, 0, 1, 1, 2, 2]

    @pytest.mark.parametrize("step", [17, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
    def test_stopped_anywhere(self, tmp_path: Path, step: int) -> None:
        """After every single write: both are sealed, or nothing has begun, or all is done; the same again ends it."""
        half_way = 0
        for life in lives(range(0, 300, step), least=30):
            forget_all()
            shop = Shop(in_memory("shop"), tmp_path / str(life.writes))
            before = shop.content()
            shop.release(shop.drained())
            shop.new_code_runs()
            begun_with = shop.content()
            with suppress(Killed):
                shop.back(life.before)
            if not life.dead:
                continue
            now = shop.content()
            changed = [n for n in DRAINED if any(now[key] != begun_with[key] for key in (n, f"{n} rows"))]
            half_way += len(changed) == 1
            if changed and len(shop.sealed()) < 2:
                assert all(upgrade.has(Event.BACK) for upgrade in shop.upgrades()), f"after write {life.writes}"
            shop.back()
            now = shop.content()
            assert all(now[f"{n} rows"] == before[f"{n} rows"] for n in DRAINED), f"after write {life.writes}"
            assert all(now[n].items() <= before[n].items() for n in DRAINED), f"after write {life.writes}"
            assert shop.sealed() == []
            shutil.rmtree(shop.tables)
        assert half_way or step > 1


class TestTheDecision:
    def test_it_is_one_for_all(self, released: Shop) -> None:
        """Killed between the two notes: the first decides, nothing is put back, and the report completes it."""

        def dies(operation: str, path: str) -> None:
            if operation == "create" and "upgrades/returns/" in path:
                raise Killed(path)

        members = released.members(dies)
        with pytest.raises(Killed):
            keep_all(members, [upgrade_of(m.repository, m.name, RUN) for m in members])
        assert [upgrade.has(Event.KEPT) for upgrade in released.upgrades()] == [True, False]
        assert has_to_go_back(released.members(), RUN) == []
        outcome = end_all(released.members(), released.upgrades(), reason="", facts={})
        assert outcome.kind == "kept"
        ended = [newest_upgrade(released.kept, name) for name in DRAINED]
        assert [upgrade and upgrade.fact(Event.ENDED, "kind") for upgrade in ended] == ["kept", "kept"]

    def test_nothing_is_kept_that_was_taken_back(self, released: Shop) -> None:
        released.back()
        with pytest.raises(RefusedError, match="of orders was rolled back"):
            keep_all(released.members(), released.upgrades())

    @pytest.mark.parametrize(
        ("come_to", "said"),
        [
            (lambda shop: shop.drained(), "of orders is not kept: the new code was never let start"),
            (lambda shop: (shop.release(shop.drained()), shop.seal_all()), "of orders is not kept: .* is its seal"),
            (
                lambda shop: (shop.release(shop.drained()), decide_to_go_back(shop.members(), RUN)),
                "the way back of upgrade upgrade_shop/run 1 of orders has begun",
            ),
        ],
    )
    def test_nothing_is_kept_that_does_not_run(self, shop: Shop, come_to: Callable[[Shop], object], said: str) -> None:
        """The task `keep` is cleared, or marked: the record decides."""
        come_to(shop)
        with pytest.raises(RefusedError, match=said):
            keep_all(shop.members(), shop.upgrades())
        assert not any(upgrade.has(Event.KEPT) for upgrade in shop.upgrades())
        assert end_all(shop.members(), shop.upgrades(), reason="", facts={}).kind == "half_way"

    def test_once_the_sink_is_rolled_back_the_new_code_is_not_kept(self, released: Shop) -> None:
        """Killed before the way back is noted as done, and somebody has lifted the seals by hand."""
        released.new_code_runs()
        released.back()
        for name in DRAINED:
            newest = max(released.kept.location.walk(f"upgrades/{name}"))
            released.kept.location.delete(newest)  # the note `back`
        with pytest.raises(RefusedError, match="the way back of upgrade"):
            keep_all(released.members(), released.upgrades())

    def test_the_one_that_is_noted_first_decides(self, released: Shop) -> None:
        """Two tasks at one moment: each of them has seen that nothing is decided."""
        before = released.upgrades()
        decide_to_go_back(released.members(), RUN)
        with pytest.raises(RefusedError, match="the way back of upgrade"):
            keep_all(released.members(), before)

    def test_what_is_kept_is_not_put_back(self, released: Shop) -> None:
        released.new_code_runs()
        before = released.upgrades()
        keep_all(released.members(), before)
        with pytest.raises(RefusedError, match="the new code is kept"):
            begin_way_back([(released.kept, upgrade) for upgrade in before])
        found = released.content()
        with pytest.raises(RefusedError, match="the new code is kept"):
            released.back()
        assert (released.content(), released.sealed()) == (found, [])

    def test_after_the_way_back_has_begun_nothing_is_let_start(self, shop: Shop) -> None:
        backups = shop.drained()
        decide_to_go_back(shop.members(), RUN)
        with pytest.raises(RefusedError, match="neither let start nor kept"):
            shop.release(backups)
        assert shop.sealed() == ["orders", "returns"]

    def test_a_kept_one_that_is_sealed_is_half_way(self, released: Shop) -> None:
        """As an older release has left it: the way back had begun, and the task `keep` was cleared."""
        released.seal_all()
        for upgrade in released.upgrades():
            note(released.kept, upgrade, Event.KEPT)
        outcome = end_all(released.members(), released.upgrades(), reason="", facts={})
        assert (outcome.kind, outcome.clear, len(outcome.commands)) == ("half_way", "report", 2)
        assert all(upgrade.is_open for upgrade in released.upgrades())

    @pytest.mark.parametrize("is_decided", [True, False])
    def test_once_the_way_back_has_begun_the_report_offers_nothing_else(self, released: Shop, is_decided: bool) -> None:
        if is_decided:
            decide_to_go_back(released.members(), RUN)
        outcome = end_all(released.members(), released.upgrades(), reason="", facts={})
        assert outcome.clear == "take_back"
        assert ("clear the first task that did not succeed" in outcome.message) is not is_decided

    @pytest.mark.parametrize(
        ("come_to", "needed"),
        [
            (lambda shop: shop.begun(), 0),
            (lambda shop: (shop.begun(), note(shop.kept, shop.upgrades()[1], Event.STOPPING)), 2),
            (lambda shop: shop.drained(), 2),
            (lambda shop: shop.release(shop.drained()), 2),
        ],
    )
    def test_what_has_to_go_back(self, shop: Shop, come_to: Callable[[Shop], object], needed: int) -> None:
        """All of them, as soon as one may have been stopped."""
        come_to(shop)
        assert len(has_to_go_back(shop.members(), RUN)) == needed
        assert has_to_go_back(shop.members(), "another/run") == []
