"""How many streams stand: every number from the place it comes from, what is not known is said, and none hides another."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Field, Schema

from airflow_ckpt_provider.backup.drills import record_drill
from airflow_ckpt_provider.backup.notes import record_verification
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import verify_backup
from airflow_ckpt_provider.change.sealing import seal
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import SourceUnreachableError, StorageError
from airflow_ckpt_provider.fleet.discovery import Discovery, State, discover
from airflow_ckpt_provider.fleet.fleet import discovered, inspect_fleet
from airflow_ckpt_provider.fleet.metrics import to_openmetrics
from airflow_ckpt_provider.fleet.stream import Limits
from airflow_ckpt_provider.fleet.tables import drill_age, to_markdown
from airflow_ckpt_provider.guards.registry import Guard, GuardedSource, GuardSettings, installed_guards
from airflow_ckpt_provider.guards.report import Judgement, PartReport, SourceReport
from airflow_ckpt_provider.recovery.repair.apply import apply_repair
from airflow_ckpt_provider.recovery.repair.planning import plan_repair
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.recovery.status import status_by
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.streams.stream import Objectives
from airflow_ckpt_provider.verdict import Verdict
from tests.support.backups import stream
from tests.support.checkpoints import batch_metadata, commit_log, logs, metadata, offsets_log, plant
from tests.support.rewinds import rewind
from tests.support.stopped import ACCEPTED, STOPPED
from tests.support.two_streams import NOT_TOLD, Told, back_up, look, parts, problems, row, telling
from tests.support.two_streams import repository as repository
from tests.support.two_streams import streams as streams
from tests.support.watched_stores import Killed, Life, watched


class TestLimits:
    @pytest.mark.parametrize(("most", "broken"), [(None, False), (3600.0, False), (0.0, True)])
    def test_age(self, streams: Location, repository: Repository, most: float | None, broken: bool) -> None:
        back_up(repository, streams / "orders")
        plant(streams / "orders", stream(5))
        fleet = look(streams, repository, Limits(max_age=most))
        assert bool(problems(fleet)) is broken
        assert problems(fleet, "payments") == (() if most is None else ("no backup",))

    @pytest.mark.parametrize(
        ("change", "is_current"),
        [
            pytest.param(lambda orders: None, True, id="nothing"),
            pytest.param(lambda orders: plant(orders, stream(5)), False, id="a batch more"),
            pytest.param(lambda orders: orders.delete("commits/4"), False, id="a commit less"),
            pytest.param(lambda orders: orders.create("offsets/5", offsets_log("{}")), False, id="one under way"),
            pytest.param(lambda orders: orders.replace("metadata", metadata("0" * 36)), False, id="another query"),
            pytest.param(
                lambda orders: orders.replace("offsets/4", offsets_log("{}", metadata=batch_metadata(99))),
                False,
                id="run again after a rewind",
            ),
        ],
    )
    def test_a_backup_that_holds_all_there_is_does_not_get_old(
        self, streams: Location, repository: Repository, change: Callable[[Location], object], is_current: bool
    ) -> None:
        back_up(repository, streams / "orders")
        change(streams / "orders")
        fleet = look(streams, repository, Limits(max_age=0.0))
        assert row(fleet).backup_is_current is is_current
        backup = row(fleet).backup
        assert backup is not None
        forged = replace(row(fleet), backup=replace(backup, facts={"batch_times": ["of a kind that nobody wrote"]}))
        assert forged.backup_is_current is False
        assert bool(problems(fleet)) is not is_current

    @pytest.mark.parametrize(("most", "broken"), [(None, False), (1, True), (2, False)])
    def test_gap(self, streams: Location, repository: Repository, most: int | None, broken: bool) -> None:
        for batch in (3, 4):
            (streams / "orders").delete(f"commits/{batch}")
        fleet = look(streams, repository, Limits(max_gap=most))
        assert problems(fleet) == (("gap 2, more than 1",) if broken else ())

    @pytest.mark.parametrize(
        ("guards", "shown", "words"),
        [
            (None, "UNKNOWN", "time to loss UNKNOWN: no guard was configured"),
            (telling(7200), "2 h", None),
            (telling(60), "1 min", "time to loss 1 min, less than 1 h"),
            (telling(None), "UNKNOWN", f"time to loss UNKNOWN: {NOT_TOLD}"),
            (telling(None, facts={"keeps_all": True}), "no limit", None),
            (telling(None, facts={"log_retention_s": None}), "UNKNOWN", f"time to loss UNKNOWN: {NOT_TOLD}"),
            (telling(9000, judgements=(Judgement(Verdict.UNKNOWN, "why"),)), "UNKNOWN", "time to loss UNKNOWN: why"),
            (telling(None, judgements=(Judgement(Verdict.WILL_LOSE, "gone"),)), "0.0 s", "next start WILL_LOSE: gone"),
            (telling(9000, parts=parts(9000, None)), "UNKNOWN", f"time to loss UNKNOWN: {NOT_TOLD}"),
            (telling(9000, parts=parts(9000)), "2 h 30 min", None),
            (telling(None, parts=(PartReport("t-0", Verdict.SAFE, {"limited_by": "nothing"}),)), "no limit", None),
        ],
    )
    def test_time_to_loss(
        self, streams: Location, repository: Repository, guards: Any, shown: str, words: str | None
    ) -> None:
        fleet = look(streams, repository, Limits(min_time_to_loss=3600), guards=guards)
        assert problems(fleet)[:1] == (() if words is None else (words,))
        assert f"| {shown} |" in next(line for line in to_markdown(fleet).splitlines() if line.startswith("| orders"))

    def test_a_source_that_cannot_be_asked(self, streams: Location, repository: Repository) -> None:
        def unreachable(source: GuardedSource) -> SourceReport:
            raise SourceUnreachableError("nobody answers at kafka:9092")

        guards = lambda _: [Told(unreachable)]  # noqa: E731
        fleet = look(streams, repository, Limits(min_time_to_loss=1), guards=guards)
        assert problems(fleet) == ("time to loss UNKNOWN: nobody answers at kafka:9092",)
        assert problems(look(streams, repository, guards=guards)) == ()

    def test_a_client_that_names_its_password(self, streams: Location, repository: Repository) -> None:
        def fail(source: GuardedSource) -> SourceReport:
            raise ValueError("cannot reach https://reader:hunter2@kafka with password=hunter3")

        fleet = look(streams, repository, guards=lambda _: [Told(fail)])
        assert "hunter" not in json.dumps(fleet.to_json())
        assert "https://reader:***@kafka" in json.dumps(fleet.to_json())

    def test_guards_are_made_for_each_worker(self, streams: Location, repository: Repository) -> None:
        for n in range(20):
            plant(streams / f"s{n}", logs(range(2)))
        makers: list[int] = []
        used: list[tuple[int, int]] = []

        def make(_: GuardSettings) -> Sequence[Guard]:
            mine = threading.get_ident()
            makers.append(mine)

            def answer(source: GuardedSource) -> SourceReport:
                used.append((mine, threading.get_ident()))
                return SourceReport(source.name, "file", seconds_left=9.0)

            return [Told(answer)]

        look(streams, repository, guards=make, workers=4)
        assert len(used) == 22
        assert len(makers) == len(set(makers)) <= 4
        assert all(made == asked for made, asked in used)

    def test_a_stream_has_options_of_its_own(self, place: Location, repository: Repository, tmp_path: Path) -> None:
        """Each reads a table of its own; the guard of the one knows nothing of the other's."""
        tables = {}
        for name in ("orders", "payments"):
            DeltaTable.create(tables.setdefault(name, str(tmp_path / name)), Schema([Field("a", "integer")]))
            log = (tmp_path / name / "_delta_log" / "00000000000000000000.json").read_text()
            table_id = re.search(r'"metaData":\{"id":"([^"]+)"', log)[1]  # type: ignore[index]
            offset = {
                "sourceVersion": 1,
                "reservoirId": table_id,
                "reservoirVersion": 1,
                "index": -1,
                "isStartingVersion": False,
            }
            files = {"metadata": metadata(), "commits/0": commit_log()}
            about = batch_metadata() | {"batchTimestampMs": int(datetime.now(UTC).timestamp() * 1000) + 1000}
            plant(place / "ck" / name, {**files, "offsets/0": offsets_log(json.dumps(offset), metadata=about)})
        own = {name: {"delta": {"table.0": uri}} for name, uri in tables.items()}
        fleet = look(place / "ck", repository, Limits(min_time_to_loss=86400), guards=installed_guards, options=own)
        assert fleet.problems() == {}
        assert all(s.time_to_loss.known and s.time_to_loss.seconds > 6 * 86400 for s in fleet.streams)  # type: ignore[operator]
        swapped = {"orders": own["payments"]}
        fleet = look(place / "ck", repository, Limits(min_time_to_loss=86400), guards=installed_guards, options=swapped)
        assert problems(fleet)[0].startswith("next start WILL_FAIL")
        assert problems(fleet, "payments")[0].startswith("time to loss UNKNOWN")

    def test_what_is_not_begun_needs_no_backup(self, streams: Location, repository: Repository) -> None:
        plant(streams / "fresh", {k: v for k, v in logs(range(1)).items() if "commits" not in k})
        assert problems(look(streams, repository, Limits(max_age=1)), "fresh") == ()

    def test_gap_of_asynchronous_progress(self, streams: Location, repository: Repository) -> None:
        """It logs some batches only: of 0, 20 and 40 one is uncommitted, and not twenty."""
        files = {path: data for path, data in stream(0).items() if not path.startswith(("offsets/", "commits/"))}
        files |= {f"offsets/{batch}": offsets_log("{}", metadata=batch_metadata(batch)) for batch in (0, 20, 40)}
        plant(streams / "async", files | {f"commits/{batch}": commit_log() for batch in (0, 20)})
        fleet = look(streams, repository, Limits(max_gap=1))
        assert row(fleet, "async").gap == 20
        assert not any("more than" in problem for problem in problems(fleet, "async"))
        (streams / "async").delete("commits/20")
        assert "gap 2, more than 1" in problems(look(streams, repository, Limits(max_gap=1)), "async")


