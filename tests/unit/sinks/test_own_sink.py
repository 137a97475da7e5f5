"""A sink of another package: installed as a package with its entry point, it is rewound like any other.

The code is the example of ``docs/sinks.md``.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError, StorageError
from airflow_ckpt_provider.guards.entry_points import forget
from airflow_ckpt_provider.recovery.reset.planning import plan_reset
from airflow_ckpt_provider.recovery.reset.way import ResetWay
from airflow_ckpt_provider.recovery.restore.sink import sink_says
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.sinks.kinds import GROUP, installed_kinds
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.upgrade.way_back import dry_run
from airflow_ckpt_provider.verdict import Verdict
from tests.support.backups import stream
from tests.support.checkpoints import QUERY_ID, plant
from tests.support.command_line import run
from tests.support.delta_batches import batches_in, delta_table
from tests.support.resets import NEWEST
from tests.support.restores import loud_seal
from tests.support.stopped import STOPPED
from tests.support.watched_stores import Killed, lives, watched

PAGE = Path(__file__).parents[3] / "docs" / "sinks.md"
EXAMPLE = PAGE.read_text().partition("<!-- example: a sink of another package -->")[2]
CODE = EXAMPLE.partition("```python\n")[2].partition("```")[0]

FACTS = '"entries": len(self.content["entries"])'


def install(site: Path, code: str = CODE, *, name: str = "ledger_package", entry: str = "ledger") -> None:
    """A package as an installer leaves it: its module, and the metadata with its entry point."""
    site.mkdir(exist_ok=True)
    (site / f"{name}.py").write_text(code)
    about = site / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{GROUP}]\n{entry} = {name}:LedgerSink\n")
    forget()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place where packages are installed to; what is imported from it is forgotten again."""
    monkeypatch.syspath_prepend(tmp_path / "site")
    before = set(sys.modules)
    importlib.invalidate_caches()
    yield tmp_path / "site"
    for name in set(sys.modules) - before:
        if name.endswith("_package"):
            del sys.modules[name]


@pytest.fixture
def installed(site: Path) -> Path:
    install(site)
    return site


@pytest.fixture
def orders(place: Location) -> Location:
    return plant(place / "orders", stream(NEWEST))


@pytest.fixture
def ledger(tmp_path: Path) -> Location:
    made = open_location(str(tmp_path / "ledger"))
    made.replace("ledger.json", json.dumps({"entries": [], "taken": {}, "undone": []}).encode())
    run_query(made, range(NEWEST + 1))
    return made


def run_query(place: Location, batches: range) -> None:
    """What the streaming code does with its sink: batches that it remembers are skipped."""
    content = read(place)
    newest = max((e["batch"] for e in content["entries"] if e["query"] == QUERY_ID), default=-1)
    content["entries"] += [{"query": QUERY_ID, "batch": b, "rows": [f"row {b}"]} for b in batches if b > newest]
    place.replace("ledger.json", json.dumps(content).encode())


def read(place: Location) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(place.read("ledger.json"))
    return found


def batches(place: Location) -> list[int]:
    return [entry["batch"] for entry in read(place)["entries"]]


def repository(orders: Location) -> Repository:
    return Repository.open_or_create(default_repository(orders))


def plan_of(orders: Location, *sinks: Sink, policy: SinkPolicy | None = SinkPolicy.ROLLBACK) -> RewindPlan:
    return plan_rewind(Checkpoint.at(orders), Specifier("to_batch", "4"), sink=sinks, sink_exit=policy, guards=())


def carry_out(orders: Location, *sinks: Sink) -> Any:
    return apply_rewind(plan_of(orders, *sinks), Checkpoint.at(orders), repository(orders), sink=sinks, rest=STOPPED)


