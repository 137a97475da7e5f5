"""Carrying plans out: the order of steps, once for operators and the command line.

Who runs them differs: an operator hands a wait over to the triggerer and keeps notes in Airflow, a shell waits and keeps
them in a file. That is :class:`Run`; what must happen in which order, and what is put back when, is here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_ckpt_provider.errors import ChangeRunningError, CkptError, RefusedError, WorkspaceForbiddenError
from airflow_ckpt_provider.lakeflow.request import StartRequest
from airflow_ckpt_provider.lakeflow.updates import COMPLETED


class Run(Protocol):
    """One run over all its attempts: every step finds what was done already."""

    #: What :meth:`follow` raises for an update that has not reached the state that is wanted.
    failure: type[Exception]

    def make_room(self, step: str, on_active_update: str) -> None:
        """See that no update is active, or do about it what was asked for; nothing once the step was begun."""
        ...

    def start(
        self, step: str, request: StartRequest, *, on_active_update: str, check: Callable[[], None] = lambda: None
    ) -> str:
        """Start the update of a step, or find it; return its id.

        :param check: sees that the plan still holds, where another update came first and has ended.
        """
        ...

    def follow(
        self,
        step: str,
        update_id: str,
        wait_for: str | None,
        *,
        flows: tuple[str, ...] = (),
        flows_run_for: float = 0.0,
    ) -> None:
        """Follow the update of a step to where it is wanted."""
        ...

    def note(self, step: str) -> dict[str, Any] | None:
        """The note of a step's start, with ``update_id`` once that is known; ``None``: nothing was sent."""
        ...


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of the configuration that carry positions. Both calls raise ``ChangeRunningError`` where another attempt took over.

    :param merge: merges them.
    :param put_back: puts them back; may be called more than once.
    """

    merge: Callable[[], Any]
    put_back: Callable[[], Any]


def make_room_and_check(run: Run, step: str, on_active_update: str, check: Callable[[], None]) -> Callable[[], None]:
    """See that no update is active, and that the plan still holds: the wait for room may take hours.

    :param check: plans again, and raises if that plan may not be carried out.
    :return: the same for later; it checks nothing once a start may be sent, for its update has to be found first.
    """

    def unless_begun() -> None:
        if not run.note(step):
            check()

    run.make_room(step, on_active_update)
    unless_begun()
    return unless_begun


def carry_out_reset(
    run: Run,
    request: StartRequest,
    *,
    keys: Keys | None,
    on_active_update: str,
    wait_for: str | None,
    flows: Sequence[str],
    flows_run_for: float,
    check: Callable[[], None],
) -> None:
    """Merge the configuration, start, follow until the flows run, and put the configuration back.

    :param keys: ``None``: nothing is merged.
    :param check: as for :func:`make_room_and_check`.
    """
    check = make_room_and_check(run, "reset", on_active_update, check)
    if request.dry_run:
        update_id = run.start("reset", request, on_active_update=on_active_update, check=check)
        run.follow("reset", update_id, wait_for)
        return
    try:
        # Until an update is known to be this run's, a start may still be sent; merging twice changes nothing.
        if keys and not (run.note("reset") or {}).get("update_id"):
            keys.merge()
        update_id = run.start("reset", request, on_active_update=on_active_update, check=check)
        run.follow("reset", update_id, wait_for, flows=tuple(flows), flows_run_for=flows_run_for)
    except run.failure as e:
        raise run.failure(f"{e}{put_back_after_failure(keys)}") from e
    except ChangeRunningError:
        # The keys are the other attempt's by now: its update needs them, and it puts them back.
        raise
    except (RefusedError, WorkspaceForbiddenError):
        # Where a note is left, an update may run that nobody has found yet: it needs its configuration.
        if not run.note("reset"):
            put_back_after_failure(keys)
        raise
    if keys:
        keys.put_back()


def put_back_after_failure(keys: Keys | None) -> str:
    """Put the configuration back; return what whoever reads of the failure has to know of it."""
    if keys is None:
        return ""
    try:
        keys.put_back()
    except CkptError as e:
        return f"\nThe pipeline's configuration was not put back: {e}"
    return (
        "\nThe pipeline's configuration was put back. If the update has reset the flow, another one that runs before the "
        "next reset reads all of its source again."
    )


def carry_out_rewind(
    run: Run,
    *,
    dry_run: StartRequest,
    rewind: StartRequest,
    replay: StartRequest | None,
    on_active_update: str,
    wait_for: str | None,
    check: Callable[[], None],
) -> list[str]:
    """Try the rewind, do it, and start the replay; return the names of the steps that were done.

    :param replay: ``None``: somebody else starts it.
    :param wait_for: the state of the replay that is waited for.
    :param check: as for :func:`make_room_and_check`; a plan of the rewind does not hold for what is after its dry run.
    """
    done = []
    for step, request, wanted in (
        ("dry_run", dry_run, COMPLETED),
        ("rewind", rewind, COMPLETED),
        ("replay", replay, wait_for),
    ):
        if request is not None:
            again = check if step == "dry_run" else lambda: None
            again = make_room_and_check(run, step, on_active_update, again)
            run.follow(step, run.start(step, request, on_active_update=on_active_update, check=again), wanted)
            done.append(step)
    return done
