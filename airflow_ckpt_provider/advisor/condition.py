"""An error condition: what is known about one way in which a stream fails."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Remedy(StrEnum):
    """The way out."""

    RESTORE = "restore"
    REPAIR = "repair"
    REWIND = "rewind"
    RESET = "reset"
    RAISE_RETENTION = "raise retention"
    RETRY = "retry"
    FIX_QUERY = "fix the query"
    FIX_STORAGE = "fix the storage"
    STOP_OTHER_RUN = "stop the other run"
    UPGRADE = "upgrade Spark"
    UNSEAL = "unseal"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do.

    Texts and commands may name facts that the error says, such as ``{checkpoint}``: see
    :class:`~airflow_ckpt_provider.advisor.facts.Facts`.

    :param text: what, and why.
    :param command: arguments of ``airflow-ckpt``; empty where it has no verb for this.
    :param operator: class name of the operator that does the same in a DAG.
    :param call: a command of somebody else, such as a vendor's own.
    """

    text: str
    command: tuple[str, ...] = ()
    operator: str = ""
    call: str = ""


@dataclass(frozen=True, slots=True)
class ErrorCondition:
    """One way in which a stream fails.

    :param code: our stable name for it.
    :param cause: what has happened.
    :param do_not: what would make it worse.
    :param remedy: the way out.
    :param steps: how, in order.
    :param names: error conditions of Spark, Delta, Kafka or a pipeline; a name without its sub-condition stands for all of
        its sub-conditions that no other entry names.
    :param patterns: regular expressions for wording without a name: exceptions of Java, and of Spark before it had names.
    :param vague: it says that something failed and not what; a more exact one in the same text comes first.
    """

    code: str
    cause: str
    do_not: str
    remedy: Remedy
    steps: tuple[Step, ...]
    names: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    vague: bool = field(default=False, kw_only=True)
