"""A rewind of a stream that reads Kafka: to given offsets, what it reads again, what becomes of readers of its table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.beside import default_repository, repository_for_change
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.source_offsets import KafkaOffset
from airflow_ckpt_provider.errors import RefusedError, SealedError
from airflow_ckpt_provider.guards.registry import GuardedSource
from airflow_ckpt_provider.guards.report import Judgement, SourceReport
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.recovery.rewind.specifiers import kafka_offsets
from airflow_ckpt_provider.recovery.status import status_of
from airflow_ckpt_provider.sinks.delta_history import read_table_history
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.backups import stream
from tests.support.checkpoints import commit_log, metadata, offsets_log, plant
from tests.support.delta_batches import delta_table
from tests.support.rewinds import NEWEST
from tests.support.stopped import ACCEPTED, STOPPED
from tests.support.watched_stores import Killed, watched


@pytest.fixture
def orders(place: Location) -> Location:
    """Batches 0 to 4; each reads 10 records of partition 0 and 5 of partition 1."""
    files = {"metadata": metadata()}
    for batch in range(5):
        ends = f'{{"orders":{{"0":{batch * 10 + 10},"1":{batch * 5 + 5}}}}}'
        files |= {f"offsets/{batch}": offsets_log(ends), f"commits/{batch}": commit_log()}
    return plant(place / "orders", files)


@pytest.mark.parametrize(
    ("offsets", "batch"),
    [
        ("orders,0,30\norders,1,15\n", 2),
        ("orders,0,39\norders,1,19\n", 2),
        ("group,orders,0,40\ngroup,orders,1,20\n", 3),
        ("orders,0,35\n\n", 2),
        ('"orders",0,999\n', 4),
    ],
)
def test_the_newest_batch_that_is_not_beyond_the_offsets(orders: Location, offsets: str, batch: int) -> None:
    plan = plan_rewind(Checkpoint.at(orders), Specifier("from_file", offsets), guards=())
    assert plan.batch_id == batch


def test_other_offsets_half_way(orders: Location) -> None:
    """The batch of the offsets that were given first is not the one that is asked for now."""

    def die(operation: str, path: str) -> None:
        if operation == "delete_listed":
            raise Killed(path)

    first, other = (Specifier("from_file", f"orders,0,{offset}\n") for offset in (30, 20))
    plan = plan_rewind(Checkpoint.at(orders), first, guards=())
    held = repository_for_change(None, orders)
    with pytest.raises(Killed):
        apply_rewind(plan, Checkpoint.at(watched(orders, die)[0]), held, rest=STOPPED, accept=ACCEPTED)
    with pytest.raises(SealedError, match="that was not ended"):
        plan_rewind(Checkpoint.at(orders), other, guards=())
    assert plan_rewind(Checkpoint.at(orders), first, guards=()) == replace(plan, continued=True)
    status = status_of(Checkpoint.at(orders), held)
    assert status.commands[0] == f"airflow-ckpt rewind {orders} --from-file=OFFSETS.csv --apply"
    stored = plan.document()
    held.keep_plan(plan.plan_id, {**stored, "request": {**stored["request"], "target": "from-file"}})
    assert plan_rewind(Checkpoint.at(orders), first, guards=()).continued  # begun by version 0.1


def test_the_difference_is_listed(orders: Location) -> None:
    plan = plan_rewind(Checkpoint.at(orders), Specifier("from_file", "orders,0,33\norders,1,15"), guards=())
    assert plan.notes == ("orders-0: batch 2 ends at 30, 3 records before the offset asked for (33)",)
    assert plan.replay["records"] == {"0": 30}
    assert plan.replay["batches"] == 2


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ("orders,0,3", "every reachable batch is beyond those offsets; reachable: 0 to 4"),
        ("other,0,30", "the stream does not read other-0"),
        ("orders,7,30", "the stream does not read orders-7"),
        ("orders,zero,30", "line 1 is not topic,partition,offset: 'orders,zero,30'"),
        ("", "the file holds no offsets"),
    ],
)
def test_offsets_that_do_not_fit(orders: Location, offsets: str, message: str) -> None:
    with pytest.raises(RefusedError) as e:
        plan_rewind(Checkpoint.at(orders), Specifier("from_file", offsets), guards=())
    assert e.value.message == message


def test_reading_offsets() -> None:
    assert kafka_offsets('orders,0,5\n"orders", 1 , 7\n') == {"orders": {0: 5, 1: 7}}


@pytest.mark.parametrize("number", ["²", "9" * 5000])
def test_what_python_reads_as_no_number_is_refused(orders: Location, number: str) -> None:
    with pytest.raises(RefusedError, match="is not a whole number"):
        plan_rewind(Checkpoint.at(orders), Specifier("to_batch", number), guards=())
    with pytest.raises(RefusedError, match=r"line 1 is not topic,partition,offset"):
        kafka_offsets(f"orders,0,{number}\n")


def test_without_a_broker_nobody_knows(orders: Location) -> None:
    plan = plan_rewind(Checkpoint.at(orders), Specifier("to_batch", "2"), sink=Sink(kind="foreachBatch"))
    assert plan.source_verdict is Verdict.UNKNOWN


class NotingGuard:
    """Says nothing and notes what it was asked."""

    kind = "kafka"

    def __init__(self) -> None:
        self.asked: list[GuardedSource] = []

    def recognises(self, source: GuardedSource) -> bool:
        return True

    def judge(self, source: GuardedSource) -> SourceReport:
        self.asked.append(source)
        return SourceReport(source.name, self.kind, (Judgement(Verdict.SAFE, "asked"),))

    @property
    def starts(self) -> list[dict[str, dict[int, int]]]:
        return [dict(s.start.offset.partitions) for s in self.asked if isinstance(s.start.offset, KafkaOffset)]


def test_the_topics_that_the_backups_recorded_are_compared_also_where_the_checkpoint_has_the_batch(
    orders: Location,
) -> None:
    held = Repository.open_or_create(default_repository(orders))

    def observe(*_: object) -> dict[str, dict[str, object]]:
        return {"0": {"kind": "kafka", "at": None, "topics": {"orders": {"topic_id": "id-1", "partitions": {}}}}}

    create_backup(Checkpoint.at(orders), held, observe=observe)
    guard = NotingGuard()
    plan = plan_rewind(
        Checkpoint.at(orders),
        Specifier("to_batch", "2"),
        sink=Sink(kind="foreachBatch"),
        sink_exit=SinkPolicy.ACCEPT,
        guards=(guard,),
    )
    assert plan.source_of_state == "checkpoint"
    assert [source.known["topics"]["orders"]["topic_id"] for source in guard.asked] == ["id-1"]


def test_of_an_older_batch_of_a_backup_its_own_offsets_are_judged(orders: Location) -> None:
    """The manifest has those of its newest batch, before which the source may have lost data already."""
    held = Repository.open_or_create(default_repository(orders))
    create_backup(Checkpoint.at(orders), held, restorable_batches=3)
    for batch in range(2, 5):
        orders.delete(f"offsets/{batch}")
        orders.delete(f"commits/{batch}")
    for target in (2, 3, 4):
        guard = NotingGuard()
        sink, to = Sink(kind="foreachBatch"), Specifier("to_batch", str(target))
        plan = plan_rewind(Checkpoint.at(orders), to, sink=sink, sink_exit=SinkPolicy.ACCEPT, guards=(guard,))
        assert plan.source_of_state != "checkpoint"
        assert guard.starts == [{"orders": {0: 10 * target + 10, 1: 5 * target + 5}}]
        (source,) = guard.asked
        # Spark asks for the batch itself again.
        assert [o.partitions["orders"][0] for o in source.reread if isinstance(o, KafkaOffset)] == [10 * target]


@pytest.mark.parametrize(("target", "asked_again"), [(0, (None,)), (2, (20,))])
def test_what_spark_asks_for_once_more(orders: Location, target: int, asked_again: tuple[int | None]) -> None:
    guard = NotingGuard()
    sink, to = Sink(kind="foreachBatch"), Specifier("to_batch", str(target))
    plan_rewind(Checkpoint.at(orders), to, sink=sink, sink_exit=SinkPolicy.ACCEPT, exact_replay=False, guards=(guard,))
    (source,) = guard.asked
    found = tuple(o.partitions["orders"][0] if isinstance(o, KafkaOffset) else o for o in source.reread)
    assert found == asked_again


@pytest.fixture
def readers(place: Location, tmp_path: Path) -> tuple[Location, Location]:
    """A table with batches 0 to 6 (versions 0 to 6), and a folder of streams."""
    table = delta_table(tmp_path / "table", range(NEWEST + 1))
    table_id = read_table_history(table).table_id
    for name, uid, version, index in (
        ("behind", table_id, 3, -1),
        ("ahead", table_id, 7, -1),
        ("other", "else", 7, -1),
    ):
        position = f'"reservoirVersion":{version},"index":{index},"isStartingVersion":false'
        offset = f'{{"sourceVersion":1,"reservoirId":"{uid}",{position}}}'
        files = {"metadata": metadata(), "offsets/0": offsets_log(offset), "commits/0": commit_log()}
        plant(place / "readers" / name, files)
    return table, place / "readers"


def test_readers_of_the_table_are_told_of(place: Location, readers: tuple[Location, Location]) -> None:
    table, folder = readers
    orders = plant(place / "orders", stream(NEWEST))
    sink = Sink(place=table)
    settings = {"sink": sink, "sink_exit": SinkPolicy.ROLLBACK, "guards": (), "downstream": [folder]}
    plan = plan_rewind(Checkpoint.at(orders), Specifier("to_batch", "3"), **settings)  # type: ignore[arg-type]
    ahead, behind = sorted(plan.downstream)
    assert ahead == (
        f"downstream: {folder / 'ahead'} reads this table (source 0): it has read the table up to version 6, so rows of versions "
        "4 to 6 that leave the table have been passed on; it stops at version 7, the rollback (DELTA_SOURCE_IGNORE_DELETE), "
        "unless it has skipChangeCommits: WILL_FAIL"
    )
    assert behind.startswith(f"downstream: {folder / 'behind'} reads this table (source 0): it stops at version 7")
    assert not any("other" in line for line in plan.downstream)
    assert plan.verdict is Verdict.WILL_FAIL
    assert [(risk.word, risk.why) for risk in plan.risks] == [
        ("source_failure", f"{plan.downstream[0]}; {plan.downstream[1]}")
    ]
    with pytest.raises(RefusedError, match="ahead reads this table"):
        apply_rewind(plan, Checkpoint.at(orders), repository_for_change(None, orders), sink=sink, rest=STOPPED)
    settings["downstream"] = [folder / "behnid"]
    mistyped = plan_rewind(Checkpoint.at(orders), Specifier("to_batch", "3"), **settings)  # type: ignore[arg-type]
    assert mistyped.downstream == (
        f"downstream: {folder / 'behnid'} holds no checkpoint, or its address is wrong: UNKNOWN",
    )
    assert [risk.word for risk in mistyped.risks] == ["sink_unknown"]
    settings["downstream"] = [folder / "behind"]
    assert len(plan_rewind(Checkpoint.at(orders), Specifier("to_batch", "3"), **settings).downstream) == 1  # type: ignore[arg-type]
