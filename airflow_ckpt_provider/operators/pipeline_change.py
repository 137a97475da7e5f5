"""What the operators have in common that change a pipeline by an update: their parameters, and what a cleared task finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from airflow_ckpt_provider.fingerprint import fingerprint_of
from airflow_ckpt_provider.lakeflow.begun import has_failed, may_have_reset
from airflow_ckpt_provider.lakeflow.examine import FAIL
from airflow_ckpt_provider.lakeflow.updates import COMPLETED
from airflow_ckpt_provider.operators.change_operator import PLAN
from airflow_ckpt_provider.operators.pipeline_waiting import PipelineOperator, update_ids_of


class PipelineChangeOperator(PipelineOperator):
    """Base of the operators that change a pipeline's tables or checkpoints by an update. Plans only, unless ``mode="apply"``.

    .. seealso:: :doc:`/howto/lakeflow-symptoms`

    Parameters of the pipeline: see :class:`~.pipeline_waiting.PipelineOperator`.

    :param mode: ``"plan"`` changes nothing, ``"apply"`` does it. (templated)
    :param accept: the plan's verdict, if it is not ``SAFE`` and is to be carried out all the same. (templated)
    :param fingerprint: that of the plan that was shown and approved; ``None``: not compared. (templated)
    :param on_active_update: about an update that is active: ``"fail"``, ``"wait"``, or ``"stop"`` it. (templated)
    :param wait_for: state of the update: ``"COMPLETED"``; ``"RUNNING"`` for continuous pipelines, which never complete; ``None``:
        not waited for. (templated)
    :param refresh_selection: tables that the update, or the replay of a rewind, refreshes without emptying them; ``None``: the
        whole pipeline where nothing else limits it. (templated)
    :param body: further fields of the interface's version, passed through; one whose effect is not judged makes the plan
        ``UNKNOWN``. (templated)
    """

    template_fields: Sequence[str] = (
        *PipelineOperator.template_fields,
        "mode",
        "accept",
        "fingerprint",
        "on_active_update",
        "wait_for",
        "refresh_selection",
        "body",
    )

    def __init__(
        self,
        *,
        mode: Literal["plan", "apply"] | str = PLAN,
        accept: str | None = None,
        fingerprint: str | None = None,
        on_active_update: Literal["fail", "wait", "stop"] | str = FAIL,
        wait_for: Literal["COMPLETED", "RUNNING"] | str | None = COMPLETED,
        refresh_selection: Sequence[str] | str | None = None,
        body: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.mode = mode
        self.accept = accept
        self.fingerprint = fingerprint
        self.on_active_update = on_active_update
        self.wait_for = wait_for
        self.refresh_selection = refresh_selection
        self.body = body
        self._asked_for = ""

    def _asks_for(self, *what: Any, apply: bool, waits: bool = True, dry_run: bool = False) -> None:
        """Note what is asked for. Where this task has done it before it was cleared, what it noted then is taken over: each step
        then finds that it is done, for a second reset or refresh reads the same input again.

        :param what: all of it, as JSON.
        :param apply: it is carried out.
        :param waits: the task succeeds only if the update does.
        :param dry_run: it changes nothing.
        """
        self._asked_for = fingerprint_of([self._pipeline_id(), *what]) if apply and not dry_run else ""
        before = self._kept.before
        if not self._asked_for:
            return
        self._kept.data["asked"] = self._asked_for
        if not waits and before.get("ended") == self._asked_for and self._has_failed_since(before):
            del before["ended"]
        if before.get("ended") == self._asked_for and not self._has_begun():
            self.log.info(
                "This task did the same before it was cleared: nothing is started. To do it again start a new run."
            )
            self._kept.data.update({key: before[key] for key in before if key not in self._kept.data})

    def _has_failed_since(self, before: Mapping[str, Any]) -> bool:
        """Whether the update of a task that did not wait for it has failed, or was stopped."""
        ids = [update_id for step in before.get("steps", {}).values() for update_id in update_ids_of(step)]
        return bool(ids) and has_failed(self.workspace, self._pipeline_id(), ids[-1])

    def _begun_before(self, step: str) -> list[str]:
        """Ids of updates that this task has started before it was cleared, and that may have reset or emptied something.

        Of a start whose update nobody has found: the id of the newest update before it, or an empty one.
        """
        before = self._kept.before
        part = (before.get("steps") or {}).get(step) or {}
        ids, note = update_ids_of(part), part.get("note")
        if "ended" in before or not note:
            return []
        if not ids:
            return [str(note.get("after") or "")]
        return ids if may_have_reset(self.workspace, self._pipeline_id(), ids) else []

    def _ended(self, result: dict[str, Any]) -> dict[str, Any]:
        if self._asked_for:
            self._kept.data["ended"] = self._asked_for
            self._kept.keep()
        return result