class TestSituations:
    def test_sealed(self, streams: Location, repository: Repository) -> None:
        seal(Checkpoint.at(streams / "orders"), reason="until Monday", plan_id="beef")
        fleet = look(streams, repository)
        situation = row(fleet).situation
        assert situation is not None
        assert (situation.kind, situation.plan_id) == ("sealed_by_another", "beef")
        assert problems(fleet) == (), "somebody wanted it so"
        assert " sealed |" in to_markdown(fleet)

    def test_sealed_by_a_change_that_no_repository_here_knows(self, streams: Location, repository: Repository) -> None:
        """It may be half done: that is no seal that somebody wanted."""
        seal(Checkpoint.at(streams / "orders"), reason="rewind to batch 2", plan_id="beef")
        (words,) = problems(look(streams, repository))
        assert "a change that was stopped half-way, or is under way" in words

    def test_a_rewind_that_was_stopped_half_way(self, streams: Location, repository: Repository) -> None:
        """Its plan is kept beside the checkpoint."""
        orders = streams / "orders"
        dying, _ = watched(orders, Life(5).before)
        with pytest.raises(Killed):
            rewind(dying, "to_batch", 2)
        fleet = look(streams, repository)
        (words,) = problems(fleet)
        assert "is being rewound to batch 2" in words
        assert [s.found.place.name for s in fleet.streams] == ["orders", "payments"]

    def test_rewound_and_not_started_since(self, streams: Location, repository: Repository) -> None:
        outcome = rewind(streams / "orders", "to_batch", 2)
        situation = row(look(streams, repository)).situation
        assert situation is not None
        assert (situation.kind, situation.plan_id) == ("rewound", outcome.plan_id)
        assert " rewound |" in to_markdown(look(streams, repository))
        undo(
            streams / "orders",
            Repository.open(Location(streams.store, f"{streams.root}/orders.rewinds")),
            rest=STOPPED,
        )
        assert "| never | |\n" in to_markdown(look(streams, repository))

    def test_a_repair_that_was_stopped_half_way(self, streams: Location, repository: Repository) -> None:
        """Kept in ``orders.repairs``: the report says so, and does not call it somebody's seal."""
        orders = streams / "orders"
        orders.delete("offsets/3")
        dying, _ = watched(orders, Life(5).before)
        plan = plan_repair(Checkpoint.at(orders))
        with pytest.raises(Killed):
            apply_repair(plan, Checkpoint.at(dying), rest=STOPPED, accept=ACCEPTED)
        assert any("is being changed by repair" in words for words in problems(look(streams, repository)))

    def test_the_newest_change_counts_wherever_it_is_kept(self, streams: Location, repository: Repository) -> None:
        orders = streams / "orders"
        rewind(orders, "to_batch", 3)
        plan = plan_rewind(Checkpoint.at(orders), Specifier("to_batch", "2"), repository=repository.location, guards=())
        newest = apply_rewind(plan, Checkpoint.at(orders), repository, rest=STOPPED, accept=ACCEPTED)
        situation = row(look(streams, repository)).situation
        assert situation is not None
        assert (situation.kind, situation.plan_id) == ("rewound", newest.plan_id)
        assert situation == status_by(Checkpoint.at(orders), repository)

    def test_restored_and_not_started_since(self, streams: Location, repository: Repository) -> None:
        orders = streams / "orders"
        manifest = back_up(repository, orders).manifest
        orders.delete("commits/4")
        outcome = apply_restore(plan_restore(repository, manifest, orders, replace=True), rest=STOPPED)
        situation = row(look(streams, repository)).situation
        assert situation is not None
        assert (situation.kind, situation.plan_id) == ("changed", outcome.plan_id)
        assert situation == status_by(Checkpoint.at(orders), repository)
        plant(orders, stream(5))
        assert row(look(streams, repository)).situation.kind == "running_again"  # type: ignore[union-attr]

    def test_of_streams_that_are_named_one_by_one(self, streams: Location, repository: Repository) -> None:
        """Nobody has searched what is beside them."""
        outcome = rewind(streams / "orders", "to_batch", 2)
        fleet = inspect_fleet(discovered(Discovery(()), [(streams / "orders", None)]), repository)
        situation = row(fleet).situation
        assert situation is not None
        assert (situation.kind, situation.plan_id) == ("rewound", outcome.plan_id)

    def test_records_of_plans_are_read_once_and_no_others(self, streams: Location, repository: Repository) -> None:
        for n in range(40):
            repository.record(f"expire{n}", {"kind": "expire"})
        repository.keep_plan("beef", {"kind": "rewind"})
        facts = {
            "kind": "rewind",
            "checkpoint": (streams / "orders").uri,
            "plan": {"batch_id": 9, "request": {"sink": ""}},
        }
        repository.record("beef", facts)
        watching, store = watched(repository.location)
        fleet = look(streams, Repository.open(watching))
        assert row(fleet).situation.kind == "rewound"  # type: ignore[union-attr]
        assert sum("/audit/" in path for path in store.paths("read")) == 1