@pytest.mark.usefixtures("installed")
class TestAFourthSink:
    def test_back_replayed_and_row_exact(self, orders: Location, ledger: Location) -> None:
        sink = Sink(place=ledger)
        wanted = read(ledger)["entries"]
        plan = plan_of(orders, sink)
        assert (plan.sink.kind, plan.sink.verdict, plan.sink_verdict) == ("ledger", Verdict.WILL_SKIP, Verdict.SAFE)
        assert "roll the sink back: 2 entries leave ledger.json" in plan.steps
        assert (
            "(ledger, policy rollback): 2 entries leave ledger.json, 2 rows of 2 batches leave it" in plan.to_markdown()
        )
        assert RewindPlan.of_document(json.loads(json.dumps(plan.document()))) == plan
        carry_out(orders, sink)
        assert batches(ledger) == [0, 1, 2, 3, 4]
        run_query(ledger, range(5, NEWEST + 1))
        assert read(ledger)["entries"] == wanted

    def test_the_control_keeps_the_old_rows(self, orders: Location, ledger: Location) -> None:
        """Not rolled back: what the code writes again is skipped, as the verdict says."""
        plan = plan_of(orders, Sink(place=ledger), policy=None)
        assert [risk.word for risk in plan.risks] == ["sink_skips"]
        run_query(ledger, range(5, NEWEST + 1))
        assert batches(ledger) == list(range(NEWEST + 1))

    def test_undone(self, orders: Location, ledger: Location) -> None:
        before = read(ledger)["entries"]
        carry_out(orders, Sink(place=ledger))
        undo(orders, repository(orders), sink=Sink(place=ledger), rest=STOPPED)
        assert read(ledger)["entries"] == before
        assert set(orders.walk()) == set(stream(NEWEST))

    def test_not_with_another_ledger(self, orders: Location, ledger: Location, tmp_path: Path) -> None:
        """The kind does not see it: the checkpoint was put back, and the ledger of the rewind was not."""
        carry_out(orders, Sink(place=ledger))
        other = open_location(str(tmp_path / "another"))
        other.replace("ledger.json", json.dumps({"entries": [], "taken": {}, "undone": []}).encode())
        with pytest.raises(RefusedError, match=f"rolled {ledger} back too, and it was not given"):
            undo(orders, repository(orders), sink=Sink(place=other), rest=STOPPED)
        assert batches(ledger) == [0, 1, 2, 3, 4]
        assert Checkpoint.at(orders).progress().latest_committed == 4

    def test_not_after_somebody_wrote(self, orders: Location, ledger: Location) -> None:
        carry_out(orders, Sink(place=ledger))
        run_query(ledger, range(5, 6))
        with pytest.raises(RefusedError, match="somebody wrote into the ledger"):
            undo(orders, repository(orders), sink=Sink(place=ledger), rest=STOPPED)

    def test_killed_anywhere(self, place: Location, tmp_path: Path) -> None:
        for life in lives(range(0, 100, 3), least=10):
            orders = plant(place / f"k{life.writes}" / "orders", stream(NEWEST))
            ledger = open_location(str(tmp_path / f"ledger{life.writes}"))
            ledger.replace("ledger.json", json.dumps({"entries": [], "taken": {}, "undone": []}).encode())
            run_query(ledger, range(NEWEST + 1))
            held = repository(orders)
            at, sink = watched(orders, life.before)[0], Sink(place=watched(ledger, life.before)[0])
            with suppress(Killed):
                made = plan_of(at, sink)
                apply_rewind(made, Checkpoint.at(at), held, sink=sink, rest=STOPPED)
            if not life.dead:
                continue
            done = Checkpoint.at(orders).progress().seal is None and len(orders.walk()) < len(stream(NEWEST))
            untouched = set(orders.walk()) == set(stream(NEWEST)) and batches(ledger) == list(range(NEWEST + 1))
            assert loud_seal(orders) or untouched or done
            if not done:
                carry_out(orders, Sink(place=ledger))
            assert batches(ledger) == [0, 1, 2, 3, 4]
            assert len(read(ledger)["taken"]) == 1

    def test_with_a_delta_table(self, orders: Location, ledger: Location, tmp_path: Path) -> None:
        table = delta_table(tmp_path / "table", range(4, NEWEST + 1))
        sinks = [Sink(place=table), Sink(place=ledger)]
        carry_out(orders, *sinks)
        assert (batches_in(table), batches(ledger)) == ([4, 4], [0, 1, 2, 3, 4])
        undo(orders, repository(orders), sink=sinks, rest=STOPPED)
        assert (batches_in(table), batches(ledger)) == ([4, 4, 5, 5, 6, 6], list(range(NEWEST + 1)))

    def test_in_other_verbs(self, orders: Location, ledger: Location) -> None:
        sink = Sink(place=ledger)
        plan = plan_reset(orders, ResetWay.KEEP_POSITION, sink=sink)
        assert (plan.cutover.kind, plan.cutover.verdict) == ("ledger", Verdict.UNKNOWN)
        manifest = create_backup(Checkpoint.at(orders), repository(orders), restorable_batches=2).manifest
        answer = sink_says(sink, manifest, orders, batch=5, repository=repository(orders))
        assert answer
        assert answer.verdict is Verdict.WILL_SKIP
        assert not dry_run(Checkpoint.at(orders), lambda: sink, SinkPolicy.ROLLBACK).obstacles

    def test_on_the_command_line(self, ledger: Location, tmp_path: Path) -> None:
        orders = plant(open_location(str(tmp_path / "on_disk")), stream(NEWEST))
        how = ["--sink", ledger.uri, "--sink-policy", "rollback", "--query-is-stopped", "--apply", "--json"]
        accept = ["--accept", "source_loss", "--accept", "source_failure"]  # its input files are not real
        done = run("rewind", orders.uri, "--to-batch", "4", *how, *accept)
        assert done.code == 0, done.err
        assert batches(ledger) == [0, 1, 2, 3, 4]

    def test_by_its_kind_and_name(self) -> None:
        sink = Sink.named("ledger:books", open_location, app_id="x")
        assert (sink.kind, sink.table, sink.name, sink.app_id) == ("ledger", "books", "ledger:books", "x")


