"""The benchmark's page and pictures are those of the committed figures, and the figures hold what the page says of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from benchmarks import aims, page, pictures, results
from benchmarks.bounds import lower_bound, most_over
from benchmarks.counted import Counted
from benchmarks.curves import curves, fleets, slope
from benchmarks.prices import S3
from benchmarks.report import text
from benchmarks.results import KINDS, Run, Timings, all_timings
from benchmarks.sample_tree import SampleTree
from benchmarks.setting import differences
from benchmarks.steps import CHANGED_SHARE, Step
from benchmarks.tools import OursInProcess, PacksFromShell, PacksInProcess, PacksLocalInProcess
from tests.support.checkpoints import plant
from tests.support.watched_stores import in_memory

COUNTED = Counted.committed()
MEASURED_MEMORY = results.read(results.MEMORY)
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
    assert len(shown) == len(all_timings()) + bool(COUNTED) + bool(list(curves()))
    for name in shown:
        content = (page.PAGE.parent / name).read_bytes()
        assert pictures.digest().encode() in content, f"{name} is of other figures: python -m benchmarks.pictures"


#: What was counted of ours: tree, tool and step.
OURS_COUNTED = [
    (tree, tool, step)
    for tree in (COUNTED.trees if COUNTED else ())
    for tool in COUNTED.ours(tree)
    if "local disk" not in tool
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
    bound, total = counted.bound(tree, tool, step), counted.total(tree, tool, step)
    assert total is not None
    more = most_over(
        step,
        needed=facts["held_files"],
        snapshots=counted.zips(tree),
        packs=counted.packs(tree) if "packs" in tool else 0,
    )
    renewals = counted.renewals(tree, tool, step)
    assert renewals <= total / 2000, "a lease of 15 seconds, through a gate that lets 100 and more pass in a second"
    assert bound.total <= total <= bound.total + more + renewals
    copies = {Step.FIRST: facts["held_files"], Step.CHANGED: facts["changed"], Step.RESTORE: facts["held_files"]}
    # The first one is sent again, to see whether the store refuses to write over an object.
    assert row["COPY"] <= copies.get(step, 0) + 1, "no other file is copied twice"


def test_the_bound_of_a_thousand_and_one_files() -> None:
    sizes = {"files": 1001, "needed": 1000, "changed": 10}
    assert lower_bound(Step.FIRST, **sizes).kinds == {"LIST": 3, "COPY": 1000, "GET": 0, "PUT": 1}
    assert lower_bound(Step.NOTHING, **sizes).total == 3 + 1 + 1
    assert lower_bound(Step.CHANGED, **sizes).total == 4 + 10 + 1 + 1
    assert lower_bound(Step.VERIFY, **sizes).total == 2
    assert lower_bound(Step.READ, **sizes).total == 1 + 1001
    assert lower_bound(Step.RESTORE, **sizes).total == 2 + 1000 + 1
    assert lower_bound(Step.NOTHING, **sizes, snapshots=7).total == 3 + 1 + 1 + 7


def test_the_bound_of_a_thousand_and_one_files_in_three_packs() -> None:
    sizes = {"files": 1001, "needed": 1000, "changed": 10, "packs": 3}
    assert lower_bound(Step.FIRST, **sizes).kinds == {"LIST": 2, "COPY": 0, "GET": 1000, "PUT": 4}
    assert lower_bound(Step.NOTHING, **sizes).total == 3 + 1 + 1
    assert lower_bound(Step.CHANGED, **sizes).total == 3 + 1 + 10 + 2
    assert lower_bound(Step.VERIFY, **sizes).total == 2
    assert lower_bound(Step.READ, **sizes).total == 1 + 1 + 3
    assert lower_bound(Step.RESTORE, **sizes).kinds == {"LIST": 2, "COPY": 0, "GET": 4, "PUT": 1000}
    apart = {kind: lower_bound(kind, **sizes, apart=70).kinds for kind in (Step.FIRST, Step.READ, Step.RESTORE)}
    assert apart[Step.FIRST] == {"LIST": 2, "COPY": 70, "GET": 930, "PUT": 4}
    assert apart[Step.READ] == {"LIST": 1, "GET": 1 + 3 + 70}
    assert apart[Step.RESTORE] == {"LIST": 2, "COPY": 70, "GET": 4, "PUT": 930}
    assert lower_bound(Step.SKIPPED, **sizes) == lower_bound(Step.SKIPPED, files=1001, needed=1000, changed=10)


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
    assert timed.fastest_peer(Step.FIRST, local=True) == ("restic", 1)
    assert timed.pairs(OursInProcess.name, "s5cmd", Step.FIRST) == [0.5, 1.0], "round by round"


def timed_of_packs(in_process: float, shell: float, local: float) -> Timings:
    seconds = {
        **{PacksInProcess.name: in_process, PacksFromShell.name: shell, PacksLocalInProcess.name: local},
        **{"s5cmd": 10.0, "rclone": 20.0, "restic": 4.0},
    }
    runs = [
        Run(number, tool, step, each * number, cpu=1.0, server=2.0)
        for tool, each in seconds.items()
        for step in (Step.FIRST, Step.CHANGED, Step.READ)
        for number in (1, 2, 3)
    ]
    rounds = [{"round": number, "date": "2026-11-21", "load": 0.1, "others": 0.0} for number in (1, 2, 3)]
    return Timings("5000", {"files": 5077, "snapshots": []}, {"versions": {}, "machine": "", "code": ""}, rounds, runs)


def test_an_aim_is_met_not_met_or_not_measured() -> None:
    found = {outcome.key: outcome for outcome in aims.outcomes([timed_of_packs(5.0, 8.0, 4.0)], None, None)}
    first = found["first 5000"]
    assert first.verdict == "in process met, from shell **not met**"
    assert first.reached == (
        "in process 0.50 (each round 0.50 to 0.50, median 0.50), from shell 0.80 (each round 0.80 to 0.80, median 0.80); "
        "s5cmd 20.0 s"
    )
    assert first.measured == (
        "airflow-ckpt, packs, from shell: 16.00 s, of which it computed 1.00 s; the server computed 2.00 s. "
        "s5cmd: 20.0 s, of which it computed 1.00 s; the server computed 2.00 s."
    )
    assert (found["first-local 5000"].met, found["changed 5000"].met, found["read 5000"].met) == (True, True, False)
    assert found["changed-local 5000"].met is True, "restic is the only one that reads a local disk"
    assert found["first 500"].met is None
    assert found["first 500"].verdict == "not measured"
    table = "\n".join(aims.lines(list(found.values()), {"first 5000": "A profile says more."}))
    assert table.count("\n* ") == 2, "first from the shell, and verify"
    assert "The server" not in table
    assert "the server computed 2.00 s. A profile says more." in table


def counted_packs(tree: str = "5000", **restore: int) -> Counted:
    none = dict.fromkeys(KINDS, 0)
    facts = {
        "files": 5077,
        "held_files": 5030,
        "held_bytes": 54 * 2**20,
        "changed": 50,
        "snapshots": [],
        "partitions": 9,
    }
    bodies = {"received": 3, "sent": 4}
    rows = [
        {
            "tool": PacksInProcess.name,
            "step": Step.FIRST,
            **none,
            "GET": 5030,
            "PUT": 40,
            "LIST": 20,
            "stored_bytes": 60,
        },
        {"tool": PacksInProcess.name, "step": Step.CHANGED, **none, "GET": 60, "LIST": 16, "PUT": 6},
        {"tool": PacksInProcess.name, "step": Step.RESTORE, **none, **restore, "where": {"GET packs": 7}},
        {"tool": "s5cmd", "step": Step.FIRST, **none, "COPY": 5077, "stored_bytes": 61},
        {"tool": "restic", "step": Step.FIRST, **none, "PUT": 20, "stored_bytes": 61},
        {"tool": "restic", "step": Step.CHANGED, **none, "PUT": 20},
    ]
    return Counted({"trees": {tree: facts}, "rows": [{"tree": tree, **bodies, **row} for row in rows]})


def test_aims_of_requests_bytes_and_the_bill() -> None:
    found = {outcome.key: outcome for outcome in aims.outcomes([], counted_packs(GET=40, PUT=5030), None)}
    assert found["first-requests"].reached == "5,090 requests for 5,030 files that Spark needs: 60 more"
    assert found["first-requests"].met is True
    assert found["first-bill 5000"].met is True
    assert found["first-bytes 5000"].met is True
    restore = found["restore-requests"]
    assert restore.verdict == "of contents met, of all **not met**"
    assert restore.measured == "7 GET packs.", "what the requests are for"
    assert found["month"].reached == "$29 of $32 a month: 0.89"


def test_a_model_of_streams_multiplies_what_was_measured() -> None:
    one, *_, most = fleets([timed_of_packs(5.0, 8.0, 4.0)], counted_packs(), "5000")
    assert (one.streams, one.requests, one.bytes, one.seconds) == (1, 82, 7, 10.0)
    assert (most.streams, most.requests, most.seconds) == (3000, 82 * 3000, 30_000.0)


def test_no_reason_is_left_of_an_aim_that_is_met_now() -> None:
    missed = {outcome.key for outcome in aims.outcomes(all_timings(), COUNTED, MEASURED_MEMORY) if outcome.met is False}
    assert aims.reasons().keys() <= missed


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
