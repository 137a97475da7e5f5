"""reset: what goes and what takes its place, the verdict at the cutover, stopped after every write, taken back."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.sealing import seal
from airflow_ckpt_provider.change.set_aside import default_repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.seal import SEAL_PREFIX
from airflow_ckpt_provider.errors import (
    NoSuchBackupError,
    NotACheckpointError,
    RefusedError,
    SealedError,
    UnreadableLogError,
)
from airflow_ckpt_provider.recovery.reset.apply import ResetOutcome, apply_reset, stop_plan_and_reset
from airflow_ckpt_provider.recovery.reset.plan import ResetPlan, ResetWay
from airflow_ckpt_provider.recovery.reset.planning import plan_reset
from airflow_ckpt_provider.recovery.rewind.apply import stop_plan_and_apply
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifiers import Specifier
from airflow_ckpt_provider.recovery.undo import UndoOutcome, undo
from airflow_ckpt_provider.sinks.report import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.stopped import ACCEPTED, STOPPED
from tests.unit.backup.backups import stream
from tests.unit.checkpoint.builders import (
    QUERY_ID,
    Files,
    batch_metadata,
    commit_log,
    contents,
    metadata,
    offsets_log,
    plant,
)
from tests.unit.checkpoint.stores import Killed, Life, forget_all, watched
from tests.unit.recovery.test_flows import stateless
from tests.unit.recovery.test_restore import loud_seal
from tests.unit.recovery.test_rewind import append, batches_in, delta_table

NEWEST = 6
#: A shorter one, where every write is a life of its own.
SHORT = 2
KEEP, SCRATCH, RENAME = ResetWay
SEED = "sources/0/0"


@pytest.fixture
def orders(place: Location) -> Location:
    """A stateful stream of files with batches 0 to 6 committed."""
    return plant(place / "orders", stream(NEWEST))


@pytest.fixture
def table(tmp_path: Path) -> Location:
    """Its sink: a Delta table with two rows of each batch."""
    return delta_table(tmp_path / "table", range(NEWEST + 1))


def file_sink(path: Path, newest: int) -> Location:
    (path / "_spark_metadata").mkdir(parents=True)
    for batch in range(newest + 1):
        entry = {"path": f"file://{path}/part-{batch}.json", "size": 1, "action": "add"}
        (path / "_spark_metadata" / str(batch)).write_text("v1\n" + json.dumps(entry))
        (path / f"part-{batch}.json").write_text("{}")
    return open_location(str(path))


def repository(orders: Location) -> Repository:
    return Repository.open_or_create(default_repository(orders))


def plan_of(orders: Location, way: ResetWay | None = KEEP, **options: Any) -> ResetPlan:
    options.setdefault("sink", Sink(kind="foreachBatch"))
    return plan_reset(orders, way, **options)


def reset(
    orders: Location,
    way: ResetWay = KEEP,
    *,
    accept: Collection[str] = (),
    held: Repository | None = None,
    **options: Any,
) -> ResetOutcome:
    plan = plan_of(orders, way, **options)
    return apply_reset(plan, orders, held or repository(orders), accept=accept, rest=STOPPED)


def undone(orders: Location, held: Repository | None = None) -> UndoOutcome:
    return undo(orders, held or repository(orders), rest=STOPPED)


def seeded_files(orders: Location) -> list[str]:
    lines = orders.read(SEED).decode().splitlines()
    assert lines[0] == "v1"
    return [json.loads(line)["path"] for line in lines[1:]]


def kafka_and_delta(newest: int = 2, *, index: int = -1) -> Files:
    files = {"metadata": metadata()}
    for batch in range(newest + 1):
        kafka = json.dumps({"orders": {"0": 10 * batch, "1": 5 * batch}})
        delta = json.dumps(
            {
                "sourceVersion": 1,
                "reservoirId": "t",
                "reservoirVersion": batch + 1,
                "index": index,
                "isStartingVersion": False,
            }
        )
        files[f"offsets/{batch}"] = offsets_log(kafka, delta, metadata=batch_metadata(batch))
        files[f"commits/{batch}"] = commit_log()
    return files


class TestANewCheckpoint:
    def test_knows_what_was_read_and_nothing_else(self, orders: Location) -> None:
        before = contents(orders)
        outcome = reset(orders)
        assert set(contents(orders)) == {SEED}
        assert seeded_files(orders) == [f"file:///in/f{i:04}.json" for i in range(NEWEST + 1)]
        assert (outcome.start, outcome.deleted, outcome.written) == (NEWEST, len(before), 1)
        kept = repository(orders).location / f"{outcome.kept}/files"
        assert contents(kept) == before

    def test_after_an_older_batch(self, orders: Location) -> None:
        assert reset(orders, batch_id=3, accept=ACCEPTED).start == 3
        assert len(seeded_files(orders)) == 4

    def test_from_scratch_is_an_empty_place(self, orders: Location) -> None:
        outcome = reset(orders, SCRATCH, accept=ACCEPTED)
        assert contents(orders) == {}
        assert (outcome.start, outcome.written) == (None, 0)

    def test_hidden_files_go_too(self, tmp_path: Path) -> None:
        orders = plant(open_location(str(tmp_path / "orders")), stream(2))
        for name in (".metadata.crc", "offsets/.2.crc", "state/0/1/.3.changelog.1-2.tmp"):
            orders.replace(name, b"x")
        reset(orders)
        assert list(orders.walk()) == [SEED]
        assert [p.name for p in (tmp_path / "orders").iterdir()] == ["sources"]

    def test_a_source_at_another_place(self, orders: Location) -> None:
        reset(orders, sources={"0": "1"})
        assert set(contents(orders)) == {"sources/1/0"}

    def test_a_source_that_is_gone(self, orders: Location) -> None:
        plan = plan_of(orders, sources={"0": ""})
        assert (plan.sources, plan.contents) == ((), {})

    def test_a_broken_one(self, orders: Location) -> None:
        """No query id, no commits, the newest entry cut off: what can be read is enough."""
        for path in ["metadata", *(f"commits/{b}" for b in range(NEWEST + 1))]:
            orders.delete(path)
        orders.replace(f"offsets/{NEWEST}", b"")
        plan = plan_of(orders)
        assert plan.start == NEWEST - 1
        assert any(f"offsets/{NEWEST} cannot be read" in reason for reason in plan.reasons)
        # The batch whose entry is torn may have reached the sink.
        assert plan.verdict is Verdict.WILL_DUPLICATE
        reset(orders, accept=ACCEPTED)
        assert set(contents(orders)) == {SEED}

    def test_the_snippet_is_python_with_the_options(self, place: Location) -> None:
        plan = plan_of(plant(place / "orders", kafka_and_delta()))
        lines = [line for line in plan.snippet.splitlines() if line.startswith(".options(")]
        found = [eval("dict" + line.removeprefix(".options"), {"dict": dict}) for line in lines]
        assert json.loads(found[0]["startingOffsets"]) == {"orders": {"0": 20, "1": 10}}
        assert found[1] == {"startingVersion": "3"}
        assert found == list(plan.options.values())
        assert 'spark.conf.set("spark.databricks.delta.changeDataFeed' in plan.snippet
        assert plan.snippet in plan.to_markdown()

    def test_a_position_that_no_option_can_say(self, place: Location) -> None:
        plan = plan_of(plant(place / "orders", kafka_and_delta(index=1)))
        assert plan.verdict is Verdict.WILL_DUPLICATE
        with pytest.raises(
            RefusedError,
            match=r"needs somebody to accept: source_duplicates \(source 1: the batch ended within version 3",
        ):
            reset(place / "orders")

    def test_state_is_lost_in_so_many_words(self, orders: Location) -> None:
        assert any("the query keeps state, and a new checkpoint has none" in c for c in plan_of(orders).cautions)


class TestTheSeamOfANewCheckpoint:
    def verdict(self, orders: Location, table: Location, **options: Any) -> tuple[Verdict, str]:
        app_id = options.pop("app_id", None)
        plan = plan_of(orders, sink=Sink(place=table, app_id=app_id), **options)
        return plan.cutover.verdict, " ".join(plan.cutover.reasons)

    def test_table_and_checkpoint_agree(self, orders: Location, table: Location) -> None:
        verdict, reason = self.verdict(orders, table)
        assert verdict is Verdict.SAFE
        assert "holds exactly the batches up to 6" in reason
        reset(orders, sink=Sink(place=table))

    def test_an_uncommitted_batch_that_the_table_has_is_not_read_again(self, orders: Location, table: Location) -> None:
        orders.delete(f"commits/{NEWEST}")
        plan = plan_of(orders, sink=Sink(place=table))
        assert (plan.start, plan.verdict) == (NEWEST, Verdict.SAFE)
        assert any("batch 6 was not committed, but the table has it" in note for note in plan.notes)

    def test_an_uncommitted_batch_that_the_table_has_not(self, orders: Location, tmp_path: Path) -> None:
        orders.delete(f"commits/{NEWEST}")
        plan = plan_of(orders, sink=Sink(place=delta_table(tmp_path / "t", range(NEWEST))))
        assert (plan.start, plan.verdict) == (NEWEST - 1, Verdict.SAFE)

    def test_rows_that_the_table_has_come_twice(self, orders: Location, table: Location) -> None:
        plan = plan_of(orders, sink=Sink(place=table), batch_id=3)
        assert plan.cutover.verdict is Verdict.WILL_DUPLICATE
        assert plan.cutover.doubled == {"batches": 3, "rows": 6}
        assert "their 6 rows (batches 4 to 6) are written again" in plan.cutover.reasons[0]

    def test_from_scratch(self, orders: Location, table: Location) -> None:
        plan = plan_of(orders, SCRATCH, sink=Sink(place=table))
        assert plan.cutover.doubled == {"batches": 7, "rows": 14}

    def test_from_scratch_after_a_new_query_id(self, orders: Location, table: Location) -> None:
        """What the table holds under the id of before is the same query's, and comes again too."""
        reset(orders, RENAME, sink=Sink(place=table))
        newer = Checkpoint.at(orders).progress().query_id
        plan = plan_of(orders, SCRATCH, sink=Sink(place=table))
        assert (plan.cutover.verdict, plan.cutover.doubled) == (Verdict.WILL_DUPLICATE, {"batches": 7, "rows": 14})
        assert f"under older ids of the query: {QUERY_ID}" in plan.cutover.reasons[0]
        append(table.uri, NEWEST + 1, app_id=newer)
        plan = plan_of(orders, SCRATCH, sink=Sink(place=table))
        assert (plan.cutover.verdict, plan.cutover.doubled["rows"]) == (Verdict.WILL_DUPLICATE, 16)
        assert plan.cutover.query_ids == (QUERY_ID, newer)

    def test_from_scratch_after_an_id_that_nobody_knows(self, orders: Location, table: Location) -> None:
        """Whose the other rows are is not known: they are named."""
        orders.replace("metadata", b'{"id":"by-hand"}')
        verdict, reason = self.verdict(orders, table, way=SCRATCH)
        assert verdict is Verdict.UNKNOWN
        assert f"but 14 rows that other query ids wrote ({QUERY_ID})" in reason

    def test_from_scratch_into_a_table_with_rows_of_nobody_knows_whom(self, orders: Location, tmp_path: Path) -> None:
        for batch in range(3):
            append(tmp_path / "t", batch, app_id=None)
        verdict, reason = self.verdict(orders, open_location(str(tmp_path / "t")), way=SCRATCH)
        assert verdict is Verdict.UNKNOWN
        assert "has no commit of the query" in reason

    def test_a_table_that_was_restored(self, orders: Location, table: Location) -> None:
        """The memory of the old id does not matter to the new one; what the table holds does."""
        DeltaTable(table.uri).restore(3)
        assert self.verdict(orders, table, batch_id=3)[0] is Verdict.SAFE
        verdict, reason = self.verdict(orders, table)
        assert verdict is Verdict.UNKNOWN
        assert "rows of batches 4 to 6 are missing if those batches had any" in reason

    def test_not_its_sink(self, orders: Location, tmp_path: Path) -> None:
        other = delta_table(tmp_path / "other", range(7), app_id="somebody-else")
        verdict, reason = self.verdict(orders, other)
        assert verdict is Verdict.UNKNOWN
        assert "has no commit of the query" in reason

    def test_the_same_txn_app_id_skips(self, orders: Location, tmp_path: Path) -> None:
        table = delta_table(tmp_path / "t", range(7), app_id="totals")
        verdict, reason = self.verdict(orders, table, app_id="totals")
        assert verdict is Verdict.WILL_SKIP
        assert "Delta skips its batches 0 to 6 without a word" in reason
        assert self.verdict(orders, table, app_id="totals", new_app_id="totals-2")[0] is Verdict.SAFE

    def test_a_file_sink_skips_by_number(self, orders: Location, tmp_path: Path) -> None:
        plan = plan_of(orders, sink=Sink(place=file_sink(tmp_path / "out", NEWEST)))
        assert (plan.cutover.verdict, plan.cutover.skipped) == (Verdict.WILL_SKIP, 7)
        with pytest.raises(RefusedError, match="the new checkpoint's batches 0 to 6 are skipped without a word"):
            apply_reset(plan, orders, repository(orders), rest=STOPPED)

    def test_a_sink_without_memory(self, orders: Location) -> None:
        assert plan_of(orders).cutover.verdict is Verdict.SAFE
        orders.delete(f"commits/{NEWEST}")
        cutover = plan_of(orders).cutover
        assert (cutover.verdict, cutover.doubled) == (Verdict.WILL_DUPLICATE, {"batches": 1})

    def test_a_sink_nobody_named(self, orders: Location) -> None:
        assert plan_of(orders, sink=Sink()).verdict is Verdict.UNKNOWN
        with pytest.raises(RefusedError, match=r"needs somebody to accept: sink_unknown \(the sink is not known") as e:
            reset(orders, sink=Sink())
        assert "--accept sink_unknown" in (e.value.hint or "")
        assert set(contents(orders)) == set(stream(NEWEST))


