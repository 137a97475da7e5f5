"""Flows of Spark Declarative Pipelines: reset one without its table, or roll one back by a backup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.backup.latest import LATEST
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.target import read_seal
from airflow_ckpt_provider.operators.change_operator import APPLY, ChangeOperator
from airflow_ckpt_provider.operators.fields import flag, one_of, required, text, whole_number
from airflow_ckpt_provider.operators.place_operators import StreamOperator
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.operators.renamed import deprecated_class
from airflow_ckpt_provider.operators.restore import of_record
from airflow_ckpt_provider.operators.run_identity import has_been_tried, made_by
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
    stays as it is. A retry, and a task that is cleared, find the version that an attempt before has made, and make no other one.

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

    def _made_before(self, flow: Flow, repository: Repository | None, context: Context) -> dict[str, Any] | None:
        """The audit record of the version that an attempt before this one has made: the pipeline may have run in it since."""
        record = repository.audit(made_by(context)) if repository and has_been_tried(context) else None
        versions = [flow.version(number) for number in flow.versions]
        if record is None or record.get("checkpoint") not in [place.uri for place in versions]:
            return None
        seals = [read_seal(place) for place in versions[-2:]]
        if any(seal and seal.plan_id == record["plan_id"] for seal in seals) or self._is_asked_again(record):
            return None
        self.log.info(
            "An attempt before this one made %s at %s (plan %s): nothing is changed. To do it again start a new run.",
            record["checkpoint"],
            record["at"],
            record["plan_id"],
        )
        return record

    def _reset(self, flow: Flow, way: str, context: Context) -> dict[str, Any]:
        repository = self._given_repository() if self._mode() == APPLY else None
        if self._mode() == APPLY:
            kept = repository or Repository.open_if_there(default_repository(flow.storage))
            if record := self._made_before(flow, kept, context):
                return self._carried_out(_of_record(record, flow), context)
        plan = plan_flow_reset(
            flow,
            keep_position=way == KEEP_POSITION,
            sink=self._sink(),
            continue_numbers=flag(self.continue_numbers, "continue_numbers"),
        )
        result = {**self._shown(plan), "path": plan.path}
        if self._mode() == APPLY:
            observed = flow.version(plan.base)
            done = apply_flow_reset(
                plan, repository=repository, accept=self._accepted(), **self._how(observed, context)
            )
            return self._carried_out({**result, "outcome": done.to_json()}, context)
        return result

    def _restore(self, flow: Flow, context: Context) -> dict[str, Any]:
        repository = self._open_repository()
        if self._mode() == APPLY and (record := self._made_before(flow, repository, context)):
            restored = of_record(record)
            path = str(record["checkpoint"])
            made = {"kind": "flow-restore", "flow": flow.name, "target": flow.target, "path": path}
            result = {**restored, "plan": {**made, "restore": restored["plan"], "already_done": True}, "path": path}
            return self._carried_out(result, context)
        manifest = repository.manifest(text(self.backup_id) or LATEST, name=text(self.name))
        batch = whole_number(self.batch, "batch")
        plan = plan_flow_restore(flow, repository, manifest, batch=batch, sink=self._sink())
        result = {**self._shown(plan, plan.restore), "path": plan.path}
        if self._mode() == APPLY:
            observed = flow.version(flow.live or 0)
            done = apply_flow_restore(plan, accept=self._accepted(), **self._how(observed, context))
            return self._carried_out({**result, "outcome": done.to_json()}, context)
        return result


def _of_record(record: dict[str, Any], flow: Flow) -> dict[str, Any]:
    """What the attempt returned that has written the audit record of a reset."""
    plan: dict[str, Any] = record["plan"]
    live = flow.progress
    outcome = {
        **{key: plan[key] for key in ("plan_id", "version", "path", "options", "conf", "snippet")},
        "flow": flow.path.replace("/", "."),
        "query_id": live.query_id if live and live.uri == plan["path"] else None,
        "seconds": 0.0,
        "already_done": True,
    }
    return {"mode": APPLY, "plan": plan, "markdown": "", "outcome": outcome, "path": plan["path"]}


class ResetFlowOperator(FlowNextVersionOperator):
    """Deprecated name of :class:`~.reset_flow.FlowNextVersionOperator`.

    .. seealso:: :doc:`/howto/flows`
    """

    def __init__(self, **kwargs: Any) -> None:
        deprecated_class("ResetFlowOperator", instead="FlowNextVersionOperator")
        super().__init__(**kwargs)
