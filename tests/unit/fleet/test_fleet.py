"""How many streams stand: every number from the place it comes from, what is not known is said, and none hides another."""

from __future__ import annotations

import csv
import io
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
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_ckpt_provider.backup.create import BackupResult, create_backup
from airflow_ckpt_provider.backup.damaged import Damage
from airflow_ckpt_provider.backup.drills import record_drill
from airflow_ckpt_provider.backup.notes import record_verification
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import ReadData, VerifyReport, verify_backup
from airflow_ckpt_provider.change.sealing import seal
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import SourceUnreachableError, StorageError
from airflow_ckpt_provider.fleet.discovery import Discovery, State, discover
from airflow_ckpt_provider.fleet.fleet import Fleet, discovered, inspect_fleet
from airflow_ckpt_provider.fleet.metrics import gauges, to_openmetrics
from airflow_ckpt_provider.fleet.stream import Limits, Stream
from airflow_ckpt_provider.fleet.tables import drill_age, to_csv, to_markdown
from airflow_ckpt_provider.guards.registry import Guard, GuardedSource, GuardSettings, installed_guards
from airflow_ckpt_provider.guards.report import Judgement, PartReport, SourceReport
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.backups import stream
from tests.support.checkpoints import batch_metadata, commit_log, logs, metadata, offsets_log, plant
from tests.support.rewinds import rewind
from tests.support.spoiled import lose
from tests.support.stopped import STOPPED
from tests.support.watched_stores import Killed, Life, forget_all, in_memory, watched


@pytest.fixture
def repository(place: Location) -> Repository:
    return Repository.open_or_create(place / "backups")


@pytest.fixture
def streams(place: Location) -> Location:
    """Two of them: ``orders`` with state and five batches, ``payments`` with three."""
    plant(place / "ck/orders", stream(4))
    plant(place / "ck/payments", logs(range(3)))
    return place / "ck"


def back_up(repository: Repository, checkpoint: Location, **options: Any) -> BackupResult:
    return create_backup(Checkpoint.at(checkpoint), repository, **options)


def look(streams: Location, repository: Repository, limits: Limits | None = None, **options: Any) -> Fleet:
    return inspect_fleet(discover([streams]), repository, limits=limits, **options)


def row(fleet: Fleet, name: str = "orders") -> Stream:
    (found,) = (s for s in fleet.streams if s.found.place.name == name)
    return found


def problems(fleet: Fleet, name: str = "orders") -> tuple[str, ...]:
    return row(fleet, name).problems(fleet.limits)


class Told:
    """A guard that says what it was asked to."""

    kind = "file"

    def __init__(self, answer: Callable[[GuardedSource], SourceReport]) -> None:
        self.answer = answer

    def recognises(self, source: GuardedSource) -> bool:
        return True

    def judge(self, source: GuardedSource) -> SourceReport:
        return self.answer(source)


def telling(seconds_left: float | None, **more: Any) -> Callable[[GuardSettings], Sequence[Guard]]:
    return lambda _: [Told(lambda source: SourceReport(source.name, "file", seconds_left=seconds_left, **more))]


NOT_TOLD = "source 0 (file): how long it will be there is not known"


def parts(*seconds: float | None) -> tuple[PartReport, ...]:
    """Partitions of a topic as Kafka's guard reports them; ``None``: limited by size, so nobody can tell."""
    return tuple(
        PartReport(
            f"t-{n}", Verdict.SAFE, {"limited_by": "retention.ms" if left else "retention.bytes", "seconds_left": left}
        )
        for n, left in enumerate(seconds)
    )


