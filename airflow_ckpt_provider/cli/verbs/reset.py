"""``reset``: a new checkpoint in the place of the old one, or a new query id for it."""

from __future__ import annotations

from functools import partial

from airflow_ckpt_provider.backup.beside import repository_for_change
from airflow_ckpt_provider.change.stopping import stop_plan_and_apply
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call, UsageError
from airflow_ckpt_provider.cli.changing import how_to_apply, repository_place, show_plan, sinks_of
from airflow_ckpt_provider.cli.verbs.rewind import guards_of
from airflow_ckpt_provider.recovery.positions.asking import partitions_of
from airflow_ckpt_provider.recovery.reset.apply import ResetOutcome, apply_reset
from airflow_ckpt_provider.recovery.reset.plan import ResetPlan
from airflow_ckpt_provider.recovery.reset.planning import plan_reset
from airflow_ckpt_provider.recovery.reset.way import ResetWay


def reset(call: Call) -> Answer:
    """Reset a checkpoint, or say what that would do."""
    args = call.args
    checkpoint = call.places(args.checkpoint, role="checkpoint")
    place = repository_place(call, checkpoint)
    way = _way(call)
    sink = sinks_of(call)
    tables = {source: call.places(uri, role="table") for source, uri in args.table}

    def plan(seal_id: str | None) -> ResetPlan:
        made = plan_reset(
            checkpoint,
            way,
            batch_id=args.batch,
            sink=sink,
            new_app_id=args.new_txn_app_id,
            sources=dict(args.source),
            continue_numbers=args.continue_numbers,
            repository=place,
            name=args.name,
            kafka_partitions=partitions_of(dict(args.partitions)) or None,
            tables=tables or None,
            guards=guards_of(call) if args.kafka_config else None,
            seal_id=seal_id,
        )
        show_plan(call, made.to_markdown())
        return made

    if not args.apply:
        return Answer(plan(args.seal_id).to_json())
    repository = repository_for_change(place, checkpoint)
    made, outcome = stop_plan_and_apply(
        checkpoint,
        repository,
        plan,
        partial(apply_reset, checkpoint=checkpoint, repository=repository),
        change=ResetPlan.kind,
        stop_running=args.stop_running,
        seal_id=args.seal_id,
        accept=args.accept,
        **how_to_apply(call, checkpoint),
    )
    _show(call, made, outcome)
    return Answer(outcome.to_json())


def _way(call: Call) -> ResetWay:
    args = call.args
    chosen = [way for way in ResetWay if getattr(args, way.value.replace("-", "_"))]
    if len(chosen) > 1:
        options = " and ".join(f"--{way.value}" for way in chosen)
        raise UsageError(f"{options} exclude each other", hint="give one of them")
    if not chosen:
        raise UsageError(
            f"what is to take the place of {call.args.checkpoint} was not said",
            hint="continue at its position (--keep-position), let the sources' own options decide (--from-scratch), or keep it "
            "under a new query id (--new-query-id)",
        )
    return chosen[0]


def _show(call: Call, plan: ResetPlan, outcome: ResetOutcome) -> None:
    if not call.screen:
        return
    renamed = f"{outcome.checkpoint} has the new query id {outcome.new_query_id}"
    call.screen.print(terminal.title(renamed if outcome.new_query_id else f"{outcome.checkpoint} is a new checkpoint"))
    rows = [
        ("plan", outcome.plan_id),
        ("removed", terminal.count(outcome.deleted, "file")),
        ("written", terminal.count(outcome.written, "file")),
    ]
    if outcome.kept:
        rows.append(("kept", outcome.kept))
    call.screen.print(terminal.facts(rows))
    terminal.next_command(call.screen, "To undo it, until the query has run (needs --query-is-stopped)", plan.take_back)
