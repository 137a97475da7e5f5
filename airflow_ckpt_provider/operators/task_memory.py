"""What a task has begun, kept where its next attempt finds it.

Airflow 3.3 and later keep state for a task; below, what is known travels with a deferral, and a retry falls back on the time
at which the run of the DAG began.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.errors import ChangeRunningError
from airflow_ckpt_provider.operators.run_identity import has_been_tried, life_of

if TYPE_CHECKING:
    from airflow.sdk import Context

#: Airflow's clock and the workspace's may differ by so many seconds where only times are left to go by.
_CLOCKS_DIFFER = 60.0


class TaskMemory:
    """One dictionary for all attempts of a task; another one after it was cleared, unless it outlives that.

    .. code-block:: python

        def execute(context):
            memory = TaskMemory(context, "copy", retries=2)
            memory.step("send")["id"] = 7
            memory.keep()
            return memory

    :param context: of the task.
    :param key: under which it is kept.
    :param retries: the task's own. What a version before has kept is compared with them.
    :param carried: what came back with a deferral.
    :param outlives_clear: the attempts after a clear find it too; whoever reads it sees whether it still holds.
    """

    def __init__(
        self,
        context: Context,
        key: str,
        *,
        retries: int,
        carried: dict[str, Any] | None = None,
        outlives_clear: bool = False,
    ) -> None:
        self._store: Any = context.get("task_state_store")
        self._key = key
        self._max_tries = life_of(context)
        self._retries = retries
        self._outlives_clear = outlives_clear
        self._attempt = uuid.uuid4().hex
        kept = self._read()
        #: Whose writing this attempt may replace: its own, and what it has read.
        self._known = {self._attempt, (kept or {}).get("attempt")}
        #: What was kept before the task was cleared.
        self.before: dict[str, Any] = {}
        if kept and not self._is_of_this_life(kept):
            self.before = kept
            kept = None
        self.data: dict[str, Any] = kept or carried or self._empty()
        #: Names this life of the task: the same for all attempts, also if one of another version began it.
        self.life = int(self.data.get("life", self._max_tries))
        #: Whether an attempt before may have left something of which nothing here knows.
        self.blank_retry = self._store is None and not carried and has_been_tried(context)
        began = getattr(context.get("dag_run"), "start_date", None)
        self._began = began if isinstance(began, datetime) else None

    def keep(self) -> None:
        """Write it down.

        :raises ChangeRunningError: another attempt has written since: this one was suspended.
        """
        if self._store is None:
            return
        self.check_current()
        self.data["attempt"] = self._attempt
        self._store.set(self._key, self.data)
        self._known = {self._attempt}

    def check_current(self) -> None:
        """See that no other attempt has written since: then this one was suspended, and that one has the task in its hands.

        Airflow gives each attempt an id of its own, and answers that of an older attempt that there is nothing. So nothing
        where this attempt has read or written something means that it was replaced.

        :raises ChangeRunningError: another attempt took over.
        """
        if self._store is not None and (self._read() or {}).get("attempt") not in self._known:
            raise ChangeRunningError(
                "another attempt of this task took over; this one changes nothing any more",
                hint="see what that attempt does",
            )

    def now(self) -> dict[str, Any]:
        """What is kept now: by this attempt, or by another one that has written since; nothing if it cannot be read any more."""
        found = self._read() or {}
        if self._store is None or found.get("attempt") in self._known:
            return self.data
        return found if self._is_of_this_life(found) else {}

    def _is_of_this_life(self, kept: dict[str, Any]) -> bool:
        """Whether something that was kept counts, or is from before a clear; old ones have ``life``, which lacks the retries."""
        made_for = kept.get("max_tries", kept.get("life", 0) + self._retries)
        return self._outlives_clear or bool(made_for == self._max_tries)

    def _empty(self) -> dict[str, Any]:
        return {"life": self._max_tries, "max_tries": self._max_tries}

    def _read(self) -> dict[str, Any] | None:
        found = self._store.get(self._key) if self._store is not None else None
        return found if isinstance(found, dict) else None

    def forget(self) -> None:
        """Have the next attempt start from the beginning."""
        self.data = self._empty()
        if self._store is not None:
            self._store.delete(self._key)
            self._known.add(None)

    @property
    def lasts(self) -> bool:
        """Whether what is kept outlives this process."""
        return self._store is not None

    def step(self, name: str) -> dict[str, Any]:
        """The part of one step."""
        steps: dict[str, Any] = self.data.setdefault("steps", {})
        part: dict[str, Any] = steps.setdefault(name, {})
        return part

    def notes(self, name: str) -> StepNotes:
        """The notes of one start."""
        since = int((self._began.timestamp() - _CLOCKS_DIFFER) * 1000) if self.blank_retry and self._began else None
        return StepNotes(self, name, since)


class StepNotes:
    """One of :class:`~airflow_ckpt_provider.lakeflow.starting.Notes`.

    .. code-block:: python

        def execute(context):
            notes = TaskMemory(context, "copy", retries=2).notes("send")
            notes.save({"after": 7})
            return notes

    :param memory: where they are kept.
    :param name: of the step.
    :param since: where nothing was kept: the earliest that an update of this run can be, in milliseconds.
    """

    def __init__(self, memory: TaskMemory, name: str, since: int | None) -> None:
        self._memory, self._name, self._since = memory, name, since

    def load(self) -> dict[str, Any] | None:
        """The note as it is now, of this attempt or of another one."""
        note = self._memory.now().get("steps", {}).get(self._name, {}).get("note")
        if note is None and self._since is not None:
            return {"after": None, "since": self._since}
        return note if isinstance(note, dict) else None

    def save(self, note: dict[str, Any]) -> None:
        """Keep the note."""
        self._memory.step(self._name)["note"] = note
        self._memory.keep()

    def clear(self) -> None:
        """Forget the note."""
        self._memory.step(self._name).pop("note", None)
        self._memory.keep()
