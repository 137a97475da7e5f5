"""Tables that are given by their names: what a name looks like, and what the engine that knows it is asked.

A plain name such as ``main.sales.orders`` is asked of the one engine that is configured; ``unity:``, ``spark:`` and ``iceberg:``
in front say which. Where the log of a Delta table can be read at its location, the table is a sink as any other; else its
engine is asked for the history, and restores it (:mod:`~airflow_ckpt_provider.sinks.described_sink`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_ckpt_provider.errors import CkptError, RefusedError
from airflow_ckpt_provider.guards.delta_log import is_delta_table
from airflow_ckpt_provider.guards.iceberg_client import is_iceberg_catalog
from airflow_ckpt_provider.guards.iceberg_metadata import SCHEME
from airflow_ckpt_provider.storage.location import Location

#: Engines that may know a table, as a prefix names them.
UNITY, SPARK = BY_NAME = "unity", "spark"
_PART = r"(?:`(?:[^`]|``)+`|[^`./\\:\s]+)"
_NAME = re.compile(rf"{_PART}(?:\.{_PART}){{1,2}}")
_HOW = {
    UNITY: "name the workspace and a SQL warehouse (--warehouse, with the login of the Databricks SDK or --profile; "
    "databricks_conn_id and warehouse_id of the operator)",
    SPARK: "say how Spark is run (--spark-submit; spark_conn_id of the operator)",
}


@dataclass(frozen=True, slots=True)
class NamedTable:
    """A table that an engine knows by a name.

    :param name: its full name.
    :param location: where it lies; empty where that is not reported.
    :param unreadable: why its log must not be read there; empty where it may be.
    """

    name: str
    location: str
    unreadable: str = ""


@dataclass(frozen=True, slots=True)
class Described:
    """What an engine says of a Delta table.

    :param detail: the row of ``DESCRIBE DETAIL``.
    :param history: rows of ``DESCRIBE HISTORY``.
    """

    detail: Mapping[str, Any]
    history: Sequence[Mapping[str, Any]]


class TableEngine(Protocol):
    """Knows tables by their names, and owns them."""

    #: The prefix of its names.
    kind: str
    #: What messages call it.
    words: str

    def resolve(self, name: str) -> NamedTable:
        """Look a name up.

        :raises RefusedError: there is no such table, it may not be seen, or it is no Delta table that a query writes to.
        :raises CkptError: no answer.
        """
        ...

    def describe(self, name: str) -> Described:
        """Describe a Delta table as it is now.

        :raises RefusedError: it does not exist, or may not be read.
        :raises CkptError: no answer.
        """
        ...

    def restore(self, name: str, version: int, *, plan_id: str) -> None:
        """``RESTORE TABLE … TO VERSION AS OF``; sent once.

        :raises RefusedError: the engine refused; nothing was changed.
        :raises CkptError: it is not known whether it was done, or will be.
        """
        ...


def parts_of(name: str) -> tuple[str, ...]:
    """The parts of a name, without backticks."""
    return tuple(part[1:-1].replace("``", "`") if part.startswith("`") else part for part in re.findall(_PART, name))


def quoted(name: str) -> str:
    """A name for SQL."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts_of(name))


def in_sql(name: str) -> str:
    """A name for a statement that a person runs: parts that are no plain identifiers are quoted, others stay as they are."""
    plain = re.compile(r"[A-Za-z_]\w*", re.ASCII)
    return ".".join(p if plain.fullmatch(p) else "`" + p.replace("`", "``") + "`" for p in parts_of(name))


def path_in_sql(place: Location) -> str:
    """A Delta table without a name, for a statement that a person runs."""
    return f"delta.`{place.uri.replace('`', '``')}`"


def prefixed(text: str) -> tuple[str, str] | None:
    """The engine and the name of a text such as ``unity:main.sales.orders``; ``None`` for another text.

    :raises RefusedError: it has the prefix of an engine, and what follows is no name.
    """
    kind, _, name = text.partition(":")
    if kind not in (UNITY, SPARK):
        return None
    if not _NAME.fullmatch(name):
        raise RefusedError(f"{text!r} does not name a table", hint=f"give such as {kind}:main.sales.orders")
    return kind, name


def engine_for(text: str, engines: Sequence[TableEngine], is_place: Callable[[], bool]) -> str | None:
    """Which engine a plain name is of, as its prefixed name; ``None`` where the text is a place.

    :param text: what a person gave.
    :param engines: those that are configured.
    :param is_place: whether there is a directory of that name.
    :raises RefusedError: it may be several things, or is the name of a table and nothing is configured that knows it.
    """
    if not _NAME.fullmatch(text):
        return None
    ways = [f"{engine.kind}:{text}" for engine in engines]
    parts = parts_of(text)
    if len(parts) == 3 and is_iceberg_catalog(parts[0]):
        ways.append(f"{SCHEME}{text}")
    if is_place():
        if not ways:
            return None
        raise RefusedError(
            f"{text!r} is a directory here, and may be the name of a table",
            hint=f"give the directory as ./{text}, or the table as {' or '.join(ways)}",
        )
    if len(ways) > 1:
        raise RefusedError(f"{text!r} may be a table of several catalogs", hint=f"say of which: {' or '.join(ways)}")
    if ways:
        return ways[0]
    if len(parts) < 3:
        return None
    raise RefusedError(
        f"{text!r} looks like the name of a table, and nothing is configured that knows it",
        hint=f"Unity Catalog: {_HOW[UNITY]}. Spark: {_HOW[SPARK]}. Iceberg: set the catalog {parts[0]!r} up for pyiceberg "
        f"({SCHEME}{text}). For a directory, give its path",
    )


def engine_named(kind: str, engines: Sequence[TableEngine]) -> TableEngine:
    """The engine of a prefix.

    :raises RefusedError: it is not configured.
    """
    found = next((engine for engine in engines if engine.kind == kind), None)
    if found is None:
        raise RefusedError(f"nothing is configured that knows tables by {kind}:…", hint=_HOW[kind])
    return found


def place_of(table: NamedTable, open_place: Callable[[str], Location]) -> tuple[Location | None, str]:
    """Where the log of a table can be read; ``None``, and why, where it cannot be."""
    if table.unreadable:
        return None, table.unreadable
    if not table.location:
        return None, "its location is not reported"
    try:
        place = open_place(table.location)
        if is_delta_table(place):
            return place, ""
    except (CkptError, OSError, ValueError, ImportError) as e:
        reason = e.message if isinstance(e, CkptError) else f"{type(e).__name__}: {e}"
        return None, f"its log at {table.location} cannot be read from here ({reason})"
    return None, f"no log of it is seen at {table.location} from here"
