"""What version 0.1.0 stored is readable for ever: its plans, its records, and the changes that it did not complete."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.set_aside import SetAside
from airflow_ckpt_provider.recovery.repair.plan import RepairPlan
from airflow_ckpt_provider.recovery.reset.plan import ResetPlan
from airflow_ckpt_provider.recovery.reset.planning import read_reset
from airflow_ckpt_provider.recovery.reset.way import ResetWay
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planning import read_plan
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.upgrade.record import Event, newest_upgrade, streams_upgraded
from airflow_ckpt_provider.verdict import Verdict
from tests.golden.half_done import HALF_DONE, STORED, HalfDone, contents, half_done
from tests.support.command_line import Finished, run

REPOSITORY = STORED / "repository"
PLANS: dict[str, dict[str, Any]] = {
    document["name"]: document for document in (json.loads(p.read_text()) for p in (REPOSITORY / "plans").iterdir())
}
REWINDS = sorted(name for name, plan in PLANS.items() if plan["kind"] == "rewind")
RESETS = sorted(name for name, plan in PLANS.items() if plan["kind"] == "reset")
REPAIRS = sorted(name for name, plan in PLANS.items() if plan["kind"] == "repair")
QUERY_ID = "199ce9d3-fd64-4a41-a1cf-23002acf0134"


@pytest.fixture
def repository() -> Repository:
    """The golden repository, which is only read."""
    return Repository.open(open_location(str(REPOSITORY)))


def plan_id(name: str) -> str:
    return str(PLANS[name]["plan_id"])


# ---- plans ------------------------------------------------------------------------------------------


def rewind(repository: Repository, name: str) -> RewindPlan:
    plan = read_plan(repository, plan_id(name))
    assert plan is not None
    assert read_reset(repository, plan.plan_id) is None
    return plan


def reset(repository: Repository, name: str) -> ResetPlan:
    plan = read_reset(repository, plan_id(name))
    assert plan is not None
    assert read_plan(repository, plan.plan_id) is None
    return plan


def repair(repository: Repository, name: str) -> RepairPlan:
    document = repository.kept_plan(plan_id(name))
    assert document is not None
    return RepairPlan.of_document(document)


def test_there_is_a_plan_of_every_kind() -> None:
    assert (len(REWINDS), len(RESETS), len(REPAIRS)) == (6, 5, 3)


@pytest.mark.parametrize("name", REWINDS)
def test_every_rewind(repository: Repository, name: str) -> None:
    plan, stored = rewind(repository, name), PLANS[name]
    assert plan.continued
    assert (plan.plan_id, plan.name, plan.checkpoint) == (stored["plan_id"], name, f"/lake/checkpoints/{name}")
    assert (plan.batch_id, plan.newest, plan.query_id) == (stored["batch_id"], stored["newest"], QUERY_ID)
    assert (plan.before, list(plan.deletes)) == (stored["before"], stored["deletes"])
    assert [(entry.path, entry.size) for entry in plan.writes] == [(w["path"], w["size"]) for w in stored["writes"]]
    # The verdict is worked out when a plan is read. Releases before judged a rollback that removes rows of others UNKNOWN.
    foreign = plan.rolls_sink_back and plan.sink.rollback is not None and plan.sink.rollback.foreign
    assert plan.verdict is (Verdict.WILL_LOSE if foreign else Verdict(stored["verdict"]))
    assert plan.to_markdown().startswith(f"### Rewind, plan {plan.plan_id}\n")


@pytest.mark.parametrize(
    ("name", "policy", "rolls_back"),
    [
        ("orders_delta", SinkPolicy.ROLLBACK, True),
        ("orders_files", SinkPolicy.ROLLBACK, True),
        ("orders_by_spark", SinkPolicy.ROLLBACK, True),
        ("orders_foreach", SinkPolicy.ACCEPT, False),
        ("orders_from_backup", SinkPolicy.ACCEPT, False),
        ("upgrade_taken_back", SinkPolicy.ROLLBACK, True),
    ],
)
def test_the_sink_of_a_rewind(repository: Repository, name: str, policy: SinkPolicy, rolls_back: bool) -> None:
    plan = rewind(repository, name)
    assert (plan.sink_exit, plan.rolls_sink_back, plan.app_id) == (policy, rolls_back, QUERY_ID)


def test_the_details_of_rewinds(repository: Repository) -> None:
    delta, files = rewind(repository, "orders_delta"), rewind(repository, "orders_files")
    assert delta.request.target == "to-batch 1"
    assert delta.request.sink == "/lake/tables/orders_delta"
    assert delta.exact_replay
    assert delta.ended is not None
    assert delta.ended.isoformat() == "2026-11-21T01:50:13.395000+00:00"
    assert delta.sink.rollback is not None
    assert (delta.sink.rollback.from_version, delta.sink.rollback.to_version, delta.sink.rollback.rows) == (3, 1, 4)
    assert delta.new_query_id is None
    assert files.sink.rollback is not None
    assert files.sink.rollback.paths == ("_spark_metadata/3", "_spark_metadata/2", "part-2.json", "part-3.json")
    by_spark = rewind(repository, "orders_by_spark")
    assert by_spark.by_spark == "rowTracking"
    # Made of the plan's id: whoever continues the plan has to come to the same one.
    assert by_spark.new_query_id == PLANS["orders_by_spark"]["new_query_id"]
    guarded = rewind(repository, "orders_foreach")
    assert guarded.source_verdict is Verdict.WILL_LOSE
    back = rewind(repository, "upgrade_taken_back")
    assert back.request.backup == back.source_of_state
    assert back.sink.rollback is not None
    assert back.sink.rollback.foreign == ("version 5 (WRITE at 2026-11-22 10:21:21 UTC)",)
    entry = rewind(repository, "orders_from_backup").writes[0]
    assert (entry.path, entry.size, len(entry.sha256 or "")) == ("commits/2", 29, 64)


@pytest.mark.parametrize("name", RESETS)
def test_every_reset(repository: Repository, name: str) -> None:
    plan, stored = reset(repository, name), PLANS[name]
    assert plan.continued
    assert (plan.plan_id, plan.name, plan.checkpoint) == (stored["plan_id"], name, f"/lake/checkpoints/{name}")
    assert (plan.start, plan.newest, plan.query_id) == (stored["start"], stored["newest"], QUERY_ID)
    assert (plan.before, plan.contents) == (stored["before"], stored["contents"])
    assert list(plan.deletes) == stored["deletes"]
    assert plan.verdict is Verdict(stored["verdict"])
    assert plan.take_back == f"airflow-ckpt undo {plan.checkpoint} --plan {plan.plan_id} --repository /lake/backups"
    assert plan.to_markdown().startswith(f"### Reset, plan {plan.plan_id}\n")


def test_the_command_that_undoes_a_reset_is_quoted(repository: Repository) -> None:
    place = "/lake/or ders; rm -rf ~"
    plan = replace(reset(repository, RESETS[0]), checkpoint=place)
    assert shlex.split(plan.take_back)[:5] == ["airflow-ckpt", "undo", place, "--plan", plan.plan_id]


def test_the_details_of_resets(repository: Repository) -> None:
    ways = {name: reset(repository, name).way for name in RESETS}
    assert ways == {
        "orders_from_scratch": ResetWay.FROM_SCRATCH,
        "orders_kafka_delta": ResetWay.KEEP_POSITION,
        "orders_keep_position": ResetWay.KEEP_POSITION,
        "orders_new_query_id": ResetWay.NEW_QUERY_ID,
        "orders_numbers": ResetWay.KEEP_POSITION,
    }
    kafka = reset(repository, "orders_kafka_delta")
    assert json.loads(kafka.options["0"]["startingOffsets"]) == {"orders": {"0": 20, "1": 10}}
    assert kafka.options["2"] == {"startingVersion": "3"}
    assert kafka.conf == {"spark.databricks.delta.changeDataFeed.timestampOutOfRange.enabled": "true"}
    assert kafka.request.sources == {"1": "2"}
    numbers = reset(repository, "orders_numbers")
    assert (numbers.request.continue_numbers, numbers.first_batch) == (True, 3)
    assert set(numbers.contents) == {"metadata", "sources/0/0", "offsets/1", "offsets/2", "commits/2"}
    assert reset(repository, "orders_keep_position").seeded == {"0"}
    assert reset(repository, "orders_from_scratch").cutover.doubled == {"batches": 2, "rows": 4}
    assert reset(repository, "orders_new_query_id").new_query_id == "51fdf216-f2f8-4a57-8d3b-3d2fe985c8eb"


@pytest.mark.parametrize("name", REPAIRS)
def test_every_repair(repository: Repository, name: str) -> None:
    plan, stored = repair(repository, name), PLANS[name]
    assert plan.continued
    assert (plan.plan_id, plan.name, plan.checkpoint) == (stored["plan_id"], name, f"/lake/checkpoints/{name}")
    assert (plan.batch_id, list(plan.deletes)) == (stored["batch_id"], stored["deletes"])
    assert plan.verdict is Verdict(stored["verdict"])
    assert plan.seal_reason == f"repair to batch {plan.batch_id}"
    assert plan.to_markdown().startswith(f"### Repair, plan {plan.plan_id}\n")


def test_the_details_of_repairs(repository: Repository) -> None:
    cut, fetched = repair(repository, "orders_cut"), repair(repository, "orders_fetched")
    assert (cut.batch_id, cut.replayed, cut.exact_replay) == (3, 2, True)
    assert "offsets/5" in cut.deletes
    assert {entry.path: entry.size for entry, _ in fetched.fetches}.keys() == {"offsets/5", "state/0/0/5.delta"}
    assert {len(entry.sha256 or "") for entry, _ in fetched.fetches} == {64}
    [(path, content)] = repair(repository, "orders_rewritten").rewrites.items()
    assert path.startswith("state/0/_metadata/")
    assert b"/lake/checkpoints/orders_rewritten" in content


# ---- records ----------------------------------------------------------------------------------------


def test_every_audit_record(repository: Repository) -> None:
    records = list(repository.records())
    assert len(records) == len(list((REPOSITORY / "audit").iterdir()))
    kinds = [str(record["kind"]) for record in records]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "rewind": 5,
        "reset": 5,
        "repair": 3,
        "restore": 3,
        "undo": 2,
        "flow-reset": 1,
        "upgrade": 2,
    }
    assert [record["at"] for record in records] == sorted((record["at"] for record in records), reverse=True)
    assert {record["made_by"] for record in records} == {"airflow@worker-1"}


def test_undos_name_what_they_took_back(repository: Repository) -> None:
    undos = {record["of"]: record for record in repository.records() if record["kind"] == "undo"}
    assert set(undos) == {plan_id("orders_delta"), plan_id("orders_keep_position")}
    assert {record["plan_id"] for record in undos.values()} == {f"{of}-undo" for of in undos}
    assert undos[plan_id("orders_delta")]["table_version"] == 5


def test_where_restores_kept_what_they_replaced(repository: Repository) -> None:
    kept = [str(record["kept"]) for record in repository.records() if record["kind"] == "restore"]
    aside, backup, nothing = kept
    assert nothing == "None"
    assert backup.startswith("backup ")
    assert backup.endswith(" of orders_restored.before-restore")
    assert aside.startswith("set-aside/orders_restored/")
    assert (REPOSITORY / aside / "COMPLETE").exists()


def test_every_set_aside_marker(repository: Repository) -> None:
    markers = sorted((REPOSITORY / "set-aside").rglob("COMPLETE"))
    assert len(markers) == 15
    for marker in markers:
        name, plan, *part = marker.parent.relative_to(REPOSITORY / "set-aside").parts
        aside = SetAside(repository, name, plan, *part)
        assert aside.sizes == json.loads(marker.read_text())["files"]
    assert SetAside(repository, "orders_new_query_id", plan_id("orders_new_query_id"), "checkpoint").sizes == {
        "metadata": 45
    }
    assert SetAside(repository, "orders_delta", "none", "checkpoint").sizes is None


def test_a_set_aside_marker_with_hashes() -> None:
    place = open_location(str(STORED / "set_aside"))
    aside = SetAside(Repository.open(place), "orders", "7f3a", "checkpoint")
    assert (len(aside.sizes or ()), len(aside.left or ()), aside.damaged()) == (7, 10, [])
    assert len(aside.read("state/0/0/3.zip")) == 402


# ---- upgrades ---------------------------------------------------------------------------------------


def test_every_upgrade(repository: Repository) -> None:
    assert streams_upgraded(repository) == ("upgrade_kept", "upgrade_open", "upgrade_taken_back")
    found = {name: newest_upgrade(repository, name) for name in streams_upgraded(repository)}
    opened, kept, back = found["upgrade_open"], found["upgrade_kept"], found["upgrade_taken_back"]
    assert opened
    assert kept
    assert back
    assert (opened.is_open, opened.number, set(opened.events)) == (True, 2, {Event.BEGUN, Event.SEALED})
    steps = {Event.BEGUN, Event.SEALED, Event.RELEASED, Event.KEPT, Event.ENDED}
    assert (kept.is_open, kept.upgrade_id, set(kept.events)) == (False, "upgrade/run 2", steps)
    assert kept.fact(Event.BEGUN, "version") == "2.7"
    steps = {Event.BEGUN, Event.SEALED, Event.RELEASED, Event.REFUSED, Event.BACK, Event.ENDED}
    assert (back.is_open, back.number, set(back.events)) == (False, 6, steps)
    assert (back.fact(Event.RELEASED, "batch_id"), back.fact(Event.REFUSED, "times")) == (3, 1)
    assert back.fact(Event.ENDED, "kind") == "taken_back"


def test_the_seals_of_an_upgrade_are_found_again(repository: Repository) -> None:
    """Their ids are made of the record: another way of making them would not find the seals that are there."""
    opened, back = newest_upgrade(repository, "upgrade_open"), newest_upgrade(repository, "upgrade_taken_back")
    assert opened
    assert back
    assert opened.plan_id(back=False) == opened.fact(Event.SEALED, "plan_id")
    assert back.plan_ids[1] == plan_id("upgrade_taken_back")  # of the first attempt, before one was refused
    assert back.plan_id(back=False) == back.fact(Event.SEALED, "plan_id")


# ---- half-done changes ------------------------------------------------------------------------------


def rewinding(to: int) -> Callable[[HalfDone], tuple[object, ...]]:
    return lambda left: (
        *("rewind", left.checkpoint, "--to-batch", to, "--sink", "foreachBatch", "--sink-exit", "accept"),
        *("--repository", left.repository),
    )


def resetting(way: str) -> Callable[[HalfDone], tuple[object, ...]]:
    return lambda left: (
        *("reset", left.checkpoint, f"--{way}", "--sink", "foreachBatch", "--repository", left.repository),
    )


def repairing(left: HalfDone) -> tuple[object, ...]:
    return ("doctor", left.checkpoint, "--repair", "--repository", left.repository)


def restoring(left: HalfDone) -> tuple[object, ...]:
    return ("restore", left.repository, "latest", left.checkpoint, "--name", "orders", "--replace")


#: The request by which each change was begun, and by which it is continued.
REQUESTS = {
    "rewind": rewinding(1),
    "rewind_to_backup": rewinding(3),
    "reset_keep_position": resetting("keep-position"),
    "reset_from_scratch": resetting("from-scratch"),
    "reset_new_query_id": resetting("new-query-id"),
    "repair_cut": repairing,
    "repair_fetched": repairing,
    "restore": restoring,
    "restore_of_broken": restoring,
}
STAGES = {stage: [p.stem for p in sorted(HALF_DONE.glob(f"*-{stage}.json"))] for stage in ("kept", "midway", "changed")}
CHANGES = [name for names in STAGES.values() for name in names]
DONE = ["rewind-done", "reset_keep_position-done"]
UNDOABLE = [name for name in CHANGES if name.startswith(("rewind", "reset"))]


def continued(name: str, left: HalfDone) -> Finished:
    argv = REQUESTS[name.partition("-")[0]](left)
    # The query is known to have ended; older programs wait for a while instead and check whether files change.
    return run(*argv, "--apply", "--query-is-stopped", "--quiet-for", 0, "--json")


def test_there_is_a_half_done_change_of_every_kind() -> None:
    assert {name.partition("-")[0] for name in CHANGES} == REQUESTS.keys()
    assert {p.stem for p in HALF_DONE.iterdir()} == {*CHANGES, *DONE}


@pytest.mark.parametrize("name", CHANGES)
def test_the_same_request_completes_it(name: str, tmp_path: Path) -> None:
    left = half_done(name, tmp_path)
    assert contents(left.checkpoint) not in (left.before, left.after)
    finished = continued(name, left)
    assert finished.code == 0, finished.err
    assert contents(left.checkpoint) == left.after
    records = list(Repository.open(open_location(str(left.repository))).records())
    assert len(records) == 1
    outcome = finished.document.get("repair") or finished.document
    assert records[0]["plan_id"] == outcome["plan_id"]
    if (left.repository / "plans").exists():
        assert records[0]["plan_id"] == left.plan_id


@pytest.mark.parametrize("name", [*UNDOABLE, *DONE])
@pytest.mark.parametrize("named", [False, True], ids=["by the checkpoint", "by the plan"])
def test_undo_takes_it_back(name: str, named: bool, tmp_path: Path) -> None:
    left = half_done(name, tmp_path)
    plan_id = left.plan_id
    if name in DONE:
        assert contents(left.checkpoint) == left.after
    which = ("--plan", plan_id) if named else ()
    finished = run(
        "undo",
        left.checkpoint,
        "--repository",
        left.repository,
        *which,
        "--json",
        "--query-is-stopped",
        "--quiet-for",
        0,
    )
    assert finished.code == 0, finished.err
    assert finished.document["plan_id"] == plan_id
    assert contents(left.checkpoint) == left.before
    again = run(
        "undo", left.checkpoint, "--repository", left.repository, "--plan", plan_id, "--json", "--query-is-stopped"
    )
    assert again.document["already_done"]


@pytest.mark.parametrize("name", DONE)
def test_what_was_written_after_it_is_not_taken_back(name: str, tmp_path: Path) -> None:
    left = half_done(name, tmp_path)
    (left.checkpoint / "offsets").mkdir(exist_ok=True)
    (left.checkpoint / "offsets/9").write_bytes(left.before["offsets/0"])
    written = contents(left.checkpoint)
    finished = run("undo", left.checkpoint, "--repository", left.repository, "--query-is-stopped", "--quiet-for", 0)
    assert finished.code == 1
    assert "was written to since" in finished.err
    assert contents(left.checkpoint) == written
