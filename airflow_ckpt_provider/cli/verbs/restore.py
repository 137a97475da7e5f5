"""``restore``: the plan, and with ``--apply`` the deed."""

from __future__ import annotations

from rich.console import Console

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.stopping import stop_plan_and_apply
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call
from airflow_ckpt_provider.cli.changing import how_to_apply, show_plan, sinks_of
from airflow_ckpt_provider.recovery.restore.apply import RestoreOutcome, apply_restore
from airflow_ckpt_provider.recovery.restore.plan import RestorePlan
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.recovery.restore.sink import sink_says


def restore(call: Call) -> Answer:
    """Restore a backup to a place, or say what that would do."""
    args = call.args
    repository = Repository.open(call.places(args.repository, role="repository"))
    manifest = repository.manifest(args.backup, name=args.name)
    target = call.places(args.target, role="target")
    sink = sink_says(sinks_of(call), manifest, target, batch=args.batch, repository=repository)

    def plan(seal_id: str | None) -> RestorePlan:
        made = plan_restore(
            repository,
            manifest,
            target,
            batch=args.batch,
            replace=args.replace,
            target_uri=args.target_uri,
            sink=sink,
            seal_id=seal_id,
        )
        show_plan(call, made.to_markdown(), done=made.already_done)
        return made

    if not args.apply:
        return Answer(plan(None).to_json())
    with terminal.progress_bar("Restoring") as on_progress:
        made, outcome = stop_plan_and_apply(
            target,
            repository,
            plan,
            apply_restore,
            change=RestorePlan.kind,
            stop_running=args.stop_running,
            accept=args.accept,
            workers=args.workers,
            on_progress=on_progress,
            **how_to_apply(call, target),
        )
    if call.screen:
        _show(made, outcome, call.screen)
    return Answer(outcome.to_json())


def _wrote(outcome: RestoreOutcome) -> str:
    """How many files a restore wrote, and how many were there already."""
    count = terminal.count(outcome.files - outcome.unchanged, "file")
    if outcome.unchanged:
        return f"{count} in {outcome.seconds:.1f} s; {outcome.unchanged:,} were the same already"
    return f"{count}, {terminal.size(outcome.bytes)} in {outcome.seconds:.1f} s"


def _show(made: RestorePlan, outcome: RestoreOutcome, screen: Console) -> None:
    if outcome.already_done:
        return  # the plan said so
    screen.print(terminal.title(f"Restored {outcome.target} to batch {outcome.batch_id}"))
    rows = [("wrote", _wrote(outcome))]
    if outcome.kept:
        rows.append(("kept before", outcome.kept))
    rows.append(("next", made.next_step))
    screen.print(terminal.facts(rows))
