"""Take a backup of a live checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import AssetAlias

from airflow_ckpt_provider.errors import RepositoryError, StorageError
from airflow_ckpt_provider.links.manifest import BackupManifestLink, manifest_url
from airflow_ckpt_provider.links.page import page_of
from airflow_ckpt_provider.operators.executors import ExecutorsOperator
from airflow_ckpt_provider.operators.fields import flag, mapping, required, text, texts, whole_number
from airflow_ckpt_provider.operators.place_operators import CheckpointOperator, StreamOperator
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.operators.run_identity import has_been_tried, made_by
from airflow_ckpt_provider.parallel import WORKERS
from airflow_ckpt_provider.units import format_size, parse_duration

if TYPE_CHECKING:
    from datetime import datetime

    from airflow.sdk import Context

    from airflow_ckpt_provider.backup.facts import ObserveSources
    from airflow_ckpt_provider.backup.manifest import Manifest
    from airflow_ckpt_provider.backup.repository import Repository
    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.guards.kafka_client import KafkaClient
    from airflow_ckpt_provider.storage.location import Location

#: What a downstream DAG learns from the asset event.
_EVENT_KEYS = ("backup_id", "name", "batch_id", "checkpoint", "repository", "uri", "files", "bytes", "made_by")


class CheckpointBackupOperator(ExecutorsOperator, CheckpointOperator, StreamOperator):
    """Take a consistent backup of a checkpoint, while its stream runs.

    Nothing is written into the checkpoint and the stream is not stopped. What the repository holds already is not copied again.

    A retry after the manifest was written returns that backup and takes no second one; so does a cleared task.
    The result is the summary of the manifest, as a dictionary and key by key (``backup.output["backup_id"]``).
    After each backup an event of the asset :func:`~airflow_ckpt_provider.assets.backup_asset` is sent, through the
    alias :data:`~airflow_ckpt_provider.assets.BACKUPS`; give ``outlets`` to have your own assets announced instead.

    Parameters of places: see :class:`~.place_operators.CheckpointOperator` and :class:`~.place_operators.StreamOperator`; of
    Spark, whose executors can copy: :class:`~.executors.ExecutorsOperator`.

    .. code-block:: python

        CheckpointBackupOperator(
            task_id="backup",
            checkpoint="s3://lake/checkpoints/orders",
            repository="s3://backups/streams",
            checkpoint_conn_id="aws_lake",
            repository_conn_id="aws_backups",
            skip_if_unchanged=True,
        )

    .. seealso:: :doc:`/howto/backup`, :doc:`/howto/stream-names`, :doc:`/howto/huge-checkpoints`

    :param tags: words kept in the manifest, for people and for retention. (templated)
    :param reason: why this backup was taken, kept in the manifest. (templated)
    :param restorable_batches: how many of the newest batches can be restored from this backup. (templated)
    :param kafka_config_id: Airflow connection of type ``kafka``, where the stream reads from Kafka: the identity of its
        topics is then recorded, by which a guard notices a topic that was recreated. (templated)
    :param current: a backup that an attempt before took counts only while its batch is still the newest committed one. For a
        task that is cleared after the stream has continued. (templated)
    :param skip_if_unchanged: take no backup where nothing was committed since the newest one: the result is that one, with
        ``unchanged`` true, and no asset of ours is announced. For schedules that are tighter than the stream. (templated)
    :param immutable_for: lock the backup by S3 Object Lock: nobody can delete it for so long, a ``timedelta`` or text such as
        ``"30d"``; ``None``: it is not locked. Also the one that is returned because an attempt before took it, or nothing was
        committed since. (templated)
    :param new_life: the checkpoint continues the stream of this name under another query id, at another place or with fewer
        stateful operators, as after it was deleted or moved; refused otherwise. Changes by this package need no word. (templated)
    :param create: make the repository if its place is empty. Without it, a place that holds no repository is refused: it may be
        mistyped, or not mounted. (templated)
    :param workers: files copied at the same time. (templated)
    """

    template_fields: Sequence[str] = (
        *CheckpointOperator.template_fields,
        *StreamOperator.template_fields,
        "tags",
        "reason",
        "restorable_batches",
        "kafka_config_id",
        "current",
        "skip_if_unchanged",
        "immutable_for",
        "new_life",
        "create",
        "workers",
        *ExecutorsOperator.template_fields,
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"tags": "json"}
    operator_extra_links = (BackupManifestLink(),)
    ui_color = "#d5e8d4"

    def __init__(
        self,
        *,
        tags: dict[str, str] | None = None,
        reason: str | None = None,
        restorable_batches: int | str = 1,
        kafka_config_id: str | None = None,
        current: bool | str = False,
        skip_if_unchanged: bool | str = False,
        immutable_for: timedelta | str | None = None,
        new_life: bool | str = False,
        create: bool | str = False,
        workers: int | str = WORKERS,
        **kwargs: Any,
    ) -> None:
        from airflow_ckpt_provider.assets import BACKUPS

        kwargs["outlets"] = kwargs.get("outlets") or [BACKUPS]
        super().__init__(**kwargs)
        self.tags = tags
        self.reason = reason
        self.restorable_batches = restorable_batches
        self.kafka_config_id = kafka_config_id
        self.current = current
        self.skip_if_unchanged = skip_if_unchanged
        self.immutable_for = immutable_for
        self.new_life = new_life
        self.create = create
        self.workers = workers

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the summary of the backup that this task took, now or in an attempt before."""
        from airflow_ckpt_provider.backup.create import make_for_backup
        from airflow_ckpt_provider.backup.repository import Repository

        with no_retry_when_refused():
            checkpoint, place = self._checkpoint(), self._repository_place()
            summary = self._taken_before(place, checkpoint, context)
            if summary is None:
                if flag(self.create, "create"):
                    repository = make_for_backup(place, checkpoint, name=text(self.name))
                else:
                    repository = Repository.open(place)
                summary = self._take(checkpoint, repository, context)
        self._announce(summary, place, context)
        return summary

    def _taken_before(self, place: Location, checkpoint: Checkpoint, context: Context) -> dict[str, Any] | None:
        """Find what an attempt before this one has finished: its manifest was written, then its worker was lost."""
        from airflow_ckpt_provider.backup.repository import Repository
        from airflow_ckpt_provider.backup.stream_names import stream_name

        if not has_been_tried(context):
            return None
        try:
            repository = Repository.open(place)
        except RepositoryError:
            return None  # nothing was written there; what is wrong with the place, if anything, is said later
        name = stream_name(repository, checkpoint.location, text(self.name))
        manifest = repository.made_by(name, made_by(context))
        if manifest is None:
            return None
        if flag(self.current, "current", empty=True) and checkpoint.progress().latest_committed != manifest.batch_id:
            self.log.info(
                "Backup %s is of batch %d, and the stream has continued", manifest.backup_id, manifest.batch_id
            )
            return None
        self.log.info(
            "An attempt before this one finished backup %s of batch %d: it is returned, and no second one is taken. "
            "For a new backup start a new run.",
            manifest.backup_id,
            manifest.batch_id,
        )
        return self._locked_again(manifest, repository, made_by(context), already_done=True)

    def _workers(self) -> int:
        return whole_number(self.workers, "workers", least=1) or WORKERS

    def _locked_again(self, manifest: Manifest, repository: Repository, made_by: str, **why: bool) -> dict[str, Any]:
        """The summary of a backup that was there already, locked for as long as a new one would be."""
        from airflow_ckpt_provider.backup.immutability import Immutability

        immutability = Immutability(repository, self._immutable_for(), self._workers())
        immutability.check()
        until = immutability.lock_again(manifest, made_by=made_by)
        return self._old(manifest, repository, until, **why)

    def _old(self, manifest: Manifest, repository: Repository, until: datetime | None, **why: bool) -> dict[str, Any]:
        return self._summary(
            manifest, repository, copied_files=0, copied_bytes=0, seconds=0.0, immutable_until=until, way=None, **why
        )

    def _immutable_for(self) -> timedelta | None:
        if isinstance(self.immutable_for, timedelta):
            return self.immutable_for
        given = text(self.immutable_for)
        return parse_duration(given, field="immutable_for") if given else None

    def _restorable_batches(self) -> int:
        return whole_number(self.restorable_batches, "restorable_batches", least=1) or 1

    def _take(self, checkpoint: Checkpoint, repository: Repository, context: Context) -> dict[str, Any]:
        from airflow_ckpt_provider.backup.create import create_backup
        from airflow_ckpt_provider.backup.engine import Threads, TooMuchForThreadsError, UpTo
        from airflow_ckpt_provider.operators.progress_log import ProgressLog

        name = text(self.name)
        self.log.info(
            "Backing up %s into %s%s", checkpoint.location, repository.location, f", as {name}" if name else ""
        )
        about: dict[str, Any] = {
            "name": name,
            "tags": {key: str(value) for key, value in mapping(self.tags, "tags").items()},
            "reason": text(self.reason) or "",
            "made_by": made_by(context),
            "restorable_batches": self._restorable_batches(),
            "immutable_for": self._immutable_for(),
            "new_life": flag(self.new_life, "new_life"),
        }
        skips = flag(self.skip_if_unchanged, "skip_if_unchanged")
        chosen = self._engine()
        if chosen == "spark":
            return self._take_on_spark(checkpoint, repository, about, skips=skips)
        threads = Threads(self._workers())
        try:
            result = create_backup(
                checkpoint,
                repository,
                **about,
                on_progress=ProgressLog(self.log, "Stored"),
                observe=self._observe(),
                engine=UpTo(threads, **self._limits()) if chosen == "auto" else threads,
                skip_if_unchanged=skips,
            )
        except TooMuchForThreadsError as e:
            self.log.info("%d files, %s, are to be copied: Spark takes this backup", e.files, format_size(e.size))
            return self._take_on_spark(checkpoint, repository, about, skips=False)
        if result.unchanged:
            self._say_unchanged(result.manifest)
            return self._old(result.manifest, repository, result.immutable_until, unchanged=True)
        self.log.info(
            "Backup %s of %s holds batch %d: %d files, %s. Of these, %d files, %s, were copied now, in %.1f s.",
            result.backup_id,
            result.name,
            result.batch_id,
            result.files,
            format_size(result.bytes),
            result.copied_files,
            format_size(result.copied_bytes),
            result.seconds,
        )
        return self._summary(
            result.manifest,
            repository,
            copied_files=result.copied_files,
            copied_bytes=result.copied_bytes,
            seconds=result.seconds,
            immutable_until=result.immutable_until,
            way=result.way,
        )

    def _say_unchanged(self, manifest: Manifest) -> None:
        self.log.info(
            "Nothing was committed since backup %s of batch %d: no new one is taken",
            manifest.backup_id,
            manifest.batch_id,
        )

    def _take_on_spark(
        self, checkpoint: Checkpoint, repository: Repository, about: dict[str, Any], *, skips: bool
    ) -> dict[str, Any]:
        from airflow_ckpt_provider.backup.immutability import Immutability
        from airflow_ckpt_provider.backup.stream_names import stream_name
        from airflow_ckpt_provider.backup.unchanged import unchanged_backup
        from airflow_ckpt_provider.operators.spark_backup import arguments_for, backup_by_connection

        query_id = None if about["name"] else checkpoint.progress().query_id
        about["name"] = name = stream_name(repository, checkpoint.location, about["name"], query_id=query_id)
        same = skips and unchanged_backup(
            checkpoint,
            repository,
            name,
            restorable_batches=about["restorable_batches"],
            with_sources=text(self.kafka_config_id) is not None,
        )
        if same:
            self._say_unchanged(same)
            return self._locked_again(same, repository, about["made_by"], unchanged=True)
        if text(self.kafka_config_id) is not None:
            self.log.warning("The identity of the Kafka topics is not recorded in a backup that Spark takes.")
        arguments = arguments_for(required(self.checkpoint, "checkpoint"), repository, **about)
        arguments += texts(self.spark_arguments, "spark_arguments")
        before = set(repository.backup_ids(name))
        conn_id = required(self.spark_conn_id, "spark_conn_id")
        settings = mapping(self.spark_settings, "spark_settings")
        backup_by_connection(conn_id, arguments, under_way=self._submitted, **settings)
        taken = [backup_id for backup_id in repository.backup_ids(name) if backup_id not in before]
        manifests = [repository.read_manifest(name, backup_id) for backup_id in reversed(taken)]
        manifest = next((m for m in manifests if m.made_by == about["made_by"]), None)
        if manifest is None:
            raise StorageError(
                f"Spark ended well, and {repository.location} has no new backup of {name}",
                hint="see that the cluster means the same place by this address",
            )
        until = Immutability(repository, about["immutable_for"], self._workers()).lock_manifest(manifest)
        return self._summary(
            manifest, repository, copied_files=None, copied_bytes=None, seconds=None, immutable_until=until
        )

    def _observe(self) -> ObserveSources | None:
        if self._kafka is None:
            return None
        from airflow_ckpt_provider.guards.kafka import observe_kafka

        return observe_kafka(self._kafka)

    @cached_property
    def _kafka(self) -> KafkaClient | None:
        from airflow_ckpt_provider.operators.kafka_connection import open_kafka

        kafka_config_id = text(self.kafka_config_id)
        return open_kafka(kafka_config_id) if kafka_config_id else None

    def _summary(
        self,
        manifest: Manifest,
        repository: Repository,
        *,
        copied_files: int | None,
        copied_bytes: int | None,
        seconds: float | None,
        already_done: bool = False,
        unchanged: bool = False,
        immutable_until: datetime | None = None,
        way: str | None = None,
    ) -> dict[str, Any]:
        from airflow_ckpt_provider.lineage.runs import of_backup

        summary = {
            **manifest.summary(),
            "repository": repository.location.uri,
            "manifest": manifest.path,
            "uri": (repository.location / manifest.path).uri,
            "copied_files": copied_files,
            "copied_bytes": copied_bytes,
            "seconds": seconds,
            "already_done": already_done,
            "unchanged": unchanged,
            "immutable_until": immutable_until.isoformat() if immutable_until else None,
            "copied_by_store": way,
        }
        observed: KafkaClient | None = self.__dict__.get("_kafka")  # not opened only for this
        self.note(of_backup, summary, self.places, manifest.facts, servers=observed.servers if observed else "")
        return summary

    def _announce(self, summary: dict[str, Any], place: Location, context: Context) -> None:
        """Send the asset events and leave the URL of the manifest for the link."""
        from airflow_ckpt_provider.assets import announce, backup_asset

        if "outlet_events" not in context:
            return  # not run by Airflow
        page = page_of(place.uri, "backup", name=summary["name"], id=summary["backup_id"])
        if url := page or manifest_url(place, summary["manifest"]):
            context["ti"].xcom_push(key=BackupManifestLink.XCOM_KEY, value=url)
        extra = {key: summary[key] for key in _EVENT_KEYS}
        asset = backup_asset(summary["repository"], summary["name"])
        unchanged: bool = summary["unchanged"]
        announce([o for o in self.outlets if not (unchanged and isinstance(o, AssetAlias))], context, asset, extra)
        if not unchanged:
            self.log.info("Downstream DAGs are notified through %s", asset.uri)
