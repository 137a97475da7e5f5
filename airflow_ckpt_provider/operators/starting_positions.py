"""Where a new checkpoint has to start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.backup.repository import LATEST
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.delta_rows import rows_before
from airflow_ckpt_provider.operators.fields import mapping, required, text, whole_number
from airflow_ckpt_provider.operators.place_operators import CheckpointOperator, StreamOperator
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.places import open_place
from airflow_ckpt_provider.recovery.positions.asking import Question, ask, partitions_of
from airflow_ckpt_provider.recovery.positions.logs import ReadableLogs, logs_of_backup, logs_of_checkpoint
from airflow_ckpt_provider.recovery.positions.positions import put_seeds

if TYPE_CHECKING:
    from airflow.sdk import Context


class StartingPositionsOperator(CheckpointOperator, StreamOperator):
    """Work out reader options with which a new checkpoint starts where an old one stands, for every source of the query.

    The old one may be whole, broken (whatever of its logs can still be read counts), or a backup. The result has, as one
    dictionary and key by key, ``options`` (source -> options for ``spark.readStream.….options(**…)``), ``conf``,
    ``verdict``, ``sources``, ``warnings`` and more; nothing of the old checkpoint is changed.

    Parameters of places: see :class:`~.place_operators.CheckpointOperator`, or :class:`~.place_operators.StreamOperator` for a
    backup; give one of ``checkpoint`` and ``repository``.

    .. seealso:: :doc:`/howto/starting-positions`

    :param backup_id: id of the backup, or ``"latest"``. (templated)
    :param batch: committed batch to start after; by default the newest. (templated)
    :param to_datetime: instead, after the newest batch planned at or before a time: ISO 8601 with a zone. (templated)
    :param by_duration: the same for a time so long ago, such as ``PT2H``. (templated)
    :param kafka_partitions: topic -> how many partitions it has now, so that added ones are read too. (templated)
    :param delta_tables: source -> URI of the Delta table that it reads, to count what is read again. (templated)
    :param delta_conn_id: Airflow connection to reach these tables. (templated)
    :param new_checkpoint: URI of the new checkpoint, an empty place: where file sources are among the sources, what they have
        read is written there, so that a new query knows it. ``None``: nothing is written. (templated)
    :param new_checkpoint_conn_id: Airflow connection to reach it. (templated)
    """

    template_fields: Sequence[str] = (
        *CheckpointOperator.template_fields,
        *StreamOperator.template_fields,
        "backup_id",
        "batch",
        "to_datetime",
        "by_duration",
        "kafka_partitions",
        "delta_tables",
        "delta_conn_id",
        "new_checkpoint",
        "new_checkpoint_conn_id",
    )
    ui_color = "#dae8fc"

    def __init__(
        self,
        *,
        checkpoint: str | None = None,
        repository: str | None = None,
        backup_id: str = LATEST,
        batch: int | str | None = None,
        to_datetime: str | None = None,
        by_duration: str | None = None,
        kafka_partitions: Mapping[str, int | str] | None = None,
        delta_tables: Mapping[str, str] | None = None,
        delta_conn_id: str | None = None,
        new_checkpoint: str | None = None,
        new_checkpoint_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(checkpoint=checkpoint, repository=repository, **kwargs)
        self.backup_id = backup_id
        self.batch = batch
        self.to_datetime = to_datetime
        self.by_duration = by_duration
        self.kafka_partitions = kafka_partitions
        self.delta_tables = delta_tables
        self.delta_conn_id = delta_conn_id
        self.new_checkpoint = new_checkpoint
        self.new_checkpoint_conn_id = new_checkpoint_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the positions."""
        with no_retry_when_refused():
            question = Question(whole_number(self.batch, "batch"), text(self.to_datetime), text(self.by_duration))
            tables = mapping(self.delta_tables, "delta_tables")
            conn_id = text(self.delta_conn_id)
            found = ask(
                self._logs(),
                question,
                kafka_partitions=partitions_of(mapping(self.kafka_partitions, "kafka_partitions")) or None,
                rows_before={s: rows_before(open_place(str(uri), conn_id)) for s, uri in tables.items()},
            )
            place = text(self.new_checkpoint)
            if place:
                found = put_seeds(found, open_place(place, text(self.new_checkpoint_conn_id)))
        for source in found.sources:
            self.log.info(
                "Source %s (%s): %s %s", source.source, source.kind, source.verdict.value, dict(source.options)
            )
            for reason in source.reasons:
                self.log.info("  %s", reason)
        for warning in found.warnings:
            self.log.warning("%s: %s", warning.code, warning.message)
        for unread in found.unread:
            self.log.warning("Could not be read: %s: %s", unread.path, unread.reason)
        return found.to_json()

    def _logs(self) -> ReadableLogs:
        if text(self.repository) is None:
            return logs_of_checkpoint(self._checkpoint_place())
        if text(self.checkpoint) is not None:
            raise RefusedError("checkpoint and repository exclude each other", hint="give one of them")
        repository = self._open_repository()
        return logs_of_backup(
            repository, repository.manifest(required(self.backup_id, "backup_id"), name=text(self.name))
        )