class TestBackups:
    def test_the_newest(self, streams: Location, repository: Repository) -> None:
        back_up(repository, streams / "orders")
        made = back_up(repository, streams / "orders")
        record_verification(repository, verify_backup(repository, made.manifest, read_data=ReadData()))
        plant(streams / "orders", stream(6))
        orders = row(look(streams, repository)).to_json(Limits())
        assert orders["backup"] == {
            "name": "orders",
            "backup_id": made.backup_id,
            "batch_id": 4,
            "created": made.manifest.created.isoformat(),
            "age_seconds": orders["backup"]["age_seconds"],
            "verified": "contents",
            "files": made.files,
            "bytes": made.bytes,
            "damaged": [],
        }
        assert 0 <= orders["backup"]["age_seconds"] < 60
        assert (orders["batches_behind"], orders["gap"], orders["problems"]) == (2, 0, [])
        assert json.loads(json.dumps(orders)) == orders

    def test_one_that_is_damaged_does_not_count(self, streams: Location, repository: Repository) -> None:
        good = back_up(repository, streams / "orders")
        plant(streams / "orders", stream(5))
        by_note, by_hash = back_up(repository, streams / "orders"), back_up(repository, streams / "orders")
        own = next(entry for entry in by_note.manifest.files if entry.path == "offsets/5")
        lose(repository.location, own.object)
        record_verification(repository, verify_backup(repository, by_note.manifest))
        repository.location.replace(by_hash.manifest.path, b"{}")
        fleet = look(streams, repository)
        backup = row(fleet).backup
        assert backup is not None
        assert (backup.backup_id, backup.damaged) == (good.backup_id, (by_hash.backup_id, by_note.backup_id))
        assert problems(fleet) == (
            f"damaged backups newer than the last good one: {by_hash.backup_id}, {by_note.backup_id}",
        )

    def test_all_are_damaged(self, streams: Location, repository: Repository) -> None:
        made = back_up(repository, streams / "orders")
        repository.location.replace(made.manifest.path, b"")
        fleet = look(streams, repository, Limits(max_age=3600))
        assert problems(fleet) == ("backup UNKNOWN: the only backup named 'orders' is damaged",)

    @settings(max_examples=30)
    @given(st.lists(st.sampled_from(["good", "verified", "noted", "changed", "gone"]), max_size=6))
    def test_of_any_history(self, history: list[str]) -> None:
        """The newest that nothing is known against, and before it those that are damaged."""
        place = in_memory("lake")
        try:
            kept = Repository.open_or_create(place / "backups")
            orders = plant(place / "ck/orders", logs(range(2)))
            made = [(word, back_up(kept, orders).manifest) for word in history]
            for word, manifest in made:
                if word == "noted":
                    damage = (Damage("metadata", "", "missing", "it is missing"),)
                    record_verification(kept, VerifyReport(manifest.backup_id, "orders", 1, 1, 0, 0, damage))
                elif word == "verified":
                    record_verification(kept, verify_backup(kept, manifest))
                elif word == "changed":
                    kept.location.replace(manifest.path, manifest.to_document().replace(b"orders", b"sredro"))
                elif word == "gone":
                    kept.location.delete(manifest.path)
            left = [(word, manifest.backup_id) for word, manifest in reversed(made) if word != "gone"]
            good = next((n for n, (word, _) in enumerate(left) if word in ("good", "verified")), None)
            orders_row = row(look(place / "ck", kept))
            if good is None:
                assert orders_row.backup is None
                assert ("backup" in orders_row.unknown) is bool(left), "damaged is not the same as none"
            else:
                assert orders_row.backup is not None
                assert orders_row.backup.backup_id == left[good][1]
                assert orders_row.backup.damaged == tuple(backup_id for _, backup_id in left[:good])
                assert (orders_row.backup.verified is not None) is (left[good][0] == "verified")
        finally:
            forget_all()

    def test_of_another_stream_under_the_same_name(
        self, streams: Location, place: Location, repository: Repository
    ) -> None:
        plant(place / "dev/orders", stream(2))
        back_up(repository, place / "dev/orders")
        fleet = look(streams, repository, Limits(max_age=3600))
        assert row(fleet).backup is None
        assert problems(fleet) == (
            "backup UNKNOWN: the backups named 'orders' are of the same query in another place: "
            f"of {(place / 'dev/orders').uri}",
        )

    def test_under_another_name(self, streams: Location, repository: Repository) -> None:
        made = back_up(repository, streams / "orders", name="prod.orders")
        back_up(repository, streams / "payments", name="gone")
        repository.location.delete(f"backups/gone/{repository.backup_ids('gone')[0]}.json")
        fleet = look(streams, repository)
        orders = row(fleet)
        assert (orders.name, orders.backup and orders.backup.backup_id) == ("prod.orders", made.backup_id)
        assert row(fleet, "payments").backup is None
        assert "prod.orders" not in fleet.others

    def test_under_two_other_names(self, streams: Location, repository: Repository) -> None:
        back_up(repository, streams / "orders", name="z.orders")
        newer = back_up(repository, streams / "orders", name="a.orders")
        found = row(look(streams, repository)).backup
        assert found is not None
        assert (found.name, found.backup_id) == ("a.orders", newer.backup_id)

    def test_under_another_name_that_cannot_be_read(self, streams: Location, repository: Repository) -> None:
        back_up(repository, streams / "orders", name="prod.orders")
        repository.location.replace("damaged/prod.orders/000001.json", b"{")
        fleet = look(streams, repository, Limits(max_age=3600))
        assert row(fleet).backup is None
        assert problems(fleet)[0].startswith(
            "backup UNKNOWN: no backup is named 'orders', and those that may have another name cannot all be read: "
            "damaged/prod.orders/000001.json cannot be read"
        )
        assert "no backup" not in problems(fleet)

    def test_names_that_no_stream_has(self, streams: Location, place: Location, repository: Repository) -> None:
        plant(place / "old", stream(2))
        for checkpoint in (streams / "orders", place / "old"):
            back_up(repository, checkpoint)
        back_up(repository, streams / "orders", name="orders.before-restore")
        assert look(streams, repository).others == ("old",)

    def test_a_clock_that_is_ahead(
        self, streams: Location, repository: Repository, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Ahead(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> datetime:
                return datetime.now(tz) + timedelta(days=2)

        monkeypatch.setattr("airflow_ckpt_provider.backup.create.datetime", Ahead)
        back_up(repository, streams / "orders")
        fleet = look(streams, repository, Limits(max_age=3600))
        assert row(fleet).backup_age is None
        assert problems(fleet)[0].startswith("age of the last good backup UNKNOWN: a clock says")


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
            (telling(None, facts={"log_retention_s": 9}), "no limit", None),
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


class TestSituations:
    def test_sealed(self, streams: Location, repository: Repository) -> None:
        seal(Checkpoint.at(streams / "orders"), reason="until Monday", plan_id="beef")
        fleet = look(streams, repository)
        situation = row(fleet).situation
        assert situation is not None
        assert (situation.kind, situation.plan_id) == ("sealed_by_another", "beef")
        assert problems(fleet) == (), "somebody wanted it so"
        assert " sealed |" in to_markdown(fleet)

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
    drilled = record_drill(repository, drill("orders", back_up(repository, streams / "orders").backup_id))
    path = f"drills/orders/{drilled.backup_id}/99991231T000000Z.json"
    made = {"proven_at": "9999-12-31T00:00:00+00:00", "report": drilled.report}
    repository.location.create(path, json.dumps(made).encode())
    fleet = look(streams, repository)
    assert drill_age(row(fleet)) == "UNKNOWN"
    assert drill_age(row(fleet, "payments")) == "never"


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


class TestShown:
    @pytest.fixture
    def fleet(self, streams: Location, repository: Repository) -> Fleet:
        back_up(repository, streams / "orders")
        plant(streams / 'we"ird\\, |x', logs(range(1)))
        return look(streams, repository, Limits(max_age=3600, min_time_to_loss=1), guards=telling(None), sizes=True)

    def test_csv(self, fleet: Fleet, streams: Location) -> None:
        rows = {r["checkpoint"]: r for r in csv.DictReader(io.StringIO(to_csv(fleet)))}
        assert len(rows) == 3
        orders = rows[(streams / "orders").uri]
        size = sum(f.size for f in (streams / "orders").walk().values())
        assert (orders["stream"], orders["latest_committed"], orders["size"]) == ("orders", "4", str(size))
        assert (orders["time_to_loss_known"], orders["time_to_loss_seconds"]) == ("false", "")
        assert rows[(streams / "payments").uri]["problems"].startswith("no backup; time to loss UNKNOWN")

    @pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r", "\n", "\uff1d"])
    def test_no_cell_of_csv_is_a_formula(self, begin: str, fleet: Fleet) -> None:
        said = f"{begin}cmd|'/c calc'!A1\r=1+1"
        of = row(fleet)
        found = replace(of.found, name=said, progress=replace(of.found.progress, query_id=said))
        text = to_csv(replace(fleet, streams=(replace(of, found=found, backup=None, unknown={said: ""}),)))
        (cells,) = csv.DictReader(io.StringIO(text, newline=""))
        shown = "'" + said.replace("\r", "\n")
        assert (cells["stream"], cells["query_id"], cells["problems"][:2]) == (shown, shown, shown[:2])
        assert (cells["latest_committed"], cells["state"]) == ("4", "whole")

    def test_markdown_has_a_cell_for_each_column(self, fleet: Fleet) -> None:
        rows = [line for line in to_markdown(fleet).splitlines() if line.startswith("|")]
        assert len({len(re.split(r"(?<!\\)\|", line)) for line in rows}) == 1
        assert len(rows) == 2 + 3

    def test_openmetrics(self, fleet: Fleet, streams: Location) -> None:
        text = to_openmetrics(fleet)
        found = parsed(text)
        of = {"stream": "orders", "checkpoint": (streams / "orders").uri}
        backup = row(fleet).backup
        assert backup is not None
        at = found["ckpt_stream_last_good_backup_timestamp_seconds"]
        assert at == {tuple(of.items()): pytest.approx(backup.created.timestamp(), abs=0.001)}
        assert "ckpt_stream_backup_age_seconds" not in found, "a file can be old"
        has_one = {dict(key)["stream"]: value for key, value in found["ckpt_stream_has_good_backup"].items()}
        assert has_one == {"orders": 1, "payments": 0, "we_ird____x": 0}, "no backup is not the same as not known"
        assert found["ckpt_stream_unknown"][(*of.items(), ("part", "time_to_loss"))] == 1
        assert "ckpt_stream_time_to_loss_seconds" not in found
        assert found["ckpt_fleet_streams"] == {(): 3}
        labels = {dict(key)["checkpoint"] for key in found["ckpt_stream_problems"]}
        assert labels == {s.found.place.uri for s in fleet.streams}, "quotes and backslashes come through"
        names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
        assert len(names) == len(set(names))
        assert text.endswith("\n# EOF\n")

    def test_openmetrics_of_a_name_that_is_no_utf8(self, repository: Repository, place: Location) -> None:
        plant(place / "odd" / "or\udcffders", logs(range(1)))
        text = to_openmetrics(look(place / "odd", repository))
        assert "or\\\\udcffders" in text.encode().decode()

    def test_gauges_of_airflow_have_ages(self, fleet: Fleet) -> None:
        (age,) = (g.value for g in gauges(fleet) if g.name == "backup_age_seconds")
        assert 0 <= age < 60


_SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)')
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\\n]|\\.)*)"')


def parsed(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Read the text format as its specification has it: every line is a comment or a sample."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    unescape = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
    for line in text.splitlines():
        if line.startswith("# "):
            continue
        match = _SAMPLE.fullmatch(line)
        assert match, line
        labels = tuple((k, re.sub(r"\\.", lambda m: unescape[m[0]], v)) for k, v in _LABEL.findall(match[2] or ""))
        assert labels not in found.setdefault(match[1], {}), "the same sample twice"
        found[match[1]][labels] = float(match[3])
    return found


def test_looked_at_is_now(streams: Location, repository: Repository) -> None:
    assert abs((datetime.now(UTC) - look(streams, repository).looked_at).total_seconds()) < 60
