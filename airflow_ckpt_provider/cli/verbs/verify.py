"""``verify``: whether a backup is whole."""

from __future__ import annotations

from argparse import Namespace

from rich.console import Console
from rich.text import Text

from airflow_ckpt_provider.backup.notes import note_verification
from airflow_ckpt_provider.backup.repository import LATEST, Repository
from airflow_ckpt_provider.backup.verify import ReadData, VerifyReport, verify_backup
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call, UsageError
from airflow_ckpt_provider.errors import RefusedError


def verify(call: Call) -> Answer:
    """Check a backup."""
    read_data, backup_id = _read_data(call.args)
    repository = Repository.open(call.places(call.args.repository, role="repository"))
    manifest = repository.manifest(backup_id, name=call.args.name)
    with terminal.progress_bar("Reading") as on_progress:
        report = verify_backup(
            repository, manifest, read_data=read_data, workers=call.args.workers, on_progress=on_progress
        )
    note_verification(repository, report)
    if call.screen:
        _show(report, call.screen)
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


def _show(report: VerifyReport, screen: Console) -> None:
    whole = Text("whole", style="bold green") if report.ok else Text("damaged", style="bold red")
    screen.print(Text.assemble((f"Backup {report.backup_id} of {report.name} is ", "bold")) + whole)
    read = f"{terminal.count(report.read_files, 'file')}, {terminal.size(report.read_bytes)}"
    screen.print(
        terminal.facts(
            [
                ("structure", f"{terminal.count(report.files, 'file')}, {terminal.size(report.bytes)}"),
                ("contents read", read if report.read_files else "none (--read-data reads them)"),
            ]
        )
    )
    if report.findings:
        screen.print()
        screen.print(terminal.title(f"Findings: {len(report.findings)}"))
        screen.print(terminal.findings(finding.message for finding in report.findings))
