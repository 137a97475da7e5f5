"""The sinks that a rewind was asked for: read once, judged for the batches that come into question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_ckpt_provider.checkpoint.progress import Progress
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.recovery.rewind.downstream import downstream_of
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planned_sink import PlannedSink
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.recovery.rewind.targets import NONE_LOGGED, LoggedBatches, RewindTarget, span
from airflow_ckpt_provider.sinks.is_this_all import notes_on
from airflow_ckpt_provider.sinks.kinds import Recognised
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.query_ids import QueryIds
from airflow_ckpt_provider.sinks.report import SinkReport
from airflow_ckpt_provider.sinks.sink import Sink, judge
from airflow_ckpt_provider.sinks.table_history import TableHistory
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict


@dataclass(frozen=True, slots=True)
class AskedSink:
    """A sink that was named, as it was read, and what is to be done to it.

    :param sink: as the person names it.
    :param found: what its kind read of it; ``None`` where no kind recognises it.
    :param policy: what is done about rows beyond the target.
    """

    sink: Sink
    found: Recognised | None
    policy: SinkPolicy | None

    @property
    def history(self) -> TableHistory | None:
        """Its log, where it is a table with one."""
        return self.found.content.history if self.found else None

    def report(self, ids: QueryIds, batch_id: int, newest: int, logged: LoggedBatches = NONE_LOGGED) -> SinkReport:
        """What it says to a start after a batch."""
        own = ids.known_as(self.sink.app_id)
        return judge(
            self.sink,
            self.found,
            own,
            batch_id,
            newest,
            unwritten=logged.repartitions,
            planned=logged.planned,
            complete_at=logged.complete_at,
        )

    def planned(self, ids: QueryIds, batch_id: int, newest: int, query_id: str, logged: LoggedBatches) -> PlannedSink:
        """The sink as the plan has it."""
        history, named = self.history, self.sink.app_id
        app_id = ids.known_as(named).writes_as(history) if history else named or query_id
        table_id = history.table_id or "" if history else ""
        return PlannedSink(self.sink.name, self.report(ids, batch_id, newest, logged), self.policy, app_id, table_id)


def downstream_of_sinks(
    asked: Sequence[AskedSink], planned: Sequence[PlannedSink], places: Sequence[Location]
) -> tuple[str, ...]:
    """What a roll-back of the tables does to the streams that read them."""
    found: list[str] = []
    for each, sink in zip(asked, planned, strict=True):
        if sink.report.rollback and places:
            found += downstream_of(each.history, each.sink.place, sink.report, places)
    return tuple(found)


def question_of(asked: Sequence[AskedSink], ids: QueryIds) -> tuple[str, ...]:
    """What became of names, and the question whether the sinks are all; nothing where Spark's own sink writes."""
    return notes_on([(each.sink, each.history) for each in asked], ids)


def batch_of_version(specifier: Specifier, asked: Sequence[AskedSink], ids: QueryIds) -> Specifier:
    """Turn a table version into the newest batch that the table held then."""
    if specifier.kind != "to_table_version":
        return specifier
    tables = [each for each in asked if each.history]
    history = tables[0].history if len(tables) == 1 else None
    if len(tables) > 1:
        raise RefusedError(
            f"--to-table-version does not say of which table: {', '.join(each.sink.name for each in tables)}",
            hint="name the batch instead: --list shows the versions of each table that hold it",
        )
    if history is None:
        raise RefusedError(
            "--to-table-version needs a Delta table as the sink, or an Iceberg table", hint="name it: --sink TABLE"
        )
    ids = ids.known_as(tables[0].sink.app_id)
    try:
        version = int(specifier.value)
    except ValueError:
        raise RefusedError(f"--to-table-version {specifier.value!r} is not a whole number") from None
    if history.format == "iceberg":
        if version not in history.snapshots:
            raise RefusedError(
                f"snapshot {version} is not an ancestor of the table's current snapshot",
                hint="choose one that is: the snapshots table of Iceberg has them",
            )
        version = history.first + history.snapshots.index(version)
    if history.at(version) is None:
        raise RefusedError(
            f"version {version} is not in the table's log, which has {history.first} to {history.newest}",
            hint="choose one of these",
        )
    lineage = history.lineage(version)
    batches = [batch for c in lineage or () if (batch := ids.batch_in(c)) is not None]
    if not batches:
        raise RefusedError(f"version {version} of the table holds no batch of {ids.in_words()}", hint="use --to-batch")
    return Specifier("to_batch", str(max(batches)))


def target_of_sink(
    sink: AskedSink,
    progress: Progress,
    targets: list[RewindTarget],
    asked: RewindTarget,
    ids: QueryIds,
) -> RewindTarget:
    """The batch where a sink is, to which the checkpoint can go forward."""
    newest = progress.latest_logged or 0
    report = sink.report(ids, asked.batch_id, newest)
    target = next((t for t in targets if t.batch_id == report.batch_id), None)
    there = report
    if target:
        becomes = ids.starting_as(target.backup.query_id) if target.backup else ids
        there = sink.report(becomes, target.batch_id, newest)
    if report.batch_id is None or (there.verdict in (Verdict.WILL_SKIP, Verdict.WILL_DUPLICATE) and target):
        raise RefusedError(
            f"{report.uri} does not show to which batch the checkpoint would have to go forward "
            f"(it holds {report.batch_id}, remembers {there.remembered})",
            hint="roll the sink back (sink_policy / --sink-policy rollback), or keep it and accept what will happen",
        )
    if target:
        return target
    raise RefusedError(
        f"the sink is at batch {report.batch_id}, which the checkpoint cannot go to; reachable: {span(targets)}",
        hint="roll the sink back to one of these (sink_policy / --sink-policy rollback)",
    )


def check_policies(plan: RewindPlan) -> None:
    """Refuse a policy that a sink does not have: all sinks are rolled back as planned, or none does."""
    for sink in plan.sinks:
        report = sink.report
        if sink.policy is not SinkPolicy.ROLLBACK or sink.rolls_back or report.verdict is Verdict.SAFE:
            continue
        obstacle = report.obstacle or "; ".join(report.reasons)
        which = "the sink" if len(plan.sinks) == 1 else f"the sink {report.uri}"
        each = "" if len(plan.sinks) == 1 else ", with a policy for each sink, in their order"
        raise RefusedError(
            f"{which} cannot be rolled back to batch {plan.batch_id}: {obstacle}",
            hint="go to another batch, move the checkpoint to where the sink is (sink_policy / --sink-policy forward), or keep "
            f"the sink and accept what will happen (keep{each}): {'; '.join(report.reasons)}",
        )
    if plan.new_query_id:
        _check_new_query_id(plan)


def _check_new_query_id(plan: RewindPlan) -> None:
    """Refuse to give the query a new id where a sink that stays skips batches by the id that it has."""
    for sink in plan.sinks:
        by_id = sink.report.query_ids and sink.app_id == plan.query_id
        if not sink.rolls_back and by_id and sink.report.verdict is Verdict.WILL_SKIP:
            raise RefusedError(
                f"a table with the feature {plan.by_spark} is rolled back by Spark, after which the query gets a new id; "
                f"{sink.report.uri}, which is to stay, knows its batches by the id that it has, and would take them all again",
                hint="roll all sinks back, or go to a batch that this one does not have to skip",
            )
