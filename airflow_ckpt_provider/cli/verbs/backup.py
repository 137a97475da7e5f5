"""``backup``: take one."""

from __future__ import annotations

from datetime import timedelta

from airflow_ckpt_provider.backup.create import BackupResult, create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call
from airflow_ckpt_provider.cli.kafka_config import observing
from airflow_ckpt_provider.errors import command


def backup(call: Call) -> Answer:
    """Back up a checkpoint into a repository."""
    args = call.args
    checkpoint = Checkpoint.at(call.places(args.checkpoint, role="checkpoint"))
    repository = Repository.open(call.places(args.repository, role="repository"))
    with terminal.progress_bar("Backing up") as on_progress:
        result = create_backup(
            checkpoint,
            repository,
            name=args.name,
            tags=dict(args.tag),
            reason=args.reason,
            made_by=call.made_by,
            restorable_batches=args.restorable_batches or 1,
            workers=args.workers,
            on_progress=on_progress,
            observe=observing(args.kafka_config),
            skip_if_unchanged=args.skip_if_unchanged,
            immutable_for=timedelta(seconds=args.immutable_for) if args.immutable_for is not None else None,
            new_life=args.new_life,
        )
    if call.screen:
        _show(result, call)
    return Answer(result.to_json())


def _show(result: BackupResult, call: Call) -> None:
    manifest = result.manifest
    if result.unchanged:
        title = f"Nothing was committed since batch {result.batch_id} of {manifest.checkpoint} was backed up"
    else:
        title = f"Backed up batch {result.batch_id} of {manifest.checkpoint}"
    copied = f"{terminal.count(result.copied_files, 'file')}, {terminal.size(result.copied_bytes)}"
    old = result.files - result.copied_files
    rest = f"; {terminal.count(old, 'file')} the repository had already" if old else ""
    batches = ", ".join(map(str, manifest.restorable))
    rows = [
        ("backup", result.backup_id),
        ("stream", result.name),
        ("batch" if len(manifest.restorable) == 1 else "batches", f"{batches} can be restored"),
        ("holds", f"{terminal.count(result.files, 'file')}, {terminal.size(result.bytes)}"),
        ("taken", terminal.ago(manifest.created))
        if result.unchanged
        else ("copied now", f"{copied} in {result.seconds:.1f} s{rest}"),
    ]
    if result.way:
        rows.append(("by the store", result.way))
    if result.immutable_until:
        rows.append(("locked until", terminal.moment(result.immutable_until)))
    if call.screen:
        call.screen.print(terminal.title(title))
        call.screen.print(terminal.facts(rows))
        again = command("restore", call.args.repository, result.backup_id, "TARGET", "--name", result.name)
        terminal.next_command(call.screen, "To restore it", again)