class TestANewQueryId:
    def test_only_metadata_changes(self, tmp_path: Path) -> None:
        orders = plant(open_location(str(tmp_path / "orders")), stream(NEWEST))
        orders.replace(".metadata.crc", b"of the old content")
        before = contents(orders)
        outcome = reset(orders, RENAME)
        after = contents(orders)
        assert ".metadata.crc" not in after
        assert json.loads(after["metadata"]) == {"id": outcome.new_query_id}
        assert len(after["metadata"]) == len(before["metadata"])
        same = set(before) - {"metadata", ".metadata.crc"}
        assert {p: after[p] for p in same} == {p: before[p] for p in same}
        assert Checkpoint.at(orders).resume_point().batch_id == NEWEST + 1
        assert contents(repository(orders).location / f"{outcome.kept}/files") == {"metadata": before["metadata"]}

    def test_after_a_restore_by_spark(self, orders: Location, table: Location) -> None:
        """The case it is for: the table was rolled back by RESTORE and remembers what it does not have any more."""
        for batch in range(4, NEWEST + 1):
            for path in (f"offsets/{batch}", f"commits/{batch}", f"sources/0/{batch}"):
                orders.delete(path)
        DeltaTable(table.uri).restore(3)
        plan = plan_of(orders, RENAME, sink=Sink(place=table))
        assert (plan.verdict, plan.start) == (Verdict.SAFE, 3)

    def test_where_the_table_has_more(self, orders: Location, table: Location) -> None:
        orders.delete(f"commits/{NEWEST}")
        plan = plan_of(orders, RENAME, sink=Sink(place=table))
        assert (plan.verdict, plan.cutover.doubled) == (Verdict.WILL_DUPLICATE, {"batches": 1, "rows": 2})

    def test_of_no_use_to_other_sinks(self, orders: Location, tmp_path: Path) -> None:
        orders.delete(f"commits/{NEWEST}")
        totals = delta_table(tmp_path / "t", range(7), app_id="totals")
        for sink, verdict in (
            (Sink(place=totals, app_id="totals"), Verdict.WILL_SKIP),
            (Sink(place=file_sink(tmp_path / "out", NEWEST)), Verdict.WILL_SKIP),
            (Sink(kind="foreachBatch"), Verdict.WILL_DUPLICATE),
        ):
            plan = plan_of(orders, RENAME, sink=sink)
            assert plan.verdict is verdict
            assert plan.reasons[0].startswith("sink: a new query id changes nothing here")

    def test_nothing_to_rename(self, orders: Location) -> None:
        orders.delete("metadata")
        with pytest.raises(RefusedError, match="has no metadata"):
            plan_of(orders, RENAME)


