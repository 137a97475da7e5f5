"""``reset``: a new checkpoint in the place of the old one, or a new query id for it."""

from __future__ import annotations

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.set_aside import default_repository
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call, UsageError
from airflow_ckpt_provider.guards.delta_rows import rows_before
from airflow_ckpt_provider.recovery.positions.asking import partitions_of
from airflow_ckpt_provider.recovery.reset.apply import ResetOutcome, stop_plan_and_reset
from airflow_ckpt_provider.recovery.reset.plan import ResetPlan, ResetWay
from airflow_ckpt_provider.recovery.reset.planning import plan_reset
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.verdict import Verdict


def reset(call: Call) -> Answer:
    """Reset a checkpoint, or say what that would do."""
    args = call.args
    checkpoint = call.places(args.checkpoint, role="checkpoint")
    place = call.places(args.repository, role="repository") if args.repository else default_repository(checkpoint)
    way = _way(call)
    sink = Sink.named(
        args.sink,
        lambda uri: call.places(uri, role="sink"),
        app_id=args.txn_app_id,
        storage_options=dict(args.sink_option),
    )
    tables = {source: rows_before(call.places(uri, role="table")) for source, uri in args.table}

    def plan(under: str | None) -> ResetPlan:
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
            rows_before=tables or None,
            under=under,
        )
        if call.screen:
            call.screen.print(terminal.plan(made.to_markdown()))
            call.screen.print()
        return made

    if not args.apply:
        made = plan(None)
        if call.screen:
            call.screen.print("Nothing was changed: this is a plan. [bold]--apply[/bold] carries it out.")
        return Answer(made.to_json())
    made, outcome = stop_plan_and_reset(
        checkpoint,
        Repository.open_or_create(place),
        plan,
        stop_running=args.stop_running,
        quiet_for=args.quiet_for,
        made_by=call.made_by,
        reason=args.reason,
        accept=Verdict(args.accept) if args.accept else None,
    )
    _show(call, made, outcome)
    return Answer(outcome.to_json())


def _way(call: Call) -> ResetWay | None:
    args = call.args
    chosen = [way for way in ResetWay if getattr(args, way.value.replace("-", "_"))]
    if len(chosen) > 1:
        options = " and ".join(f"--{way.value}" for way in chosen)
        raise UsageError(f"{options} exclude each other", hint="give one of them")
    return chosen[0] if chosen else None


def _show(call: Call, plan: ResetPlan, outcome: ResetOutcome) -> None:
    if not call.screen:
        return
    renamed = f"{outcome.checkpoint} has the new query id {outcome.new_query_id}"
    call.screen.print(terminal.title(renamed if outcome.new_query_id else f"{outcome.checkpoint} is a new checkpoint"))
    call.screen.print(
        terminal.facts(
            [
                ("plan", outcome.plan_id),
                ("went", terminal.count(outcome.deleted, "file")),
                ("written", terminal.count(outcome.written, "file")),
                ("kept", outcome.kept),
                ("take back", plan.take_back),
            ]
        )
    )
