"""``seal`` and ``unseal``: keep every Spark from starting a stream, and let it continue."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change import sealing
from airflow_ckpt_provider.change.lifting import begun_by_plans
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call, UsageError
from airflow_ckpt_provider.errors import command


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
        lift = command("unseal", call.args.checkpoint, "--plan", mark.plan_id)
        terminal.next_command(call.screen, "To lift it", lift)
    return Answer({"uri": checkpoint.location.uri, **_json(mark)})


def unseal(call: Call) -> Answer:
    """Lift a seal."""
    args = call.args
    ways = (("--plan", args.plan is not None), ("--force", args.force), ("--for-start", args.for_start))
    given = [name for name, is_given in ways if is_given]
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} exclude each other", hint="give one of them")
    if args.repository is not None and not args.for_start:
        raise UsageError("--repository has a meaning with --for-start only", hint="leave it out, or add --for-start")
    checkpoint = Checkpoint.at(call.places(args.checkpoint, role="checkpoint"))
    repository = Repository.open(call.places(args.repository, role="repository")) if args.repository else None
    lifted = sealing.unseal(
        checkpoint,
        plan_id=args.plan,
        force=args.force,
        for_start=args.for_start,
        begun=begun_by_plans(checkpoint.location, repository),
    )
    if call.screen and lifted is None:
        call.screen.print(f"{checkpoint.location} carries no seal: nothing to do", soft_wrap=True)
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
