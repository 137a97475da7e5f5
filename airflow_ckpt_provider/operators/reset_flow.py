"""Flows of Spark Declarative Pipelines: reset one without its table, or roll one back by a backup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from airflow_ckpt_provider.backup.latest import LATEST
from airflow_ckpt_provider.operators.change_operator import APPLY, ChangeOperator
from airflow_ckpt_provider.operators.fields import flag, one_of, required, text, whole_number
from airflow_ckpt_provider.operators.place_operators import StreamOperator
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.operators.renamed import deprecated_class
from airflow_ckpt_provider.operators.sink_operator import SinkOperator
from airflow_ckpt_provider.places import open_place
from airflow_ckpt_provider.recovery.flows.flow import Flow, flow_named, flows_of
from airflow_ckpt_provider.recovery.flows.reset import apply_flow_reset, plan_flow_reset
from airflow_ckpt_provider.recovery.flows.restore import apply_flow_restore, plan_flow_restore

if TYPE_CHECKING:
    from airflow.sdk import Context

FROM_SCRATCH = "from-scratch"
KEEP_POSITION = "keep-position"
RESTORE = "restore"
_WAYS = (FROM_SCRATCH, KEEP_POSITION, RESTORE)


class FlowNextVersionOperator(ChangeOperator, StreamOperator, SinkOperator):
    """Start the next version of a flow's checkpoint, so that the next run of its pipeline begins there; the table is not touched.

    Plans only, unless ``mode="apply"``. The result has ``path`` too, the checkpoint that is live then. The version that was live
    stays as it is. A retry finds the version that an attempt before has made.

    Parameters of repository, sink and change: see :class:`~.place_operators.StreamOperator` (the repository holds the backup, or
    keeps the audit record of a reset; ``None``: ``<storage>.rewinds``), :class:`~.sink_operator.SinkOperator` and
    :class:`~.change_operator.ChangeOperator`.

    .. code-block:: python

        FlowNextVersionOperator(
            task_id="next_version",
            storage="s3://lake/pipelines/sales",
            flow="ingest",
            way="keep-position",
            query_is_stopped=True,
        )

    .. seealso:: :doc:`/howto/flows`

    :param storage: ``storage`` of the pipeline's specification. (templated)
    :param flow: name of the flow, or as much of ``catalog.database.table.flow`` as it needs to be the only one. (templated)
    :param way: ``"from-scratch"``: the flow reads where its sources' own options say; ``"keep-position"``: it reads on where
        it stands; ``"restore"``: a backup is restored into the next version. (templated)
    :param storage_conn_id: Airflow connection to reach the storage; ``None``: the environment's own credentials. (templated)
    :param backup_id: the backup to restore; ``"latest"`` by default. (templated)
    :param batch: batch of the backup to rewind to; ``None``: its newest. (templated)
    :param continue_numbers: the new checkpoint continues with the old batch numbers, which tables of Parquet and other file
        formats want; for flows without state. (templated)
    """

    template_fields: Sequence[str] = (
        *StreamOperator.template_fields,
        *SinkOperator.template_fields,
        *ChangeOperator.template_fields,
        "storage",
        "flow",
        "way",
        "storage_conn_id",
        "backup_id",
        "batch",
        "continue_numbers",
    )

    def __init__(
        self,
        *,
        storage: str,
        flow: str,
        way: Literal["from-scratch", "keep-position", "restore"] | str = FROM_SCRATCH,
        storage_conn_id: str | None = None,
        repository: str | None = None,
        backup_id: str | None = LATEST,
        batch: int | str | None = None,
        continue_numbers: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(repository=repository, **kwargs)
        self.storage = storage
        self.flow = flow
        self.way = way
        self.storage_conn_id = storage_conn_id
        self.backup_id = backup_id
        self.batch = batch
        self.continue_numbers = continue_numbers

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the plan and, where it was carried out, the outcome."""
        with no_retry_when_refused():
            self._mode()
            way = one_of(self.way, "way", _WAYS)
            storage = self.opened(open_place(required(self.storage, "storage"), text(self.storage_conn_id)))
            flow = flow_named(flows_of(storage), required(self.flow, "flow"))
            return self._restore(flow, context) if way == RESTORE else self._reset(flow, way, context)

    def _reset(self, flow: Flow, way: str, context: Context) -> dict[str, Any]:
        plan = plan_flow_reset(
            flow,
            keep_position=way == KEEP_POSITION,
            sink=self._sink(),
            continue_numbers=flag(self.continue_numbers, "continue_numbers"),
        )
        result = {**self._shown(plan), "path": plan.path}
        if self._mode() == APPLY:
            repository = self._given_repository()
            observed = flow.version(plan.base)
            done = apply_flow_reset(
                plan, repository=repository, accept=self._accepted(), **self._how(observed, context)
            )
            return self._carried_out({**result, "outcome": done.to_json()}, context)
        return result

    def _restore(self, flow: Flow, context: Context) -> dict[str, Any]:
        repository = self._open_repository()
        manifest = repository.manifest(text(self.backup_id) or LATEST, name=text(self.name))
        batch = whole_number(self.batch, "batch")
        plan = plan_flow_restore(flow, repository, manifest, batch=batch, sink=self._sink())
        result = {**self._shown(plan, plan.restore), "path": plan.path}
        if self._mode() == APPLY:
            observed = flow.version(flow.live or 0)
            done = apply_flow_restore(plan, accept=self._accepted(), **self._how(observed, context))
            return self._carried_out({**result, "outcome": done.to_json()}, context)
        return result


class ResetFlowOperator(FlowNextVersionOperator):
    """Deprecated name of :class:`~.reset_flow.FlowNextVersionOperator`.

    .. seealso:: :doc:`/howto/flows`
    """

    def __init__(self, **kwargs: Any) -> None:
        deprecated_class("ResetFlowOperator", instead="FlowNextVersionOperator")
        super().__init__(**kwargs)