def drill(name: str, backup_id: str) -> dict[str, Any]:
    return {"name": name, "backup_id": backup_id, "batch_id": 4, "starts": True, "batches": [5]}


def test_last_drill(streams: Location, repository: Repository) -> None:
    made = back_up(repository, streams / "orders")
    record_drill(repository, drill("orders", made.backup_id))
    fleet = look(streams, repository)
    assert row(fleet).to_json(Limits())["last_drill"]["backup_id"] == made.backup_id
    assert row(fleet, "payments").drill is None


def test_a_drill_of_the_future_is_not_known_to_be_new(streams: Location, repository: Repository) -> None:
    report = {**drill("orders", back_up(repository, streams / "orders").backup_id), "seconds": 60.0}
    path = f"drills/orders/{report['backup_id']}/99991231T000000Z.json"
    made = {"proven_at": "9999-12-31T00:00:00+00:00", "report": report}
    repository.location.create(path, json.dumps(made).encode())
    fleet = look(streams, repository, objectives={(streams / "orders").uri: Objectives(rto=timedelta(hours=1))})
    assert (drill_age(row(fleet)), drill_age(row(fleet, "payments"))) == ("UNKNOWN", "never")
    text = to_openmetrics(fleet)
    assert "ckpt_stream_last_drill_timestamp_seconds" not in text
    assert re.findall(r'ckpt_stream_unknown{stream="orders".*part="(drill|rto)"', text) == ["drill", "rto"]
    record_drill(repository, report)
    assert drill_age(row(look(streams, repository))) != "UNKNOWN", "it hides no later one"


