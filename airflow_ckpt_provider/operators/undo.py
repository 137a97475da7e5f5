"""Take a rewind or a reset back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.operators.fields import text
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.operators.run_identity import made_by
from airflow_ckpt_provider.operators.sink_operator import SinkOperator
from airflow_ckpt_provider.recovery.reset.undo import reset_to_undo, undo_reset
from airflow_ckpt_provider.recovery.rewind.undo import undo_rewind

if TYPE_CHECKING:
    from airflow.sdk import Context


class CheckpointUndoOperator(SinkOperator):
    """Take a rewind or a reset back, as long as nothing was written since.

    .. seealso:: :doc:`/howto/rewind`

    :param checkpoint: URI of the checkpoint. (templated)
    :param plan_id: id of the rewind or reset; ``None``: the newest one. (templated)
    :param checkpoint_conn_id: Airflow connection to reach the checkpoint. (templated)
    :param repository: URI of the repository that the rewind was carried out with; ``None``: ``<checkpoint>.rewinds``.
        (templated)
    :param repository_conn_id: Airflow connection to reach the repository. (templated)
    :param sink: the sink, where the rewind rolled one back. (templated)
    :param sink_conn_id: Airflow connection to read the sink's log. (templated)
    :param txn_app_id: as for the rewind. (templated)
    :param sink_options: as for the rewind. (templated)
    :param spark_conn_id: as for the rewind. (templated)
    :param spark_settings: as for the rewind. (templated)
    :param reason: why, for the audit record. (templated)
    """

    template_fields: Sequence[str] = (
        "checkpoint",
        "plan_id",
        "checkpoint_conn_id",
        "repository",
        "repository_conn_id",
        "sink",
        "sink_conn_id",
        "txn_app_id",
        "sink_options",
        "spark_conn_id",
        "spark_settings",
        "reason",
    )
    ui_color = "#fff2cc"

    def __init__(
        self,
        *,
        checkpoint: str,
        plan_id: str | None = None,
        checkpoint_conn_id: str | None = None,
        repository: str | None = None,
        repository_conn_id: str | None = None,
        sink: str | None = None,
        sink_conn_id: str | None = None,
        txn_app_id: str | None = None,
        sink_options: dict[str, str] | None = None,
        spark_conn_id: str | None = None,
        spark_settings: dict[str, Any] | None = None,
        reason: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.checkpoint = checkpoint
        self.plan_id = plan_id
        self.checkpoint_conn_id = checkpoint_conn_id
        self.repository = repository
        self.repository_conn_id = repository_conn_id
        self.sink = sink
        self.sink_conn_id = sink_conn_id
        self.txn_app_id = txn_app_id
        self.sink_options = sink_options
        self.spark_conn_id = spark_conn_id
        self.spark_settings = spark_settings
        self.reason = reason

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what was put back."""
        with no_retry_when_refused():
            checkpoint = self._checkpoint()
            repository = Repository.open(self._repository(checkpoint))
            plan_id, why = text(self.plan_id), text(self.reason) or ""
            reset = reset_to_undo(checkpoint.location, repository, plan_id)
            if reset:
                outcome = undo_reset(reset, checkpoint.location, repository, made_by=made_by(context), reason=why)
            else:
                outcome = undo_rewind(
                    checkpoint, repository, plan_id=plan_id, sink=self._sink(), made_by=made_by(context), reason=why
                )
        self.log.info("%s is what it was before plan %s", outcome.checkpoint, outcome.plan_id)
        return outcome.to_json()
