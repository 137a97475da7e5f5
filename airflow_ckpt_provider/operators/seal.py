"""Fence a checkpoint, and lift the fence."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.lifting import begun_by_plans
from airflow_ckpt_provider.change.sealing import seal, unseal
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.operators.fields import flag, required, text
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.operators.run_identity import made_by
from airflow_ckpt_provider.places import open_place

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.checkpoint.seal import Seal
    from airflow_ckpt_provider.storage.location import Location


class CheckpointSealOperator(BaseOperator):
    """Seal a checkpoint: no Spark starts from it, and a stream that runs on it stops after its batch.

    The result names the seal (``plan_id``, ``batch_id``, ``path``, ``reason``, ``made_by``, ``since``), as a dictionary
    and key by key; lifting it needs the plan id. A retry finds the seal of the attempt before and keeps it.
    Somebody else's seal fails the task, without retries.

    As a setup task, with its teardown, the seal is lifted also when the work between the two fails::

        unseal = CheckpointUnsealOperator(task_id="unseal", checkpoint=…, plan_id=seal.output["plan_id"])
        seal >> work >> unseal.as_teardown(setups=seal)

    .. seealso:: :doc:`/howto/seal`

    :param checkpoint: URI of the checkpoint. (templated)
    :param checkpoint_conn_id: Airflow connection to reach it; ``None``: the environment's own credentials. (templated)
    :param reason: why, in words; Spark shows them to whoever tries to start the stream. (templated)
    """

    template_fields: Sequence[str] = ("checkpoint", "checkpoint_conn_id", "reason")
    ui_color = "#f8cecc"

    def __init__(self, *, checkpoint: str, reason: str, checkpoint_conn_id: str | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("multiple_outputs", True)
        super().__init__(**kwargs)
        self.checkpoint = checkpoint
        self.reason = reason
        self.checkpoint_conn_id = checkpoint_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what names the seal."""
        with no_retry_when_refused():
            location = open_place(required(self.checkpoint, "checkpoint"), text(self.checkpoint_conn_id))
            task = made_by(context)
            found = seal(
                Checkpoint.at(location),
                reason=required(self.reason, "reason"),
                made_by=task,
                plan_id=_plan_id(task) if task else None,
            )
        self.log.info("%s is sealed by %s (plan %s): no Spark starts from it", location, found.path, found.plan_id)
        return _result(found, location)


class CheckpointUnsealOperator(BaseOperator):
    """Lift the seal of a checkpoint; the stream then goes on with the batch it would have run.

    Fine where there is no seal (any more). Somebody else's seal fails the task, without retries, unless ``force``.

    .. seealso:: :doc:`/howto/seal`

    :param checkpoint: URI of the checkpoint. (templated)
    :param checkpoint_conn_id: Airflow connection to reach it; ``None``: the environment's own credentials. (templated)
    :param plan_id: plan id of the seal, as the seal task returned it. (templated)
    :param force: lift whatever seal there is. (templated)
    :param for_start: lift whatever seal there is, for the next task starts the query. Fails, without retries, where a change has
        begun to change files and is not finished, or where that cannot be told. (templated)
    :param repository: with ``for_start``: where that change keeps its plan; ``None``: beside the checkpoint. (templated)
    :param repository_conn_id: Airflow connection to reach it. (templated)
    """

    template_fields: Sequence[str] = (
        "checkpoint",
        "checkpoint_conn_id",
        "plan_id",
        "force",
        "for_start",
        "repository",
        "repository_conn_id",
    )
    ui_color = "#fff2cc"

    def __init__(
        self,
        *,
        checkpoint: str,
        plan_id: str | None = None,
        force: bool | str = False,
        for_start: bool | str = False,
        repository: str | None = None,
        checkpoint_conn_id: str | None = None,
        repository_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.checkpoint = checkpoint
        self.plan_id = plan_id
        self.force = force
        self.for_start = for_start
        self.repository = repository
        self.repository_conn_id = repository_conn_id
        self.checkpoint_conn_id = checkpoint_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Return whether there was a seal to lift, and what it said."""
        with no_retry_when_refused():
            location = open_place(required(self.checkpoint, "checkpoint"), text(self.checkpoint_conn_id))
            uri, conn_id = text(self.repository), text(self.repository_conn_id)
            repository = Repository.open(open_place(uri, conn_id)) if uri else None
            found = unseal(
                Checkpoint.at(location),
                plan_id=text(self.plan_id),
                force=flag(self.force, "force"),
                for_start=flag(self.for_start, "for_start"),
                begun=begun_by_plans(location, repository),
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
