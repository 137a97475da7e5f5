"""The words that say where to rewind to: those of ``kafka-consumer-groups --reset-offsets``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.fingerprint import fingerprint_of

#: The specifiers; ``to_table_version`` is for a Delta sink.
KINDS = (
    "to_batch",
    "to_datetime",
    "by_duration",
    "shift_by",
    "to_earliest",
    "to_latest",
    "to_current",
    "from_file",
    "to_table_version",
)


@dataclass(frozen=True, slots=True)
class Specifier:
    """Where to.

    :param kind: one of :data:`KINDS`.
    :param value: its value as text; for ``from_file`` the content of the file; empty for those without a value.
    """

    kind: str
    value: str = ""

    def to_json(self) -> dict[str, Any]:
        """The specifier as plain JSON."""
        return {"kind": self.kind, "value": self.value}

    def __str__(self) -> str:
        words = self.kind.replace("_", "-")
        # A file is too long to be shown; its fingerprint distinguishes it from another one.
        value = fingerprint_of(self.value) if self.kind == "from_file" else self.value
        return f"{words} {value}" if value else words


def option_for(target: str) -> str:
    """The option of ``airflow-ckpt rewind`` that asks for a target.

    :param target: as a :class:`Specifier` prints itself.
    """
    kind, _, value = target.partition(" ")
    if kind == "from-file":
        value = "OFFSETS.csv"
    return f"--{kind}={value}" if value else f"--{kind}"
