"""Recovering a stream and its sink in the middle of a random history, each step compared with what Spark does.

SAFE and a rollback without doubts are row-exact, a refusal changes nothing, and what others wrote or set stays or was named.
"""

from __future__ import annotations

import os
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

import pytest

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import CkptError, RefusedError
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.report import SinkReport
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.sink_model import Line, Rows, rows_after
from tests.support.stopped import STOPPED


class SinkHistory(Protocol):
    """A stream, the table that it writes to, and what the test knows of both.

    ``line``: what was done to the rows that the table has. ``settings``: its properties and columns. ``told``: what happened.
    """

    chance: random.Random
    line: Line
    settings: dict[str, str]
    told: list[str]

    @property
    def place(self) -> Location: ...
    @property
    def ckpt(self) -> Checkpoint: ...
    @property
    def repository(self) -> Repository: ...
    @property
    def sink(self) -> Sink: ...
    @property
    def newest(self) -> int: ...
    @property
    def oldest_told(self) -> int:
        """The oldest batch of which the table's log still shows anything; 0 while it is whole."""

    def plan(self, batch: int, policy: SinkPolicy) -> RewindPlan: ...
    def fingerprint(self) -> str: ...
    def run(self, batches: int, *, faulty: bool = False) -> list[int]: ...
    def rows_of(self, batch: int, *, faulty: bool = False) -> Rows: ...
    def held(self) -> Rows: ...
    def append(self) -> None: ...
    def sync(self, *, line: Line) -> None: ...
    def control(self, target: int) -> tuple[set[int], set[int]] | None:
        """What a replay after a batch does to a copy of the table; ``None``: it cannot be copied."""


