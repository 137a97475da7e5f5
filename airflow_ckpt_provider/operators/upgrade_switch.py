"""The steps of an upgrade that change the checkpoint: seal, release, and the way back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowSkipException

from airflow_ckpt_provider.operators.fields import mapping_or_text, required
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.operators.run_identity import made_by, run_of, since_said
from airflow_ckpt_provider.operators.stream_action import ENDED
from airflow_ckpt_provider.operators.upgrade_operator import UpgradeOperator, UpgradeSinkOperator, upgrade_id

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.change.rest import RestRule


class UpgradeSealOperator(UpgradeOperator):
    """Seal the checkpoint for the upgrade: a stream that still runs stops at its batch boundary, and none starts.

    The seal stays until the new code may start, or the old code may again; a retry, and the second seal of an upgrade that is
    rolled back, find the first one. The result: ``plan_id`` (of the seal), ``batch_id``, ``path``.

    .. code-block:: python

        UpgradeSealOperator(
            task_id="seal",
            checkpoint="s3://lake/checkpoints/orders",
            repository="s3://backups/streams",
        )

    :param after: id of a task of the group that has to be successful; else this one is skipped. With
        ``trigger_rule="all_done"`` the seal is put whatever a stop in between did: failed, was skipped, timed out. ``None``:
        there is none.
    """

    ui_color = "#f8cecc"

    def __init__(self, *, after: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.after = after

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what names the seal."""
        from airflow_ckpt_provider.upgrade.fence import fence

        if self.after and (state := self._states(context).get(self.after)) != "success":
            raise AirflowSkipException(f"the task {self.after} is {state or 'none'}: nothing is to be stopped")
        results = {}
        if ti := context.get("ti"):
            # The stop before it may be any task, and not every one says when it ended.
            ti.xcom_push(ENDED, datetime.now(UTC).isoformat())
        with no_retry_when_refused():
            steps, members, upgrades = self._members(context)
            for name, member, upgrade in zip(steps, members, upgrades, strict=True):
                mark = fence(member.checkpoint, member.repository, upgrade, made_by=made_by(context))
                self.log.info("%s is sealed by %s (plan %s)", member.checkpoint.location, mark.path, mark.plan_id)
                results[name] = {"plan_id": mark.plan_id, "batch_id": mark.batch_id, "path": mark.path}
        return self._result(results)


