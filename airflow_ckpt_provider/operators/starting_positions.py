"""Where a new checkpoint has to start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.backup.latest import LATEST
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.mirror_syncs import MirrorNames
from airflow_ckpt_provider.operators.fields import mapping, required, text, whole_number
from airflow_ckpt_provider.operators.kafka_connection import open_kafka
from airflow_ckpt_provider.operators.place_operators import CheckpointOperator, StreamOperator
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.places import open_place
from airflow_ckpt_provider.recovery.positions.asking import Question, ask, partitions_of
from airflow_ckpt_provider.recovery.positions.logs import ReadableLogs, logs_of_backup, logs_of_checkpoint
from airflow_ckpt_provider.recovery.positions.mirror import MIRROR_TIMEOUT, Mirror
from airflow_ckpt_provider.recovery.positions.positions import put_seeds
from airflow_ckpt_provider.units import parse_seconds

if TYPE_CHECKING:
    from airflow.sdk import Context


class StartingPositionsOperator(CheckpointOperator, StreamOperator):
    """Work out reader options with which a new checkpoint starts at the position of an old one, for every source of the query.

    The old one may be whole, broken (whatever of its logs can still be read counts), or a backup. The result has, as one
    dictionary and key by key, ``options`` (source -> options for ``spark.readStream.….options(**…)``), ``conf``,
    ``verdict``, ``sources``, ``warnings`` and more; nothing of the old checkpoint is changed.

    Parameters of places: see :class:`~.place_operators.CheckpointOperator`, or :class:`~.place_operators.StreamOperator` for a
    backup; give one of ``checkpoint`` and ``repository``.

    .. code-block:: python

        StartingPositionsOperator(
            task_id="positions",
            checkpoint="s3://lake/checkpoints/orders",
            kafka_partitions={"orders": 12},
        )

    .. seealso:: :doc:`/howto/starting-positions`, :doc:`/howto/move-kafka`

    :param backup_id: id of the backup, or ``"latest"``. (templated)
    :param batch: committed batch to start after; by default the newest. (templated)
    :param to_datetime: instead, after the newest batch planned at or before a time: ISO 8601 with a zone. (templated)
    :param by_duration: the same for a time that long ago, such as ``PT2H``. (templated)
    :param kafka_partitions: topic -> how many partitions it has now, so that added ones are read too. (templated)
    :param delta_tables: source -> URI of the Delta table that it reads, to learn whether it still has the position, and to count
        what is read again. A table that is not named leaves its position ``UNKNOWN``. (templated)
    :param delta_conn_id: Airflow connection to reach these tables. (templated)
    :param mirrored_from: the Kafka topics moved to another cluster: the alias of the old one in MirrorMaker 2. ``None``: they
        did not. (templated)
    :param kafka_config_id: Airflow connection of type ``kafka`` to the new cluster, needed with ``mirrored_from``. (templated)
    :param old_kafka_config_id: the same to the old cluster, which has the offset syncs by default. (templated)
    :param mirrored_to: alias of the new cluster in MirrorMaker 2; without it, syncs on the old one prove nothing. (templated)
    :param offset_syncs_location: ``offset-syncs.topic.location`` of MirrorMaker 2: ``"source"`` (the old cluster) or
        ``"target"``. (templated)
    :param replication_policy: how MirrorMaker 2 names the copies: ``"default"`` (the alias in front) or ``"identity"`` (the same
        name). (templated)
    :param replication_separator: ``replication.policy.separator`` of MirrorMaker 2. (templated)
    :param timestamp_margin: how much earlier than the last record read a partition starts where no sync shows, such as
        ``"10min"``. (templated)
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
        "mirrored_from",
        "kafka_config_id",
        "old_kafka_config_id",
        "mirrored_to",
        "offset_syncs_location",
        "replication_policy",
        "replication_separator",
        "timestamp_margin",
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
        mirrored_from: str | None = None,
        kafka_config_id: str | None = None,
        old_kafka_config_id: str | None = None,
        mirrored_to: str | None = None,
        offset_syncs_location: str = "source",
        replication_policy: str = "default",
        replication_separator: str = ".",
        timestamp_margin: str = "10min",
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
        self.mirrored_from = mirrored_from
        self.kafka_config_id = kafka_config_id
        self.old_kafka_config_id = old_kafka_config_id
        self.mirrored_to = mirrored_to
        self.offset_syncs_location = offset_syncs_location
        self.replication_policy = replication_policy
        self.replication_separator = replication_separator
        self.timestamp_margin = timestamp_margin

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
                tables={s: open_place(str(uri), conn_id) for s, uri in tables.items()},
                mirror=self._mirror(),
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

    def _mirror(self) -> Mirror | None:
        source, new, old = text(self.mirrored_from), text(self.kafka_config_id), text(self.old_kafka_config_id)
        if source is None:
            if new or old or text(self.mirrored_to):
                raise RefusedError(
                    "kafka_config_id, old_kafka_config_id and mirrored_to need mirrored_from",
                    hint="give the alias of the old cluster in MirrorMaker 2 too, or leave them out",
                )
            return None
        names = MirrorNames(
            source,
            text(self.mirrored_to),
            required(self.replication_policy, "replication_policy"),
            required(self.replication_separator, "replication_separator"),
        )
        return Mirror(
            names,
            new=open_kafka(required(new, "kafka_config_id"), timeout=MIRROR_TIMEOUT),
            old=open_kafka(old, timeout=MIRROR_TIMEOUT) if old else None,
            location=required(self.offset_syncs_location, "offset_syncs_location"),
            margin=parse_seconds(required(self.timestamp_margin, "timestamp_margin"), field="timestamp_margin"),
        )

    def _logs(self) -> ReadableLogs:
        if self._repository_uri() is None:
            return logs_of_checkpoint(self._checkpoint_place())
        if text(self.checkpoint) is not None:
            raise RefusedError("checkpoint and repository exclude each other", hint="give one of them")
        repository = self._open_repository()
        return logs_of_backup(
            repository, repository.manifest(required(self.backup_id, "backup_id"), name=text(self.name))
        )
