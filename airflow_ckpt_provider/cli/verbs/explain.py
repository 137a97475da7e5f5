"""``explain``: what an error of a stream means, and what to do about it."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from airflow_ckpt_provider.advisor.advice import RecoveryAdvice, recovery_advice
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call, UsageError
from airflow_ckpt_provider.errors import StorageError

#: Of a longer log the end is read: the last failure is there.
_MOST_BYTES = 32 * 1024 * 1024
_STANDARD_INPUT = "-"


def explain(call: Call) -> Answer:
    """Explain an error."""
    advice = recovery_advice(_text(call.args.file))
    if call.screen:
        _show(advice, call.screen)
    return Answer(advice.to_json(), findings=not advice.recognised)


def _text(file: str | None) -> str:
    if file in (None, _STANDARD_INPUT):
        if sys.stdin.isatty():
            print("the error, please; end it with Ctrl-D:", file=sys.stderr)
        data = sys.stdin.buffer.read()
    else:
        data = _end_of(Path(os.path.expanduser(str(file))))
    text = data.decode("utf-8", "replace")
    if not text.strip():
        raise UsageError("there is no text to explain", hint="pipe the error or a log into it, or name a log file")
    return text


def _end_of(path: Path) -> bytes:
    try:
        with path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - _MOST_BYTES))
            return log.read()
    except OSError as e:
        raise StorageError(
            f"{path} cannot be read: {e.strerror}",
            hint="name a log file on this machine, or pipe the log into the command",
        ) from e


def _show(advice: RecoveryAdvice, screen: Console) -> None:
    heading = advice.condition.code if advice.condition else "UNKNOWN"
    screen.print(Text.assemble((heading, "bold red"), f"  {advice.name}" if advice.name else ""))
    rows: list[tuple[str, str | Text]] = [("cause", Text(advice.cause))]
    if advice.wrapped_in:
        rows.append(("inside", ", ".join(advice.wrapped_in)))
    rows += [(name.replace("_", " "), Text(str(value))) for name, value in advice.facts.to_json().items()]
    rows.append(("do not", Text(advice.do_not.removeprefix("Do not "), style="yellow")))
    if advice.condition:
        rows.append(("way out", Text(advice.condition.remedy.value, style="bold green")))
    screen.print(terminal.facts(rows))
    for number, step in enumerate(advice.steps, 1):
        screen.print()
        screen.print(Text(f"{number}. {step.text}"))
        if step.operator:
            screen.print(Text(f"   in a DAG: {step.operator}", style="dim"))
        for line in (shlex.join(("airflow-ckpt", *step.command)) if step.command else "", step.call):
            if line:  # in one line whatever its length, so that it can be copied
                screen.print(Text(f"   {line}", style="cyan"), soft_wrap=True)
    if advice.also:
        screen.print()
        screen.print(Text(f"also in the text: {', '.join(other.code for other in advice.also)}", style="dim"))
