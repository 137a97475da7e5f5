"""``status``: status of a change of a checkpoint, and the command that resumes it."""

from __future__ import annotations

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call
from airflow_ckpt_provider.errors import NoSuchBackupError
from airflow_ckpt_provider.recovery.kept_changes import repository_of_change
from airflow_ckpt_provider.recovery.status import SEALED_BY_ANOTHER, UNDER_WAY, UNTOUCHED, RewindStatus, status_of


def status(call: Call) -> Answer:
    """Report the status of the newest change. One that is half-way, or somebody's seal, is a finding."""
    checkpoint = Checkpoint.at(call.places(call.args.checkpoint, role="checkpoint"))
    found = _status(call, checkpoint)
    if call.screen:
        call.screen.print(terminal.title(checkpoint.location.uri))
        call.screen.print(found.message)
        for command in found.commands:
            call.screen.print(f"  {command}", soft_wrap=True)
    document = {"uri": checkpoint.location.uri, **found.to_json()}
    return Answer(document, findings=found.kind in (UNDER_WAY, SEALED_BY_ANOTHER))


def _status(call: Call, checkpoint: Checkpoint) -> RewindStatus:
    """By the repository that is given; where that has no change of the checkpoint, or none is given, by those beside it."""
    if call.args.repository:
        given = Repository.open(call.places(call.args.repository, role="repository"))
        found = status_of(checkpoint, given)
        if found.kind not in (UNTOUCHED, SEALED_BY_ANOTHER):
            return found
    else:
        found = None
    try:
        beside = repository_of_change(checkpoint.location)
    except NoSuchBackupError:
        return found or status_of(checkpoint, None)
    there = status_of(checkpoint, beside)
    return found if found and there.kind in (UNTOUCHED, SEALED_BY_ANOTHER) else there
