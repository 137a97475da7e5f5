"""See that a Delta table still has what a stream will read: before it is started, and before it is stopped for long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.guards.delta import KIND, DeltaGuard
from airflow_ckpt_provider.guards.durations import seconds_of
from airflow_ckpt_provider.guards.query import guard_query
from airflow_ckpt_provider.guards.registry import GuardSettings
from airflow_ckpt_provider.operators.fields import flag, mapping, one_of, required, text
from airflow_ckpt_provider.operators.guard_result import REACTIONS, conclude
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.places import open_place
from airflow_ckpt_provider.upgrade.preflight import query_to_guard

if TYPE_CHECKING:
    from airflow.sdk import Context


class DeltaRetentionGuardOperator(BaseOperator):
    """See that the Delta tables that a query reads still have its resume point, and that nothing in them will stop it.

    Reads only, and needs no Spark: the table's id, its log and data files from the resume point on, commits that a stream
    does not take (deletes, updates, overwrites, restores, changes of the schema), and how long log clean-up and VACUUM leave.
    The result is the report, as a dictionary and key by key. It is pushed before the task fails, too.

    .. seealso:: :doc:`/howto/delta-and-file-guards`

    :param checkpoint: URI of the checkpoint; leave it out to ask about a backup. (templated)
    :param checkpoint_conn_id: Airflow connection to reach it; ``None``: the environment's own credentials. (templated)
    :param tables: URI of the table, or source -> URI where the query reads several: a checkpoint does not hold it. (templated)
    :param tables_conn_id: Airflow connection to reach the tables; ``None`` likewise. (templated)
    :param reader_options: options of the query's reader that matter here (``skipChangeCommits``, ``ignoreDeletes``,
        ``ignoreChanges``), or source -> options. (templated)
    :param described: what ``jobs/describe_delta.py`` wrote of a table that delta-rs cannot read, as a URI; or source -> URI.
        (templated)
    :param source: position (``"0"``) or name of one source; ``None``: all Delta sources of the query. (templated)
    :param repository: URI of a repository, to ask about a backup. (templated)
    :param repository_conn_id: Airflow connection to reach the repository; ``None`` likewise. (templated)
    :param name: name of the stream there; ``None``: the last segment of the checkpoint. (templated)
    :param backup_id: which backup; ``None``: the newest. (templated)
    :param max_downtime: how long the stream will stand still from now on, such as ``"24h"``. (templated)
    :param buffer: time to have in hand after that. (templated)
    :param fail_on_data_loss: the query's ``failOnDataLoss``, which no checkpoint records. (templated)
    :param on_finding: ``"fail"`` the task on a verdict other than ``SAFE``, or ``"warn"``. (templated)
    """

    template_fields: Sequence[str] = (
        "checkpoint",
        "checkpoint_conn_id",
        "tables",
        "tables_conn_id",
        "reader_options",
        "described",
        "source",
        "repository",
        "repository_conn_id",
        "name",
        "backup_id",
        "max_downtime",
        "buffer",
        "fail_on_data_loss",
        "on_finding",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"tables": "json", "reader_options": "json"}
    ui_color = "#fff2cc"

    def __init__(
        self,
        *,
        tables: str | Mapping[str, str],
        checkpoint: str | None = None,
        checkpoint_conn_id: str | None = None,
        tables_conn_id: str | None = None,
        reader_options: Mapping[str, Any] | None = None,
        described: str | Mapping[str, str] | None = None,
        source: str | int | None = None,
        repository: str | None = None,
        repository_conn_id: str | None = None,
        name: str | None = None,
        backup_id: str | None = None,
        max_downtime: str | None = None,
        buffer: str = "1h",
        fail_on_data_loss: bool | str = True,
        on_finding: str = "fail",
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("multiple_outputs", True)
        super().__init__(**kwargs)
        self.tables = tables
        self.checkpoint = checkpoint
        self.checkpoint_conn_id = checkpoint_conn_id
        self.tables_conn_id = tables_conn_id
        self.reader_options = reader_options
        self.described = described
        self.source = source
        self.repository = repository
        self.repository_conn_id = repository_conn_id
        self.name = name
        self.backup_id = backup_id
        self.max_downtime = max_downtime
        self.buffer = buffer
        self.fail_on_data_loss = fail_on_data_loss
        self.on_finding = on_finding

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the report; a verdict other than ``SAFE`` fails the task, unless it is only to be told."""
        with no_retry_when_refused():
            reaction = one_of(self.on_finding, "on_finding", REACTIONS)
            place, uri = text(self.checkpoint), text(self.repository)
            query = query_to_guard(
                checkpoint=open_place(place, text(self.checkpoint_conn_id)) if place else None,
                repository=Repository.open(open_place(uri, text(self.repository_conn_id))) if uri else None,
                name=text(self.name),
                backup_id=text(self.backup_id),
            ).of_kind(KIND, text(self.source))
            settings = self._settings([source.name for source in query.sources])
            return conclude(guard_query(query, settings, guards=[DeltaGuard(settings)]), reaction, context, self.log)

    def _settings(self, sources: list[str]) -> GuardSettings:
        conn_id, downtime = text(self.tables_conn_id), text(self.max_downtime)
        given = (
            self.tables if isinstance(self.tables, Mapping) else dict.fromkeys(sources, required(self.tables, "tables"))
        )
        options = mapping(self.reader_options, "reader_options")
        if not all(isinstance(value, Mapping) for value in options.values()):
            options = dict.fromkeys(sources, options)
        described = self.described or {}
        if not isinstance(described, Mapping):
            described = dict.fromkeys(sources, described)
        return GuardSettings(
            fail_on_data_loss=flag(self.fail_on_data_loss, "fail_on_data_loss"),
            max_downtime=seconds_of(downtime, field="max_downtime") if downtime else None,
            buffer=seconds_of(text(self.buffer) or "0", field="buffer") if downtime else 0.0,
            options={
                KIND: {
                    "tables": {str(source): open_place(str(uri), conn_id) for source, uri in given.items()},
                    "options": options,
                    "described": {str(source): str(uri) for source, uri in described.items()},
                }
            },
        )