class TestRefused:
    def test_nothing_chosen(self, orders: Location) -> None:
        with pytest.raises(RefusedError, match="what is to take the place of") as e:
            plan_of(orders, None)
        assert "--keep-position" in (e.value.hint or "")

    def test_no_checkpoint(self, place: Location) -> None:
        with pytest.raises(NotACheckpointError, match="there is nothing to reset"):
            plan_of(place / "nothing")
        plant(place / "table", {"_delta_log/00000000000000000000.json": b"{}", "part-1.parquet": b"x"})
        with pytest.raises(NotACheckpointError):
            plan_of(place / "table")

    @pytest.mark.parametrize("batch", [7, 99])
    def test_a_batch_that_is_not_there(self, orders: Location, batch: int) -> None:
        with pytest.raises(
            RefusedError, match=f"batch {batch} is not in the log; committed and still in the log: batches 0 to 6"
        ):
            plan_of(orders, batch_id=batch)

    def test_a_batch_that_cannot_be_read(self, orders: Location) -> None:
        orders.replace("offsets/3", b"v1")
        with pytest.raises(UnreadableLogError, match="offsets/3"):
            plan_of(orders, batch_id=3)

    def test_a_batch_where_none_is_asked_for(self, orders: Location) -> None:
        with pytest.raises(RefusedError, match="a batch goes with keep-position"):
            plan_of(orders, SCRATCH, batch_id=3)

    @pytest.mark.parametrize(
        ("sources", "message"), [({"5": "1"}, "the query has no source '5'"), ({"0": "1"}, "two sources would be '1'")]
    )
    def test_sources(self, place: Location, sources: dict[str, str], message: str) -> None:
        plant(place / "orders", kafka_and_delta())
        with pytest.raises(RefusedError, match=message):
            plan_of(place / "orders", sources=sources)

    def test_no_sink(self, orders: Location, place: Location) -> None:
        with pytest.raises(RefusedError, match="neither a Delta table nor the output of a file sink"):
            plan_of(orders, sink=Sink(place=place / "nowhere"))

    def test_another_risk_was_accepted(self, orders: Location) -> None:
        with pytest.raises(RefusedError, match=r"needs somebody to accept: sink_unknown \("):
            reset(orders, sink=Sink(), accept=[word for word in ACCEPTED if word != "sink_unknown"])
        assert set(contents(orders)) == set(stream(NEWEST))

    def test_a_stream_that_went_on(self, orders: Location) -> None:
        plan = plan_of(orders)
        plant(orders, stream(NEWEST + 1))
        with pytest.raises(RefusedError, match=r"is not any more what plan .* nothing was changed"):
            apply_reset(plan, orders, repository(orders), rest=STOPPED)
        assert set(contents(orders)) == set(stream(NEWEST + 1))

    def test_a_stream_that_goes_on_while_it_is_sealed(self, orders: Location) -> None:
        def before(operation: str, path: str) -> None:
            if operation == "create" and path.endswith(f"offsets/{NEWEST + 1}"):
                plant(orders, {f"commits/{NEWEST}": commit_log(watermark=5)})

        seen, _ = watched(orders, before)
        plan = plan_of(orders)
        with pytest.raises(RefusedError, match=r"is not any more what plan .* nothing was changed"):
            apply_reset(plan, seen, repository(orders), rest=STOPPED)
        assert not loud_seal(orders)

    def test_sealed_by_somebody_else(self, orders: Location) -> None:
        seal(Checkpoint.at(orders), reason="mine", plan_id="beef")
        with pytest.raises(SealedError, match="sealed by plan beef"):
            plan_of(orders)