class TestThePackage:
    def test_ours_are_found_in_the_same_way(self, installed: Path) -> None:
        assert [kind.kind for kind in installed_kinds()] == ["ledger", "delta", "unity", "spark", "iceberg", "file"]

    def test_it_is_gone(self, site: Path, orders: Location, ledger: Location) -> None:
        """Half-way, and the package is not installed any more: the error names it."""
        install(site)
        plan = plan_of(orders, Sink(place=ledger))
        (site / "ledger_package-1.0.dist-info" / "entry_points.txt").unlink()
        forget()
        importlib.invalidate_caches()
        with pytest.raises(RefusedError, match="a sink of the kind 'ledger', which is not installed here"):
            apply_rewind(plan, Checkpoint.at(orders), repository(orders), sink=Sink(place=ledger), rest=STOPPED)
        assert batches(ledger) == list(range(NEWEST + 1))
        with pytest.raises(RefusedError, match="neither a Delta table nor the output of a file sink"):
            plan_of(orders, Sink(place=ledger))

    @pytest.mark.parametrize(
        ("code", "why"),
        [
            (CODE.replace('kind = "ledger"', 'kind = "delta"'), "has the kind 'delta', which there is already"),
            (CODE.replace('kind = "ledger"', 'kind = "kafka"'), "has the kind 'kafka', which there is already"),
            ("import nothing_of_that_name", "the sink 'ledger' cannot be loaded: ModuleNotFoundError"),
            (CODE.replace('SinkReport("ledger"', 'SinkReport("delta"'), "the sink 'ledger' reports the kind 'delta'"),
            (
                CODE.replace("def look(self, sink):", "def look(self, sink):\n        1 / 0"),
                "failed: ZeroDivisionError",
            ),
            (
                CODE.replace("def verdict(self, start):", "def verdict(self, start):\n        return 'SAFE'"),
                "the sink 'ledger' of another package failed: TypeError: verdict answers 'SAFE', which is no SinkReport",
            ),
            (CODE.replace("held, held, rollback)", "held, held, 7)"), "the rollback 7, which is no SinkRollback"),
            (CODE.replace(FACTS, "'at': object()"), "TypeError: Object of type object is not JSON serializable"),
            (CODE.replace(FACTS, "7: 'x'"), "the facts of its rollback are not plain JSON: {7: 'x'}"),
            (
                f"{CODE}\n\nLedgerSink.undo_needs = lambda self, change: None\n",
                "undo_needs answers None, which is not two lists of texts",
            ),
        ],
        ids=["delta", "kafka", "import", "report", "look", "verdict", "rollback", "facts", "keys", "needs"],
    )
    def test_one_that_is_wrong(self, site: Path, orders: Location, ledger: Location, code: str, why: str) -> None:
        install(site, code)
        with pytest.raises(RefusedError) as refused:
            plan_of(orders, Sink(place=ledger))
        assert why in str(refused.value)

    def test_one_that_fails_half_way(self, site: Path, orders: Location, ledger: Location) -> None:
        """The checkpoint stays sealed, and the error says how to resume it and how to undo it."""
        last = "    change.guarding(change.sink.place).replace(FILE, json.dumps(content).encode())\n"
        assert CODE.count(last) == 1
        install(site, CODE.replace(last, f"{last}    raise KeyError('lost')\n"))
        with pytest.raises(StorageError, match="the sink 'ledger' of another package failed: KeyError") as failed:
            carry_out(orders, Sink(place=ledger))
        assert loud_seal(orders)
        assert "run the same command again" in str(failed.value.hint)
        assert batches(ledger) == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize("method", ["look", "check", "roll_back"])
    def test_one_that_cannot_be_reached(
        self, site: Path, orders: Location, ledger: Location, tmp_path: Path, method: str
    ) -> None:
        """An error of its connection names the sink; where something was changed, also how to continue and how to go back."""
        head = f"    def {method}(self, {'sink' if method == 'look' else 'change'}):\n"
        assert CODE.count(head) == 1
        install(site, CODE.replace(head, f"{head}        raise ConnectionResetError('reset by peer')\n"))
        table = delta_table(tmp_path / "table", range(4, NEWEST + 1))
        sinks = [Sink(place=table), Sink(place=ledger)]
        why = "the sink 'ledger' of another package could not be reached: ConnectionResetError: reset by peer"
        with pytest.raises(StorageError, match=why) as failed:
            carry_out(orders, *sinks)
        changed = method == "roll_back"
        assert loud_seal(orders) is changed
        assert ("or undo it: `airflow-ckpt undo" in str(failed.value.hint)) is changed
        assert batches_in(table) == ([4, 4] if changed else [4, 4, 5, 5, 6, 6])

    def test_one_that_cannot_tell_what_was_changed(self, site: Path, orders: Location, ledger: Location) -> None:
        """The first error stays, and the checkpoint stays sealed."""
        head = "    def roll_back(self, change):\n"
        code = CODE.replace(head, f"{head}        raise RefusedError('the ledger is closed', hint='open it')\n")
        head = "    def is_rolled_back(self, change):\n"
        install(site, code.replace(head, f"{head}        raise ConnectionResetError('reset by peer')\n"))
        with pytest.raises(RefusedError, match="the ledger is closed") as refused:
            carry_out(orders, Sink(place=ledger))
        assert str(refused.value.hint).startswith("open it; ")
        assert loud_seal(orders)

    def test_one_whose_roll_back_answers_no_number(self, site: Path, orders: Location, ledger: Location) -> None:
        """The record could not keep it. The sink was rolled back: sealed, and the undo undoes it."""
        before = read(ledger)["entries"]
        install(site, f"{CODE}\n\nreal = LedgerSink.roll_back\nLedgerSink.roll_back = lambda s, c: real(s, c) or c\n")
        with pytest.raises(StorageError, match=r"the sink 'ledger' .* neither a whole number nor None") as failed:
            carry_out(orders, Sink(place=ledger))
        assert "or undo it: `airflow-ckpt undo" in str(failed.value.hint)
        assert loud_seal(orders)
        undo(orders, repository(orders), sink=Sink(place=ledger), rest=STOPPED)
        assert read(ledger)["entries"] == before
        assert not loud_seal(orders)
