"""``check`` and ``repair``: is a repository whole, and what of it can be rebuilt."""

from __future__ import annotations

from rich.console import Console

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_check import RepositoryReport, check_repository
from airflow_ckpt_provider.backup.repository_repair import apply_objects_repair, plan_objects_repair
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call


def check(call: Call) -> Answer:
    """Check a repository."""
    repository = Repository.open(call.places(call.args.repository, role="repository"))
    report = check_repository(repository, name=call.args.name)
    if call.screen:
        _show(report, call.screen)
    return Answer(report.to_json(), findings=not report.ok)


def _show(report: RepositoryReport, screen: Console) -> None:
    shown = terminal.table("stream", "backups>", "objects>", "size>", "unused>", "damaged>", "at work")
    for s in report.streams:
        shown.add_row(
            s.name,
            f"{s.backups:,}",
            f"{s.objects:,}",
            terminal.size(s.bytes),
            terminal.size(s.unused_bytes),
            f"{len(s.damaged):,}",
            "; ".join(s.at_work),
        )
    screen.print(shown)
    if report.damaged:
        screen.print()
        screen.print(terminal.title(f"Damaged backups: {len(report.damaged)}"))
        for each in report.damaged:
            more = f" (and {len(each.problems) - 1} more)" if len(each.problems) > 1 else ""
            screen.print(terminal.findings([f"{each.name} {each.backup_id}: {each.problems[0]}{more}"]))


def repair(call: Call) -> Answer:
    """Rebuild objects of a repository from a live checkpoint."""
    args = call.args
    repository = Repository.open(call.places(args.repository, role="repository"))
    checkpoint = call.places(args.checkpoint, role="checkpoint")
    plan = plan_objects_repair(repository, checkpoint, name=args.name)
    if call.screen:
        call.screen.print(terminal.plan(plan.to_markdown()))
    outcome = None
    if args.apply:
        outcome = apply_objects_repair(repository, checkpoint, plan, made_by=call.made_by, reason=args.reason)
        if call.screen:
            call.screen.print(f"Rebuilt {terminal.count(len(plan.rebuilt), 'object')}")
    elif call.screen and plan.rebuilt:
        call.screen.print("Nothing was changed: this is a plan. [bold]--apply[/bold] carries it out.")
    return Answer({"plan": plan.to_json(), "outcome": outcome}, findings=bool(plan.lost))
