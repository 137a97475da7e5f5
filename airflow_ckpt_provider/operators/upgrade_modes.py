"""The modes of an upgrade: what has to be given for each, and what is done and left out, in words."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from airflow_ckpt_provider.errors import RefusedError

SAVEPOINT, LAST_STATE, STATELESS, SHADOW = "savepoint", "last-state", "stateless", "shadow"
MODES = (SAVEPOINT, LAST_STATE, STATELESS, SHADOW)


def check_mode(mode: str, *, is_stopped: bool, has_shadow: bool) -> None:
    """See that a mode exists, and has the tasks that it needs.

    :param mode: one of :data:`MODES`.
    :param is_stopped: whether a task stops the stream.
    :param has_shadow: whether a task runs the new code beside it.
    :raises RefusedError: they do not go together.
    """
    if mode not in MODES:
        raise RefusedError(f"mode is {mode!r}", hint=f"give one of {', '.join(MODES)}")
    if is_stopped == (mode == LAST_STATE):
        raise RefusedError(
            f"mode is {mode!r}, and {'a task is to stop it' if is_stopped else 'no task stops the stream'}",
            hint="last-state is for a stream that is dead, and every other mode stops one that runs",
        )
    if has_shadow != (mode == SHADOW):
        raise RefusedError(
            f"mode is {mode!r}, and shadow is {'' if has_shadow else 'not '}given",
            hint="mode='shadow' and shadow=… go together: the task runs jobs/rehearse.py with --follow",
        )


def check_several(parts: Sequence[str], mode: str, of_one: Mapping[str, Any]) -> None:
    """See that what is about one stream is left to the declarations of several.

    :param parts: the ends of the ids of their tasks.
    :param mode: one of :data:`MODES`.
    :param of_one: parameters that are for one stream, with their values.
    :raises RefusedError: the mode is for one stream, a parameter of one is given, or a stream is named twice.
    """
    if mode not in (SAVEPOINT, LAST_STATE):
        raise RefusedError(
            f"mode is {mode!r}, which is for one stream", hint=f"use {SAVEPOINT} or {LAST_STATE} for several streams"
        )
    if wrong := [field for field, value in of_one.items() if value is not None]:
        raise RefusedError(
            f"{wrong[0]} is given, and {len(parts)} streams are upgraded",
            hint="declare it of each stream, see streams",
        )
    if twice := next((part for part in parts if parts.count(part) > 1), None):
        raise RefusedError(f"two of the streams are {twice}", hint="name each stream once")


def check_names(names: Collection[str], *, every: bool = False, **given: Any) -> None:
    """See that what is given for each stream has the names of the streams.

    :param names: of the streams.
    :param every: a dictionary with all of them is needed, where anything is given.
    :param given: parameters with their values.
    :raises RefusedError: a name is missing, or is none of a stream.
    """
    for field, value in given.items():
        if isinstance(value, Mapping):
            if wrong := sorted(set(value) - set(names)) or sorted(set(names) - set(value) if every else ()):
                hint = f"give it for {', '.join(sorted(names))}"
                raise RefusedError(f"{field} and the streams differ: {wrong[0]}", hint=hint)
        elif value is not None and every:
            raise RefusedError(f"{field} is one for {len(names)} streams", hint="give a dictionary with their names")


def left_out(preflight: Any, description: Any, rehearsal: Any, approval: Any, checks: Any) -> Sequence[str]:
    """What is not done, and what that means; each is left out where it is false, empty or ``None``."""
    parts = {
        "preflight: whether the sources keep what is unread for the downtime": preflight,
        "comparison: whether Spark takes the change": description,
        "rehearsal: whether the new code starts on this checkpoint, and which rows it gives": rehearsal,
        "approval: nobody is asked": approval,
        "checks of the new rows: wrong rows are not noticed": checks,
    }
    return [words for words, given in parts.items() if not given]


def steps_after_approval(mode: str, sink_policy: Any, *, raises: bool, checks: bool) -> Sequence[str]:
    """What happens after the approval, in words.

    :param mode: one of :data:`MODES`.
    :param sink_policy: what is done with the rows of the new code; of several sinks a list or a dictionary.
    :param raises: whether the retention of topics is raised.
    :param checks: whether tasks of the user check the new rows.
    """
    start = (
        "put a new checkpoint in place at the kept position, lift the seal, start"
        if mode == STATELESS
        else "lift the seal, start"
    )
    steps = [
        *(["raise the retention of the topics"] if raises else []),
        "seal the checkpoint"
        if mode == LAST_STATE
        else "stop the stream; seal the checkpoint, which stops it where the stop did not",
        "wait until nothing is written any more; back up the checkpoint",
        f"deploy; {start}",
        f"health gate{'; your checks of the new rows' if checks else ''}",
        "keep; or, where any of this fails or is skipped: stop, seal, put the old code, the checkpoint and its state back"
        + (
            ", take the new code's rows out of the sink"
            if sink_policy in ("rollback", ["rollback"])
            else ", do with the new code's rows in the sink as said under `Way back`"
        )
        + ", start",
    ]
    return [*steps, "put the retention back"] if raises else steps
