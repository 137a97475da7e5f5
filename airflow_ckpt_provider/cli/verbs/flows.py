"""``flows``: flows of Spark Declarative Pipelines, listed, reset one by one, rolled back by a backup."""

from __future__ import annotations

from rich.table import Table

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call, UsageError
from airflow_ckpt_provider.cli.changing import how_to_apply, show_plan, sink_of
from airflow_ckpt_provider.recovery.flows.flow import Flow, flow_named, flows_of
from airflow_ckpt_provider.recovery.flows.reset import apply_flow_reset, plan_flow_reset
from airflow_ckpt_provider.recovery.flows.restore import apply_flow_restore, plan_flow_restore
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.units import format_time


def flows(call: Call) -> Answer:
    """List the flows, or change one."""
    args = call.args
    if args.reset and args.restore_into_next:
        raise UsageError("--reset and --restore-into-next exclude each other", hint="give one of them")
    sink = sink_of(call)
    storage = call.places(args.storage, role="storage")
    found = flows_of(storage)
    if args.reset:
        return _reset(call, flow_named(found, args.reset), sink)
    if args.restore_into_next:
        return _restore(call, flow_named(found, args.restore_into_next), sink)
    if call.screen:
        call.screen.print(terminal.title(f"Flows of {storage}"))
        call.screen.print(_table(found))
    return Answer({"storage": storage.uri, "flows": [flow.to_json() for flow in found]})


def _reset(call: Call, flow: Flow, sink: Sink) -> Answer:
    args = call.args
    plan = plan_flow_reset(flow, keep_position=args.keep_position, sink=sink, continue_numbers=args.continue_numbers)
    show_plan(call, plan.to_markdown(), done=plan.already_done)
    if not args.apply:
        return Answer(plan.to_json())
    repository = Repository.open(_repository(call)) if args.repository else None
    how = how_to_apply(call, flow.version(plan.base))
    outcome = apply_flow_reset(plan, accept=args.accept, repository=repository, **how)
    if call.screen:
        call.screen.print(terminal.title(f"The next run of {outcome.flow} begins in {outcome.path}"))
    return Answer(outcome.to_json())


def _restore(call: Call, flow: Flow, sink: Sink) -> Answer:
    args = call.args
    if not args.repository:
        raise UsageError("--restore-into-next needs --repository", hint="name the one that holds the backup")
    repository = Repository.open(_repository(call))
    manifest = repository.manifest(args.backup_id or "latest", name=args.name)
    plan = plan_flow_restore(flow, repository, manifest, batch=args.batch, sink=sink)
    show_plan(call, plan.to_markdown(), done=plan.already_done)
    if not args.apply:
        return Answer(plan.to_json())
    outcome = apply_flow_restore(plan, accept=args.accept, **how_to_apply(call, flow.version(flow.live or 0)))
    if call.screen:
        path = flow.path.replace("/", ".")
        call.screen.print(
            terminal.title(f"The next run of {path} continues after batch {outcome.batch_id} in {plan.path}")
        )
    return Answer({**outcome.to_json(), "flow": flow.path.replace("/", "."), "version": plan.version})


def _repository(call: Call) -> Location:
    return call.places(call.args.repository, role="repository")


def _table(found: list[Flow]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("flow", "into", "live version", "committed batch", "planned (UTC)", "state"):
        table.add_column(column)
    for flow in found:
        progress = flow.progress
        state = "sealed" if progress and progress.seal else flow.unread or ("" if progress else "not started yet")
        newest = progress.latest_committed if progress else None
        time = progress.batch_time if progress else None
        table.add_row(
            flow.name,
            flow.target,
            "none" if flow.live is None else str(flow.live),
            "none" if newest is None else str(newest),
            format_time(time) if time else "",
            state,
        )
    return table
