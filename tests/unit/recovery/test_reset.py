"""reset: what is removed and what takes its place, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_ckpt_provider.change.sealing import seal
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.source_offsets import KafkaOffset
from airflow_ckpt_provider.errors import NotACheckpointError, RefusedError, SealedError, SourceError, UnreadableLogError
from airflow_ckpt_provider.guards.registry import GuardedSource
from airflow_ckpt_provider.guards.report import Judgement, SourceReport
from airflow_ckpt_provider.recovery.reset.apply import apply_reset
from airflow_ckpt_provider.recovery.reset.way import ResetWay
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.backups import stream
from tests.support.checkpoints import commit_log, contents, plant
from tests.support.delta_batches import delta_table
from tests.support.resets import (
    KEEP,
    NEWEST,
    RENAME,
    SCRATCH,
    SEED,
    file_sink,
    kafka_and_delta,
    plan_of,
    repository,
    reset,
    seeded_files,
    undone,
)
from tests.support.restores import loud_seal
from tests.support.stopped import ACCEPTED, STOPPED
from tests.support.watched_stores import watched


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

    def test_from_scratch_kafka_may_skip_what_came_meanwhile(self, place: Location) -> None:
        """By default it starts at the end of the topic. What a query says of a Delta source is not known either."""
        orders = plant(place / "orders", kafka_and_delta())
        plan = plan_of(orders, SCRATCH)
        assert [(s.kind, s.verdict) for s in plan.sources] == [("kafka", Verdict.UNKNOWN), ("delta", Verdict.UNKNOWN)]
        assert "startingOffsets says, by default at the end of the topic" in plan.sources[0].reasons[0]
        assert "startingVersion or startingTimestamp" in plan.sources[1].reasons[0]
        assert "source_unknown" in {risk.word for risk in plan.risks}
        with pytest.raises(RefusedError, match=r"needs somebody to accept: (?s:.*)source_unknown"):
            reset(orders, SCRATCH)

    def test_from_scratch_where_no_entry_can_be_read(self, orders: Location) -> None:
        for batch in range(NEWEST + 1):
            orders.replace(f"offsets/{batch}", b"v1\n{")
        plan = plan_of(orders, SCRATCH)
        assert "what its sources are is not known" in plan.sources[0].reasons[0]
        assert "source_unknown" in {risk.word for risk in plan.risks}

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
        with pytest.raises(RefusedError) as error:
            reset(place / "orders")
        first, second = error.value.message.split("\n")  # a line for each; the plan has all of their reasons
        assert first.partition(" needs somebody to accept: ")[2] == (
            "source_unknown (source 0: every partition of the topics has to be in startingOffsets, or Spark refuses to start: "
            "where partitions were added since, say how many there are now: --partitions TOPIC=N (kafka_partitions); …)"
        )
        assert second.startswith("  source_duplicates (source 1: the batch ended within version 3, after its file 1: ")

    def test_state_is_lost_in_so_many_words(self, orders: Location) -> None:
        assert any("the query keeps state, and a new checkpoint has none" in c for c in plan_of(orders).cautions)


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

    @pytest.mark.parametrize(("way", "options"), [(KEEP, {}), (SCRATCH, {}), (SCRATCH, {"continue_numbers": True})])
    @pytest.mark.parametrize("again", [KEEP, SCRATCH])
    def test_one_that_no_query_has_been_started_with(
        self, orders: Location, way: ResetWay, options: dict[str, bool], again: ResetWay
    ) -> None:
        """The same command is given again, or another way is asked for."""
        for path in [path for path in orders.walk() if path.startswith("state/")]:
            orders.delete(path)
        old = contents(orders)
        outcome = reset(orders, way, accept=ACCEPTED, **options)
        with pytest.raises(RefusedError, match=rf"as the reset {outcome.plan_id} \({way}\) left it, so there is") as e:
            plan_of(orders, again)
        assert f"undo {orders} --plan {outcome.plan_id}`" in (e.value.hint or "")
        undone(orders)
        assert contents(orders) == old
        assert plan_of(orders, again).before

    def test_the_last_of_two_resets_is_named(self, orders: Location) -> None:
        """Both left the place empty; to undo the first one would put back what the second one removed more than."""
        for _ in range(4):
            outcome = reset(orders, SCRATCH, accept=ACCEPTED)
            with pytest.raises(RefusedError, match=f"as the reset {outcome.plan_id} "):
                plan_of(orders, SCRATCH)
            plant(orders, stream(2))
        undone_later = reset(orders, SCRATCH, accept=ACCEPTED)
        undone(orders)
        for path in list(orders.walk()):
            orders.delete(path)
        with pytest.raises(RefusedError, match=f"as the reset {outcome.plan_id} "):
            plan_of(orders, SCRATCH)
        assert undone_later.plan_id != outcome.plan_id

    def test_an_empty_place_whose_reset_was_undone(self, orders: Location) -> None:
        reset(orders, SCRATCH, accept=ACCEPTED)
        undone(orders)
        for path in list(orders.walk()):
            orders.delete(path)
        with pytest.raises(NotACheckpointError, match="holds no checkpoint: there is nothing to reset"):
            plan_of(orders, SCRATCH)

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


def test_kafka_is_never_safe_without_a_brokers_answer(place: Location) -> None:
    plan = plan_of(plant(place / "orders", kafka_and_delta()))
    kafka = plan.sources[0]
    assert (kafka.kind, kafka.verdict, plan.verdict) == ("kafka", Verdict.UNKNOWN, Verdict.UNKNOWN)
    assert "no broker was asked" in kafka.reasons[-1]
    assert "Azure Event Hubs" in kafka.reasons[-1]


class Brokers:
    """Answers for Kafka what a test wants."""

    kind = "kafka"

    def __init__(self, verdict: Verdict | None) -> None:
        self.verdict = verdict
        self.asked: list[GuardedSource] = []

    def recognises(self, source: GuardedSource) -> bool:
        return True

    def judge(self, source: GuardedSource) -> SourceReport:
        self.asked.append(source)
        if self.verdict is None:
            raise SourceError("no broker answers")
        return SourceReport(source.name, self.kind, (Judgement(self.verdict, "the brokers say so"),))


@pytest.mark.parametrize("verdict", [Verdict.SAFE, Verdict.WILL_LOSE, None])
def test_the_brokers_are_asked_for_the_kept_position(place: Location, verdict: Verdict | None) -> None:
    brokers, orders = Brokers(verdict), plant(place / "orders", kafka_and_delta())
    without = plan_of(orders)
    kafka, delta = plan_of(orders, guards=(brokers,)).sources
    assert kafka.verdict is (verdict or Verdict.UNKNOWN)
    assert kafka.reasons[0] == (
        "the brokers say so" if verdict else "the brokers could not be asked: no broker answers"
    )
    assert not any("no broker was asked" in reason for reason in kafka.reasons)
    assert delta == without.sources[1], "only Kafka is asked"
    (asked,) = brokers.asked
    assert isinstance(asked.start.offset, KafkaOffset)
    assert kafka.options == without.sources[0].options
