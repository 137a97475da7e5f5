"""``copy``: backups into another repository."""

from __future__ import annotations

from airflow_ckpt_provider.backup.copy import copy_backups, to_copy
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call


def copy(call: Call) -> Answer:
    """Copy one backup or all."""
    args = call.args
    source = Repository.open(call.places(args.repository, role="repository"))
    manifests = to_copy(source, args.name) if args.backup == "all" else [source.manifest(args.backup, name=args.name)]
    target = Repository.open(call.places(args.target, role="target"))
    with terminal.progress_bar("Copying") as on_progress:
        copied = copy_backups(
            source, target, manifests, made_by=call.made_by, workers=args.workers, on_progress=on_progress
        )
    if call.screen:
        shown = terminal.table("stream", "backup!", "files>", "size>", "copied>", "")
        for c in copied:
            there = "was there" if c.already_there else ""
            shown.add_row(
                c.name, c.backup_id, f"{c.files:,}", terminal.size(c.bytes), terminal.size(c.copied_bytes), there
            )
        call.screen.print(shown)
    return Answer(
        {"repository": source.location.uri, "target": target.location.uri, "backups": [c.to_json() for c in copied]}
    )
