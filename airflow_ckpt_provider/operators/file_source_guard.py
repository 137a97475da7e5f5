"""Before a stream is started: see that the files it will read next are still there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_ckpt_provider.guards.files import KIND, FileGuard
from airflow_ckpt_provider.guards.query import from_checkpoint, guard_query
from airflow_ckpt_provider.guards.registry import GuardSettings
from airflow_ckpt_provider.operators.fields import by_source, one_of, text
from airflow_ckpt_provider.operators.guard_result import REACTIONS, conclude, skip_if_absent
from airflow_ckpt_provider.operators.place_operators import CheckpointOperator
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.places import open_place

if TYPE_CHECKING:
    from airflow.sdk import Context


class FileSourceGuardOperator(CheckpointOperator):
    """See that the files which the next batch of a query will read by name are still there, and as they were listed.

    Spark leaves out a file that is gone, silently. What ``cleanSource`` moved into an archive is found there, and a log
    of files that is incomplete is reported. The result is the report, as a dictionary and key by key. It is pushed
    before the task fails, too.

    Parameters of the checkpoint: see :class:`~.place_operators.CheckpointOperator`.

    .. code-block:: python

        FileSourceGuardOperator(
            task_id="guard",
            checkpoint="s3://lake/checkpoints/orders",
            input_conn_id="aws_landing",
        )

    .. seealso:: :doc:`/howto/delta-and-file-guards`

    :param input_conn_id: Airflow connection to reach the input directories, which the checkpoint names. (templated)
    :param reader_options: options of the query's reader that matter here (``cleanSource``, ``sourceArchiveDir``), or
        source -> options. (templated)
    :param source: position (``"0"``) or name of one source; ``None``: all file sources of the query. (templated)
    :param on_finding: ``"fail"`` the task on a verdict other than ``SAFE``, or ``"warn"``. (templated)
    :param if_absent: ``"fail"`` where the query has no file source, or ``"skip"`` the task: for one guard over streams of
        several kinds. A source of unknown kind is no reason to skip. (templated)
    """

    template_fields: Sequence[str] = (
        *CheckpointOperator.template_fields,
        "input_conn_id",
        "reader_options",
        "source",
        "on_finding",
        "if_absent",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"reader_options": "json"}
    stream_aliases: ClassVar[Mapping[str, str]] = {"reader_options": "file_reader_options"}
    ui_color = "#fff2cc"

    def __init__(
        self,
        *,
        input_conn_id: str | None = None,
        reader_options: Mapping[str, Any] | None = None,
        source: str | int | None = None,
        on_finding: str = "fail",
        if_absent: str = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.input_conn_id = input_conn_id
        self.reader_options = reader_options
        self.source = source
        self.on_finding = on_finding
        self.if_absent = if_absent

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the report; a verdict other than ``SAFE`` fails the task, unless it is only to be reported."""
        with no_retry_when_refused(), skip_if_absent(self.if_absent):
            reaction = one_of(self.on_finding, "on_finding", REACTIONS)
            query = from_checkpoint(self._checkpoint_place()).of_kind(KIND, text(self.source))
            options = by_source(self.reader_options, "reader_options", [source.name for source in query.sources])
            conn_id = text(self.input_conn_id)
            settings = GuardSettings(options={KIND: {"open": lambda uri: open_place(uri, conn_id), "options": options}})
            query.refuse_other_sources(settings.options)
            return conclude(guard_query(query, settings, guards=[FileGuard(settings)]), reaction, context, self)
