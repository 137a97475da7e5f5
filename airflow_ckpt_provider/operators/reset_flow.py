"""Flows of Spark Declarative Pipelines: reset one without its table, or roll one back by a backup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.sdk import BaseOperator

from airflow_ckpt_provider.backup.repository import LATEST, Repository
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.operators.fields import flag, one_of, required, text, whole_number
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.operators.restore import APPLY, PLAN
from airflow_ckpt_provider.operators.run_identity import made_by
from airflow_ckpt_provider.places import open_place
from airflow_ckpt_provider.recovery.flows.flow import Flow, flow_named, flows_of
from airflow_ckpt_provider.recovery.flows.reset import apply_flow_reset, plan_flow_reset
from airflow_ckpt_provider.recovery.flows.restore import apply_flow_restore, plan_flow_restore
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.verdict import Verdict

if TYPE_CHECKING:
    from airflow.sdk import Context

FROM_SCRATCH = "from-scratch"
KEEP_POSITION = "keep-position"
RESTORE = "restore"
_WAYS = (FROM_SCRATCH, KEEP_POSITION, RESTORE)
_VERDICTS = tuple(verdict.value for verdict in Verdict)


class ResetFlowOperator(BaseOperator):
    """Start the next version of a flow's checkpoint, so that the next run of its pipeline begins there; the table is not touched.

    Plans only, unless ``mode="apply"``. The result is ``plan`` (JSON), ``markdown`` (for an approval form), ``outcome``
    (``None`` when only planned) and ``path``, the checkpoint that is live then. The version that was live stays as it is.
    A retry goes on where the attempt before was stopped; one that had finished finds the new version and changes nothing.

    .. seealso:: :doc:`/howto/flows`

    :param storage: ``storage`` of the pipeline's specification. (templated)
    :param flow: name of the flow, or as much of ``catalog.database.table.flow`` as it needs to be the only one. (templated)
    :param way: ``"from-scratch"``: the flow reads where its sources' own options say; ``"keep-position"``: it reads on where
        it stands; ``"restore"``: a backup is restored into the next version. (templated)
    :param storage_conn_id: Airflow connection to reach the storage; ``None``: the environment's own credentials. (templated)
    :param repository: URI of the repository: of the backup, or for the audit record of a reset. (templated)
    :param repository_conn_id: Airflow connection to reach the repository. (templated)
    :param backup_id: the backup to restore; ``"latest"`` by default. (templated)
    :param name: name of the flow in the repository. (templated)
    :param batch: batch of the backup to go back to; ``None``: its newest. (templated)
    :param sink: directory of the table that the flow writes to; ``None``: not known. (templated)
    :param sink_conn_id: Airflow connection to read the sink's log. (templated)
    :param continue_numbers: the new checkpoint goes on with the old batch numbers, which tables of Parquet and other file
        formats want; for flows without state. (templated)
    :param mode: ``"plan"`` changes nothing, ``"apply"`` does it. (templated)
    :param accept: the plan's verdict, where it is not ``SAFE`` and is to be carried out all the same. (templated)
    :param fingerprint: fingerprint of the reset's plan that was shown and approved; ``None``: not compared. (templated)
    :param reason: why, for the audit record. (templated)
    :param quiet_for: seconds for which nobody may have written to the flow's checkpoint.
    """

    template_fields: Sequence[str] = (
        "storage",
        "flow",
        "way",
        "storage_conn_id",
        "repository",
        "repository_conn_id",
        "backup_id",
        "name",
        "batch",
        "sink",
        "sink_conn_id",
        "continue_numbers",
        "mode",
        "accept",
        "fingerprint",
        "reason",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"reason": "md"}
    ui_color = "#ffe6cc"

    def __init__(
        self,
        *,
        storage: str,
        flow: str,
        way: Literal["from-scratch", "keep-position", "restore"] | str = FROM_SCRATCH,
        storage_conn_id: str | None = None,
        repository: str | None = None,
        repository_conn_id: str | None = None,
        backup_id: str | None = LATEST,
        name: str | None = None,
        batch: int | str | None = None,
        sink: str | None = None,
        sink_conn_id: str | None = None,
        continue_numbers: bool | str = False,
        mode: Literal["plan", "apply"] | str = PLAN,
        accept: str | None = None,
        fingerprint: str | None = None,
        reason: str | None = None,
        quiet_for: float = 5.0,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("multiple_outputs", True)
        super().__init__(**kwargs)
        self.storage = storage
        self.flow = flow
        self.way = way
        self.storage_conn_id = storage_conn_id
        self.repository = repository
        self.repository_conn_id = repository_conn_id
        self.backup_id = backup_id
        self.name = name
        self.batch = batch
        self.sink = sink
        self.sink_conn_id = sink_conn_id
        self.continue_numbers = continue_numbers
        self.mode = mode
        self.accept = accept
        self.fingerprint = fingerprint
        self.reason = reason
        self.quiet_for = quiet_for

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the plan and, where it was carried out, the outcome."""
        with no_retry_when_refused():
            apply = one_of(self.mode, "mode", (PLAN, APPLY)) == APPLY
            way = one_of(self.way, "way", _WAYS)
            storage = open_place(required(self.storage, "storage"), text(self.storage_conn_id))
            flow = flow_named(flows_of(storage), required(self.flow, "flow"))
            accept = text(self.accept)
            about: dict[str, Any] = {
                "accept": Verdict(one_of(accept, "accept", _VERDICTS)) if accept else None,
                "quiet_for": self.quiet_for,
                "made_by": made_by(context),
                "reason": text(self.reason) or "",
            }
            return self._restore(flow, about, apply) if way == RESTORE else self._reset(flow, way, about, apply)

    def _reset(self, flow: Flow, way: str, about: dict[str, Any], apply: bool) -> dict[str, Any]:
        plan = plan_flow_reset(
            flow,
            keep_position=way == KEEP_POSITION,
            sink=self._sink(),
            continue_numbers=flag(self.continue_numbers, "continue_numbers"),
        )
        self.log.info("\n%s", plan.to_markdown())
        shown = text(self.fingerprint)
        if apply and shown not in (None, plan.fingerprint) and not plan.already_done:
            raise RefusedError(
                f"the plan that was shown ({shown}) is not the one that would be carried out now ({plan.fingerprint})",
                hint="look at a new plan, and apply that",
            )
        outcome = apply_flow_reset(plan, repository=self._repository(), **about).to_json() if apply else None
        return {
            "mode": APPLY if apply else PLAN,
            "plan": plan.to_json(),
            "markdown": plan.to_markdown(),
            "outcome": outcome,
            "path": plan.path,
        }

    def _restore(self, flow: Flow, about: dict[str, Any], apply: bool) -> dict[str, Any]:
        required(self.repository, "repository")
        repository = self._repository()
        if repository is None:
            raise ValueError("no repository")
        manifest = repository.manifest(text(self.backup_id) or LATEST, name=text(self.name))
        batch = whole_number(self.batch, "batch")
        plan = plan_flow_restore(flow, repository, manifest, batch=batch, sink=self._sink())
        self.log.info("\n%s", plan.to_markdown())
        outcome = apply_flow_restore(plan, **about).to_json() if apply else None
        return {
            "mode": APPLY if apply else PLAN,
            "plan": plan.to_json(),
            "markdown": plan.to_markdown(),
            "outcome": outcome,
            "path": plan.path,
        }

    def _repository(self) -> Repository | None:
        given = text(self.repository)
        return Repository.open_or_create(open_place(given, text(self.repository_conn_id))) if given else None

    def _sink(self) -> Sink:
        return Sink.named(text(self.sink), lambda uri: open_place(uri, text(self.sink_conn_id)))
