"""What is wrong with a declaration: all of it at once, each with its line, its field, the reason and the next step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airflow_ckpt_provider.errors import RefusedError

#: Where a value stands: the keys and numbers that lead to it.
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    :param path: the field, such as ``("streams", "orders", "max_downtime")``.
    :param message: what is wrong with it, without its name.
    :param hint: the next step.
    :param line: its line in the file, from 1; ``None``: it comes from Python.
    """

    path: Path
    message: str
    hint: str
    line: int | None = None

    def __str__(self) -> str:
        where = dotted(self.path)
        line = f"line {self.line}" if self.line else ""
        return f"{', '.join(filter(None, (line, where))) or 'the file'}: {self.message} ({self.hint})"


class DeclarationError(RefusedError):
    """A declaration has problems. Nothing of it is used.

    :param problems: all of them.
    :param source: the file; ``None``: it comes from Python.
    """

    def __init__(self, problems: Iterable[Problem], *, source: str | None = None) -> None:
        self.problems = tuple(sorted(problems, key=lambda each: each.line or 0))
        self.source = source
        count = f"{len(self.problems)} problem{'' if len(self.problems) == 1 else 's'}"
        super().__init__(
            "\n".join([f"{source or 'the declaration'} has {count}", *(f"  {each}" for each in self.problems)]),
            hint="correct the file; `airflow-ckpt streams check` reads it again"
            if source
            else "correct the arguments of Stream(…)",
        )


def dotted(path: Path) -> str:
    """Show where a value stands: ``streams.orders.sinks[0]``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")