def run_histories(
    wanted: int,
    make: Callable[[int, random.Random], Any],
    happen: Callable[[Any, Counter[str]], None],
    *,
    seed: int | None = None,
) -> None:
    """Run random histories, and fail with those that were not row-exact.

    ``HISTORIES`` and ``HISTORIES_SEED`` change how many and which; ``HISTORIES_FIRST`` resumes those of a run that was stopped.

    :param wanted: how many.
    :param make: makes one from its number and its chance.
    :param happen: lets things happen, and counts them.
    :param seed: by default another one each time.
    """
    wanted = int(os.environ.get("HISTORIES", wanted))
    seed = int(os.environ.get("HISTORIES_SEED", random.SystemRandom().randrange(10**6) if seed is None else seed))
    print(f"\n{wanted} histories, HISTORIES_SEED={seed}", flush=True)
    count: Counter[str] = Counter()
    failures, began = [], time.monotonic()
    for number in range(int(os.environ.get("HISTORIES_FIRST", "0")), wanted):
        history = make(number, random.Random(seed + number))
        try:
            happen(history, count)
        except Exception as e:  # an AssertionError, or an error that nobody expected: the others run all the same
            failures.append(f"{number}: {history.told}: {type(e).__name__}: {e}\n{traceback.format_exc(limit=-4)}")
            print(failures[-1], flush=True)
        print(f"{number:3} {', '.join(history.told)}", flush=True)
    print(f"{dict(count)}; {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
    assert failures == []
    if wanted > 9:  # a few that were asked for by their seed may have none
        assert count["rolled back"] + count["rolled back by Spark"] >= wanted / 3, "they do not show much"


def recover(history: SinkHistory, count: Counter[str]) -> None:
    """Return to a batch, by what the plan says, and replay; compare each step with what Spark does."""
    chance, newest = history.chance, history.newest
    target = chance.randint(max(0, newest - 4), newest)
    history.told.append(f"recover to {target}")
    report = history.plan(target, SinkPolicy.ACCEPT).sink
    count[report.verdict.value] += 1
    history.told.append(f"{report.verdict.value}{' with doubts' if report.doubts else ''}")
    expect_foretold(history, report, target)
    before = history.fingerprint()
    try:
        plan = history.plan(target, SinkPolicy.ROLLBACK)
    except RefusedError as e:
        assert report.rollback is None, "a plan is refused, and the report has a rollback"
        assert history.fingerprint() == before
        count["refused"] += 1
        history.told.append(f"refused ({e.message[-60:]})")
        return
    accept = [risk.word for risk in plan.risks]
    if chance.random() < 0.15:
        written_meanwhile(history, plan, accept)
        return
    try:
        apply_rewind(plan, history.ckpt, history.repository, sink=history.sink, accept=accept, rest=STOPPED)
    except CkptError as e:
        raise AssertionError(f"a plan that cannot be carried out: {type(e).__name__}: {e.message}; {e.hint}") from e
    line, settings = history.line, dict(history.settings)
    beyond = (i for i, event in enumerate(line) if event.batch is not None and event.batch > target)
    kept = next(beyond, len(line)) if plan.rolls_sink_back else len(line)
    history.sync(line=line[:kept])
    assert history.held() == rows_after(history.line), "rolled back: other rows than before the first batch that left"
    rollback = plan.sink.rollback
    if rollback:
        count["rolled back by Spark" if rollback.feature else "rolled back"] += 1
        expect_named(history, plan, settings, sum(event.batch is None for event in line[kept:]))
        if chance.random() < 0.3:
            taken_back(history, plan, line, target)
            return
    batches = history.run(newest - target + 1)
    history.told.append("replayed")
    assert history.held() == rows_after(history.line), "replayed: the model is wrong"
    expect_exact(history, batches, target, sure=not report.doubts and (rollback or report.verdict is Verdict.SAFE))


def expect_foretold(history: SinkHistory, report: SinkReport, target: int) -> None:
    """Replay on a copy of the table, with nothing done to it: the verdict is what happens."""
    replayed = history.control(target)
    if replayed is None:
        return
    skipped, doubled = replayed
    expect_true(history, report, target, skipped, doubled)


def expect_true(history: SinkHistory, report: SinkReport, target: int, skipped: set[int], doubled: set[int]) -> None:
    """Compare a verdict with what a replay has done."""
    held = Counter(event.batch for event in history.line if event.batch is not None)
    told = range(history.oldest_told, target + 1)
    wrong = [b for b in told if held[b] > 1 or (held[b] < 1 and history.rows_of(b))]
    happened = f"skipped {sorted(skipped)}, doubled {sorted(doubled)}, wrong up to {target}: {wrong}; {report.reasons}"
    if report.verdict is Verdict.SAFE:
        assert (skipped, doubled, wrong) == (set(), set(), []), f"SAFE, and {happened}"
    elif report.verdict is Verdict.WILL_SKIP:
        assert skipped, f"WILL_SKIP, and {happened}"
    elif report.verdict is Verdict.WILL_DUPLICATE:
        assert doubled, f"WILL_DUPLICATE, and {happened}"
    if report.verdict is not Verdict.SAFE and not report.doubts and report.rollback:
        assert not wrong, f"a rollback without doubts, and {happened}"


def expect_named(history: SinkHistory, plan: RewindPlan, settings: dict[str, str], foreign: int) -> None:
    """What others set and wrote stays, or the plan has named it."""
    rollback = plan.sink.rollback
    assert rollback
    assert len(rollback.foreign) == foreign, f"{foreign} commits of others leave, {rollback.foreign}"
    for name, value in settings.items():
        if history.settings.get(name) != value:
            assert any(name in words for words in rollback.reverts), f"{name} = {value} went, {rollback.reverts}"


def written_meanwhile(history: SinkHistory, plan: RewindPlan, accept: list[str]) -> None:
    """Somebody writes between plan and rollback: it is refused, and nothing changes."""
    history.append()
    before = history.fingerprint()
    history.told.append("written to meanwhile")
    if not plan.rolls_sink_back:
        return
    with pytest.raises(RefusedError):
        apply_rewind(plan, history.ckpt, history.repository, sink=history.sink, accept=accept, rest=STOPPED)
    assert history.fingerprint() == before


def taken_back(history: SinkHistory, plan: RewindPlan, line: Line, target: int) -> None:
    """The undo puts rows and memory back."""
    undo(history.place, history.repository, plan_id=plan.plan_id, sink=history.sink, rest=STOPPED)
    history.sync(line=line)
    history.told.append("undone")
    assert history.held() == rows_after(history.line), "undone: other rows than before"
    report = history.plan(target, SinkPolicy.ACCEPT).sink
    assert report.verdict is plan.sink.verdict, f"{plan.sink.verdict} before, {report.verdict} after the undo"
    expect_foretold(history, report, target)


def expect_exact(history: SinkHistory, batches: list[int], target: int, *, sure: object) -> None:
    """Every batch is in the table once, where the plan has no doubts."""
    if not sure:
        return
    held = Counter(event.batch for event in history.line if event.batch is not None)
    told = range(history.oldest_told, history.newest + 1)
    wrong = [b for b in told if held[b] != 1 and (held[b] or history.rows_of(b))]
    assert not wrong, f"batches {wrong} are missing once; replayed after {target}: {batches}"