class TestStoppedAnywhere:
    """After every single write: Spark is refused, or nothing has begun, or all is done; the same command ends it."""

    @pytest.mark.parametrize("way", list(ResetWay))
    def test_a_reset(self, place: Location, way: ResetWay) -> None:
        accept = ["sink_duplicates"] if way is SCRATCH else []
        before = contents(plant(place / "same", stream(SHORT)))
        for writes in range(400):
            orders = plant(place / f"{way}{writes}" / "orders", stream(SHORT))
            held_at = repository(orders).location
            life = Life(writes)
            dying, _ = watched(orders, life.before)
            held, _ = watched(held_at, life.before)
            try:
                reset(dying, way, accept=accept, held=Repository.open(held))
                assert writes > 5
                break
            except Killed:
                pass
            now = contents(orders)
            done = not loud_seal(orders) and self.is_done(orders, way, before)
            assert loud_seal(orders) or now == before or done, f"after write {writes}"
            if not done:
                reset(orders, way, accept=accept)
            assert self.is_done(orders, way, before)
            assert not loud_seal(orders)
            undone(orders)
            assert contents(orders) == before
            forget_all()  # listings in memory walk over everything
        else:
            pytest.fail("it never ended")

    def test_a_reset_that_puts_its_seal_higher(self, place: Location, tmp_path: Path) -> None:
        """The new checkpoint begins beyond the old one's numbers: stopped in between, there are two seals."""
        sink, accept = Sink(place=file_sink(tmp_path / "out", 9)), ["sink_duplicates"]
        options: dict[str, Any] = {"sink": sink, "continue_numbers": True, "accept": accept}
        before = contents(plant(place / "same", stateless(SHORT)))
        wanted = {SEED, "metadata", "offsets/8", "offsets/9", "commits/9"}
        two_seals = 0
        for writes in range(400):
            orders = plant(place / f"n{writes}" / "orders", stateless(SHORT))
            life = Life(writes)
            held, _ = watched(repository(orders).location, life.before)
            dying, _ = watched(orders, life.before)
            try:
                reset(dying, held=Repository.open(held), **options)
                assert writes > 10
                break
            except Killed:
                pass
            now = contents(orders)
            two_seals += sum(data.startswith(SEAL_PREFIX) for data in now.values()) == 2
            assert loud_seal(orders) or now == before or set(now) == wanted, f"after write {writes}"
            if loud_seal(orders) or now == before:
                reset(orders, **options)
            assert set(contents(orders)) == wanted
            undone(orders)
            assert contents(orders) == before
            forget_all()  # listings in memory walk over everything
        else:
            pytest.fail("it never ended")
        assert two_seals == 1

    def is_done(self, orders: Location, way: ResetWay, before: Files) -> bool:
        now = contents(orders)
        if way is RENAME:
            others = {p: d for p, d in now.items() if p != "metadata"}
            return (
                others == {p: d for p, d in before.items() if p != "metadata"} and now["metadata"] != before["metadata"]
            )
        return set(now) == ({SEED} if way is KEEP else set())

    def test_an_undo(self, place: Location) -> None:
        before = contents(plant(place / "same", stream(SHORT)))
        for writes in range(400):
            orders = plant(place / f"u{writes}" / "orders", stream(SHORT))
            reset(orders)
            after = contents(orders)
            life = Life(writes)
            dying, _ = watched(orders, life.before)
            held, _ = watched(default_repository(orders), life.before)
            try:
                undone(dying, Repository.open(held))
                assert writes > 5
                break
            except Killed:
                pass
            now = contents(orders)
            assert loud_seal(orders) or now in (after, before), f"after write {writes}"
            undone(orders)
            assert contents(orders) == before
            forget_all()  # listings in memory walk over everything
        else:
            pytest.fail("it never ended")

    def test_a_reset_that_was_killed_can_be_taken_back(self, place: Location) -> None:
        for writes in range(3, 60, 4):
            orders = plant(place / f"h{writes}" / "orders", stream(SHORT))
            dying, _ = watched(orders, Life(writes).before)
            repository(orders)
            try:
                reset(dying)
                break
            except Killed:
                pass
            undone(orders)
            assert set(contents(orders)) == set(stream(SHORT))

    def test_another_plan_is_refused_meanwhile(self, orders: Location) -> None:
        dying, _ = watched(orders, Life(5).before)
        with pytest.raises(Killed):
            reset(dying)
        with pytest.raises(SealedError, match=r"is sealed by plan \w+, a reset \(keep-position\) that was not ended"):
            plan_of(orders, SCRATCH)
        assert reset(orders).start == NEWEST


