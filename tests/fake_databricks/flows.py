"""Flows, their checkpoints and their datasets: what a test sees of a reset, a full refresh or a rewind."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.fake_databricks.errors import FlowFailed
from tests.fake_databricks.sources import START_OPTIONS, Row, Source, Start
from tests.fake_databricks.tables import COLUMNS

#: Name of the operator that ``dropDuplicates`` becomes.
DROP_DUPLICATES = "dedupe"

FlowKind = Literal["streaming", "once", "materialized"]
Language = Literal["python", "sql"]


@dataclass
class Dataset:
    """A table that a pipeline writes.

    :param name: without catalog and schema.
    :param keys: of an AUTO CDC target; a table without keys is appended to.
    :param properties: table properties, such as ``pipelines.reset.allowed``.
    """

    name: str
    columns: Mapping[str, str] = field(default_factory=lambda: dict(COLUMNS))
    keys: tuple[str, ...] = ()
    sequence_by: str = "modified"
    properties: dict[str, str] = field(default_factory=dict)


@dataclass
class Checkpoint:
    """What a flow remembers.

    :param next: for each source where to read on.
    :param operators: the stateful operators of the code that made it.
    :param seen: keys that ``dropDuplicates`` has seen.
    :param tables: for each Delta source the id of its table.
    :param batch: number of the newest batch.
    """

    next: dict[str, Start]
    operators: tuple[str, ...] = ()
    seen: set[Any] = field(default_factory=set)
    tables: dict[str, str] = field(default_factory=dict)
    batch: int = -1
    query_id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def copy(self) -> Checkpoint:
        return copy.deepcopy(self)


@dataclass(frozen=True, slots=True)
class Settings:
    """What an update hands to the code of its flows.

    :param configuration: of the pipeline's settings.
    :param parameters: the pipeline's own, and over them those of the start.
    """

    configuration: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)

    def seen_by(self, language: Language) -> dict[str, str]:
        """What code of a language can read."""
        return {**self.configuration, **(self.parameters if language == "sql" else {})}


@dataclass
class Flow:
    """A flow as its deployed code says; a test deploys new code by changing it.

    :param name: without catalog and schema.
    :param explicit_name: its code names it: such a name stands as it is written, others are ``catalog.schema.name``. ``None``:
        it does if it is not that of its table.
    :param dataset: which table it writes.
    :param sources: names of the sources it reads (several: a join or a union), or of datasets of the pipeline.
    :param kind: ``once`` is an append-once flow, which runs once after each reset.
    :param operators: its stateful operators.
    :param deduplicate_by: column that ``dropDuplicates`` compares.
    :param start_in_code: options of the reader that are in the code itself.
    :param language: of the source code. Parameters reach SQL only (vendor's page "Use parameters with pipelines"); configuration
        reaches both, by ``spark.conf.get`` and ``${key}``.
    :param reads_configuration: whether the code takes its options from what the pipeline hands it.
    :param error: what it fails with, each time, until a reset or a test takes it away.
    :param analysis_error: what ``validate_only`` already finds.
    :param schema_change: the next run meets a new column: it fails once, and runs after that.
    """

    name: str
    dataset: str
    sources: tuple[str, ...] = ()
    kind: FlowKind = "streaming"
    operators: tuple[str, ...] = ()
    deduplicate_by: str = "id"
    start_in_code: dict[str, str] = field(default_factory=dict)
    language: Language = "python"
    reads_configuration: bool = True
    error: FlowFailed | None = None
    analysis_error: FlowFailed | None = None
    schema_change: bool = False
    explicit_name: bool | None = None
    checkpoint: Checkpoint | None = None
    #: The newest batch as Spark's progress shows it, until it is noted.
    reported: dict[str, Any] | None = None
    #: Times the checkpoint was reset, by any kind of update.
    resets: int = 0

    @property
    def stands_as_written(self) -> bool:
        """Whether events show the name without catalog and schema."""
        return self.name != self.dataset if self.explicit_name is None else self.explicit_name

    def forget(self) -> None:
        """A new checkpoint; what was wrong with the old one is gone."""
        self.checkpoint = None
        self.error = None
        self.resets += 1

    def options(self, source: Source, settings: Settings) -> dict[str, str]:
        """The reader's options in the deployed code, as this update runs it.

        :param settings: of the update; of several names the most exact one wins: ``flow.source.option``, ``source.option``,
            ``flow.option``, ``option``.
        """
        found = dict(self.start_in_code)
        if not self.reads_configuration:
            return found
        known = settings.seen_by(self.language)
        for option in START_OPTIONS[source.kind]:
            for prefix in ("", f"{self.name}.", f"{source.name}.", f"{self.name}.{source.name}."):
                if prefix + option in known:
                    found[option] = known[prefix + option]
        return found

    def read(self, sources: list[Source], settings: Settings) -> list[dict[str, Any]]:
        """One run over what is there: the new rows, and the checkpoint moved on.

        :raises FlowFailed: nothing was read, the checkpoint stays.
        """
        self._look_for_trouble(sources)
        if self.kind == "materialized":
            return [values(source, row) for source in sources for row in source.kept()]
        if self.kind == "once" and self.checkpoint is not None:
            return []
        checkpoint = self.checkpoint or Checkpoint(
            {source.name: source.start(self.options(source, settings)) for source in sources}, self.operators
        )
        for source in sources:
            source.filter_again(checkpoint.next[source.name], self.options(source, settings))
        read = [(source, source.read(checkpoint.next[source.name])) for source in sources]
        before = {source.name: checkpoint.next[source.name].position for source in sources}
        for source, rows in read:
            checkpoint.next[source.name].move_past(rows)
        checkpoint.tables = {source.name: source.table_id for source in sources if source.kind == "delta"}
        self.checkpoint = checkpoint
        self._report(checkpoint, read, before)
        return self._deduplicated([values(source, row) for source, rows in read for row in rows], checkpoint)

    def _report(self, checkpoint: Checkpoint, read: list[tuple[Source, list[Row]]], before: Mapping[str, int]) -> None:
        """Spark's progress: of a batch, or of a trigger that found nothing, which has the number of the next one."""
        moved = any(rows for _, rows in read)
        checkpoint.batch += int(moved)
        self.reported = {
            "id": checkpoint.query_id,
            "batchId": checkpoint.batch if moved else checkpoint.batch + 1,
            "stateOperators": [{"operatorName": name} for name in checkpoint.operators],
            "sources": [
                {
                    "description": source.description,
                    "startOffset": source.offset(before[source.name]),
                    "endOffset": source.offset(checkpoint.next[source.name].position),
                    "numInputRows": len(rows),
                }
                for source, rows in read
            ],
        }

    def _deduplicated(self, rows: list[dict[str, Any]], checkpoint: Checkpoint) -> list[dict[str, Any]]:
        if DROP_DUPLICATES not in self.operators:
            return rows
        fresh = []
        for row in rows:
            if row.get(self.deduplicate_by) not in checkpoint.seen:
                checkpoint.seen.add(row.get(self.deduplicate_by))
                fresh.append(row)
        return fresh

    def _look_for_trouble(self, sources: list[Source]) -> None:
        if error := self.analysis_error or self.error:
            raise error
        if self.schema_change:
            self.schema_change = False
            raise FlowFailed(
                "UNKNOWN_FIELD_EXCEPTION.NEW_FIELDS_IN_RECORD",
                "Encountered unknown fields during parsing: [added], which can be fixed by an automatic retry: true.",
                "org.apache.spark.sql.catalyst.util.UnknownFieldException",
            )
        if self.checkpoint is None:
            return
        if self.checkpoint.operators != self.operators:
            raise FlowFailed(
                "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
                "Streaming stateful operator name does not match with the operator in state metadata. This likely to happen "
                "when user adds/removes/changes stateful operator of existing streaming query.\n"
                f"Stateful operators in the metadata: [{_named(self.checkpoint.operators)}]; "
                f"Stateful operators in current batch: [{_named(self.operators)}]. SQLSTATE: 42K03",
            )
        for source in sources:
            if source.kind == "delta" and self.checkpoint.tables.get(source.name, source.table_id) != source.table_id:
                raise FlowFailed(
                    "DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE",
                    f"The streaming query was reading from an unexpected Delta table (id = '{source.table_id}').\n"
                    f"It used to read from another Delta table (id = '{self.checkpoint.tables[source.name]}') according to "
                    "checkpoint. SQLSTATE: 55019",
                )
        if set(self.checkpoint.next) != {source.name for source in sources}:
            raise FlowFailed(
                "",
                f"There are [{len(self.checkpoint.next)}] sources in the checkpoint offsets and now there are "
                f"[{len(sources)}] sources requested by the query. Cannot continue.",
                "java.lang.AssertionError",
            )


def values(source: Source, row: Row) -> dict[str, Any]:
    """A row as a table has it."""
    return {"source": source.name, "position": row.position, "modified": row.timestamp, **row.values}


def _named(operators: tuple[str, ...]) -> str:
    return ", ".join(f"(OperatorId: {number} -> OperatorName: {name})" for number, name in enumerate(operators))
