"""Changes of a table's schema that stop a stream which reads it: a start reads everything with the newest schema.

The rules are those of ``DeltaSource.checkReadIncompatibleSchemaChanges``. Delta compares with the newest schema what each commit
has set, and at a start also the schema of the first version that it asks for: a column that was renamed or dropped since shows
nowhere else. With column mapping it goes by the physical names (``DeltaColumnMapping.hasNoColumnMappingSchemaChanges``), and
fails where that first version cannot be put together any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_ckpt_provider.errors import CkptError
from airflow_ckpt_provider.guards.delta_client import TableState, UnreadableTableError, read_state
from airflow_ckpt_provider.guards.delta_log import DeltaCommit, DeltaLog
from airflow_ckpt_provider.guards.reader_options import option
from airflow_ckpt_provider.guards.report import Judgement
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.verdict import Verdict

_MODE = "delta.columnMapping.mode"
_PHYSICAL = "delta.columnMapping.physicalName"
#: Under these features it depends on Delta's version and settings whether rows of a narrower type are read.
_WIDENING = frozenset({"typeWidening", "typeWidening-preview"})
_TRACKING = ("schemaTrackingLocation", "schemaLocation")
_CHANGED = "DELTA_SCHEMA_CHANGED_WITH_VERSION"
_RENAMED = "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE_USE_SCHEMA_LOG"
#: Changes of a version that are named.
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class _Column:
    """A column, a field of a struct, or what an array or a map holds.

    :param name: its name, after those of the columns that it is in.
    :param kind: its type; of one that holds others only what it is.
    """

    name: str
    kind: str
    nullable: bool


@dataclass(frozen=True, slots=True)
class _Schema:
    """A schema as Delta compares it.

    :param columns: physical name, after those of the columns that it is in -> column.
    :param is_mapped: whether the table has column mapping.
    :param unread: why the columns are not known; empty: they are.
    """

    columns: Mapping[tuple[str, ...], _Column] = field(default_factory=dict)
    is_mapped: bool = False
    partitions: tuple[str, ...] = ()
    unread: str = ""

    @classmethod
    def of(cls, schema: str, configuration: Mapping[str, Any], partitions: Sequence[str]) -> _Schema:
        """Read a schema of a table's metadata."""
        is_mapped = str(configuration.get(_MODE, "none")).lower() != "none"
        try:
            columns = dict(_fields(load_json(schema)["fields"], is_mapped))
        except (ValueError, AttributeError, KeyError, TypeError) as e:
            return cls({}, is_mapped, tuple(partitions), f"{type(e).__name__}: {e}")
        return cls(columns, is_mapped, tuple(partitions))

    @classmethod
    def in_state(cls, state: TableState) -> _Schema:
        """The schema of a table's state."""
        return cls.of(state.schema, state.configuration, state.partition_columns)

    @classmethod
    def in_commit(cls, commit: DeltaCommit) -> _Schema:
        """The schema that a commit has set."""
        said = commit.metadata or {}
        return cls.of(
            str(said.get("schemaString")), said.get("configuration") or {}, said.get("partitionColumns") or ()
        )


def judge_schemas(
    log: DeltaLog, commits: Sequence[DeltaCommit], state: TableState, first: int, options: Mapping[str, str]
) -> list[Judgement]:
    """Judge changes of the schema.

    :param log: the table's log.
    :param commits: those that a start asks for, as far as they are there, ascending.
    :param state: the table as it is now.
    :param first: the first version that a start asks for.
    :param options: the query's reader options, as far as they are known.
    """
    changed = [commit for commit in commits if commit.metadata is not None]
    # From a commit where one says it: what Spark has described has no physical names.
    is_said = changed and not log.missing(changed[-1].version, log.latest)
    now = _Schema.in_commit(changed[-1]) if is_said else _Schema.in_state(state)
    widens = (
        bool(_WIDENING & state.features) or state.configuration.get("delta.enableTypeWidening", "").lower() == "true"
    )
    found = [
        *_judge_first(log, changed, now, first, widens=widens),
        *(each for c in changed if (each := _judge(c.name, _Schema.in_commit(c), now, widens=widens))),
    ]
    if not (tracked := next((name for name in _TRACKING if option(options, name)), None)):
        return found
    why = f"; but the query has {tracked}: it stops at the change, and continues at a restart as far as its settings allow"
    fails = Verdict.WILL_FAIL
    return [Judgement(Verdict.UNKNOWN, each.reason + why) if each.verdict is fails else each for each in found]


