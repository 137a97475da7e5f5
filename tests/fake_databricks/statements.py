"""The SQL Statement Execution API, over the workspace's tables."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

from tests.fake_databricks.errors import invalid, not_found
from tests.fake_databricks.tables import Result, SqlFailed, Tables, cell

_WAY = ("PENDING", "RUNNING", "SUCCEEDED")
#: Cells of one chunk of a result.
CHUNK_ROWS = 1000


@dataclass
class Statement:
    """A statement and how far it is."""

    body: dict[str, Any]
    state: str = "PENDING"
    error: str = ""
    result: Result = field(default_factory=Result)
    statement_id: str = field(default_factory=lambda: str(uuid.uuid4()))


class Statements:
    """All statements of the workspace. A statement whose answer is awaited is run at once; others move on with each poll.

    :param warehouses: the ids that exist.
    """

    def __init__(self, tables: Tables, warehouses: set[str]) -> None:
        self._tables = tables
        self.warehouses = warehouses
        self.all: dict[str, Statement] = {}

    def post(self, body: dict[str, Any]) -> dict[str, Any]:
        """``POST /api/2.0/sql/statements``."""
        if not body.get("statement"):
            raise invalid("statement is missing.")
        if body.get("warehouse_id") not in self.warehouses:
            raise not_found("warehouse", body.get("warehouse_id"))
        wait = str(body.get("wait_timeout", "10s"))
        if not wait.endswith("s") or not wait[:-1].isdigit() or not (wait == "0s" or 5 <= int(wait[:-1]) <= 50):
            raise invalid(f"wait_timeout must be 0s or between 5s and 50s, got {wait}.")
        statement = Statement(body)
        self.all[statement.statement_id] = statement
        while wait != "0s" and statement.state in _WAY[:2]:
            self._step(statement)
        return self._answer(statement)

    def get(self, statement_id: str) -> dict[str, Any]:
        """``GET /api/2.0/sql/statements/{id}``."""
        statement = self._find(statement_id)
        answer = self._answer(statement)
        if statement.state in _WAY[:2]:
            self._step(statement)
        return answer

    def chunk(self, statement_id: str, index: int) -> dict[str, Any]:
        """``GET …/result/chunks/{index}``."""
        return self._data(self._find(statement_id), index)

    def cancel(self, statement_id: str) -> dict[str, Any]:
        """``POST …/cancel``; a statement that has ended stays as it is."""
        statement = self._find(statement_id)
        if statement.state in _WAY[:2]:
            statement.state = "CANCELED"
        return {}

    def _find(self, statement_id: str) -> Statement:
        if statement_id not in self.all:
            raise not_found("statement", statement_id)
        return self.all[statement_id]

    def _step(self, statement: Statement) -> None:
        if statement.state == "PENDING":
            statement.state = "RUNNING"
            return
        body = statement.body
        values = {parameter["name"]: _literal(parameter) for parameter in body.get("parameters") or []}
        try:
            statement.result = self._tables.execute(
                body["statement"], values, body.get("catalog") or "main", body.get("schema") or "default"
            )
            statement.state = "SUCCEEDED"
        except SqlFailed as e:
            statement.state, statement.error = "FAILED", str(e)

    def _answer(self, statement: Statement) -> dict[str, Any]:
        status: dict[str, Any] = {"state": statement.state}
        if statement.state == "FAILED":
            status["error"] = {"error_code": "BAD_REQUEST", "message": statement.error}
        answer: dict[str, Any] = {"statement_id": statement.statement_id, "status": status}
        if statement.state != "SUCCEEDED":
            return answer
        columns = [
            {"name": name, "position": position, "type_name": kind, "type_text": "BIGINT" if kind == "LONG" else kind}
            for position, (name, kind) in enumerate(statement.result.columns)
        ]
        rows = len(statement.result.rows)
        answer["manifest"] = {
            "format": "JSON_ARRAY",
            "schema": {"column_count": len(columns)} | ({"columns": columns} if columns else {}),
            "total_chunk_count": max(1, -(-rows // CHUNK_ROWS)),
            "total_row_count": rows,
            "truncated": False,
        }
        answer["result"] = self._data(statement, 0)
        return answer

    def _data(self, statement: Statement, index: int) -> dict[str, Any]:
        start = index * CHUNK_ROWS
        rows = [[cell(value) for value in row] for row in statement.result.rows[start : start + CHUNK_ROWS]]
        data: dict[str, Any] = {"chunk_index": index, "row_offset": start, "row_count": len(rows)}
        if rows:
            data["data_array"] = rows
        if start + len(rows) < len(statement.result.rows):
            link = f"/api/2.0/sql/statements/{statement.statement_id}/result/chunks/{index + 1}"
            data |= {"next_chunk_index": index + 1, "next_chunk_internal_link": link}
        return data


def _literal(parameter: dict[str, Any]) -> str:
    value = parameter.get("value")
    if value is None:
        return "NULL"
    kind = str(parameter.get("type", "STRING")).upper()
    text = str(value).replace("'", "''")
    if kind in ("INT", "BIGINT", "LONG", "DOUBLE", "BOOLEAN"):
        return str(value)
    return f"TIMESTAMP '{text}'" if kind == "TIMESTAMP" else f"'{text}'"
