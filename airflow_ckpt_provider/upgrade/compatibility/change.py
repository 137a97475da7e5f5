"""A change between the code that wrote a checkpoint and the code that is to continue from it, and what Spark makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Effect(StrEnum):
    """What Spark does about a change, worst first."""

    #: The query does not start, or fails at its first batch.
    FORBIDDEN = "forbidden"
    #: The query starts and may give wrong rows: Spark does not check this.
    UNNOTICED = "unnoticed"
    #: It cannot be determined from what is there.
    UNKNOWN = "unknown"
    #: The query starts and continues as before: the checkpoint's value is used.
    IGNORED = "ignored"
    #: The query starts and the change takes effect.
    ALLOWED = "allowed"


#: The effects after which a start is not safe.
UNSAFE = (Effect.FORBIDDEN, Effect.UNNOTICED, Effect.UNKNOWN)


@dataclass(frozen=True, slots=True)
class ChangeKind:
    """What all changes of one code have in common.

    :param code: stable name, such as ``OPERATORS-CHANGED``.
    :param effect: what Spark does.
    :param meaning: what was changed, in one sentence.
    :param spark: Spark's error class where it fails; else what it does.
    :param remedy: the next step.
    """

    code: str
    effect: Effect
    meaning: str
    spark: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Change:
    """One change that was found.

    :param kind: what it is.
    :param subject: the operator, source, setting or file it is about.
    :param message: what was there and what is there now.
    :param remedy: the next step where it differs from that of the kind.
    """

    kind: ChangeKind
    subject: str
    message: str
    remedy: str = ""

    @property
    def effect(self) -> Effect:
        """What Spark does about it."""
        return self.kind.effect

    def to_json(self) -> dict[str, Any]:
        """The change as plain JSON."""
        return {
            "code": self.kind.code,
            "effect": self.effect.value,
            "subject": self.subject,
            "message": self.message,
            "spark": self.kind.spark,
            "remedy": self.remedy or self.kind.remedy,
        }
