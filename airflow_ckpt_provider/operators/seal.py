"""Fence a checkpoint, and lift the fence."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.change.lifting import begun_by_plans
from airflow_ckpt_provider.change.sealing import seal, unseal
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.operators.fields import flag, required, text
from airflow_ckpt_provider.operators.place_operators import CheckpointOperator, RepositoryOperator
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.operators.run_identity import made_by

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.checkpoint.seal import Seal
    from airflow_ckpt_provider.storage.location import Location


class CheckpointSealOperator(CheckpointOperator):
    """Seal a checkpoint: no Spark starts from it, and a stream that runs on it stops after its batch.

    The result names the seal (``plan_id``, ``batch_id``, ``path``, ``reason``, ``made_by``, ``since``), as a dictionary
    and key by key; lifting it needs the plan id. A retry finds the seal of the attempt before and keeps it.
    Somebody else's seal fails the task, without retries.

    As a setup task, with its teardown, the seal is lifted also when the work between the two fails::

        unseal = CheckpointUnsealOperator(task_id="unseal", checkpoint=…, plan_id=seal.output["plan_id"])
        seal >> work >> unseal.as_teardown(setups=seal)

    Parameters of the checkpoint: see :class:`~.place_operators.CheckpointOperator`.

    .. code-block:: python

        CheckpointSealOperator(
            task_id="seal",
            checkpoint="s3://lake/checkpoints/orders",
            reason="maintenance of the bucket until 18:00 UTC",
        )

    .. seealso:: :doc:`/howto/seal`

    :param reason: why, in words; Spark shows them to whoever tries to start the stream. (templated)
    """

    template_fields: Sequence[str] = (*CheckpointOperator.template_fields, "reason")
    ui_color = "#f8cecc"

    def __init__(self, *, reason: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.reason = reason

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what names the seal."""
        with no_retry_when_refused():
            location = self._checkpoint_place()
            task = made_by(context)
            found = seal(
                Checkpoint.at(location),
                reason=required(self.reason, "reason"),
                made_by=task,
                plan_id=_plan_id(task) if task else None,
            )
        self.log.info("%s is sealed by %s (plan %s): no Spark starts from it", location, found.path, found.plan_id)
        return _result(found, location)


class CheckpointUnsealOperator(CheckpointOperator, RepositoryOperator):
    """Lift the seal of a checkpoint; the stream then continues with the batch it would have run.

    Fine if there is no seal (any more). Somebody else's seal fails the task, without retries, unless ``force``.

    Parameters of places: see :class:`~.place_operators.CheckpointOperator` and :class:`~.place_operators.RepositoryOperator`
    (with ``for_start``: where the change keeps its plan; ``None``: beside the checkpoint).

    .. code-block:: python

        CheckpointUnsealOperator(
            task_id="unseal",
            checkpoint="s3://lake/checkpoints/orders",
            plan_id="{{ ti.xcom_pull(task_ids='seal', key='plan_id') }}",
        )

    .. seealso:: :doc:`/howto/seal`

    :param plan_id: plan id of the seal, as the seal task returned it. (templated)
    :param force: lift whatever seal there is. (templated)
    :param for_start: lift whatever seal there is, for the next task starts the query. Fails, without retries, where a change has
        begun to change files and is not finished, or where that cannot be determined. (templated)
    """

    template_fields: Sequence[str] = (
        *CheckpointOperator.template_fields,
        *RepositoryOperator.template_fields,
        "plan_id",
        "force",
        "for_start",
    )
    ui_color = "#fff2cc"

    def __init__(
        self,
        *,
        plan_id: str | None = None,
        force: bool | str = False,
        for_start: bool | str = False,
        repository: str | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("multiple_outputs", False)
        super().__init__(repository=repository, **kwargs)
        self.plan_id = plan_id
        self.force = force
        self.for_start = for_start

    def execute(self, context: Context) -> dict[str, Any]:
        """Return whether there was a seal to lift, and what it said."""
        with no_retry_when_refused():
            location = self._checkpoint_place()
            found = unseal(
                Checkpoint.at(location),
                plan_id=text(self.plan_id),
                force=flag(self.force, "force"),
                for_start=flag(self.for_start, "for_start"),
                begun=begun_by_plans(location, self._given_repository()),
            )
        if found is None:
            self.log.info("%s carries no seal: there is nothing to lift", location)
            return {"checkpoint": location.uri, "lifted": False}
        self.log.info("Lifted the seal of plan %s (%s) from %s", found.plan_id, found.reason, location)
        return {**_result(found, location), "lifted": True}


def _plan_id(task: str) -> str:
    """Return the same id for each attempt of a task, so that a retry finds the seal of the attempt before."""
    return hashlib.sha256(task.encode()).hexdigest()[:8]


def _result(found: Seal, location: Location) -> dict[str, Any]:
    return {
        "checkpoint": location.uri,
        "plan_id": found.plan_id,
        "batch_id": found.batch_id,
        "path": found.path,
        "reason": found.reason,
        "made_by": found.made_by,
        "since": found.since.isoformat() if found.since else None,
    }
