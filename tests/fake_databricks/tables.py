"""Tables with rows: duckdb in memory, with the versions that a Delta table keeps."""

from __future__ import annotations

import fnmatch
import json
import re
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import duckdb

from tests.fake_databricks.clock import Clock, parse, text
from tests.fake_databricks.dialect import functions, name_parts, rename, tokens
from tests.fake_databricks.dialect import parameters as put_parameters

COLUMNS: Mapping[str, str] = {
    "id": "VARCHAR",
    "value": "VARCHAR",
    "source": "VARCHAR",
    "position": "BIGINT",
    "modified": "TIMESTAMP",
}


class SqlFailed(Exception):
    """A statement that Databricks refuses."""


@dataclass(frozen=True, slots=True)
class Version:
    """An entry of a table's history, with the rows as they were after it."""

    number: int
    time: datetime
    operation: str
    rows: list[tuple[Any, ...]]
    parameters: Mapping[str, str] = field(default_factory=dict)
    #: Rows that it wrote.
    written: int | None = None
    user: str = "etl@example.com"


@dataclass(frozen=True, slots=True)
class Result:
    """What a statement returns: names and types of the columns, and rows."""

    columns: list[tuple[str, str]] = field(default_factory=list)
    rows: list[tuple[Any, ...]] = field(default_factory=list)


_CLONE = re.compile(
    r"CREATE\s+(OR\s+REPLACE\s+)?TABLE\s+(IF\s+NOT\s+EXISTS\s+)?(\S+)\s+(?:DEEP\s+|SHALLOW\s+)?CLONE\s+(\S+)"
    r"(?:\s+(VERSION|TIMESTAMP)\s+AS\s+OF\s+('[^']*'|\d+))?(\s+WITH\s+HISTORY)?",
    re.IGNORECASE,
)
_AS_OF = re.compile(r"(\S+)\s+(VERSION|TIMESTAMP)\s+AS\s+OF\s+('[^']*'|\d+)", re.IGNORECASE)
_READ_FILES = re.compile(r"read_files\(\s*'([^']*)'[^)]*\)", re.IGNORECASE)
_FILES_STATE = re.compile(r"cloud_files_state\(\s*TABLE\(\s*([^)]+?)\s*\)\s*\)", re.IGNORECASE)
_EVENT_LOG = re.compile(r"event_log\(\s*'([^']*)'\s*\)", re.IGNORECASE)
_RESTORE = re.compile(
    r"RESTORE\s+(?:TABLE\s+)?(\S+)\s+TO\s+(VERSION|TIMESTAMP)\s+AS\s+OF\s+('[^']*'|\d+)\s*", re.IGNORECASE
)
_DESCRIBE = re.compile(r"(?:DESCRIBE|DESC)\s+(HISTORY|DETAIL)\s+(\S+)(?:\s+LIMIT\s+(\d+))?", re.IGNORECASE)
_PROPERTIES = re.compile(r"SHOW\s+TBLPROPERTIES\s+(\S+?)\s*(?:\(.*\))?", re.IGNORECASE)
_SHOW = re.compile(r"SHOW\s+TABLES(?:\s+(?:IN|FROM)\s+(\S+))?(?:\s+LIKE\s+'((?:[^'\\]|\\.)*)')?", re.IGNORECASE)
_SCHEMA = re.compile(r"(CREATE|DROP)\s+SCHEMA\s+(IF\s+(?:NOT\s+)?EXISTS\s+)?(\S+)\s*(?:CASCADE)?", re.IGNORECASE)
_CHANGES = re.compile(
    r"(?:CREATE\s+(?:OR\s+REPLACE\s+)?TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?|INSERT\s+(?:INTO|OVERWRITE)\s+(?:TABLE\s+)?"
    r"|MERGE\s+INTO\s+|DELETE\s+FROM\s+|UPDATE\s+|TRUNCATE\s+TABLE\s+|DROP\s+TABLE\s+(?:IF\s+EXISTS\s+)?)([\w.`]+)",
    re.IGNORECASE,
)
_FILE_STATE = {
    "path": "VARCHAR",
    "size": "BIGINT",
    "create_time": "TIMESTAMP",
    "commit_time": "TIMESTAMP",
    "source_id": "VARCHAR",
    "flow_name": "VARCHAR",
}
_EVENTS = {
    "timestamp": "TIMESTAMP",
    "event_type": "VARCHAR",
    "origin": "STRUCT(flow_name VARCHAR, update_id VARCHAR)",
    "details": "VARCHAR",
}
#: Types of duckdb, in the words of Databricks.
_TYPES = {
    "VARCHAR": "STRING",
    "BIGINT": "LONG",
    "HUGEINT": "LONG",
    "INTEGER": "INT",
    "TIMESTAMP": "TIMESTAMP",
    "TIMESTAMP WITH TIME ZONE": "TIMESTAMP",
    "BOOLEAN": "BOOLEAN",
    "DOUBLE": "DOUBLE",
    "DATE": "DATE",
}