def test_one_broken_stream_hides_no_other(streams: Location, repository: Repository) -> None:
    for name in ("orders", "payments"):
        made = back_up(repository, streams / name)
        record_drill(repository, drill(name, made.backup_id))
    (drills,) = repository.location.walk("drills/orders")
    repository.location.replace(drills, b"no JSON")
    plant(streams / "torn", {"offsets/1": b"", "commits/0": b"v1\n{}"})
    plant(streams / "far", logs(range(2)))

    def refuse(operation: str, path: str) -> None:
        if "/far/offsets" in path or "backups/payments" in path:
            raise StorageError(f"could not {operation}: timed out")

    from_far = watched(streams, refuse)[0]
    fleet = look(from_far, Repository.open(watched(repository.location, refuse)[0]), Limits(max_age=3600))
    no_drill = f"{repository.location}/{drills} is no record of a drill (ValueError: Expecting value at character 0)"
    empty = "offsets/1: the file is empty (0 bytes): its writer was stopped half-way, or the copy was torn"
    assert {s.found.place.name: s.problems(fleet.limits) for s in fleet.streams} == {
        "far": ("unreadable: could not list: timed out", "no backup"),
        "orders": (f"drill UNKNOWN: {no_drill}",),
        "payments": ("backup UNKNOWN: could not list: timed out",),
        "torn": (f"torn: {empty}", "no backup"),
    }
    assert row(fleet).backup is not None


