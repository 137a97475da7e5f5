"""The benchmark's page and pictures are those of the committed figures, and the figures hold what the page says of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from benchmarks import page, pictures, results
from benchmarks.bounds import lower_bound, most_over
from benchmarks.counted import Counted
from benchmarks.curves import slope
from benchmarks.prices import S3
from benchmarks.report import text
from benchmarks.results import KINDS, Run, Timings, all_timings
from benchmarks.sample_tree import SampleTree
from benchmarks.setting import differences
from benchmarks.steps import CHANGED_SHARE, Step
from benchmarks.tools import OURS, OursInProcess
from tests.support.checkpoints import plant
from tests.support.watched_stores import in_memory

COUNTED = Counted.committed()
IMAGE = re.compile(r"!\[[^]]*\]\((images/bench-[^)]+)\)")


@pytest.fixture(scope="module")
def counted() -> Counted:
    assert COUNTED is not None, "python -m benchmarks.requests"
    return COUNTED


def test_the_page_is_made_of_the_committed_figures() -> None:
    shown = page.PAGE.read_text().partition("<!-- written by")[0].rstrip()
    assert shown == page.wrapped(text()).rstrip(), "python -m benchmarks.report"


def test_every_picture_was_drawn_from_the_committed_figures() -> None:
    shown = IMAGE.findall(page.PAGE.read_text())
    assert len(shown) == len(all_timings()) + 2
    for name in shown:
        content = (page.PAGE.parent / name).read_bytes()
        assert pictures.digest().encode() in content, f"{name} is of other figures: python -m benchmarks.pictures"


#: What was counted of ours: tree, tool and step.
OURS_COUNTED = [
    (tree, tool, step)
    for tree in (COUNTED.trees if COUNTED else ())
    for tool in OURS
    for step in Step
    if COUNTED and COUNTED.row(tree, tool, step)
]


def test_every_step_of_ours_was_counted_with_every_tree(counted: Counted) -> None:
    in_process = {(tree, step) for tree, tool, step in OURS_COUNTED if tool == OursInProcess.name}
    assert in_process == {(tree, step) for tree in counted.trees for step in Step}


@pytest.mark.parametrize(("tree", "tool", "step"), OURS_COUNTED)
def test_our_requests_are_the_bound_and_a_fixed_number(counted: Counted, tree: str, tool: str, step: Step) -> None:
    row, facts = counted.row(tree, tool, step), counted.trees[tree]
    assert row is not None
    bound, total = counted.bound(tree, step), counted.total(tree, tool, step)
    assert total is not None
    more = most_over(step, needed=facts["held_files"], snapshots=counted.zips(tree))
    assert bound.total <= total <= bound.total + more
    copies = {Step.FIRST: facts["held_files"], Step.CHANGED: facts["changed"], Step.RESTORE: facts["held_files"]}
    assert row["COPY"] <= copies.get(step, 0), "no file is copied twice"


def test_the_bound_of_a_thousand_and_one_files() -> None:
    sizes = {"files": 1001, "needed": 1000, "changed": 10}
    assert lower_bound(Step.FIRST, **sizes).kinds == {"LIST": 3, "COPY": 1000, "GET": 0, "PUT": 1}
    assert lower_bound(Step.NOTHING, **sizes).total == 3 + 1 + 1
    assert lower_bound(Step.CHANGED, **sizes).total == 4 + 10 + 1 + 1
    assert lower_bound(Step.VERIFY, **sizes).total == 2
    assert lower_bound(Step.READ, **sizes).total == 1 + 1001
    assert lower_bound(Step.RESTORE, **sizes).total == 2 + 1000 + 1
    assert lower_bound(Step.NOTHING, **sizes, snapshots=7).total == 3 + 1 + 1 + 7


def test_the_slope_is_the_exponent() -> None:
    assert slope([(x, 3 * x**2) for x in (1, 10, 50)]) == pytest.approx(2)
    assert slope([(1, 5), (10, 5), (100, 5)]) == pytest.approx(0)


def test_the_price_of_requests() -> None:
    assert S3.dollars({"COPY": 900, "PUT": 50, "LIST": 50, "GET": 1000, "DELETE": 10**6}) == pytest.approx(0.0054)


def measured() -> Timings:
    runs = [
        Run(number, tool, Step.FIRST, seconds, cpu=seconds / 2)
        for tool, times in (("restic", (1, 1)), ("s5cmd", (4, 6)), (OursInProcess.name, (2, 6)), ("rclone", (9, 9)))
        for number, seconds in enumerate(times, 1)
    ]
    rounds = [{"round": number, "date": "2026-11-21", "load": 0.1, "others": 0.0} for number in (1, 2)]
    return Timings("7", {"files": 7, "snapshots": []}, {"versions": {}, "machine": "", "code": ""}, rounds, runs)


def test_median_range_and_ratio_to_the_fastest_that_does_the_same() -> None:
    timed = measured()
    middle = timed.of(OursInProcess.name, Step.FIRST)
    assert middle is not None
    assert (middle.runs, middle.seconds, middle.least, middle.most, middle.cpu) == (2, 4, 2, 6, 2)
    assert timed.tools()[0] == OursInProcess.name
    assert timed.fastest_peer(Step.FIRST) == ("s5cmd", 5), "restic reads a local directory"
    assert timed.ratio(OursInProcess.name, Step.FIRST) == pytest.approx(0.8)
    assert timed.of("s5cmd", Step.READ) is None


def test_times_are_read_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")
    assert Timings.read("7") is None
    measured().write()
    assert Timings.read("7") == measured()
    lines = (tmp_path / "results" / "timings-7.json").read_text().splitlines()
    assert sum('"tool"' in line for line in lines) == 8, "a row a line"
    assert [timed.name for timed in all_timings()] == ["7"]


def test_rounds_of_another_setting_do_not_go_beside_these() -> None:
    before = {"machine": "a", "code": "1", "versions": {"Python": "3.11", "s5cmd": "2"}}
    assert differences(before, before) == []
    assert differences(before, before | {"versions": {"Python": "3.11", "rclone": "1"}}) == [], "other tools"
    assert differences(before, before | {"code": "2", "versions": {"s5cmd": "3"}}) == ["code", "s5cmd"]


@pytest.mark.parametrize("snapshots", [False, True])
def test_the_sample_tree_says_what_spark_needs_of_it(snapshots: bool) -> None:
    tree = SampleTree.of_about(120, snapshots=snapshots)
    place = plant(in_memory(), dict(tree.files()))
    closure = Checkpoint.at(place).closure(tree.batches - 1)
    state = {file.path for file in closure.files if file.path.startswith("state/0/") and "_metadata" not in file.path}
    assert state == set(tree.needed())
    assert len(tree.changed_paths(0)) == round(len(tree.changelogs()) * CHANGED_SHARE)


def test_every_kind_of_request_has_a_price() -> None:
    free = [kind for kind in KINDS if not S3.dollars({kind: 1})]
    assert free == ["DELETE"]
