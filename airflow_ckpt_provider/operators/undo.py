"""Undo a change of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from airflow_ckpt_provider.operators.change_operator import APPLY, PLAN, StoppedQueryOperator
from airflow_ckpt_provider.operators.fields import one_of, text, texts
from airflow_ckpt_provider.operators.place_operators import CheckpointOperator, RepositoryOperator
from airflow_ckpt_provider.operators.run_identity import has_been_tried, made_by
from airflow_ckpt_provider.operators.sink_operator import RollBackOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.backup.repository import Repository
    from airflow_ckpt_provider.storage.location import Location


class CheckpointUndoOperator(StoppedQueryOperator, CheckpointOperator, RepositoryOperator, RollBackOperator):
    """Undo a rewind, a reset, a repair, a restore or the reset of a flow, as long as nothing was written since.

    The checkpoint becomes, file by file, what it was before. A retry resumes where the attempt before was stopped; one of an undo
    that had finished, also of a task that is cleared, changes nothing.

    Parameters of places, sink and proof that the query is stopped: see :class:`~.place_operators.CheckpointOperator` (of a flow,
    the version that the change made), :class:`~.place_operators.RepositoryOperator` (the one that the change was carried out
    with; ``None``: the one beside the checkpoint), :class:`~.sink_operator.RollBackOperator` (as for the rewind) and
    :class:`~.change_operator.StoppedQueryOperator`.

    .. code-block:: python

        CheckpointUndoOperator(
            task_id="undo",
            checkpoint="s3://lake/checkpoints/orders",
            repository="s3://backups/streams",
            query_is_stopped=True,
        )

    .. seealso:: :doc:`/howto/rewind`

    :param plan_id: id of the change; ``None``: the one that is half-way, else the newest one. Where an undo is approved before it
        is applied, give the id that its plan named (``plan.output["plan"]["of"]``): the newest may be another one by then.
        (templated)
    :param mode: ``"plan"`` shows what would be undone, and changes nothing; the result has ``plan`` (JSON) and ``markdown``.
        ``"apply"`` undoes it. (templated)
    :param reason: why, for the audit record. (templated)
    """

    template_fields: Sequence[str] = (
        *CheckpointOperator.template_fields,
        *RepositoryOperator.template_fields,
        *RollBackOperator.template_fields,
        *StoppedQueryOperator.template_fields,
        "plan_id",
        "mode",
        "reason",
    )
    ui_color = "#fff2cc"

    def __init__(
        self,
        *,
        plan_id: str | None = None,
        mode: Literal["plan", "apply"] | str = APPLY,
        repository: str | None = None,
        reason: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(repository=repository, **kwargs)
        self.plan_id = plan_id
        self.mode = mode
        self.reason = reason

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what was put back, or what would be."""
        from airflow_ckpt_provider.lineage.runs import of_undo
        from airflow_ckpt_provider.places import open_place
        from airflow_ckpt_provider.recovery.kept_changes import repository_of_change
        from airflow_ckpt_provider.recovery.undo import undo, undoing

        with self._refusals(context, self._checkpoint_place, self._given_repository):
            mode = one_of(self.mode, "mode", (PLAN, APPLY))
            checkpoint, plan_id = self._checkpoint_place(), text(self.plan_id)
            repository = self._given_repository() or repository_of_change(checkpoint, plan_id)
            if plan_id is None and mode == APPLY:
                plan_id = self._undone_before(repository, checkpoint, context)
            about: dict[str, Any] = {
                "plan_id": plan_id,
                "sink": self._sinks(),
                "open_place": lambda uri: open_place(uri, text(self.checkpoint_conn_id)),
            }
            if mode == PLAN:
                plan = undoing(checkpoint, repository, **about).plan
                self.log.info("\n%s", markdown := plan.to_markdown())
                return {"mode": mode, "plan": plan.to_json(), "markdown": markdown, "outcome": None}
            outcome = undo(
                checkpoint,
                repository,
                **about,
                rest=self._rest(checkpoint, context),
                made_by=made_by(context),
                reason=text(self.reason) or "",
            )
        self.log.info("%s is what it was before %s %s", outcome.checkpoint, outcome.kind, outcome.plan_id)
        result = outcome.to_json()
        extra = {"kind": "undo", "plan_id": result["plan_id"], "batch_id": None}
        self._announce(result["checkpoint"], extra, context)
        self._link([result["plan_id"]], context)
        self.note(of_undo, result, self.places, texts(self.sink, "sink"))
        return result

    def _undone_before(self, repository: Repository, checkpoint: Location, context: Context) -> str | None:
        """The change that an attempt before this one has undone: the newest one of now may be another run's."""
        from airflow_ckpt_provider.change.plan import undone_by
        from airflow_ckpt_provider.change.undo import UndoPlan

        record = repository.audit(made_by(context)) if has_been_tried(context) else None
        if record is None or (record.get("kind"), record.get("checkpoint")) != (UndoPlan.kind, checkpoint.uri):
            return None
        return undone_by(str(record["plan_id"]))
