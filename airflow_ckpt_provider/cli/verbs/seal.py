"""``seal`` and ``unseal``: keep every Spark from starting a stream, and let it go on."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from airflow_ckpt_provider.change import sealing
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call, UsageError


def seal(call: Call) -> Answer:
    """Seal a checkpoint."""
    checkpoint = Checkpoint.at(call.places(call.args.checkpoint, role="checkpoint"))
    mark = sealing.seal(checkpoint, reason=call.args.reason, made_by=call.made_by)
    if call.screen:
        call.screen.print(terminal.title(f"Sealed {checkpoint.location}"))
        call.screen.print(
            terminal.facts(
                [
                    ("file", mark.path),
                    ("plan", mark.plan_id),
                    ("effect", "a running query ends its batch and stops; no Spark starts from here"),
                ]
            )
        )
        terminal.command(call.screen, "To lift it", "unseal", call.args.checkpoint, "--plan", mark.plan_id)
    return Answer({"uri": checkpoint.location.uri, **_json(mark)})


def unseal(call: Call) -> Answer:
    """Lift a seal."""
    if call.args.plan is not None and call.args.force:
        raise UsageError("--plan and --force exclude each other", hint="give one of them")
    checkpoint = Checkpoint.at(call.places(call.args.checkpoint, role="checkpoint"))
    lifted = sealing.unseal(checkpoint, plan_id=call.args.plan, force=call.args.force)
    if call.screen and lifted is None:
        call.screen.print(f"{checkpoint.location} carries no seal: nothing to do", markup=False)
    elif call.screen and lifted:
        call.screen.print(terminal.title(f"Lifted the seal of {checkpoint.location}"))
        by = f"plan {lifted.plan_id} ({lifted.reason}, {lifted.made_by})"
        call.screen.print(terminal.facts([("it was of", Text(by)), ("next", "start the query")]))
    return Answer({"uri": checkpoint.location.uri, "lifted": _json(lifted) if lifted else None})


def _json(mark: Seal) -> dict[str, Any]:
    return {
        "plan_id": mark.plan_id,
        "reason": mark.reason,
        "made_by": mark.made_by,
        "since": mark.since.isoformat() if mark.since else None,
        "path": mark.path,
        "sentence": mark.sentence,
    }
