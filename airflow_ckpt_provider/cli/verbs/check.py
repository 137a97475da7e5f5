"""``check`` and ``repair``: is a repository whole, and what of it can be rebuilt."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_check import RepositoryReport, check_repository
from airflow_ckpt_provider.backup.repository_repair import apply_objects_repair, plan_objects_repair
from airflow_ckpt_provider.backup.trust import Trust, check_trust
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call
from airflow_ckpt_provider.cli.repair_command import show_repairs
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.storage.packs import WITHOUT_RECORD


def check(call: Call) -> Answer:
    """Check a repository."""
    repository = Repository.open(call.places(call.args.repository, role="repository"))
    report = check_repository(repository, name=call.args.name)
    trust = _trust(repository, call.args.pin) if call.args.trust or call.args.pin else None
    if call.screen:
        _show(report, call.screen)
    if call.screen and trust:
        _show_trust(trust, call.screen)
    if call.screen:
        show_repairs(call.screen, repository, [damaged.name for damaged in report.damaged])
    document = {**report.to_json(), "trust": trust.to_json() if trust else None}
    return Answer(document, findings=not report.ok or bool(trust and trust.findings))


def _trust(repository: Repository, file: str | None) -> Trust:
    """Check what is proven; the file keeps the pin."""
    path = Path(file) if file else None
    try:
        pin = load_json(path.read_text()) if path and path.exists() else None
    except (OSError, ValueError) as e:
        raise RefusedError(
            f"--pin {file} cannot be read: {e}", hint="give a file of an earlier check, or a new one"
        ) from e
    trust = check_trust(repository, pin=pin)
    if path:
        new = path.with_name(f"{path.name}.new")
        try:
            new.write_text(json.dumps(trust.pin, indent=2) + "\n")
            new.replace(path)
        except OSError as e:
            raise RefusedError(f"--pin {file} cannot be written: {e}", hint="give a file on this machine") from e
    return trust


def _show_trust(trust: Trust, screen: Console) -> None:
    shown = terminal.table("signed by", "documents>")
    for key, paths in trust.signed.items():
        shown.add_row(key, f"{len(paths):,}")
    shown.add_row("nobody", f"{len(trust.unsigned):,}")
    screen.print(shown)
    for title, lines in (("Not proven", trust.findings), ("Notes", trust.notes)):
        if lines:
            screen.print()
            screen.print(terminal.title(f"{title}: {len(lines)}"))
            screen.print(terminal.findings(lines))


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
    if unreadable := [words for stream in report.streams for words in stream.unreadable]:
        screen.print()
        screen.print(terminal.title(f"Records that cannot be read: {len(unreadable)}"))
        screen.print(terminal.findings([f"{words}. {WITHOUT_RECORD}" for words in unreadable]))
    if report.damaged:
        screen.print()
        screen.print(terminal.title(f"Damaged backups: {len(report.damaged)}"))
        for each in report.damaged:
            more = f" (and {len(each.problems) - 1} more)" if len(each.problems) > 1 else ""
            screen.print(terminal.findings([f"{each.name} {each.backup_id}: {each.problems[0]}{more}"]))


def repair(call: Call) -> Answer:
    """Rebuild objects of a repository from a live checkpoint, or from copies of their contents."""
    args = call.args
    repository = Repository.open(call.places(args.repository, role="repository"))
    checkpoint = call.places(args.checkpoint, role="checkpoint")
    second = Repository.open(call.places(args.second, role="second")) if args.second else None
    plan = plan_objects_repair(repository, checkpoint, name=args.name, second=second)
    if call.screen:
        call.screen.print(terminal.plan(plan.to_markdown()))
    outcome = None
    if args.apply:
        outcome = apply_objects_repair(
            repository, checkpoint, plan, second=second, made_by=call.made_by, reason=args.reason
        )
        if call.screen:
            call.screen.print(f"Rebuilt {terminal.count(len(plan.rebuilt), 'object')}")
    elif call.screen and plan.steps:
        terminal.planned(call.screen)
    return Answer({"plan": plan.to_json(), "outcome": outcome}, findings=bool(plan.lost or plan.disputed))