class TestMissing:
    def test_a_checkpoint_that_was_deleted_is_a_problem(self, streams: Location, repository: Repository) -> None:
        for name in ("orders", "payments"):
            back_up(repository, streams / name)
        assert look(streams, repository).problems() == {}
        remove(streams / "orders")
        fleet = look(streams, repository)
        gone = (streams / "orders").uri
        assert fleet.problems() == {gone: ("the checkpoint is missing, and has backups named 'orders'",)}
        assert fleet.to_json()["missing"] == [{"name": "orders", "checkpoint": gone}]
        assert f'ckpt_stream_checkpoint_missing{{stream="orders",checkpoint="{gone}"}} 1\n' in to_openmetrics(fleet)

    def test_one_that_was_not_searched_for_is_none(
        self, streams: Location, place: Location, repository: Repository
    ) -> None:
        back_up(repository, plant(place / "elsewhere/views", stream(2)))
        remove(place / "elsewhere/views")
        back_up(repository, plant(streams / "deep/one/clicks", stream(2)))
        assert inspect_fleet(discover([streams], depth=1), repository).problems() == {}
        assert inspect_fleet(discovered(Discovery(()), [(streams / "payments", None)]), repository).problems() == {}

    def test_what_is_not_known_is_a_problem(self, streams: Location, repository: Repository) -> None:
        back_up(repository, streams / "orders")
        remove(streams / "orders")

        def refuse(operation: str, path: str) -> None:
            if "backups/orders" in path or (operation, path) == ("list", f"{streams.root}/orders"):
                raise StorageError(f"could not {operation}: timed out")

        unread = look(streams, Repository.open(watched(repository.location, refuse)[0])).problems()
        assert unread[repository.location.uri] == (
            "whether a checkpoint is missing is UNKNOWN: could not list: timed out",
        )
        assert look(watched(streams, refuse)[0], repository).problems() == {
            (streams / "orders").uri: ("could not list: timed out",)
        }


def remove(checkpoint: Location) -> None:
    for path in checkpoint.walk():
        checkpoint.delete(path)


class TestLists:
    def test_one_by_one(self, streams: Location, place: Location, repository: Repository) -> None:
        plant(place / "elsewhere/orders", stream(2))
        given = [(place / "elsewhere/orders", None), (streams / "orders", "sales"), (place / "nothing", None)]
        found = discovered(Discovery(()), given)
        assert {f.place.root.removeprefix(place.root): f.name for f in found.found} == {
            "/ck/orders": "sales",
            "/elsewhere/orders": "elsewhere.orders",
            "/nothing": "nothing",
        }
        fleet = inspect_fleet(found, repository)
        assert problems(fleet, "nothing")[0].endswith(
            "is not a checkpoint: it has no offsets/, no commits/ and no metadata"
        )

    def test_one_that_is_refused_in_the_middle_hides_no_other(self, streams: Location, place: Location) -> None:
        sparse = plant(place / "sparse", logs(range(0, 6, 5)))

        def refuse(operation: str, path: str) -> None:
            if (operation, path) == ("list", sparse.root):
                raise StorageError("could not list it: 403")

        given = [(watched(sparse, refuse)[0], None), (streams / "orders", None)]
        found = {each.place.name: each for each in discovered(Discovery(()), given).found}
        assert (found["sparse"].state, found["sparse"].message) == (State.UNREADABLE, "could not list it: 403")
        assert found["orders"].state is State.WHOLE

    def test_besides_what_was_found(self, streams: Location, place: Location) -> None:
        plant(place / "more/invoices", stream(2))
        found = discovered(discover([streams]), [(place / "more/invoices", None), (streams / "orders", "sales")])
        assert [f.name for f in found.found] == ["sales", "payments", "invoices"]


def test_requests(place: Location) -> None:
    """At most ten for each stream, finding it included, and ten for the repository."""
    count = 25
    repository = Repository.open_or_create(place / "backups")
    for n in range(count):
        plant(place / f"ck/s{n}", logs(range(3)))
        made = back_up(repository, place / f"ck/s{n}")
        record_verification(repository, verify_backup(repository, made.manifest))
        record_drill(repository, drill(f"s{n}", made.backup_id))
    looking, checkpoints = watched(place / "ck")
    asking, store = watched(place / "backups")
    fleet = look(looking, Repository.open(asking), Limits(max_age=3600))
    assert fleet.problems() == {}
    assert len(checkpoints.requests) == 1 + 5 * count
    assert len(store.requests) == 6 + 6 * count
    assert store.count("list", "walk", "read") == len(store.requests)


def test_looked_at_is_now(streams: Location, repository: Repository) -> None:
    assert abs((datetime.now(UTC) - look(streams, repository).looked_at).total_seconds()) < 60