class UpgradeReleaseOperator(UpgradeOperator):
    """Let the new code start: from here on a failure puts back the backup of the drained checkpoint.

    Fails, without retries, where the checkpoint has lost its seal, or the way back has begun.

    The result: ``baseline`` for the health gate, ``batch_id`` and ``backup_id``.

    .. code-block:: python

        UpgradeReleaseOperator(
            task_id="release",
            checkpoint="s3://lake/checkpoints/orders",
            repository="s3://backups/streams",
            backup_id="{{ ti.xcom_pull(task_ids='backup', key='backup_id') }}",
        )

    :param backup_id: id of the backup of the drained checkpoint; of several streams a dictionary with their names. (templated)
    :param lift: lift the seal; ``False`` where a new checkpoint is put in place under it first.
    """

    template_fields: Sequence[str] = (*UpgradeOperator.template_fields, "backup_id")
    ui_color = "#fff2cc"

    def __init__(self, *, backup_id: str | Mapping[str, str], lift: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.backup_id = backup_id
        self.lift = lift

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the baseline of the health gate."""
        from airflow_ckpt_provider.upgrade.fence import Release, release_all
        from airflow_ckpt_provider.upgrade.record import Event

        with no_retry_when_refused():
            steps, members, upgrades = self._members(context)
            releases = [
                Release(member.checkpoint, member.repository, upgrade, self._backup_id(name))
                for name, member, upgrade in zip(steps, members, upgrades, strict=True)
            ]
            released = release_all(releases, lift=self.lift)
        results = {}
        for (name, step), upgrade in zip(steps.items(), released, strict=True):
            batch_id = upgrade.fact(Event.RELEASED, "batch_id")
            results[name] = {
                "batch_id": batch_id,
                "backup_id": upgrade.fact(Event.RELEASED, "backup_id"),
                "baseline": step._baseline(upgrade, batch_id, anew=not self.lift),
            }
        return self._result(results)

    def _backup_id(self, name: str) -> str:
        given = mapping_or_text(self.backup_id, "backup_id")
        return required(given.get(name) if isinstance(given, Mapping) else given, "backup_id")


class UpgradeGateOperator(UpgradeOperator):
    """Decide, whatever happened before, whether there is anything to put back; skips what follows where there is nothing.

    Where there is, the new code is neither let start nor kept by this run from here on.

    The record of the upgrade decides, not the states of tasks: a task may have failed, been skipped or been marked.

    .. code-block:: python

        UpgradeGateOperator(
            task_id="gate",
            checkpoint="s3://lake/checkpoints/orders",
            repository="s3://backups/streams",
            trigger_rule="all_done",
        )
    """

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what has been done so far."""
        from airflow_ckpt_provider.upgrade.record import Event
        from airflow_ckpt_provider.upgrade.together import decide_to_go_back

        with no_retry_when_refused():
            members = [step._member for step in self._steps().values()]
            found = decide_to_go_back(members, upgrade_id(context))
        if not found:
            raise AirflowSkipException("nothing was changed: there is nothing to undo")
        return {
            "events": [event.value for event in found[0].events],
            "new_code_started": any(upgrade.has(Event.RELEASED) for upgrade in found),
        }


class UpgradeRestoreOperator(UpgradeSinkOperator):
    """Put checkpoint and sink back to the drained batch, and let the old code start.

    Where the new code was never let start, and nobody has continued the checkpoint since it was drained, nothing is changed.
    Where that is not known, and there is no backup of the drained checkpoint, it is refused.

    A retry resumes where the previous attempt was stopped. If it is refused, nothing was changed, and the checkpoint stays
    sealed. What was accepted when the upgrade began counts here too. The result: ``restored``, ``batch_id``, ``plan`` (of the
    rewind, or ``None``), ``baseline`` for the health gate.

    .. code-block:: python

        UpgradeRestoreOperator(
            task_id="restore",
            checkpoint="s3://lake/checkpoints/orders",
            repository="s3://backups/streams",
            sink="s3://lake/tables/orders",
            stopped_by="stop_new",
        )

    :param stopped_by: id of the task of the group that stops the new code. Where it was successful, or was marked so by a person,
        the query counts as stopped; else the checkpoint has to be silent for long enough. ``None``: there is none.
    :param quiet_for: seconds for which nobody may have written to the checkpoint in any case.
    """

    ui_color = "#ffe6cc"

    def __init__(self, *, stopped_by: str | None = None, quiet_for: float = 5.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.stopped_by = stopped_by
        self.quiet_for = quiet_for

    def execute(self, context: Context) -> dict[str, Any]:
        """Return how it was rolled back."""
        from airflow_ckpt_provider.upgrade.going_back import Back, go_back_all

        with no_retry_when_refused():
            steps, members, upgrades = self._members(context)
            backs = [
                Back(member.checkpoint, member.repository, upgrade, step._sinks(), step._policies())
                for step, member, upgrade in zip(steps.values(), members, upgrades, strict=True)
            ]
            ways = go_back_all(backs, accept=self._accepted(), rest=self._rest(context), made_by=made_by(context))
        results = {}
        for (name, step), back, way in zip(steps.items(), backs, ways, strict=True):
            newest = back.checkpoint.progress().latest_committed
            self.log.info("%s: the old code continues after batch %s", back.checkpoint.location, newest)
            results[name] = {**way.to_json(), "baseline": step._baseline(back.upgrade, newest)}
        return self._result(results)

    def _rest(self, context: Context) -> RestRule:
        """The new code is stopped where its stop said so, or a person has marked the stop as successful."""
        from airflow_ckpt_provider.change.rest import RestRule

        stopped = bool(self.stopped_by) and self._states(context).get(str(self.stopped_by)) == "success"
        by = f"the task {self.stopped_by} of {upgrade_id(context)}" if stopped else ""
        said = since_said(context, self._ended(context) if stopped else None)
        return RestRule(
            query_is_stopped=stopped, said_by=by, said=said, said_in=run_of(context), quiet_for=self.quiet_for
        )

    def _ended(self, context: Context) -> str | None:
        """When the new code was stopped, as its stop says, else as the seal says that follows the stop."""
        for task_id in (str(self.stopped_by), "seal_again"):
            ended = context["ti"].xcom_pull(task_ids=self._sibling(task_id), key=ENDED)
            if ended:
                return str(ended)
        return None
