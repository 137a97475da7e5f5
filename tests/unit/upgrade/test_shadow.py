"""The new code beside production, without Spark: whose plans are kept, when it is level, what it ends by."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.jobs import shadow as module
from airflow_ckpt_provider.jobs.shadow import Shadow
from airflow_ckpt_provider.jobs.trial import NO_ROWS, Trial
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.upgrade.rehearsal.plans import keep_plans
from airflow_ckpt_provider.upgrade.rehearsal.report import Failure, Followed, RowDifference, combine
from airflow_ckpt_provider.upgrade.rehearsal.scratch import plan_as
from airflow_ckpt_provider.verdict import Verdict
from tests.support.checkpoints import batch_metadata, commit_log, metadata, offsets_log, plant
from tests.support.rehearsals import rehearsal


class Production:
    """A stream of files that runs on, and cleans up all but its newest three batches."""

    def __init__(self, place: Path) -> None:
        self.location = open_location(str(place))
        plant(self.location, {"metadata": metadata()})

    def run(self, batches: range, *, keep: int = 100) -> Production:
        for batch in batches:
            log = {f"sources/0/{batch}": b"v1\n", f"sources/0/.{batch}.crc": b"crc"}
            plan = offsets_log(f'{{"logOffset":{batch}}}', metadata=batch_metadata(batch))
            plant(self.location, {**log, f"offsets/{batch}": plan, f"commits/{batch}": commit_log()})
            for name in ("offsets", "commits", "sources/0"):
                self.location.delete(f"{name}/{batch - keep}")
        return self


@pytest.fixture
def production(tmp_path: Path) -> Production:
    return Production(tmp_path / "ck").run(range(6))


@pytest.fixture
def plans(tmp_path: Path) -> Location:
    return open_location(str(tmp_path / "scratch" / "plans"))


def test_plans_outlive_those_of_production(production: Production, plans: Location, tmp_path: Path):
    assert keep_plans(production.location, plans, after=2) == 5
    production.run(range(6, 9), keep=3)
    assert keep_plans(production.location, plans, after=2) == 8
    assert sorted(plans.walk("offsets")) == [f"offsets/{batch}" for batch in range(3, 9)]
    new = open_location(str(tmp_path / "scratch" / "new"))
    plan_as(new, plans, 3)
    assert sorted(new.walk()) == ["offsets/3", *(f"sources/0/{n}" for n in range(4))]
    assert new.read("offsets/3") == plans.read("offsets/3")


def test_plans_that_are_gone(production: Production, plans: Location):
    production.run(range(6, 9), keep=3)
    with pytest.raises(RefusedError, match="has no offsets/3 any more, and the new code is not that far"):
        keep_plans(production.location, plans, after=2)
    with pytest.raises(RefusedError, match="has committed batch 8, and batch 9 was followed already: it was rewound"):
        keep_plans(production.location, plans, after=9)


class Compared(Shadow):
    """What Spark would say of each batch is given."""

    parts: dict[int, RowDifference]

    def _compare(self, batch: int) -> RowDifference:
        return self.parts.get(batch, RowDifference("table", (batch,)))


class Table:
    uri = "table"


Follow = Callable[..., tuple[RowDifference, Followed]]


@pytest.fixture
def follow(production: Production, plans: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Follow:
    monkeypatch.setattr(module, "_LOOK_EVERY", 0.01)

    def run(
        each: Callable[[int, Trial], object] = lambda batch, trial: None,
        parts: dict[int, RowDifference] | None = None,
        **fields: Any,
    ) -> tuple[RowDifference, Followed]:
        new = open_location(str(tmp_path / "scratch" / "new"))
        dropped: list[int] = []
        given: dict[str, Any] = {"spark": None, "table": Table(), "production": production.location}
        made = Compared(
            **given,
            place=new,
            plans=plans,
            run_batch=lambda batch, trial, seconds: each(batch, trial) and None,
            drop_rows=dropped.append,
        )
        made.parts = parts or {}
        found = made.follow(
            **{"after": 2, "batches": 3, "timeout": 20, "idle": 15, "stop_at_difference": False, **fields}
        )
        assert dropped == list(made.compared)
        return found

    return run


def test_level(follow: Follow, production: Production, capsys: pytest.CaptureFixture[str]):
    def and_production_goes_on(batch: int, trial: Trial) -> None:
        if batch < 8:
            production.run(range(batch + 3, batch + 4), keep=3)

    found, followed = follow(and_production_goes_on)
    assert (found.equal, found.batches) == (True, tuple(range(3, 11)))
    assert followed.to_json() | {"seconds": 0} == {
        **{"from": 3, "to": 10, "batches": 8, "production": 10, "gap": 0, "caught_up": True, "ended": "level"},
        **{"seconds": 0, "equal": True, "differing": []},
    }
    assert capsys.readouterr().err.splitlines()[0] == "batch 3: equal, None rows, None s, 2 behind production"
    report = rehearsal(difference=found, followed=followed)
    assert report.verdict is Verdict.SAFE
    assert "beside production | batches 3 to 10 compared" in report.to_markdown()


def test_a_stream_that_has_stopped(follow: Follow):
    found, followed = follow(batches=9, idle=0.05, parts={4: RowDifference("table", (4,), not_compared=NO_ROWS)})
    assert (followed.ended, followed.batches, found.equal) == ("idle", 3, True)


def test_time_is_over(follow: Follow, monkeypatch: pytest.MonkeyPatch):
    ran: list[int] = []
    with monkeypatch.context() as patch:
        # Time is suspended until all there is has been run.
        patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 4.0 if len(ran) == 3 else 0.0))
        found, followed = follow(lambda batch, trial: ran.append(batch), batches=9, timeout=3)
    assert (followed.ended, followed.gap, followed.caught_up) == ("timeout", 0, False)

    def hangs(batch: int, trial: Trial) -> None:
        if batch == 4:
            trial.failure = Failure("TIMEOUT", "still running")

    found, followed = follow(hangs)
    assert (followed.ended, followed.last, followed.gap) == ("timeout", 3, 2)
    report = rehearsal(difference=found, followed=followed)
    assert report.verdict is Verdict.UNKNOWN
    assert report.reasons == (
        "production was not caught up with: batches 3 to 3 compared in 0 s; production is at batch 5, 2 further "
        "(ended: timeout)",
    )


def test_differences(follow: Follow):
    parts = {4: RowDifference("table", (4,), 2, 1, examples=("- batch 4: {}",))}
    found, followed = follow(parts=parts)
    assert (followed.ended, followed.differing, followed.caught_up) == ("level", (4,), True)
    assert (found.only_old, found.only_new, found.batches, found.examples) == (2, 1, (3, 4, 5), ("- batch 4: {}",))
    assert "different in 4; caught up" in str(followed)
    found, followed = follow(parts=parts, stop_at_difference=True)
    assert (followed.ended, followed.last, followed.gap) == ("difference", 4, 1)
    assert rehearsal(difference=found, followed=followed).verdict is Verdict.UNKNOWN


def test_the_code_fails(follow: Follow):
    def fails(batch: int, trial: Trial) -> None:
        trial.failure = Failure("USER-FUNCTION", "no such customer")

    found, followed = follow(fails)
    assert (followed.ended, followed.batches, followed.gap) == ("failed", 0, 3)
    assert found.not_compared == "production has no batch after the backup"


def test_combined():
    empty, unknown = (RowDifference("t", not_compared=why) for why in (NO_ROWS, "the table's log has no commit"))
    same = RowDifference("t", (3,))
    assert combine("t", {3: same, 4: empty}, NO_ROWS).equal
    assert combine("t", {3: empty, 4: empty}, NO_ROWS).not_compared == NO_ROWS
    assert combine("t", {3: same, 4: unknown, 5: empty}, NO_ROWS).not_compared == "the table's log has no commit"
