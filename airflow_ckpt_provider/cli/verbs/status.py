"""``status``: status of a change of a checkpoint, and the command that resumes it."""

from __future__ import annotations

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call
from airflow_ckpt_provider.recovery.status import SEALED_BY_ANOTHER, UNDER_WAY, status_by


def status(call: Call) -> Answer:
    """Report the status of the newest change. One that is half-way, or somebody's seal, is a finding."""
    checkpoint = Checkpoint.at(call.places(call.args.checkpoint, role="checkpoint"))
    given = call.args.repository
    found = status_by(checkpoint, Repository.open(call.places(given, role="repository")) if given else None)
    if call.screen:
        call.screen.print(terminal.title(checkpoint.location.uri))
        call.screen.print(found.message)
        for command in found.commands:
            call.screen.print(f"  {command}", soft_wrap=True)
    document = {"uri": checkpoint.location.uri, **found.to_json()}
    return Answer(document, findings=found.kind in (UNDER_WAY, SEALED_BY_ANOTHER))
