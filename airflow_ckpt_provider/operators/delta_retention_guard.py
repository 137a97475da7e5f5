"""See that a Delta table still has what a stream will read: before it is started, and before it is stopped for long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_ckpt_provider.guards.delta import KIND, DeltaGuard
from airflow_ckpt_provider.guards.query import guard_query
from airflow_ckpt_provider.operators.declared import UNSET
from airflow_ckpt_provider.operators.fields import by_source, mapping_or_text, required, text
from airflow_ckpt_provider.operators.guard_operator import GuardOperator
from airflow_ckpt_provider.operators.guard_result import conclude, skip_if_absent
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.places import open_place

if TYPE_CHECKING:
    from airflow.sdk import Context


class DeltaRetentionGuardOperator(GuardOperator):
    """See that the Delta tables that a query reads still have its resume point, and that nothing in them will stop it.

    Reads only, and needs no Spark: the table's id, its log and data files from the resume point on, commits that a stream
    does not take (deletes, updates, overwrites, restores, changes of the schema), and how long log clean-up and VACUUM leave.

    Parameters of the query: see :class:`~.guard_operator.GuardOperator`.

    .. code-block:: python

        DeltaRetentionGuardOperator(
            task_id="guard",
            checkpoint="s3://lake/checkpoints/orders",
            tables="s3://lake/tables/raw_orders",
            max_downtime="24h",
        )

    .. seealso:: :doc:`/howto/delta-and-file-guards`

    :param tables: URI of the table, or source -> URI where the query reads several: a checkpoint does not hold it. (templated)
    :param tables_conn_id: Airflow connection to reach the tables; ``None``: the environment's own credentials. (templated)
    :param reader_options: options of the query's reader that matter here (``skipChangeCommits``, ``ignoreDeletes``,
        ``ignoreChanges``), or source -> options. (templated)
    :param described: what ``jobs/describe_delta.py`` wrote of a table that delta-rs cannot read, as a URI; or source -> URI.
        (templated)
    :param source: position (``"0"``) or name of one source; ``None``: all Delta sources of the query. (templated)
    :param if_absent: ``"fail"`` where the query has no Delta source, or ``"skip"`` the task: for one guard over streams of
        several kinds. A source of unknown kind is no reason to skip. (templated)
    """

    template_fields: Sequence[str] = (
        *GuardOperator.template_fields,
        "tables",
        "tables_conn_id",
        "reader_options",
        "described",
        "source",
        "if_absent",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"tables": "json", "reader_options": "json"}
    stream_aliases: ClassVar[Mapping[str, str]] = {"reader_options": "delta_reader_options"}

    def __init__(
        self,
        *,
        tables: str | Mapping[str, str] | None = UNSET,
        tables_conn_id: str | None = None,
        reader_options: Mapping[str, Any] | None = None,
        described: str | Mapping[str, str] | None = None,
        source: str | int | None = None,
        if_absent: str = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.tables: str | Mapping[str, str] | None = self.needed(tables, "tables")
        self.tables_conn_id = tables_conn_id
        self.reader_options = reader_options
        self.described = described
        self.source = source
        self.if_absent = if_absent

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the report; a verdict other than ``SAFE`` fails the task, unless it is only to be reported."""
        with no_retry_when_refused(), skip_if_absent(self.if_absent):
            reaction = self._reaction()
            query = self._query().of_kind(KIND, text(self.source))
            settings = self._settings({KIND: self._tables([source.name for source in query.sources])})
            query.refuse_other_sources(settings.options)
            return conclude(guard_query(query, settings, guards=[DeltaGuard(settings)]), reaction, context, self)

    def _tables(self, sources: list[str]) -> dict[str, Any]:
        conn_id = text(self.tables_conn_id)
        given = mapping_or_text(self.tables, "tables")
        if not isinstance(given, Mapping):
            given = dict.fromkeys(sources, required(given, "tables"))
        described = mapping_or_text(self.described, "described") or {}
        if not isinstance(described, Mapping):
            described = dict.fromkeys(sources, described)
        return {
            "tables": {
                str(source): open_place(required(uri, f"tables[{source!r}]"), conn_id) for source, uri in given.items()
            },
            "options": by_source(self.reader_options, "reader_options", sources),
            "described": {str(source): str(uri) for source, uri in described.items()},
        }
