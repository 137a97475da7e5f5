"""Several sinks of one query: one plan over all of them, killed after every write, resumed and undone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, TableFeatures

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.sealing import unseal
from airflow_ckpt_provider.change.set_aside import default_repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError, SealedError
from airflow_ckpt_provider.recovery.reset.apply import apply_reset
from airflow_ckpt_provider.recovery.reset.plan import ResetPlan
from airflow_ckpt_provider.recovery.reset.planning import plan_reset
from airflow_ckpt_provider.recovery.reset.way import ResetWay
from airflow_ckpt_provider.recovery.restore.plan import plan_restore
from airflow_ckpt_provider.recovery.restore.sink import sink_says
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.replay_proof import prove_replay
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.recovery.status import status_of
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.sinks.file_sink import inspect_file_sink
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.upgrade.way_back import SINK_UNKNOWN, dry_run
from airflow_ckpt_provider.verdict import Verdict
from tests.support.backups import stream
from tests.support.checkpoints import QUERY_ID, plant
from tests.support.delta_batches import append, batches_in, delta_table
from tests.support.file_sinks import entry, file_sink
from tests.support.iceberg_tables import Table
from tests.support.resets import NEWEST
from tests.support.restores import loud_seal
from tests.support.rewinds import rewound
from tests.support.stopped import STOPPED
from tests.support.watched_stores import Killed, Life, watched

ROLLBACK, FORWARD, KEEP = SinkPolicy.ROLLBACK, SinkPolicy.FORWARD, SinkPolicy.ACCEPT
STORED = Path(__file__).parents[2] / "golden" / "stored"
GOLDEN, SEVERAL = STORED / "repository" / "plans", STORED / "several_sinks"


class Sinks:
    """Two Delta tables and the output of a file sink, each with batches 4 to 6 and more."""

    def __init__(self, root: Path) -> None:
        self.first = delta_table(root / "first", range(4, NEWEST + 1))
        self.second = delta_table(root / "second", range(4, NEWEST + 1), app_id="copies")
        self.files = file_sink(open_location(str(root / "files")), NEWEST)
        self.all = [Sink(place=self.first), Sink(place=self.second, app_id="copies"), Sink(place=self.files)]

    def state(self) -> tuple[Any, ...]:
        """What readers see of each, and what the tables remember."""
        return (
            batches_in(self.first),
            batches_in(self.second),
            DeltaTable(self.first.uri).transaction_version(QUERY_ID),
            DeltaTable(self.second.uri).transaction_version("copies"),
            {path: self.files.read(path) for path in self.files.walk()},
        )


@pytest.fixture
def sinks(tmp_path: Path) -> Sinks:
    return Sinks(tmp_path / "sinks")


def plan_of(orders: Location, sinks: Sequence[Sink], batch: int = 4, **options: Any) -> RewindPlan:
    options.setdefault("sink_exit", ROLLBACK)
    return plan_rewind(Checkpoint.at(orders), Specifier("to_batch", str(batch)), sink=sinks, guards=(), **options)


def carry_out(orders: Location, sinks: Sequence[Sink], held: Repository | None = None, **options: Any) -> Any:
    plan = plan_of(orders, sinks, **options)
    return apply_rewind(plan, Checkpoint.at(orders), held or repository(orders), sink=sinks, rest=STOPPED)


def repository(orders: Location) -> Repository:
    return Repository.open_or_create(default_repository(orders))


class TestThePlan:
    def test_each_sink_has_its_line(self, orders: Location, sinks: Sinks) -> None:
        plan = plan_of(orders, sinks.all)
        shown = plan.to_markdown()
        assert (
            f"| `{sinks.first.uri}` | delta | rollback | **SAFE** | version 2 to 0, 4 rows of 2 batches leave it |"
            in shown
        )
        assert f"| `{sinks.second.uri}` | delta | rollback | **SAFE** | version 2 to 0," in shown
        assert f"| `{sinks.files.uri}` | file | rollback | **SAFE** | its log, " in shown
        assert plan.sink_verdict is Verdict.SAFE
        assert [sink["report"]["kind"] for sink in plan.to_json()["sinks"]] == ["delta", "delta", "file"]
        assert sum("roll `" in step for step in plan.steps) == 2
        assert plan.undo
        assert any(reason.startswith(f"{sinks.second.uri}: nobody may write") for reason in plan.undo["reasons"])

    def test_it_asks_whether_this_is_all(self, orders: Location, sinks: Sinks) -> None:
        shown = plan_of(orders, sinks.all[:2]).to_markdown()
        assert f"This plan knows of `{sinks.first.uri}`, `{sinks.second.uri}`. Is this all of it?" in shown
        # One table with commits that Delta's own sink does not make: the code of a foreachBatch wrote them.
        assert f"knows of `{sinks.second.uri}`. Is this all of it?" in plan_of(orders, sinks.all[1:2]).to_markdown()
        assert "Is this all of it?" in plan_of(orders, [Sink(kind="foreach")], sink_exit=KEEP).to_markdown()

    def test_it_does_not_ask_of_a_sink_of_spark(self, orders: Location, sinks: Sinks) -> None:
        assert "Is this all" not in plan_of(orders, [Sink(place=sinks.files)]).to_markdown()
        assert "Is this all" not in plan_of(orders, [Sink(kind="kafka")], sink_exit=KEEP).to_markdown()
        assert "Is this all" not in plan_of(orders, [Sink()], sink_exit=None).to_markdown()

    def test_a_table_and_a_topic(self, orders: Location, sinks: Sinks) -> None:
        """A policy for each: the table is rolled back, and that the topic gets its rows twice is accepted."""
        both = [sinks.all[0], Sink(kind="kafka")]
        with pytest.raises(RefusedError, match="the sink kafka cannot be rolled back to batch 4: a kafka sink"):
            plan_of(orders, both)
        plan = plan_of(orders, both, sink_exit=[ROLLBACK, None])
        assert plan.verdict is Verdict.WILL_DUPLICATE
        assert [risk.word for risk in plan.risks] == ["sink_duplicates"]
        assert plan.risks[0].why.startswith("kafka: kafka keeps no memory")
        with pytest.raises(RefusedError, match="needs somebody to accept: sink_duplicates"):
            apply_rewind(plan, Checkpoint.at(orders), repository(orders), sink=both, rest=STOPPED)
        accepted = ["sink_duplicates"]
        apply_rewind(plan, Checkpoint.at(orders), repository(orders), sink=both, accept=accepted, rest=STOPPED)
        assert batches_in(sinks.first) == [4, 4]

    @pytest.mark.parametrize(
        ("names", "policies", "why"),
        [
            ((0, 0), ROLLBACK, "is named twice"),
            ((0, "/"), ROLLBACK, "is named twice"),
            ((0, 1), [ROLLBACK, ROLLBACK, ROLLBACK], "3 sink policies are given for 2 sinks"),
            ((0, 1), [ROLLBACK, FORWARD], "can go forward only to all of them"),
            ((0, None), ROLLBACK, "one of several sinks has no name"),
        ],
    )
    def test_what_does_not_fit(
        self, orders: Location, sinks: Sinks, names: tuple[int | str | None, ...], policies: Any, why: str
    ) -> None:
        again = Sink(place=Location(sinks.first.store, f"{sinks.first.root}/"))
        given = [Sink() if n is None else again if n == "/" else sinks.all[int(n)] for n in names]
        with pytest.raises(RefusedError, match=why):
            plan_of(orders, given, sink_exit=policies)

    def test_forward_needs_them_at_one_batch(self, orders: Location, sinks: Sinks, tmp_path: Path) -> None:
        create_backup(Checkpoint.at(orders), repository(orders), restorable_batches=3)
        plan = plan_of(orders, sinks.all[:2], 5, sink_exit=FORWARD, repository=default_repository(orders))
        assert plan.batch_id == NEWEST
        behind = Sink(place=delta_table(tmp_path / "behind", [4, 5]))
        with pytest.raises(RefusedError, match=r"the sinks are not at one batch \(\S+/first at 6, \S+/behind at 5\)"):
            plan_of(orders, [sinks.all[0], behind], 5, sink_exit=FORWARD, repository=default_repository(orders))

    def test_a_table_version_needs_one_table(self, orders: Location, sinks: Sinks) -> None:
        to = Specifier("to_table_version", "0")
        with pytest.raises(RefusedError, match="--to-table-version does not say of which table"):
            plan_rewind(Checkpoint.at(orders), to, sink=sinks.all[:2], sink_exit=ROLLBACK, guards=())
        plan = plan_rewind(Checkpoint.at(orders), to, sink=[sinks.all[1], sinks.all[2]], sink_exit=ROLLBACK, guards=())
        assert plan.batch_id == 4


class TestTheDocument:
    def test_several_sinks_are_read_back(self, orders: Location, sinks: Sinks) -> None:
        plan = plan_of(orders, sinks.all, sink_exit=[ROLLBACK, None, ROLLBACK])
        document = json.loads(json.dumps(plan.document()))
        assert RewindPlan.of_document(document) == plan
        assert RewindPlan.of_document(document).plan_fingerprint == plan.plan_fingerprint
        # Earlier releases read these keys, and stop where one is missing: they must not roll back one of several.
        assert not {"sink", "sink_exit", "app_id"} & document.keys()
        assert "sink" not in document["request"]

    def test_one_sink_is_stored_as_before(self, orders: Location, sinks: Sinks) -> None:
        """Earlier releases read exactly these keys, and refuse any other in the request and in what the sink says."""
        documents = [json.loads(path.read_text()) for path in GOLDEN.glob("*.json")]
        stored = next(document for document in documents if document.get("name") == "orders_delta")
        document = json.loads(json.dumps(plan_of(orders, sinks.all[:1]).document()))
        assert stored.keys() <= document.keys()
        assert document["request"].keys() == stored["request"].keys()
        since = {"query_ids", "memories", "doubts"}
        assert document["sink"].keys() - since == stored["sink"].keys() - since
        assert document["sink"]["rollback"].keys() - {"reverts"} == stored["sink"]["rollback"].keys() - {"reverts"}

    def test_stored_ones_stay_readable(self) -> None:
        stored = {kind: json.loads((SEVERAL / f"{kind}.json").read_text()) for kind in ("rewind", "reset")}
        rewind = RewindPlan.of_document(stored["rewind"])
        assert [(sink.name, sink.app_id == "x", sink.rolls_back) for sink in rewind.sinks] == [
            ("/lake/a", False, True),
            ("/lake/b", True, True),
        ]
        assert rewind.to_json()["sinks"] == stored["rewind"]["sinks"]
        reset = ResetPlan.of_document(stored["reset"])
        assert reset.request.sinks == (("/lake/a", ""), ("/lake/b", "x"))
        assert reset.to_json()["sinks"] == stored["reset"]["sinks"]

    def test_a_reset_of_several_sinks_is_read_back(self, orders: Location, sinks: Sinks) -> None:
        plan = plan_reset(orders, ResetWay.KEEP_POSITION, sink=sinks.all)
        assert ResetPlan.of_document(json.loads(json.dumps(plan.document()))) == plan
        one = json.loads(json.dumps(plan_reset(orders, ResetWay.KEEP_POSITION, sink=sinks.all[0]).document()))
        assert (one["request"]["sink"], one["sink"]["kind"]) == (sinks.first.uri, "delta")
        assert "sinks" not in one


class TestTogether:
    def test_all_go_back_and_come_forward(self, orders: Location, sinks: Sinks) -> None:
        before, files = sinks.state(), set(stream(NEWEST))
        outcome = carry_out(orders, sinks.all)
        assert [sink["table_version"] for sink in outcome.to_json()["sinks"]] == [3, 3, None]
        assert sinks.state()[:4] == ([4, 4], [4, 4], 4, 4)
        assert not sinks.files.find("_spark_metadata/5")
        taken_back = undo(orders, repository(orders), sink=list(reversed(sinks.all)), rest=STOPPED)
        assert [sink["table_version"] for sink in taken_back.to_json()["sinks"]] == [4, 4, None]
        assert sinks.state() == before
        assert set(orders.walk()) == files

    def test_delta_and_iceberg(self, orders: Location, sinks: Sinks, tmp_path: Path) -> None:
        iceberg = Table(tmp_path / "lake").batch(4, 5, 6, query=QUERY_ID)
        both = [sinks.all[0], iceberg.sink]
        before = iceberg.held
        outcome = carry_out(orders, both)
        assert [sink["uri"] for sink in outcome.sinks] == [sinks.first.uri, iceberg.sink.name]
        assert (batches_in(sinks.first), iceberg.held) == ([4, 4], before[:1])
        undo(orders, repository(orders), sink=both, rest=STOPPED)
        assert (batches_in(sinks.first), iceberg.held) == ([4, 4, 5, 5, 6, 6], before)

    def test_a_new_query_id_and_a_table_that_stays(self, orders: Location, sinks: Sinks, tmp_path: Path) -> None:
        """Spark rolls the first back, and the query gets a new id: the other one would not skip any more, and is refused."""
        other = Sink(place=delta_table(tmp_path / "own", range(4, NEWEST + 1)))
        versions = DeltaTable(sinks.first.uri).alter
        versions.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
        both = [Sink(place=sinks.first, by_spark=lambda target, expected: None), other]
        with pytest.raises(RefusedError, match="which is to stay, knows its batches by the id that it has"):
            plan_of(orders, both, sink_exit=[ROLLBACK, None])
        plan = plan_of(orders, both)
        assert plan.new_query_id
        assert [sink.by_spark for sink in plan.sinks] == ["deletionVectors", None]

    def test_replay_is_proven_for_each(self, orders: Location, sinks: Sinks) -> None:
        carry_out(orders, sinks.all)
        plant(orders, stream(5))
        append(sinks.first.uri, 5)
        proof = prove_replay(Checkpoint.at(orders), 4, sink=sinks.all)
        assert proof.findings == (
            f"{sinks.second.uri}: the table has no commit of batch 5: its rows are missing if it had any",
        )
        assert proof.to_json()["tables"] == {sinks.first.uri: {"5": 2}, sinks.second.uri: {}}
        append(sinks.second.uri, 5, app_id="copies")
        assert prove_replay(Checkpoint.at(orders), 4, sink=sinks.all).ok

    def test_none_where_somebody_has_written_into_one(self, orders: Location, sinks: Sinks) -> None:
        """Into the last: found before the first is rolled back."""
        plan = plan_of(orders, sinks.all[:2])
        append(sinks.second.uri, 99, app_id=None)
        before = sinks.state()
        with pytest.raises(RefusedError, match=r"second is at version 3, and the plan was made at version 2"):
            apply_rewind(plan, Checkpoint.at(orders), repository(orders), sink=sinks.all[:2], rest=STOPPED)
        assert sinks.state() == before
        assert set(orders.walk()) == set(stream(NEWEST))

    @pytest.mark.parametrize("gone", ["vacuumed", "lost"])
    def test_none_where_data_files_of_one_are_gone(self, orders: Location, sinks: Sinks, gone: str) -> None:
        """After the plan was made: those that left the table, which VACUUM deletes, or any of the version."""
        both, needed = sinks.all[:2], DeltaTable(sinks.second.uri, version=0).file_uris()
        if gone == "vacuumed":
            DeltaTable(sinks.second.uri).optimize.compact()
        plan = plan_of(orders, both)
        for path in needed:
            Path(path).unlink()
        with pytest.raises(RefusedError, match=r"version 0 of \S+/second needs the data file .*, which is gone"):
            apply_rewind(plan, Checkpoint.at(orders), repository(orders), sink=both, rest=STOPPED)
        assert DeltaTable(sinks.first.uri).version() == 2
        assert set(orders.walk()) == set(stream(NEWEST))

    def test_the_undo_brings_none_forward_where_data_files_of_one_are_gone(
        self, orders: Location, sinks: Sinks
    ) -> None:
        both = sinks.all[:2]
        before = DeltaTable(sinks.second.uri)
        left = set(before.file_uris()) - set(DeltaTable(sinks.second.uri, version=0).file_uris())
        carry_out(orders, both)
        for path in left:
            Path(path).unlink()
        with pytest.raises(RefusedError, match=r"version 2 of \S+/second needs .*cannot be brought forward") as refused:
            undo(orders, repository(orders), sink=both, rest=STOPPED)
        assert str(refused.value.hint).startswith("rewind again instead; or put the file back from a copy")
        assert batches_in(sinks.first) == [4, 4]
        assert not loud_seal(orders)

    def test_none_where_a_file_of_the_file_sink_is_gone(self, orders: Location, sinks: Sinks) -> None:
        both = [sinks.all[0], sinks.all[2]]
        plan = plan_of(orders, both)
        sinks.files.delete("part 6.json")
        with pytest.raises(RefusedError, match=r"part 6\.json is gone though the sink's log names it"):
            apply_rewind(plan, Checkpoint.at(orders), repository(orders), sink=both, rest=STOPPED)
        assert DeltaTable(sinks.first.uri).version() == 2
        assert set(orders.walk()) == set(stream(NEWEST))

    def test_none_where_a_snapshot_has_expired(self, orders: Location, sinks: Sinks, tmp_path: Path) -> None:
        iceberg = Table(tmp_path / "lake").batch(4, 5, 6, query=QUERY_ID)
        both = [sinks.all[0], iceberg.sink]
        plan = plan_of(orders, both)
        iceberg.expire(1)
        with pytest.raises(RefusedError, match=r"snapshot .* has expired: the table cannot go there any more"):
            apply_rewind(plan, Checkpoint.at(orders), repository(orders), sink=both, rest=STOPPED)
        assert DeltaTable(sinks.first.uri).version() == 2
        assert set(orders.walk()) == set(stream(NEWEST))

    def test_the_undo_needs_all_of_them(self, orders: Location, sinks: Sinks) -> None:
        carry_out(orders, sinks.all[:2])
        with pytest.raises(RefusedError, match=r"rolled \S+/second back too") as refused:
            undo(orders, repository(orders), sink=sinks.all[:1], rest=STOPPED)
        assert f"--sink {sinks.first.uri} --sink {sinks.second.uri}" in str(refused.value.hint)
        assert batches_in(sinks.first) == [4, 4]


class TestStoppedAnywhere:
    """After every single write, to the checkpoint, the repository or the file sink, and between the tables."""

    def dying(self, orders: Location, sinks: Sinks, life: Life) -> tuple[Location, Location, list[Sink]]:
        given = [*sinks.all[:2], Sink(place=watched(sinks.files, life.before)[0])]
        return watched(orders, life.before)[0], watched(default_repository(orders), life.before)[0], given

    @pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
    def test_a_rewind_is_resumed_or_taken_back(self, place: Location, tmp_path: Path, step: int) -> None:
        half_way = 0
        for writes in range(0, 400, step):
            orders = plant(place / f"r{writes}" / "orders", stream(NEWEST))
            sinks = Sinks(tmp_path / f"s{writes}")
            before = sinks.state()
            repository(orders)
            at, held, given = self.dying(orders, sinks, Life(writes))
            try:
                carry_out(at, given, Repository.open(held))
                assert writes > 20
                break
            except Killed:
                pass
            done = Checkpoint.at(orders).progress().seal is None and len(orders.walk()) < len(stream(NEWEST))
            untouched = set(orders.walk()) == set(stream(NEWEST)) and sinks.state() == before
            assert loud_seal(orders) or untouched or done, f"after write {writes}"
            half_way += loud_seal(orders) and sinks.state() != before
            if writes % 2 and not untouched:
                undo(orders, repository(orders), sink=sinks.all, rest=STOPPED)
                assert sinks.state() == before
                assert set(orders.walk()) == set(stream(NEWEST))
            elif not done:
                carry_out(orders, sinks.all)
            if not writes % 2 or untouched:
                assert set(orders.walk()) == rewound(stream(NEWEST), 4) or untouched
                assert sinks.state()[:4] == ([4, 4], [4, 4], 4, 4) or untouched
        else:
            pytest.fail("it never ended")
        assert half_way > 0

    @pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
    def test_an_undo_is_resumed(self, place: Location, tmp_path: Path, step: int) -> None:
        for writes in range(0, 400, step):
            orders = plant(place / f"u{writes}" / "orders", stream(NEWEST))
            sinks = Sinks(tmp_path / f"s{writes}")
            before = sinks.state()
            carry_out(orders, sinks.all)
            at, held, given = self.dying(orders, sinks, Life(writes))
            try:
                undo(at, Repository.open(held), sink=given, rest=STOPPED)
                assert writes > 10
                break
            except Killed:
                undo(orders, repository(orders), sink=sinks.all, rest=STOPPED)
            assert sinks.state() == before
            assert set(orders.walk()) == set(stream(NEWEST))
            assert DeltaTable(sinks.second.uri).version() == 4
        else:
            pytest.fail("it never ended")

    def test_between_the_two_tables(self, orders: Location, sinks: Sinks, monkeypatch: pytest.MonkeyPatch) -> None:
        """The first is rolled back, the second not yet; status names the command, another set of sinks is refused."""
        from airflow_ckpt_provider.sinks import delta_sink

        real = delta_sink.roll_back_table

        def die(target: Any, **how: Any) -> int:
            if target.table == sinks.second:
                raise Killed("second")
            return real(target, **how)

        with monkeypatch.context() as patched:
            patched.setattr(delta_sink, "roll_back_table", die)
            with pytest.raises(Killed):
                carry_out(orders, sinks.all[:2])
        assert (batches_in(sinks.first), len(batches_in(sinks.second))) == ([4, 4], 6)
        named = f"--sink {sinks.first.uri} --sink {sinks.second.uri}"
        status = status_of(Checkpoint.at(orders), repository(orders))
        assert f"{named} --txn-app-id '' --txn-app-id copies --sink-policy rollback" in status.commands[0]
        assert status.commands[1].endswith(named)
        with pytest.raises(SealedError, match="that was not ended"):
            plan_of(orders, sinks.all[:1])
        # The order in which they are named does not matter.
        carry_out(orders, [sinks.all[1], sinks.all[0]])
        assert sinks.state()[:4] == ([4, 4], [4, 4], 4, 4)
        assert DeltaTable(sinks.first.uri).version() == 3

    def test_somebody_writes_between_the_check_and_the_second_commit(
        self, orders: Location, sinks: Sinks, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """There is no commit over two tables: it stays sealed, and the undo brings the first one forward."""
        from airflow_ckpt_provider.sinks import delta_sink

        real = delta_sink.roll_back_table

        def write_first(target: Any, **how: Any) -> int:
            if target.table == sinks.second:
                append(sinks.second.uri, 99, app_id=None)
            return real(target, **how)

        with monkeypatch.context() as patched:
            patched.setattr(delta_sink, "roll_back_table", write_first)
            with pytest.raises(
                RefusedError, match="second is at version 3, and the plan was made at version 2"
            ) as refused:
                carry_out(orders, sinks.all[:2])
        assert f"`airflow-ckpt undo {orders} --plan " in str(refused.value.hint)
        assert loud_seal(orders)
        with pytest.raises(RefusedError, match="somebody wrote into it"):
            carry_out(orders, sinks.all[:2])
        undo(orders, repository(orders), sink=sinks.all[:2], rest=STOPPED)
        assert batches_in(sinks.first) == [4, 4, 5, 5, 6, 6]
        assert batches_in(sinks.second) == [4, 4, 5, 5, 6, 6, 99, 99]
        assert set(orders.walk()) == set(stream(NEWEST))

    def killed(self, orders: Location, sinks: Sinks, monkeypatch: pytest.MonkeyPatch, *, deleted: int) -> list[Sink]:
        """A rewind of a table and a file sink, killed after some files of the sink were deleted."""
        from airflow_ckpt_provider.storage.location import Location as Place

        left, both, real = [deleted], [sinks.all[0], sinks.all[2]], Place.delete_listed

        def die(self: Location, file: Any) -> None:
            if self.root == sinks.files.root:
                if not left[0]:
                    raise Killed("file sink")
                left[0] -= 1
            real(self, file)

        with monkeypatch.context() as patched:
            patched.setattr(Place, "delete_listed", die)
            with pytest.raises(Killed):
                carry_out(orders, both)
        assert (batches_in(sinks.first), loud_seal(orders)) == ([4, 4], True)
        return both

    @pytest.mark.parametrize("deleted", [0, 1, 3])
    @pytest.mark.parametrize("number", [5, 7])
    def test_a_resumed_rewind_keeps_what_others_wrote_into_the_file_sink(
        self, orders: Location, sinks: Sinks, monkeypatch: pytest.MonkeyPatch, deleted: int, number: int
    ) -> None:
        """Also under a number that the plan takes away. Moved out of the sink, the same command ends it."""
        both = self.killed(orders, sinks, monkeypatch, deleted=deleted)
        path = f"_spark_metadata/{number}"
        sinks.files.replace("part x.json", b"row")
        sinks.files.replace(path, f"v1\n{entry(sinks.files, number, 'other')}".encode())
        with pytest.raises(RefusedError, match=f"{path} is not of plan .* somebody wrote into the sink") as refused:
            carry_out(orders, both)
        assert f"move {path} and the data files that it names out of the sink" in str(refused.value.hint)
        assert sinks.files.find(path)
        assert loud_seal(orders)
        sinks.files.delete(path)
        if deleted == 0 and number == 5:
            return  # nothing was deleted, so the plan expects its own entry there
        carry_out(orders, both)
        assert inspect_file_sink(sinks.files, 4).verdict is Verdict.SAFE
        assert set(orders.walk()) == rewound(stream(NEWEST), 4)

    @pytest.mark.parametrize("number", [5, 7])
    @pytest.mark.parametrize("alone", [True, False])
    def test_an_undo_keeps_what_others_wrote_into_the_file_sink(
        self, orders: Location, sinks: Sinks, alone: bool, number: int
    ) -> None:
        """Found before any sink is changed. Moved out of the sink, the same undo is carried out."""
        given = [sinks.all[2]] if alone else [sinks.all[0], sinks.all[2]]
        before, path = sinks.state(), f"_spark_metadata/{number}"
        carry_out(orders, given)
        rolled_back = batches_in(sinks.first)
        sinks.files.create("part x.json", b"row")
        sinks.files.create(path, f"v1\n{entry(sinks.files, number, 'other')}".encode())
        with pytest.raises(RefusedError, match=f"since rewind .*: {path} is not of it") as refused:
            undo(orders, repository(orders), sink=given, rest=STOPPED)
        assert "rewind again instead; or move" in str(refused.value.hint)
        assert batches_in(sinks.first) == rolled_back
        assert sinks.files.find("part 6.json") is None
        assert not loud_seal(orders)
        for moved in (path, "part x.json"):
            sinks.files.delete(moved)
        undo(orders, repository(orders), sink=given, rest=STOPPED)
        assert sinks.state() == before

    @pytest.mark.parametrize("deleted", [0, 1, 3])
    def test_what_others_wrote_before_a_file_was_deleted_stays_after_the_undo(
        self, orders: Location, sinks: Sinks, monkeypatch: pytest.MonkeyPatch, deleted: int
    ) -> None:
        """Where nothing was deleted the undo needs nothing of the sink; else it is moved out of it first."""
        both = self.killed(orders, sinks, monkeypatch, deleted=deleted)
        path = "_spark_metadata/7"
        sinks.files.create(path, f"v1\n{entry(sinks.files, 7, 'other')}".encode())
        if deleted:
            with pytest.raises(RefusedError, match=f"{path} is not of it") as refused:
                undo(orders, repository(orders), sink=both, rest=STOPPED)
            assert str(refused.value.hint).startswith(f"move {path}")
            assert (batches_in(sinks.first), loud_seal(orders)) == ([4, 4], True)
            sinks.files.delete(path)
        undo(orders, repository(orders), sink=both, rest=STOPPED)
        assert bool(sinks.files.find(path)) is not bool(deleted)
        assert sinks.files.find("part 6.json")
        assert set(orders.walk()) == set(stream(NEWEST))

    @pytest.mark.parametrize("exit_", ["by hand", "given up"])
    @pytest.mark.parametrize("ended", [True, False])
    def test_somebody_writes_between_two_sinks_of_an_undo(
        self, orders: Location, sinks: Sinks, monkeypatch: pytest.MonkeyPatch, exit_: str, ended: bool
    ) -> None:
        """The first is brought forward, the second was written to: the refusal names two ways out, and each leads there."""
        from airflow_ckpt_provider.change import engine
        from airflow_ckpt_provider.sinks import delta_sink

        both, real, before = sinks.all[:2], delta_sink.roll_back_table, sinks.state()

        def write_first(target: Any, **how: Any) -> int:
            if target.table == sinks.second:
                append(sinks.second.uri, 99, app_id=None)
            return real(target, **how)

        def die(*_: object) -> int:
            raise Killed("before the checkpoint")

        with monkeypatch.context() as patched:
            if not ended:
                patched.setattr(engine._Attempt, "_remove", die)
                with pytest.raises(Killed):
                    carry_out(orders, both)
            else:
                carry_out(orders, both)
        with monkeypatch.context() as patched:
            patched.setattr(delta_sink, "roll_back_table", write_first)
            with pytest.raises(RefusedError, match="somebody wrote into it"):
                undo(orders, repository(orders), sink=both, rest=STOPPED)
        assert sinks.state()[:2] == ([4, 4, 5, 5, 6, 6], [4, 4, 99, 99])
        with pytest.raises(RefusedError, match="was written to since rewind") as refused:
            undo(orders, repository(orders), sink=both, rest=STOPPED)
        hint, seal = str(refused.value.hint), Checkpoint.at(orders).progress().seal
        assert seal
        assert "rewind again instead" not in hint
        assert "run the same rewind again" not in hint
        assert f"RESTORE TABLE delta.`{sinks.second.uri}` TO VERSION AS OF 3" in hint
        assert f"`airflow-ckpt unseal {orders} --plan {seal.plan_id}`" in hint
        if exit_ == "by hand":
            DeltaTable(sinks.second.uri).restore(3)
            undo(orders, repository(orders), sink=both, rest=STOPPED)
            assert sinks.state() == before
            assert set(orders.walk()) == set(stream(NEWEST))
        else:
            unseal(Checkpoint.at(orders), plan_id=seal.plan_id)
            carry_out(orders, both, sink_exit=[ROLLBACK, KEEP])
            assert sinks.state()[:4] == ([4, 4], [4, 4, 99, 99], 4, 4)
            assert set(orders.walk()) == rewound(stream(NEWEST), 4)


class TestOtherVerbs:
    def test_a_reset_judges_each(self, orders: Location, sinks: Sinks) -> None:
        plan = plan_reset(orders, ResetWay.KEEP_POSITION, sink=sinks.all)
        assert [cutover.verdict for cutover in plan.cutovers] == [Verdict.SAFE, Verdict.WILL_SKIP, Verdict.WILL_SKIP]
        assert plan.verdict is Verdict.WILL_SKIP
        shown = plan.to_markdown()
        assert f"| `{sinks.second.uri}` | delta | **WILL_SKIP** |" in shown
        assert "Is this all of it?" in shown
        assert [risk.word for risk in plan.risks if risk.word.startswith("sink")] == ["sink_skips"]
        with pytest.raises(RefusedError, match="sink_skips"):
            apply_reset(plan, orders, repository(orders), rest=STOPPED)

    def test_a_reset_reads_again_what_not_all_tables_have(self, orders: Location, sinks: Sinks) -> None:
        """Batch 6 was not committed. Both tables have it: read after it. One does not: read it again."""
        orders.delete(f"commits/{NEWEST}")
        assert plan_reset(orders, ResetWay.KEEP_POSITION, sink=sinks.all[:2]).start == NEWEST
        DeltaTable(sinks.second.uri).restore(1)
        assert plan_reset(orders, ResetWay.KEEP_POSITION, sink=sinks.all[:2]).start == NEWEST - 1

    def test_a_restore_asks_each(self, orders: Location, sinks: Sinks, place: Location) -> None:
        manifest = create_backup(Checkpoint.at(orders), repository(orders), restorable_batches=2).manifest
        answer = sink_says(sinks.all, manifest, orders, batch=5, repository=repository(orders))
        assert answer
        assert [verdict for _, _, verdict in answer.sinks] == [Verdict.WILL_SKIP] * 3
        plan = plan_restore(repository(orders), manifest, place / "elsewhere", batch=5, sink=answer)
        assert f"| `{sinks.files.uri}` | file | **WILL_SKIP** |" in plan.to_markdown()
        assert "Is this all of it?" in plan.to_markdown()
        assert "--sink SINK --sink SINK --sink SINK" in plan.risks[0].why
        assert len(plan.to_json()["sinks"]) == 3

    def test_a_restore_asks_for_what_each_sink_does(self, orders: Location, sinks: Sinks, tmp_path: Path) -> None:
        """A sink of which nothing is known, or that doubles rows, does not hide behind another one that skips them."""
        manifest = create_backup(Checkpoint.at(orders), repository(orders), restorable_batches=2).manifest
        unknown = Sink(place=delta_table(tmp_path / "other", [0], app_id="others"))
        all_ = [sinks.all[0], Sink(kind="kafka"), unknown]
        answer = sink_says(all_, manifest, orders, batch=5, repository=repository(orders))
        assert answer
        assert answer.verdict is Verdict.WILL_SKIP
        elsewhere = open_location(str(tmp_path / "elsewhere"))

        def risks(*, strict: bool) -> dict[str, str]:
            plan = plan_restore(repository(orders), manifest, elsewhere, batch=5, sink=answer, strict=strict)
            return {risk.word: risk.why.partition(": ")[0] for risk in plan.risks}

        known = {"sink_skips": f"sink {sinks.first.uri}", "sink_duplicates": "sink kafka"}
        assert risks(strict=False) == known
        assert risks(strict=True) == {**known, "sink_unknown": f"sink {tmp_path / 'other'}"}

    def test_an_upgrade_judges_each(self, orders: Location, sinks: Sinks) -> None:
        both = [sinks.all[0], Sink(kind="kafka")]
        found = dry_run(Checkpoint.at(orders), lambda: both, ROLLBACK)
        assert [obstacle.code for obstacle in found.obstacles] == ["sink_without_memory:kafka"]
        each = dry_run(Checkpoint.at(orders), lambda: both, [ROLLBACK, KEEP])
        assert not each.obstacles
        assert [sink["policy"] for sink in each.to_json()["sinks"]] == ["rollback", "keep"]
        assert "Is this all of it?" in each.to_markdown()
        assert f"| `{sinks.first.uri}` | rollback |" in each.to_markdown()
        one = dry_run(Checkpoint.at(orders), Sink, KEEP)
        assert [obstacle.word for obstacle in one.obstacles] == [SINK_UNKNOWN]
        assert one.to_json().keys() == {"policy", "sink", "how", "obstacles"}