class Tables:
    """All tables of the workspace.

    :param clock: gives the versions their times.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._duckdb = duckdb.connect()
        self._duckdb.execute("SET TimeZone = 'UTC'")
        self._temporary = 0
        self.history: dict[str, list[Version]] = {}
        #: Table properties, by the table's name.
        self.properties: dict[str, dict[str, str]] = {}
        #: What Unity Catalog says of a table besides, by its name: ``table_type``, ``storage_location``, ….
        self.catalog: dict[str, dict[str, Any]] = {}
        #: Features that a table's protocol names.
        self.features: dict[str, list[str]] = {}
        #: Is called with the name of a table just before a statement changes it.
        self.before_change: Callable[[str], None] = lambda name: None
        #: Gives the rows that lie in a directory, for ``read_files``.
        self.files: Callable[[str], list[dict[str, Any]]] = lambda path: []
        #: Delta tables that no pipeline writes: name -> id and versions; ``None`` if there is no such table.
        self.outside: Callable[[str], tuple[str, list[Version]] | None] = lambda name: None
        #: What ``cloud_files_state`` and ``event_log`` return.
        self.file_state: Callable[[str], list[dict[str, Any]]] = lambda table: []
        self.event_log: Callable[[str], list[dict[str, Any]]] = lambda pipeline_id: []
        self.ids: dict[str, str] = {}
        #: Statements whose text contains one of these fail with the message that belongs to it.
        self.refuse: dict[str, str] = {}
        #: Whether a pipeline writes a table.
        self.of_pipeline: Callable[[str], bool] = lambda name: False
        #: Whether tables of pipelines can be cloned: one page of the vendor says how, another that they cannot.
        self.clones_of_pipelines = True

    def close(self) -> None:
        """Forget everything."""
        self._duckdb.close()

    # For tests and for flows

    def create(self, name: str, columns: Mapping[str, str] = COLUMNS) -> None:
        """Make an empty table, and its schema if there is none."""
        schema = ".".join(name_parts(name)[:-1])
        with self._lock:
            self._duckdb.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
            defined = ", ".join(f'"{column}" {kind}' for column, kind in columns.items())
            self._duckdb.execute(f"CREATE TABLE {_quoted(name)} ({defined})")
            self._note(name, "CREATE TABLE")

    def exists(self, name: str) -> bool:
        with self._lock:
            *schema, table = name_parts(name)
            found = self._duckdb.execute(
                "SELECT 1 FROM information_schema.tables WHERE table_schema = ? AND table_name = ?",
                [".".join(schema), table],
            )
            return found.fetchone() is not None

    def rows(self, name: str) -> list[dict[str, Any]]:
        """All rows of a table."""
        with self._lock:
            cursor = self._duckdb.execute(f"SELECT * FROM {_quoted(name)}")
            names = [column[0] for column in cursor.description or []]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def columns(self, name: str) -> list[str]:
        with self._lock:
            return [str(column[0]) for column in self._duckdb.table(_quoted(name)).description]

    def id_of(self, name: str) -> str:
        """The table's own id."""
        return self.ids.setdefault(name, str(uuid.uuid4()))

    def types(self, name: str) -> dict[str, str]:
        """Columns of a table, with their types."""
        with self._lock:
            return {str(c[0]): str(c[1]) for c in self._duckdb.table(_quoted(name)).description}

    def append(
        self,
        name: str,
        rows: Sequence[Mapping[str, Any]],
        operation: str = "STREAMING UPDATE",
        parameters: Mapping[str, str] | None = None,
    ) -> None:
        """Add rows in one version; columns that a row does not have are null."""
        if not rows:
            return
        with self._lock:
            self._insert(name, [tuple(_naive(row.get(column)) for column in self.columns(name)) for row in rows])
            self._note(name, operation, parameters, len(rows))

    def upsert(
        self,
        name: str,
        rows: Sequence[Mapping[str, Any]],
        keys: Sequence[str],
        sequence_by: str,
        parameters: Mapping[str, str] | None = None,
    ) -> None:
        """Change data capture: for each key the row that comes last."""
        if not rows:
            return
        with self._lock:
            columns = self.columns(name)
            newest: dict[tuple[Any, ...], tuple[Any, ...]] = {}
            old = [tuple(row[column] for column in columns) for row in self.rows(name)]
            for row in [*old, *(tuple(_naive(row.get(column)) for column in columns) for row in rows)]:
                key = tuple(row[columns.index(k)] for k in keys)
                at = columns.index(sequence_by)
                if key not in newest or newest[key][at] is None or row[at] >= newest[key][at]:
                    newest[key] = row
            self._fill(name, list(newest.values()))
            self._note(name, "MERGE", parameters, len(rows))

    def replace(self, name: str, rows: Sequence[Mapping[str, Any]], operation: str) -> None:
        """Put rows in the place of all others."""
        with self._lock:
            self._fill(name, [tuple(_naive(row.get(column)) for column in self.columns(name)) for row in rows])
            self._note(name, operation)

    def restore(self, name: str, number: int, operation: str = "RESTORE") -> None:
        """Return to a version."""
        with self._lock:
            version = next((v for v in self.history.get(name, ()) if v.number == number), None)
            if version is None:
                raise SqlFailed(f"[DELTA_VERSION_NOT_FOUND] Cannot time travel Delta table to version {number}.")
            self._fill(name, version.rows)
            self._note(name, operation, {"version": str(number)})

    def drop(self, name: str) -> None:
        """Remove a table, its history and its id."""
        with self._lock:
            self._duckdb.execute(f"DROP TABLE {_quoted(name)}")
            self.history.pop(name, None)
            self.ids.pop(name, None)

    def rename(self, name: str, to: str) -> None:
        """Give a table another name; history and id go along."""
        with self._lock:
            self._duckdb.execute(f"CREATE TABLE {_quoted(to)} AS SELECT * FROM {_quoted(name)}")
            history, table_id = self.history[name], self.id_of(name)
            self.drop(name)
            self.history[to], self.ids[to] = history, table_id

    def version(self, name: str) -> int:
        """Newest version of a table."""
        return self.history[name][-1].number

    # Statements

    def execute(
        self,
        statement: str,
        parameters: Mapping[str, str] | None = None,
        catalog: str = "main",
        schema: str = "default",
    ) -> Result:
        """Run a statement.

        :param parameters: values as SQL, by name.
        :param catalog: of names that have none.
        :raises SqlFailed: it cannot be run; nothing was changed.
        """
        with self._lock:
            try:
                sql = put_parameters(statement.strip().rstrip("; \n"), dict(parameters or {}))
                for mark, message in self.refuse.items():
                    if mark in sql:
                        raise SqlFailed(message)
                names = _Names(catalog, schema)
                return self._execute(sql, names)
            except duckdb.Error as e:
                raise SqlFailed(_message(e, names.used)) from e

    def _execute(self, sql: str, names: _Names) -> Result:
        if match := _CLONE.fullmatch(sql):
            return self._clone(match, names)
        if match := _RESTORE.fullmatch(sql):
            table = names.table(match[1])
            if not self.exists(table):
                raise SqlFailed(_missing(table))
            self.before_change(table)
            self.restore(table, self._at(table, match[2], match[3]).number)
            columns = ["table_size_after_restore", "num_of_files_after_restore", "num_removed_files"]
            columns += ["num_restored_files", "removed_files_size", "restored_files_size"]
            return Result([(column, "LONG") for column in columns], [(len(self.rows(table)), 1, 1, 1, 0, 0)])
        if match := _DESCRIBE.fullmatch(sql):
            return self._describe(match[1].upper(), names.table(match[2]), int(match[3] or 1000))
        if match := _PROPERTIES.fullmatch(sql):
            rows = [tuple(item) for item in self.properties.get(names.table(match[1]), {}).items()]
            return Result([("key", "STRING"), ("value", "STRING")], rows)
        if match := _SHOW.fullmatch(sql):
            return self._show(
                ".".join(names.full(match[1], 2) if match[1] else (names.catalog, names.schema)), match[2]
            )
        if match := _SCHEMA.fullmatch(sql):
            schema = ".".join(names.full(match[3], 2))
            self._duckdb.execute(f'{match[1]} SCHEMA {match[2] or ""}"{schema}"')
            return Result()
        changed = _CHANGES.match(sql)
        sql = _AS_OF.sub(lambda match: self._as_of(names.table(match[1]), match[2], match[3]), sql)
        sql = _READ_FILES.sub(self._read_files, sql)
        sql = _FILES_STATE.sub(
            lambda match: self._temporary_table(_FILE_STATE, self.file_state(names.table(match[1]))), sql
        )
        sql = _EVENT_LOG.sub(lambda match: self._temporary_table(_EVENTS, self.event_log(match[1])), sql)
        sql = functions(rename(sql, names.resolve))
        cursor = self._duckdb.execute(sql)
        columns = [(str(c[0]), _TYPES.get(str(c[1]).split("(")[0], "STRING")) for c in cursor.description or []]
        rows = cursor.fetchall()
        if not changed:
            return Result(columns, rows)
        table = names.table(changed[1])
        verb = next(tokens(sql)).upper()
        if verb == "DROP":
            self.history.pop(table, None)
            self.ids.pop(table, None)
        else:
            self._note(table, {"INSERT": "WRITE", "CREATE": "CREATE TABLE AS SELECT"}.get(verb, verb))
        if verb in ("INSERT", "MERGE", "DELETE", "UPDATE"):
            return Result([("num_affected_rows", "LONG")], rows)
        return Result()

    def _clone(self, match: re.Match[str], names: _Names) -> Result:
        target, source = names.table(match[3]), names.table(match[4])
        if self.of_pipeline(source):
            self._see_clone(match)
        rows = self._at(source, match[5], match[6]).rows
        if self.exists(target):
            if match[2]:
                return Result()
            if not match[1]:
                raise SqlFailed(
                    f"[TABLE_OR_VIEW_ALREADY_EXISTS] Cannot create table or view `{target}`. SQLSTATE: 42P07"
                )
            self._duckdb.execute(f"DROP TABLE {_quoted(target)}")
        self._duckdb.execute(f"CREATE TABLE {_quoted(target)} AS SELECT * FROM {_quoted(source)} LIMIT 0")
        self._fill(target, rows)
        self.history.pop(target, None)
        self._note(target, "CLONE")
        columns = ["source_table_size", "source_num_of_files", "num_removed_files", "num_copied_files"]
        return Result(
            [(c, "LONG") for c in [*columns, "removed_files_size", "copied_files_size"]],
            [(len(rows), 1, 0, 1, 0, len(rows))],
        )

    def _read_files(self, match: re.Match[str]) -> str:
        if "binaryfile" not in match[0].lower():
            return self._temporary_table(COLUMNS, self.files(match[1]))
        listed = [
            {"path": f"dbfs:{match[1]}/{row['position']}.json", "modificationTime": row["modified"], "length": 1}
            for row in self.files(match[1])
        ]
        return self._temporary_table({"path": "VARCHAR", "modificationTime": "TIMESTAMP", "length": "BIGINT"}, listed)

    def _see_clone(self, match: re.Match[str]) -> None:
        """What is refused of a clone of a streaming table or materialized view."""
        what = "[DELTA_DEEP_CLONE_MV_ST_ERROR.{}] {} SQLSTATE: 0A000"
        if not self.clones_of_pipelines:
            raise SqlFailed(
                "Streaming tables and materialized views are not supported as source or target tables for CLONE."
            )
        if match[5]:
            raise SqlFailed(what.format("TIME_TRAVEL_NOT_SUPPORTED", "Time travel is not supported."))
        if not match[7]:
            raise SqlFailed(what.format("REQUIRES_WITH_HISTORY", "Use CREATE TABLE ... DEEP CLONE ... WITH HISTORY."))

    def _describe(self, what: str, table: str, limit: int) -> Result:
        outside = self.outside(table)
        if outside is None and not self.exists(table):
            raise SqlFailed(_missing(table))
        table_id, history = outside or (self.id_of(table), self.history.get(table, []))
        if what == "DETAIL":
            size = 0 if outside else 100 * len(self.rows(table))
            location = self.catalog.get(table, {}).get("storage_location", "")
            about = (json.dumps(self.properties.get(table, {})), json.dumps(self.features.get(table, ["appendOnly"])))
            rows: list[tuple[Any, ...]] = [("delta", table_id, table, location, 1, size, *about)]
            kinds = [("format", "STRING"), ("id", "STRING"), ("name", "STRING"), ("location", "STRING")]
            kinds += [("numFiles", "LONG"), ("sizeInBytes", "LONG"), ("properties", "MAP"), ("tableFeatures", "ARRAY")]
            return Result(kinds, rows)
        columns = [("version", "LONG"), ("timestamp", "TIMESTAMP"), ("userName", "STRING"), ("operation", "STRING")]
        columns += [("operationParameters", "MAP"), ("operationMetrics", "MAP"), ("userMetadata", "STRING")]
        rows = [
            (
                v.number,
                v.time,
                v.user,
                v.operation,
                json.dumps(dict(v.parameters)),
                json.dumps({} if v.written is None else {"numOutputRows": str(v.written)}),
                None,
            )
            for v in reversed(history)
        ]
        return Result(columns, rows[:limit])

    def _show(self, schema: str, like: str | None) -> Result:
        found = self._duckdb.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = ? ORDER BY table_name", [schema]
        ).fetchall()
        rows = [
            (schema.split(".")[-1], name, False)
            for (name,) in found
            if fnmatch.fnmatchcase(name, re.sub(r"\\(.)", r"\1", like or "*").replace(".", "?"))
        ]
        return Result([("database", "STRING"), ("tableName", "STRING"), ("isTemporary", "BOOLEAN")], rows)

    def _at(self, table: str, kind: str | None, value: str | None) -> Version:
        if not self.exists(table):
            raise SqlFailed(_missing(table))
        versions = self.history[table]
        if kind is None or value is None:
            return versions[-1]
        if kind.upper() == "VERSION":
            found = [v for v in versions if v.number == int(value.strip("'"))]
        else:
            found = [v for v in versions if v.time <= parse(value.strip("'"))]
        if not found:
            raise SqlFailed(f"[DELTA_VERSION_NOT_FOUND] Cannot time travel Delta table to version {value}.")
        return found[-1]

    def _as_of(self, table: str, kind: str, value: str) -> str:
        self._temporary += 1
        name = f"as_of_{self._temporary}"
        rows = self._at(table, kind, value).rows
        self._duckdb.execute(f"CREATE TEMPORARY TABLE {name} AS SELECT * FROM {_quoted(table)} LIMIT 0")
        if rows:
            self._duckdb.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(rows[0]))})", rows)
        return f"temp.{name}"

    def _temporary_table(self, columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> str:
        self._temporary += 1
        name = f"files_{self._temporary}"
        defined = ", ".join(f'"{column}" {kind}' for column, kind in columns.items())
        self._duckdb.execute(f"CREATE TEMPORARY TABLE {name} ({defined})")
        for row in rows:
            values = [_naive(row.get(column)) for column in columns]
            self._duckdb.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(values))})", values)
        return f"temp.{name}"

    def _insert(self, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            marks = ", ".join("?" * len(rows[0]))
            self._duckdb.executemany(f"INSERT INTO {_quoted(name)} VALUES ({marks})", list(rows))

    def _fill(self, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
        self._duckdb.execute(f"DELETE FROM {_quoted(name)}")
        self._insert(name, rows)

    def _note(
        self, name: str, operation: str, parameters: Mapping[str, str] | None = None, written: int | None = None
    ) -> None:
        versions = self.history.setdefault(name, [])
        rows = self._duckdb.execute(f"SELECT * FROM {_quoted(name)}").fetchall()
        number = versions[-1].number + 1 if versions else 0
        versions.append(Version(number, self._clock.now(), operation, rows, dict(parameters or {}), written))


@dataclass(frozen=True, slots=True)
class _Names:
    catalog: str
    schema: str
    #: Full names of the tables in the statement.
    used: list[str] = field(default_factory=list)

    def full(self, name: str, parts: int = 3) -> tuple[str, ...]:
        """All parts of a name, with the defaults where they are left out."""
        known = name_parts(name)
        return ((self.catalog, self.schema)[: parts - len(known)] + known)[-parts:] if len(known) < parts else known

    def table(self, name: str) -> str:
        return ".".join(self.full(name))

    def resolve(self, parts: tuple[str, ...]) -> str | None:
        if parts[0] == "temp" or len(parts) > 4:
            return None
        full = self.full(".".join(f"`{part}`" for part in parts[:3]))
        self.used.append(".".join(full))
        return _quoted(".".join(full)) + "".join(f'."{part}"' for part in parts[3:])


def _quoted(name: str) -> str:
    *schema, table = name.split(".")
    return f'"{".".join(schema)}"."{table}"'


def _naive(value: Any) -> Any:
    return value.astimezone(UTC).replace(tzinfo=None) if isinstance(value, datetime) and value.tzinfo else value


def _missing(table: str) -> str:
    return (
        f"[TABLE_OR_VIEW_NOT_FOUND] The table or view `{'`.`'.join(table.split('.'))}` cannot be found. "
        "Verify the spelling and correctness of the schema and catalog. SQLSTATE: 42P01"
    )


def _message(error: duckdb.Error, used: Sequence[str]) -> str:
    found = re.search(r"Table with name \"?([^\"\s]+)\"? does not exist", str(error))
    if found:
        return _missing(next((name for name in used if name.split(".")[-1] == found[1].split(".")[-1]), found[1]))
    if "already exists" in str(error):
        return f"[TABLE_OR_VIEW_ALREADY_EXISTS] {error} SQLSTATE: 42P07"
    return f"[PARSE_SYNTAX_ERROR] {error} SQLSTATE: 42601" if "Parser" in str(error) else str(error)


def cell(value: Any) -> str | None:
    """A value in a result: always text, or null."""
    if isinstance(value, datetime):
        return text(value if value.tzinfo else value.replace(tzinfo=UTC))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return json.dumps(value)
    return None if value is None else str(value)
