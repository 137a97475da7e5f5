"""The steps of an upgrade that change the checkpoint: seal, release, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from airflow_ckpt_provider.operators.fields import flag, one_of, required, text
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.operators.run_identity import made_by
from airflow_ckpt_provider.operators.sink_operator import SinkOperator
from airflow_ckpt_provider.operators.upgrade import UpgradeOperator, upgrade_id
from airflow_ckpt_provider.sinks.report import SinkPolicy
from airflow_ckpt_provider.upgrade.fence import fence, release
from airflow_ckpt_provider.upgrade.going_back import go_back, is_needed
from airflow_ckpt_provider.upgrade.record import Event, newest_upgrade

if TYPE_CHECKING:
    from airflow.sdk import Context

_EXITS = tuple(exit_.value for exit_ in SinkPolicy if exit_ is not SinkPolicy.FORWARD)


class UpgradeSealOperator(UpgradeOperator):
    """Seal the checkpoint for the upgrade: a stream that still runs stops at its batch boundary, and none starts.

    The seal stays until the new code may start, or the old code may again; a retry, and the second seal of an upgrade that is
    taken back, find the first one. The result: ``plan_id`` (of the seal), ``batch_id``, ``path``.
    """

    ui_color = "#f8cecc"

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what names the seal."""
        with no_retry_when_refused():
            checkpoint, repository = self._checkpoint(), self._kept()
            upgrade = self._upgrade(repository, checkpoint, context)
            mark = fence(checkpoint, repository, upgrade, made_by=made_by(context))
        self.log.info("%s is sealed by %s (plan %s)", checkpoint.location, mark.path, mark.plan_id)
        return {"plan_id": mark.plan_id, "batch_id": mark.batch_id, "path": mark.path}


class UpgradeReleaseOperator(UpgradeOperator):
    """Let the new code start: from here on a failure puts back the backup of the drained checkpoint.

    The result: ``baseline`` for the health gate, ``batch_id`` and ``backup_id``.

    :param backup_id: id of the backup of the drained checkpoint. (templated)
    :param lift: lift the seal; ``False`` where a new checkpoint is put in place under it first.
    """

    template_fields: Sequence[str] = (*UpgradeOperator.template_fields, "backup_id")
    ui_color = "#fff2cc"

    def __init__(self, *, backup_id: str, lift: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.backup_id = backup_id
        self.lift = lift

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the baseline of the health gate."""
        with no_retry_when_refused():
            checkpoint, repository = self._checkpoint(), self._kept()
            upgrade = self._upgrade(repository, checkpoint, context)
            upgrade = release(
                checkpoint, repository, upgrade, backup_id=required(self.backup_id, "backup_id"), lift=self.lift
            )
        batch_id = upgrade.fact(Event.RELEASED, "batch_id")
        return {
            "batch_id": batch_id,
            "backup_id": upgrade.fact(Event.RELEASED, "backup_id"),
            "baseline": self._baseline(upgrade, batch_id, anew=not self.lift),
        }


class UpgradeGateOperator(UpgradeOperator):
    """Decide after a failure whether there is anything to put back; skips what follows where nothing was changed."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what has been done so far."""
        with no_retry_when_refused():
            checkpoint, repository = self._checkpoint(), self._kept()
            found = newest_upgrade(repository, self._name(checkpoint))
        if found is None or found.upgrade_id != upgrade_id(context) or not found.is_open or not is_needed(found):
            raise AirflowSkipException("nothing was changed: there is nothing to take back")
        return {"events": [event.value for event in found.events], "new_code_started": found.has(Event.RELEASED)}


class UpgradeRestoreOperator(UpgradeOperator, SinkOperator):
    """Put checkpoint and sink back to the drained batch, and let the old code start.

    A retry goes on where the attempt before was stopped. Where it is refused nothing was changed, and the checkpoint stays
    sealed. The result: ``restored``, ``batch_id``, ``plan`` (of the rewind, or ``None``), ``baseline`` for the health gate.

    :param sink: what the stream writes to, as for
        :class:`~airflow_ckpt_provider.operators.rewind.CheckpointRewindOperator`. (templated)
    :param sink_conn_id: Airflow connection to read the sink's log. (templated)
    :param sink_exit: what is done about the rows that the new code wrote: ``rollback`` or ``accept``. (templated)
    :param txn_app_id: ``txnAppId`` with which ``foreachBatch`` writes to the table. (templated)
    :param sink_options: settings of the table's store as ``deltalake`` names them. (templated)
    :param spark_conn_id: Airflow connection of type ``spark``, for tables that only Spark can restore. (templated)
    :param spark_settings: what ``SparkSubmitHook`` is given. (templated)
    :param accept_foreign_loss: go back though rows that others wrote leave the table too. (templated)
    :param quiet_for: seconds for which nobody may have written to the checkpoint.
    """

    template_fields: Sequence[str] = (
        *UpgradeOperator.template_fields,
        "sink",
        "sink_conn_id",
        "sink_exit",
        "txn_app_id",
        "sink_options",
        "spark_conn_id",
        "spark_settings",
        "accept_foreign_loss",
    )
    ui_color = "#ffe6cc"

    def __init__(
        self,
        *,
        sink: str | None = None,
        sink_conn_id: str | None = None,
        sink_exit: str | None = SinkPolicy.ROLLBACK.value,
        txn_app_id: str | None = None,
        sink_options: dict[str, str] | None = None,
        spark_conn_id: str | None = None,
        spark_settings: dict[str, Any] | None = None,
        accept_foreign_loss: bool | str = False,
        quiet_for: float = 5.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.sink = sink
        self.sink_conn_id = sink_conn_id
        self.sink_exit = sink_exit
        self.txn_app_id = txn_app_id
        self.sink_options = sink_options
        self.spark_conn_id = spark_conn_id
        self.spark_settings = spark_settings
        self.accept_foreign_loss = accept_foreign_loss
        self.quiet_for = quiet_for

    def execute(self, context: Context) -> dict[str, Any]:
        """Return how it was taken back."""
        with no_retry_when_refused():
            checkpoint, repository = self._checkpoint(), self._kept()
            upgrade = self._upgrade(repository, checkpoint, context)
            exit_ = text(self.sink_exit)
            way = go_back(
                checkpoint,
                repository,
                upgrade,
                sink=self._sink(),
                sink_exit=SinkPolicy(one_of(exit_, "sink_exit", _EXITS)) if exit_ else None,
                accept_foreign_loss=flag(self.accept_foreign_loss, "accept_foreign_loss"),
                quiet_for=self.quiet_for,
                made_by=made_by(context),
            )
            progress = checkpoint.progress()
        self.log.info("%s: the old code goes on after batch %s", checkpoint.location, progress.latest_committed)
        return {**way.to_json(), "baseline": self._baseline(upgrade, progress.latest_committed)}
