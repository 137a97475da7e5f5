"""``undo``: taking a change back, whatever verb made it."""

from __future__ import annotations

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call
from airflow_ckpt_provider.cli.changing import how_to_apply, sinks_of
from airflow_ckpt_provider.errors import command
from airflow_ckpt_provider.recovery import undo as core
from airflow_ckpt_provider.recovery.kept_changes import repository_of_change


def undo(call: Call) -> Answer:
    """Undo a change."""
    args = call.args
    checkpoint = call.places(args.checkpoint, role="checkpoint")
    outcome = core.undo(
        checkpoint,
        Repository.open(call.places(args.repository, role="repository"))
        if args.repository
        else repository_of_change(checkpoint, args.plan),
        plan_id=args.plan,
        sink=sinks_of(call),
        open_place=lambda uri: call.places(uri, role="checkpoint"),
        **how_to_apply(call, checkpoint),
    )
    if call.screen:
        what = "had been undone before" if outcome.already_done else "is undone"
        call.screen.print(terminal.title(f"{outcome.kind.capitalize()} {outcome.plan_id} {what}"))
        rows = [("put back", terminal.count(outcome.put_back, "file"))]
        if outcome.deleted:
            rows.append(("removed", terminal.count(outcome.deleted, "file")))
        if outcome.table_version is not None:
            rows.append(("table", f"forward again in version {outcome.table_version}"))
        rows += [("sink", f"{sink['uri']}: {_forward(sink['table_version'])}") for sink in outcome.sinks]
        if outcome.already_done and not args.plan:
            at = ("--repository", args.repository) if args.repository else ()
            older = "says whether an older change can be undone (undo --plan ID)"
            rows.append(("next", f"{command('status', checkpoint, *at)} {older}"))
        call.screen.print(terminal.facts(rows))
    return Answer(outcome.to_json())


def _forward(version: int | None) -> str:
    return "as it was" if version is None else f"forward again in version {version}"