def _judge_first(
    log: DeltaLog, changed: Sequence[DeltaCommit], now: _Schema, first: int, *, widens: bool
) -> Iterator[Judgement]:
    """The schema of the first version that a start asks for; it is read only where it may be another one."""
    if first > log.latest:
        return
    if not log.can_rebuild(first):
        if now.is_mapped:
            yield Judgement(
                Verdict.WILL_FAIL,
                f"version {first}, with which Spark begins, cannot be put together any more (delta.logRetentionDuration removed "
                "commits before it), and the table has column mapping: DELTA_STREAMING_CHECK_COLUMN_MAPPING_NO_SNAPSHOT, also "
                "with failOnDataLoss=false; start a new checkpoint",
            )
        return
    said = {commit.version for commit in changed}
    if first in said or not (said or log.missing(first + 1, log.latest)):
        return
    try:
        then = _Schema.in_state(read_state(log, first))
    except (UnreadableTableError, FileNotFoundError) as e:
        reason = e.message if isinstance(e, CkptError) else f"{e} is gone"
        yield Judgement(
            Verdict.UNKNOWN,
            f"the schema was changed since version {first}, whose own cannot be read ({reason}): whether Spark can read its "
            "rows with the newest schema is not known",
        )
        return
    found = _judge(f"version {first}", then, now, widens=widens)
    if found and found.verdict is not Verdict.SAFE:
        yield found


def _judge(name: str, then: _Schema, now: _Schema, *, widens: bool) -> Judgement | None:
    """Compare a schema with the newest one.

    :param name: of the version that has it.
    :param widens: whether the table takes wider types.
    """
    if unread := then.unread or now.unread:
        which = name if then.unread else "the newest version"
        return Judgement(
            Verdict.UNKNOWN,
            f"the schema of {which} cannot be read ({unread}): whether the rows of {name} can be read with the newest one is not "
            "known",
        )
    if then.is_mapped and not now.is_mapped:
        return Judgement(
            Verdict.WILL_FAIL,
            f"{name} has column mapping, which the table does not have any more: {_RENAMED}; start a new checkpoint after it",
        )
    gone = [f"{column.name} is gone since" for path, column in then.columns.items() if path not in now.columns]
    both = [(column, now.columns[path]) for path, column in then.columns.items() if path in now.columns]
    renamed = [f"{was.name} is called {is_.name} since" for was, is_ in both if was.name != is_.name]
    other = [f"{was.name} was {was.kind}, is {is_.kind}" for was, is_ in both if was.kind != is_.kind]
    null = [f"{was.name} could be null, and cannot now" for was, is_ in both if was.nullable and not is_.nullable]
    if what := [*gone, *renamed, *other, *null]:
        error = _RENAMED if now.is_mapped and (gone or renamed) else _CHANGED
        reason = f"{name} has a schema that the newest one cannot read ({'; '.join(what[:_SHOWN])}): {error}"
        if widens and what == other:
            return Judgement(
                Verdict.UNKNOWN, f"{reason}, but for some types, versions and settings of Delta (typeWidening)"
            )
        return Judgement(Verdict.WILL_FAIL, f"{reason}; start a new checkpoint after it")
    if then.partitions != now.partitions:
        return Judgement(
            Verdict.WILL_FAIL,
            f"{name} is partitioned by {', '.join(then.partitions) or 'nothing'}, the table now by "
            f"{', '.join(now.partitions) or 'nothing'}: {_CHANGED}",
        )
    if added := [column.name for path, column in now.columns.items() if path not in then.columns]:
        return Judgement(
            Verdict.SAFE, f"columns came after {name}: {', '.join(added[:_SHOWN])}; rows before have null there"
        )
    return None


def _fields(
    fields: Sequence[Mapping[str, Any]], is_mapped: bool, path: tuple[str, ...] = (), name: str = ""
) -> Iterator[tuple[tuple[str, ...], _Column]]:
    for column in fields:
        own = str(column["name"])
        physical = str((column.get("metadata") or {}).get(_PHYSICAL, own)) if is_mapped else own
        nullable = column.get("nullable", True) is not False
        yield from _flat(column["type"], is_mapped, (*path, physical), f"{name}{own}", nullable)


def _flat(
    kind: Any, is_mapped: bool, path: tuple[str, ...], name: str, nullable: bool
) -> Iterator[tuple[tuple[str, ...], _Column]]:
    """A column and all that it holds."""
    if isinstance(kind, str):
        yield path, _Column(name, kind, nullable)
        return
    yield path, _Column(name, str(kind["type"]), nullable)
    if kind["type"] == "struct":
        yield from _fields(kind["fields"], is_mapped, path, f"{name}.")
        return
    held = {"array": {"element": "containsNull"}, "map": {"key": "", "value": "valueContainsNull"}}
    for part, may_be_null in held.get(kind["type"], {}).items():
        null = bool(may_be_null) and kind.get(may_be_null, True) is not False
        yield from _flat(kind[f"{part}Type"], is_mapped, (*path, part), f"{name}.{part}", null)
