"""Rewinding the queries of one application together: they read nothing of each other, and go back together or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.recovery.chains.apply import apply_chain
from airflow_ckpt_provider.recovery.chains.plan import ChainPlan
from airflow_ckpt_provider.recovery.chains.planning import plan_chain
from airflow_ckpt_provider.recovery.chains.stream import ChainStream
from airflow_ckpt_provider.recovery.chains.together import ChainOutcome
from airflow_ckpt_provider.recovery.chains.undo import undo_chain
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.checkpoints import plant
from tests.support.delta_batches import append
from tests.support.several_sinks import IDS, NEWEST, files
from tests.support.stopped import STOPPED
from tests.support.watched_stores import Before, Killed, lives, watched

#: By two batches, each from its own newest one.
TWO = Specifier("shift_by", "-2")
SHOWN = {"orders": 2, "returns": 4}


class Tables:
    """Two queries with a Delta table each; batch n is version n."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def planted(cls, root: Path) -> Tables:
        made = cls(root)
        for name, newest in NEWEST.items():
            plant(open_location(str(root / "ck" / name)), files(name, newest))
            for batch in range(newest + 1):
                append(root / "tables" / name, batch, app_id=IDS[name])
        return made

    def table(self, name: str) -> Path:
        return self.root / "tables" / name

    def streams(self, before: Before | None = None) -> tuple[ChainStream, ...]:
        found = []
        for name in IDS:
            place = open_location(str(self.root / "ck" / name))
            held = open_location(str(self.root / "ck" / f"{name}.rewinds"))
            if before:
                place, held = watched(place, before)[0], watched(held, before)[0]
            found.append(ChainStream(name, place, (Sink(place=open_location(str(self.table(name)))),), repository=held))
        return tuple(found)

    def rewind(
        self, streams: Sequence[ChainStream] | None = None, to: Specifier = TWO, **options: Any
    ) -> tuple[ChainPlan, ChainOutcome]:
        named = streams or self.streams()
        given = {"rest": lambda _: STOPPED, "accept": ["source_loss"], **options}
        batches = given.pop("batches", None)

        def plan(chain_id: str | None) -> ChainPlan:
            return plan_chain(named, to, guards=(), batches=batches, chain_id=chain_id)

        return apply_chain(named, plan, **given)

    def take_back(self, streams: Sequence[ChainStream] | None = None) -> ChainOutcome:
        return undo_chain(streams or self.streams(), rest=lambda _: STOPPED)

    def content(self) -> dict[str, Any]:
        """What the checkpoints hold, the seals left out, and what readers see of the tables."""
        found: dict[str, Any] = {}
        for name in IDS:
            place = open_location(str(self.root / "ck" / name))
            found[name] = {path: place.read(path) for path in inspect_target(place).visible}
            table = DeltaTable(str(self.table(name)))
            found[f"{name} rows"] = sorted(table.to_pyarrow_table()["batch"].to_pylist())
            found[f"{name} remembers"] = table.transaction_version(IDS[name])
        return found

    def sealed(self) -> list[str]:
        return [name for name in IDS if inspect_target(open_location(str(self.root / "ck" / name))).seal]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Tables.planted(tmp_path_factory.mktemp("tables") / "t").root


def copied(template: Path, root: Path) -> Tables:
    shutil.copytree(template, root)
    return Tables(root)


@pytest.fixture
def tables(template: Path, tmp_path: Path) -> Tables:
    return copied(template, tmp_path / "t")


def rows_to(batch: int) -> list[int]:
    return sorted([*range(batch + 1)] * 2)


def check_rewound(tables: Tables) -> None:
    now = tables.content()
    assert {name: now[f"{name} rows"] for name in IDS} == {"orders": rows_to(2), "returns": rows_to(4)}
    assert {name: now[f"{name} remembers"] for name in IDS} == {"orders": 2, "returns": 4}
    assert {name: max(p for p in now[name] if p.startswith("commits/")) for name in IDS} == {
        "orders": "commits/2",
        "returns": "commits/4",
    }
    assert tables.sealed() == []


def test_there_and_back(tables: Tables) -> None:
    """Each goes to its own batch, and the next one runs again over the same data: no position has to move."""
    before = tables.content()
    plan, _ = tables.rewind()
    check_rewound(tables)
    assert all(part.rewind and part.rewind.exact_replay and not part.rewind.moved for part in plan.parts)
    assert not any(part.undo_needs or part.reads for part in plan.parts)
    tables.take_back()
    assert tables.content() == before


def test_again_further_back(tables: Tables) -> None:
    """One of them was rewound alone before; an undo takes back what was done together."""
    tables.rewind(tables.streams()[:1])
    before = tables.content()
    plan, _ = tables.rewind(to=Specifier("to_earliest", ""))
    assert [(part.name, part.rewind and part.rewind.batch_id) for part in plan.parts] == [("orders", 0), ("returns", 0)]
    tables.take_back()
    assert tables.content() == before


def test_nothing_to_do(tables: Tables) -> None:
    plan, done = tables.rewind(to=Specifier("to_latest", ""))
    assert (plan.already_done, done.already_done) == (True, True)
    assert tables.sealed() == []


def test_one_of_them_has_nothing_to_do(tables: Tables) -> None:
    """A slow query has committed nothing since that time: it is sealed with the other, and nothing of it changes."""
    before = tables.content()
    _, outcome = tables.rewind(batches={"orders": 4, "returns": 4})
    assert {each["name"]: each["already_done"] for each in outcome.streams} == {"orders": True, "returns": False}
    now = tables.content()
    assert now["orders"] == before["orders"]
    assert now["returns rows"] == rows_to(4)
    tables.take_back()
    assert tables.content() == before
    assert tables.sealed() == []


def test_one_that_cannot(tables: Tables) -> None:
    """It is named before anything is touched."""
    before = tables.content()
    append(tables.table("returns"), 99, app_id=None)
    with pytest.raises(RefusedError, match=r"foreign_loss .returns: "):
        tables.rewind()
    assert tables.sealed() == []
    assert tables.content()["orders"] == before["orders"]
    assert DeltaTable(str(tables.table("orders"))).version() == NEWEST["orders"]


@pytest.mark.parametrize("step", [61, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_stopped_after_any_write(template: Path, tmp_path: Path, step: int) -> None:
    half_way = 0
    for life in lives(range(0, 600, step), least=60):
        tables = copied(template, tmp_path / str(life.writes))
        before = tables.content()
        with suppress(Killed):
            tables.rewind(tables.streams(life.before), batches=SHOWN)
        if not life.dead:
            continue
        now = tables.content()
        changed = {name for name in IDS if any(now[key] != before[key] for key in (name, f"{name} rows"))}
        ended = len(changed) == 2 and not tables.sealed()
        assert not changed or ended or tables.sealed() == list(IDS) or len(changed) == 2, f"after write {life.writes}"
        half_way += len(changed) == 1
        if life.writes % 2 and changed:
            tables.take_back()
            assert tables.content() == before, f"after write {life.writes}"
        else:
            tables.rewind(batches=SHOWN)  # those of the plan that was shown: two less would be others by now
            check_rewound(tables)
        assert tables.sealed() == []
        shutil.rmtree(tables.root)
    assert half_way or step > 1