class TestUndo:
    def test_not_after_the_new_checkpoint_was_started(self, orders: Location) -> None:
        reset(orders)
        plant(orders, {"metadata": metadata("new"), "offsets/0": offsets_log("-")})
        with pytest.raises(RefusedError, match=r"was written to since reset \w+: the stream was started") as e:
            undone(orders)
        assert "stays in the repository, in set-aside/" in (e.value.hint or "")
        assert not loud_seal(orders)

    def test_twice(self, orders: Location) -> None:
        reset(orders, RENAME)
        assert undone(orders).put_back == 1
        assert undone(orders).already_done

    def test_a_reset_that_never_was(self, orders: Location) -> None:
        plan = plan_of(orders)
        with pytest.raises(NoSuchBackupError, match=f"keeps no plan {plan.plan_id}"):
            undo(orders, repository(orders), plan_id=plan.plan_id, rest=STOPPED)

    def test_a_reset_that_changed_nothing(self, orders: Location) -> None:
        """Its plan was kept, and it was stopped before it had sealed anything."""
        plan = plan_of(orders)
        dying, _ = watched(orders, Life(0).before)
        with pytest.raises(Killed):
            apply_reset(plan, dying, repository(orders), rest=STOPPED)
        with pytest.raises(RefusedError, match="it was refused or never carried out"):
            undo(orders, repository(orders), plan_id=plan.plan_id, rest=STOPPED)
        assert contents(orders) == stream(NEWEST)


