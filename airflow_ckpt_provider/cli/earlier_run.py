"""An earlier run of a ``pipelines`` command that was cut off: what it was approved with, and whether it may continue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.cli.pipeline_notes import FileMemos
from airflow_ckpt_provider.errors import NoSuchPipelineError, RefusedError, command
from airflow_ckpt_provider.lakeflow.following import Memory, Progress, Wait, look, looking
from airflow_ckpt_provider.lakeflow.plan import PipelinePlan
from airflow_ckpt_provider.lakeflow.settings import changed_by
from airflow_ckpt_provider.lakeflow.workspace import Workspace
from airflow_ckpt_provider.verdict import Verdict

FORGET = "--forget removes the note and starts nothing"


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """What the notes say.

    :param memos: the notes.
    :param updates: step -> id of its update; empty where no answer to its start is known.
    """

    memos: FileMemos
    updates: Mapping[str, str]

    @classmethod
    def of(cls, memos: FileMemos) -> EarlierRun | None:
        """Read it; ``None``: there is none."""
        notes = memos.load()
        found = {step: str(note.get("update_id") or "") for step, note in notes.items() if isinstance(note, dict)}
        return cls(memos, found) if found else None

    def ended(self, workspace: Workspace, pipeline_id: str) -> str:
        """How the update of its newest step has ended, in words; empty: it is under way, or its id is not known."""
        known = [(step, update_id) for step, update_id in self.updates.items() if update_id]
        if not known or not all(self.updates.values()):
            return ""
        step, update_id = known[-1]
        try:
            # Not a second for a retry to begin: one that is active already is found, and follows it.
            wait = Wait(update_id, follow_up_within=0.0)
            answer = look(lambda path: workspace.ask(pipeline_id, path), looking(wait, Memory()))
        except NoSuchPipelineError:
            return f"update {update_id} ({step}) is not known any more"
        return "" if answer.progress is Progress.WAITING else f"{answer.message} ({step})"

    def may_go_on(
        self,
        plan: PipelinePlan,
        steps: Sequence[str],
        *,
        accept: Verdict | None,
        fingerprint: str | None,
    ) -> None:
        """See that the run may continue, by what was approved then and by the plan of now.

        :param steps: all steps of the command.
        :param accept: the verdict that is accepted now.
        :param fingerprint: that of the approved plan, where the caller gives one.
        :raises RefusedError: it may not.
        """
        approval = self.memos.approval()
        of_then = approval.get("fingerprint") or "a plan that was not noted"
        about = f"pipeline {plan.pipeline_name}: an earlier run of this command ({of_then}, {approval.get('time') or '?'} UTC)"
        if fingerprint not in (None, approval.get("fingerprint")):
            raise RefusedError(
                f"{about} has begun, and the plan that was shown is another one ({fingerprint})",
                hint=f"give the fingerprint of the one that was begun to resume it; when it is over, {FORGET}",
            )
        if not all(self.updates.get(step) for step in steps):
            # An approval of then is none for what is sent now.
            plan.check(accept=accept, fingerprint=fingerprint)

    def forget(self, workspace: Workspace, plan: PipelinePlan, configuration: Mapping[str, str]) -> str:
        """Remove the notes; return what is left to do, in words.

        :param configuration: of the pipeline.
        :raises RefusedError: its update is under way.
        """
        if all(self.updates.values()) and not self.ended(workspace, plan.pipeline_id):
            raise RefusedError(
                f"pipeline {plan.pipeline_name}: update {list(self.updates.values())[-1]} of the earlier run is under way",
                hint="give the command without --forget: it follows that update",
            )
        self.memos.forget()
        whose = changed_by(configuration)
        if not whose:
            return ""
        again = command("pipelines", "put-back", plan.pipeline_id, "--changed-by", whose, "--apply")
        return f"put its keys back with: {again}"


def outcome(earlier: EarlierRun, plan: PipelinePlan, ended: str, steps: Sequence[str]) -> dict[str, Any]:
    """The document of a command that has only found how its earlier run ended.

    :param ended: how, in words.
    :param steps: all steps of the command.
    """
    return {
        "mode": "earlier_run",
        "pipeline_id": plan.pipeline_id,
        "pipeline_name": plan.pipeline_name,
        "updates": dict(earlier.updates),
        "approved": earlier.memos.approval(),
        "ended": ended,
        "not_started": [step for step in steps if step not in earlier.updates],
    }


def forgotten(earlier: EarlierRun | None, left: str) -> dict[str, Any]:
    """The document of ``--forget``."""
    return {"mode": "forget", "forgotten": dict(earlier.updates) if earlier else None, "left": left or None}
