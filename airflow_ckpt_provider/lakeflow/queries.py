"""Statements on a SQL warehouse, with their rows by column name."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from airflow_ckpt_provider.errors import RefusedError, WorkspaceError

Rows = list[dict[str, Any]]
#: Rows by position, as the interface has them: each value as text.
Cells = list[list[str | None]]
_ENDED_BADLY = frozenset({"FAILED", "CANCELED", "CLOSED"})
#: Seconds between two polls at a statement, and for one statement altogether.
_INTERVAL, _TIMEOUT = 2.0, 900.0
#: The first poll comes after this; each one waits twice as long as the one before, up to the interval.
_FIRST = 0.1


class Queries(Protocol):
    """Runs a statement that only reads."""

    def __call__(self, statement: str) -> Rows:
        """Return its rows, column name -> value as text.

        :raises RefusedError: the warehouse refused it, or it failed.
        :raises WorkspaceError: no answer.
        """
        ...


class Statements(Protocol):
    """The statements interface, as the hook and the command line's client have it."""

    def send_statement(self, statement: str, warehouse_id: str, *, once: bool = False) -> str:
        """Send a statement, a second time only where it may be; return its id."""
        ...

    def get_statement(self, statement_id: str) -> dict[str, Any]:
        """Return a statement: ``status``, and ``manifest`` and ``result`` where it has ended."""
        ...

    def get_statement_chunk(self, statement_id: str, index: int) -> dict[str, Any]:
        """Return a further part of its rows."""
        ...

    def cancel_statement(self, statement_id: str) -> None:
        """Cancel a statement; one that has ended stays as it is."""
        ...


def warehouse_queries(
    statements: Statements,
    warehouse_id: str,
    *,
    sleep: Callable[[float], None] = time.sleep,
    interval: float = _INTERVAL,
    once: bool = False,
) -> Queries:
    """Make queries on a warehouse.

    :param statements: sends them.
    :param warehouse_id: the warehouse.
    :param sleep: waits between two polls.
    :param interval: seconds between two polls at most.
    :param once: a statement is sent once, for one that changes something. A ``WorkspaceError`` says that its end is not known.
    """

    def run(statement: str) -> Rows:
        statement_id = statements.send_statement(statement, warehouse_id, once=once)
        waited, pause, cancelled = 0.0, min(_FIRST, interval), False
        while True:
            found = statements.get_statement(statement_id)
            if has_ended(found, statement, hint="see that the connection's user may read what it names"):
                columns = ((found.get("manifest") or {}).get("schema") or {}).get("columns") or ()
                names = [str(column.get("name")) for column in columns]
                return [dict(zip(names, row, strict=True)) for row in all_cells(statements, statement_id, found)]
            if waited >= _TIMEOUT and once and not cancelled:  # it must not run at any later time
                statements.cancel_statement(statement_id)
                waited, cancelled = 0.0, True
            elif waited >= _TIMEOUT:
                raise WorkspaceError(f"a statement has not ended after {waited:g} s: {statement}", hint="try again")
            sleep(pause)
            waited, pause = waited + pause, min(2 * pause, interval)

    return run


def has_ended(found: dict[str, Any], statement: str, *, hint: str) -> bool:
    """Whether a statement has ended well; ``False``: it is under way.

    :param found: the statement, as the workspace returns it.
    :param statement: its SQL, for the error.
    :param hint: the next step where it did not end well.
    :raises RefusedError: the warehouse refused it, or it failed.
    """
    status = found.get("status") or {}
    state = status.get("state")
    if state in _ENDED_BADLY:
        error = status.get("error") or {}
        said = error.get("message") or error.get("error_code") or "no reason"
        raise RefusedError(f"the warehouse says {state}: {said}: {statement}", hint=hint)
    return bool(state == "SUCCEEDED")


def all_cells(statements: Statements, statement_id: str, found: dict[str, Any]) -> Cells:
    """Return all rows of a statement that has ended: the first answer holds only the first part of many.

    :param found: the statement, as the workspace returns it.
    :raises WorkspaceError: fewer or more rows came back than it says.
    """
    data = found.get("result") or {}
    rows = list(data.get("data_array") or ())
    while (index := data.get("next_chunk_index")) is not None:
        data = statements.get_statement_chunk(statement_id, int(index))
        rows += data.get("data_array") or ()
    total = (found.get("manifest") or {}).get("total_row_count")
    if total is not None and int(total) != len(rows):
        raise WorkspaceError(f"a statement has {total} rows, and {len(rows)} of them came back", hint="try again")
    return rows
