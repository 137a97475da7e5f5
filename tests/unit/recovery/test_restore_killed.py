"""restore: killed after every write, and resumed by the same command."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.recovery.restore.apply import RestoreOutcome, apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.storage.location import Location
from tests.support.backups import back_up, bury, repository, stream, visible
from tests.support.checkpoints import Files, contents, plant
from tests.support.every_run import of_these
from tests.support.restores import loud_seal, restore, wanted
from tests.support.stopped import STOPPED
from tests.support.watched_stores import Killed, Life, watched


class Case:
    """One restore to be killed and continued with, each time from the same beginning.

    :param there: what is at the target.
    :param replace: whether that is to be replaced.
    """

    def __init__(self, place: Location, there: Files, *, replace: bool, newest: int = 3) -> None:
        self.origin = place / "origin"
        self.there = there
        self.replace = replace
        self.manifest = back_up(self.origin, stream(newest, partitions=1)).manifest
        self.repository = contents(self.origin / "backups")
        self.after = wanted(self.origin, self.manifest)

    def begin(self, here: Location) -> None:
        plant(here / "backups", self.repository)
        plant(here / "target", self.there)

    def run(self, here: Location, life: Life | None = None) -> RestoreOutcome:
        before = life.before if life else None
        backups, _ = watched(here / "backups", before)
        target, _ = watched(here / "target", before)
        plan = plan_restore(Repository.open(backups), self.manifest, target, replace=self.replace)
        return apply_restore(plan, rest=STOPPED, workers=4)

    def check_stopped(self, here: Location) -> str:
        """Untouched, sealed or finished; nothing else."""
        files = visible(here / "target")
        if files == dict(sorted(self.there.items())) and not loud_seal(here / "target"):
            return "untouched"
        if files == self.after:
            return "finished"
        assert loud_seal(here / "target"), sorted(files)
        return "sealed"

    def check_kept(self, here: Location, outcome: RestoreOutcome) -> None:
        """What was there can be had back, whenever the first attempt was stopped, and the outcome says where."""
        if not self.there:
            assert outcome.kept is None
            return
        if outcome.already_done:
            # Finished before: the audit record says what the outcome cannot any more.
            (record, *_) = repository(here).records()
            kept = record["kept"]
        else:
            kept = outcome.kept
        assert kept is not None
        aside = contents(here / "backups" / kept / "files")
        assert aside.items() <= self.there.items()
        stayed = {path: data for path, data in self.there.items() if path not in aside}
        assert stayed.items() <= self.after.items()
        undo(here / "target", repository(here), rest=STOPPED)
        assert contents(here / "target") == dict(sorted(self.there.items()))

    def survives(self, here: Location, *lives: int) -> None:
        """Stopped after so many writes, again and again, then run to its end: all is as if it had never been stopped."""
        self.begin(here)
        for writes in lives:
            try:
                self.run(here, Life(writes))
            except Killed:
                self.check_stopped(here)
            bury(here)
        outcome = self.run(here)
        assert contents(here / "target") == self.after
        self.check_kept(here, outcome)


CASES: dict[str, Callable[[Location], Case]] = {
    "into an empty place": lambda place: Case(place, {}, replace=False, newest=2),
    "the first batch": lambda place: Case(place, {}, replace=False, newest=0),
    "replacing one that is ahead": lambda place: Case(place, stream(3, partitions=1), replace=True, newest=2),
    "replacing one that is behind": lambda place: Case(place, stream(1, partitions=1), replace=True, newest=2),
    "replacing a broken one": lambda place: Case(
        place,
        {p: d for p, d in stream(2, partitions=1).items() if p != "commits/2" and "/2.changelog" not in p},
        replace=True,
        newest=2,
    ),
}


@pytest.mark.parametrize("name", of_these(CASES, "replacing one that is ahead"))
@pytest.mark.parametrize("repository_format", [1, pytest.param(2, marks=pytest.mark.slow)], indirect=True)
def test_killed_at_every_write(
    repository_format: int, place: Location, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every moment untouched, sealed or finished; the same call then ends as if it had never been stopped."""
    monkeypatch.setattr("airflow_ckpt_provider.backup.closure_copy._PAUSE", 0)
    case = CASES[name](place)
    seen: list[str] = []
    for writes in itertools.count():
        here = place / f"run{writes}"
        case.begin(here)
        try:
            outcome = case.run(here, Life(writes))
            break
        except Killed:
            seen.append(case.check_stopped(here))
        bury(here)
        again = case.run(here)
        assert contents(here / "target") == case.after
        assert again.already_done == (seen[-1] == "finished")
        case.check_kept(here, again)
    assert contents(here / "target") == case.after
    case.check_kept(here, outcome)
    # In this order, and all of them seen.
    assert [state for state, _ in itertools.groupby(seen)] == ["untouched", "sealed", "finished"]


@pytest.mark.parametrize("name", ["into an empty place", "replacing one that is ahead"])
def test_killed_twice(place: Location, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped, continued with, stopped again somewhere else."""
    monkeypatch.setattr("airflow_ckpt_provider.backup.closure_copy._PAUSE", 0)
    case = CASES[name](place)
    for first, second in itertools.product((1, 8, 20, 35), (1, 6, 16, 30)):
        here = place / f"run{first}-{second}"
        case.survives(here, first, second)


def test_killed_on_a_real_disk(tmp_path: Path) -> None:
    """Directories are real there: they come and go as well."""
    root = Location(LocalStore(), str(tmp_path))
    case = Case(root, stream(4, partitions=1), replace=True)
    for writes in (1, 30, 60, 80):
        here = root / f"run{writes}"
        case.survives(here, writes)
        assert not [d for d in Path(here.root, "target").rglob("*") if d.is_dir() and not any(d.iterdir())]


def test_going_on_needs_no_leave_to_replace_once_it_is_kept(place: Location, manifest: Manifest) -> None:
    """The first attempt had leave, and kept what was there; a retry without it continues."""
    plant(place / "target", stream(6))
    life = Life(60)
    backups, _ = watched(place / "backups", life.before)
    target, _ = watched(place / "target", life.before)
    with pytest.raises(Killed):
        apply_restore(plan_restore(Repository.open(backups), manifest, target, replace=True), rest=STOPPED)
    bury(place)
    outcome = restore(place, manifest)
    assert outcome.kept == f"set-aside/orders/{outcome.plan_id}/checkpoint"
    assert contents(place / "target") == wanted(place, manifest)
