"""``restore``: the plan, and with ``--apply`` the deed."""

from __future__ import annotations

from rich.console import Console

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call
from airflow_ckpt_provider.recovery.restore.apply import RestoreOutcome, apply_restore
from airflow_ckpt_provider.recovery.restore.plan import plan_restore
from airflow_ckpt_provider.recovery.restore.sink import sink_says
from airflow_ckpt_provider.sinks.sink import Sink


def restore(call: Call) -> Answer:
    """Restore a backup to a place, or say what that would do."""
    args = call.args
    repository = Repository.open(call.places(args.repository, role="repository"))
    manifest = repository.manifest(args.backup, name=args.name)
    target = call.places(args.target, role="target")
    sink = Sink.named(
        args.sink,
        lambda uri: call.places(uri, role="sink"),
        app_id=args.txn_app_id,
        storage_options=dict(args.sink_option),
    )
    plan = plan_restore(
        repository,
        manifest,
        target,
        batch=args.batch,
        replace=args.replace,
        seal_running=args.seal_running,
        quiet_for=args.quiet_for,
        target_uri=args.target_uri,
        sink=sink_says(sink, manifest, target, batch=args.batch, repository=repository),
    )
    if call.screen:
        call.screen.print(terminal.plan(plan.to_markdown()))
        call.screen.print()
    if not args.apply:
        if call.screen and not plan.already_done:
            call.screen.print("Nothing was changed: this is a plan. [bold]--apply[/bold] carries it out.")
        return Answer(plan.to_json())
    with terminal.progress_bar("Restoring") as on_progress:
        outcome = apply_restore(
            plan,
            made_by=call.made_by,
            reason=args.reason,
            workers=args.workers,
            on_progress=on_progress,
            accept_sink=args.accept_sink,
        )
    if call.screen:
        _show(outcome, call.screen)
    return Answer(outcome.to_json())


def _show(outcome: RestoreOutcome, screen: Console) -> None:
    if outcome.already_done:
        return  # the plan said so
    screen.print(terminal.title(f"Restored {outcome.target} to batch {outcome.batch_id}"))
    wrote = f"{terminal.count(outcome.files, 'file')}, {terminal.size(outcome.bytes)} in {outcome.seconds:.1f} s"
    rows = [("wrote", wrote)]
    if outcome.kept:
        rows.append(("kept before", outcome.kept))
    rows.append(("next", f"start the query: it goes on with batch {outcome.batch_id + 1}"))
    screen.print(terminal.facts(rows))
