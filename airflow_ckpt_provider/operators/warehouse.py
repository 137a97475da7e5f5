"""SQL statements of a task on a Databricks warehouse, each carried out once as far as that can be, and waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from airflow_ckpt_provider.errors import RefusedError, UnknownStartError
from airflow_ckpt_provider.lakeflow.queries import all_cells, has_ended

if TYPE_CHECKING:
    from airflow.triggers.base import BaseTrigger

    from airflow_ckpt_provider.hooks.databricks_pipelines import DatabricksPipelinesHook
    from airflow_ckpt_provider.operators.task_memory import TaskMemory

#: Seconds by which the vendor's trigger has a later deadline than the task: at its own it cancels the statement, and it
#: fails if it starts after it.
_LATER = 3600.0


class Waiting(Protocol):
    """Waits for a statement that is under way, on this worker or not."""

    def __call__(self, statement_id: str, *, here: bool = False) -> None:
        """Return when it is worth to ask again.

        :param here: on this worker in any case.
        """
        ...


def wait_for_statement(
    statement_id: str,
    *,
    conn_id: str,
    caller: str,
    end_time: float,
    poll_interval: float,
    hand_over: Callable[[BaseTrigger], NoReturn] | None,
) -> bool:
    """Wait a while for a statement on this worker, or hand over to the triggerer; return ``False`` where time is up.

    :param conn_id: Airflow connection of type ``databricks``.
    :param caller: who asks, for the workspace's own records.
    :param end_time: the deadline, in seconds since the epoch.
    :param poll_interval: seconds between two polls.
    :param hand_over: defers the task with a trigger; ``None``: wait here.
    """
    left = end_time - time.time()
    if left <= 0:
        return False
    if hand_over:
        from airflow.providers.databricks.triggers.databricks import DatabricksSQLStatementExecutionTrigger

        hand_over(
            DatabricksSQLStatementExecutionTrigger(
                statement_id,
                conn_id,
                end_time + _LATER,
                polling_period_seconds=poll_interval,  # type: ignore[arg-type]  # it only sleeps so long
                caller=caller,
            )
        )
    time.sleep(min(poll_interval, left))
    return True


def is_deferral_timeout(error: BaseException) -> bool:
    """Whether Airflow has ended a deferral that took too long; each version has the class of the error elsewhere."""
    return type(error).__name__ == "TaskDeferralTimeout"


class Warehouse:
    """A SQL warehouse, as one task uses it; one of :class:`~airflow_ckpt_provider.lakeflow.table_copies.Sql`.

    .. code-block:: python

        import time


        def wait(statement_id: str, *, here: bool = False) -> None:
            time.sleep(2)


        def execute(context):  # then: .run("count", "SELECT count(*) FROM lake.sales.orders")
            memory = TaskMemory(context, "count", retries=2)
            return Warehouse(DatabricksPipelinesHook("databricks_default"), "8f2d", memory, wait)

    :param workspace: the workspace.
    :param warehouse_id: the warehouse.
    :param memory: of the task: statements that were sent, and what came of them.
    :param wait: waits for a statement.
    """

    def __init__(
        self, workspace: DatabricksPipelinesHook, warehouse_id: str, memory: TaskMemory, wait: Waiting
    ) -> None:
        self._workspace, self._warehouse_id, self._memory, self._wait = workspace, warehouse_id, memory, wait

    def ask(self, statement: str) -> list[list[str | None]]:
        """Run a statement that reads, and wait for it on this worker: its answer is of now, and is not kept.

        :raises RefusedError: the warehouse refused it, or it failed.
        """
        sent = {"statement_id": self._workspace.send_statement(statement, self._warehouse_id)}
        return self._ended(sent, statement, here=True)

    def run(self, name: str, statement: str) -> list[list[str | None]]:
        """Run a statement that may be run again; return its rows.

        :param name: the statement's, within the task: one that has ended is not run again by a later attempt.
        :raises RefusedError: the warehouse refused it, or it failed.
        """
        kept = self._kept(name)
        if "rows" in kept:
            return list(kept["rows"])
        if "statement_id" not in kept:
            kept["statement_id"] = self._workspace.send_statement(statement, self._warehouse_id)
            self._memory.keep()
        return self._ended(kept, statement)

    def run_once(self, name: str, statement: str) -> bool:
        """Run a statement that must not be run twice; return ``False`` where nobody knows whether it was.

        :raises RefusedError: the warehouse refused it, or it failed.
        """
        kept = self._kept(name)
        if "rows" in kept:
            return True
        if "statement_id" not in kept:
            if kept.get("sent"):
                return False
            kept["sent"] = True
            self._memory.keep()
            try:
                kept["statement_id"] = self._workspace.send_statement(statement, self._warehouse_id, once=True)
            except UnknownStartError:
                return False
            except RefusedError:
                self.forget(name)
                raise
            self._memory.keep()
        self._ended(kept, statement)
        return True

    def forget(self, name: str) -> None:
        """Let a statement be run again."""
        self._memory.data.get("sql", {}).pop(name, None)
        self._memory.keep()

    def _kept(self, name: str) -> dict[str, Any]:
        statements: dict[str, Any] = self._memory.data.setdefault("sql", {})
        kept: dict[str, Any] = statements.setdefault(name, {})
        return kept

    def _ended(self, kept: dict[str, Any], statement: str, *, here: bool = False) -> list[list[str | None]]:
        while True:
            found = self._workspace.get_statement(kept["statement_id"])
            try:
                ended = has_ended(found, statement, hint="put right what it names, and clear this task")
            except RefusedError:
                kept.clear()
                self._memory.keep()
                raise
            if ended:
                kept["rows"] = all_cells(self._workspace, kept["statement_id"], found)
                self._memory.keep()
                return list(kept["rows"])
            self._wait(kept["statement_id"], here=here)
