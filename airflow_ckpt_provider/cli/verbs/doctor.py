"""``doctor``: what is wrong with a checkpoint, what Spark will do because of it, and the smallest repair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.target import read_seal
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.doctor.undecided import Undecided
from airflow_ckpt_provider.checkpoint.findings import Finding, Severity
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call, UsageError
from airflow_ckpt_provider.cli.changing import how_to_apply, show_plan
from airflow_ckpt_provider.errors import CkptError, command
from airflow_ckpt_provider.recovery.repair.apply import RepairOutcome, stop_plan_and_repair
from airflow_ckpt_provider.recovery.repair.plan import RepairPlan
from airflow_ckpt_provider.recovery.repair.planning import plan_repair

_STYLES = {
    Severity.SILENT: "bold red",
    Severity.ERROR: "bold red",
    Severity.WARNING: "bold yellow",
    Severity.ADVICE: "bold blue",
}


def doctor(call: Call) -> Answer:
    """Diagnose a checkpoint; plan or carry out its repair."""
    args = call.args
    if not args.repair:
        for value, flag in ((args.apply, "--apply"), (args.query_id, "--query-id"), (args.repository, "--repository")):
            if value:
                raise UsageError(f"{flag} is for a repair", hint="add --repair")
    checkpoint = Checkpoint.at(call.places(args.checkpoint, role="checkpoint"))
    repository = Repository.open(call.places(args.repository, role="repository")) if args.repository else None
    contents = not args.skip_contents
    found = checkpoint.diagnose(contents=contents)
    undecided = checkpoint.undecided()
    seal = read_seal(checkpoint.location)
    advice = advice_on(checkpoint, target=args.target, trigger_seconds=args.trigger)
    document: dict[str, Any] = {
        "uri": checkpoint.location.uri,
        "seal": seal.sentence if seal else None,
        "findings": [finding.to_json() for finding in found],
        "unknown": [each.to_json() for each in undecided],
        "advice": [finding.to_json() for finding in advice],
        "repair": None,
    }
    if call.screen:
        _show(checkpoint, found, undecided, advice, call.screen, seal=seal)
    if not args.repair:
        return Answer(document, findings=bool(found))

    def plan(seal_id: str | None) -> RepairPlan:
        made = plan_repair(
            checkpoint,
            repository=repository,
            name=args.name,
            query_id=args.query_id,
            contents=contents,
            seal_id=seal_id,
        )
        document["repair"] = {**made.to_json(), "outcome": None}
        if call.screen:
            call.screen.print()
        show_plan(call, made.to_markdown(), done=made.already_done or not made.repairable)
        return made

    if not args.apply:
        plan(None)
        return Answer(document, findings=bool(found))
    made, outcome = stop_plan_and_repair(
        checkpoint,
        plan,
        repository=repository,
        stop_running=args.stop_running,
        accept=args.accept,
        **how_to_apply(call, checkpoint.location),
    )
    if outcome.already_done:
        return Answer(document, findings=bool(found))
    document["repair"]["outcome"] = outcome.to_json()
    if call.screen:
        _show_outcome(made, outcome, call.screen)
    return Answer(document)


def advice_on(checkpoint: Checkpoint, *, target: str | None, trigger_seconds: float | None) -> Sequence[Finding]:
    """What works and could work better, in the same form as findings; see :mod:`airflow_ckpt_provider.checkpoint.advice`."""
    try:
        return checkpoint.advise(target=target, trigger_seconds=trigger_seconds)
    except CkptError:  # its logs cannot be read, which the findings say
        return ()


def _show(
    checkpoint: Checkpoint,
    found: Sequence[Finding],
    undecided: Sequence[Undecided],
    advice: Sequence[Finding],
    screen: Console,
    *,
    seal: Seal | None,
) -> None:
    screen.print(terminal.title(checkpoint.location.uri))
    if seal:
        screen.print(Text(f"  {seal.path}: {seal.sentence}", style="yellow"))
        screen.print(f"  next: {command('status', checkpoint.location)} --repository REPOSITORY")
    if not found and not undecided:
        screen.print(Text("  no known damage", style="green"))
    for each in undecided:
        screen.print()
        screen.print(Text.assemble("  ", ("UNKNOWN ", "bold yellow"), " ", (each.path, "bold")))
        rows: list[tuple[str, str | Text]] = [("what", Text(each.message)), ("remedy", Text(each.remedy))]
        screen.print(Padding(terminal.facts(rows), (0, 0, 0, 2)))
    for finding in (*found, *advice):
        screen.print()
        style = _STYLES[finding.severity]
        screen.print(Text.assemble("  ", (f"{finding.severity.value:8}", style), " ", (finding.kind.code, "bold")))
        json = finding.to_json()
        rows = [("what", Text(finding.message))]
        rows += [(name, Text(json[key])) for name, key in (("Spark", "effect"), ("remedy", "remedy")) if json[key]]
        screen.print(Padding(terminal.facts(rows), (0, 0, 0, 2)))


def _show_outcome(made: RepairPlan, outcome: RepairOutcome, screen: Console) -> None:
    screen.print(terminal.title(f"Repaired {outcome.checkpoint}"))
    rows: list[tuple[str, str | Text]] = [
        ("deleted", terminal.count(outcome.deleted, "file")),
        ("fetched", terminal.count(outcome.fetched, "file")),
        ("kept before", outcome.kept or "nothing was removed"),
        ("next", made.next_step),
    ]
    screen.print(terminal.facts(rows))
