"""``verify``: whether a backup is whole, or all of them are."""

from __future__ import annotations

from argparse import Namespace

from rich.console import Console
from rich.text import Text

from airflow_ckpt_provider.backup.latest import LATEST
from airflow_ckpt_provider.backup.notes import note_verification
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import ReadData, VerifyReport, verify_backup
from airflow_ckpt_provider.backup.verify_repository import VerifiedRepository, verify_repository
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call, UsageError
from airflow_ckpt_provider.cli.repair_command import show_repairs
from airflow_ckpt_provider.errors import RefusedError

#: In the place of a backup's id: all of them.
ALL = "all"


def verify(call: Call) -> Answer:
    """Check a backup, or all of them."""
    read_data, backup_id = _read_data(call.args)
    repository = Repository.open(call.places(call.args.repository, role="repository"))
    if backup_id == ALL:
        return _verify_all(call, repository, read_data)
    # The newest, whether it is known to be damaged or not: reading it again is how one learns that it is not.
    manifest = repository.manifest(backup_id, name=call.args.name, whole=False)
    with terminal.progress_bar("Reading") as on_progress:
        report = verify_backup(
            repository, manifest, read_data=read_data, workers=call.args.workers, on_progress=on_progress
        )
    note_verification(repository, report)
    if call.screen:
        _show(report, call.screen, asked=read_data is not None)
        if report.damaged:
            show_repairs(call.screen, repository, [report.name])
    return Answer(report.to_json(), findings=not report.ok)


def _verify_all(call: Call, repository: Repository, read_data: ReadData | None) -> Answer:
    with terminal.progress_bar("Reading") as on_progress:
        report = verify_repository(
            repository,
            name=call.args.name,
            read_data=read_data,
            workers=call.args.workers,
            on_progress=on_progress,
        )
    if call.screen:
        _show_all(report, call.screen)
        show_repairs(call.screen, repository, [stream.name for stream in report.streams if stream.damaged])
    return Answer(report.to_json(), findings=not report.ok)


def _read_data(args: Namespace) -> tuple[ReadData | None, str]:
    """Tell ``--read-data 1/8`` from ``--read-data latest``: argparse takes the next word for its value either way."""
    backup_id = args.backup or LATEST
    if args.read_data is None:
        return None, backup_id
    try:
        return ReadData.parse(args.read_data), backup_id
    except RefusedError as e:
        if args.backup is None and not set("/%") & set(args.read_data):
            return ReadData(), args.read_data
        raise UsageError(e.message, hint=e.hint) from e


def _show(report: VerifyReport, screen: Console, *, asked: bool) -> None:
    words = Text("whole", style="bold green")
    if not report.ok:
        words = Text("damaged" if report.damaged else "not known to be whole", style="bold red")
    screen.print(Text.assemble((f"Backup {report.backup_id} of {report.name} is ", "bold")) + words)
    read = "none: no object is in this part" if asked else "none (--read-data reads them)"
    if report.read_files:
        read = f"{terminal.count(report.read_files, 'file')}, {terminal.size(report.read_bytes)}"
    facts = [
        ("structure", f"{terminal.count(report.files, 'file')}, {terminal.size(report.bytes)}"),
        ("contents read", read),
    ]
    if report.uncompared_files:
        facts.append(("not compared", f"{terminal.count(report.uncompared_files, 'file')}: no hash of them is known"))
    if report.coverage:
        facts.append(("coverage", str(report.coverage)))
    screen.print(terminal.facts(facts))
    _show_findings([finding.message for finding in report.findings], screen)


def _show_all(report: VerifiedRepository, screen: Console) -> None:
    shown = terminal.table("stream", "backups>", "objects>", "size>", "read>", "size read>", "damaged>", "unread>")
    for s in report.streams:
        shown.add_row(
            s.name,
            f"{s.backups:,}",
            f"{s.objects:,}",
            terminal.size(s.bytes),
            f"{s.read_objects:,}",
            terminal.size(s.read_bytes),
            f"{len(s.damaged):,}",
            f"{len(s.unread):,}",
        )
    screen.print(shown)
    for s in report.streams:
        if s.coverage:
            screen.print(f"{s.name}: {s.coverage}")
    _show_findings(list(report.findings), screen)


def _show_findings(findings: list[str], screen: Console) -> None:
    if findings:
        screen.print()
        screen.print(terminal.title(f"Findings: {len(findings)}"))
        screen.print(terminal.findings(findings))