def test_a_running_query_is_stopped_by_the_seal(orders: Location) -> None:
    def plan(seal_id: str | None) -> ResetPlan:
        assert seal_id is not None
        assert loud_seal(orders)
        return plan_of(orders, seal_id=seal_id)

    _, outcome = stop_plan_and_reset(orders, repository(orders), plan, stop_running=True, rest=STOPPED)
    assert outcome.start == NEWEST
    assert set(contents(orders)) == {SEED}


def test_a_refusal_lifts_the_seal_that_stopped_the_query(orders: Location) -> None:
    with pytest.raises(RefusedError, match=r"needs somebody to accept: sink_unknown \("):
        stop_plan_and_reset(
            orders,
            repository(orders),
            lambda seal_id: plan_of(orders, sink=Sink(), seal_id=seal_id),
            stop_running=True,
            rest=STOPPED,
        )
    assert set(contents(orders)) == set(stream(NEWEST))


def test_a_seal_of_somebody_else_is_no_permission_to_go_on(orders: Location) -> None:
    """Not for a reset that may stop the query, nor for a rewind."""
    mine = seal(Checkpoint.at(orders), reason="mine", plan_id="beef")
    checkpoint, held = Checkpoint.at(orders), repository(orders)
    with pytest.raises(SealedError, match="sealed by plan beef"):
        stop_plan_and_reset(
            orders, held, lambda seal_id: plan_of(orders, seal_id=seal_id), stop_running=True, rest=STOPPED
        )
    sink = Sink(kind="foreachBatch")

    def rewind(seal_id: str | None) -> RewindPlan:
        back = Specifier("to_batch", "4")
        return plan_rewind(checkpoint, back, sink=sink, sink_exit=SinkPolicy.ACCEPT, seal_id=seal_id)

    with pytest.raises(SealedError, match="sealed by plan beef"):
        stop_plan_and_apply(checkpoint, held, rewind, sink=sink, stop_running=True, rest=STOPPED)
    still = checkpoint.progress().seal
    assert still
    assert (still.plan_id, still.path) == (mine.plan_id, mine.path)
    assert set(contents(orders)) == {*stream(NEWEST), mine.path}


def test_a_half_done_reset_is_not_taken_for_a_stopped_query(orders: Location) -> None:
    dying, _ = watched(orders, Life(6).before)
    repository(orders)
    with pytest.raises(Killed):
        stop_plan_and_reset(
            dying, repository(dying), lambda seal_id: plan_of(dying, seal_id=seal_id), stop_running=True, rest=STOPPED
        )
    assert loud_seal(orders)
    with pytest.raises(SealedError, match=r"a reset \(keep-position\) that was not ended"):
        stop_plan_and_reset(
            orders,
            repository(orders),
            lambda seal_id: plan_of(orders, RENAME, seal_id=seal_id),
            stop_running=True,
            rest=STOPPED,
        )
    assert loud_seal(orders)
    assert reset(orders).start == NEWEST


def test_delta_does_not_protect_a_new_checkpoint(orders: Location, table: Location) -> None:
    """What tutorials have wrong, on a real table: a batch of a new id is appended though the old id has it."""
    rows = len(batches_in(table))
    append(table.uri, NEWEST, app_id="a-new-query-id")
    assert len(batches_in(table)) == rows + 2
    assert DeltaTable(table.uri).transaction_version(QUERY_ID) == NEWEST
