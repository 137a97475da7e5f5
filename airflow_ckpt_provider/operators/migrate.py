"""Put the small files of a repository's backups together into packs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.backup.migrate import apply_migrate, plan_migrate
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.operators.change_operator import PLAN, PlannedOperator
from airflow_ckpt_provider.operators.fields import required, text
from airflow_ckpt_provider.operators.place_operators import StreamOperator
from airflow_ckpt_provider.operators.progress_log import ProgressLog
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.operators.run_identity import made_by
from airflow_ckpt_provider.parallel import WORKERS
from airflow_ckpt_provider.units import format_size, parse_duration

if TYPE_CHECKING:
    from airflow.sdk import Context


class CheckpointRepositoryMigrateOperator(PlannedOperator, StreamOperator):
    """Put the small files of all backups of a repository together into packs. Plans only, unless ``mode="apply"``.

    Backups, restores and prunes may run meanwhile. No backup changes. What is stopped is resumed by the next run, which also
    deletes what had to wait for a restore. A repository of format 1 becomes one of format 2: earlier releases refuse it.

    The result has ``plan`` (JSON), ``markdown`` and ``outcome`` (``None`` when only planned), as a dictionary and key by key.

    Parameters of repository and plan: see :class:`~.place_operators.StreamOperator` (``name``: only this stream) and
    :class:`~.change_operator.PlannedOperator`.

    .. code-block:: python

        CheckpointRepositoryMigrateOperator(
            task_id="migrate",
            repository="s3://backups/streams",
            mode="apply",
        )

    .. seealso:: :doc:`/howto/packs`

    :param abandoned_after: a backup or restore that began that long ago and has not ended is dead: ``"24h"``. (templated)
    :param workers: files read and deleted at the same time.
    """

    template_fields: Sequence[str] = (
        *StreamOperator.template_fields,
        *PlannedOperator.template_fields,
        "abandoned_after",
    )
    ui_color = "#d5e8d4"

    def __init__(self, *, abandoned_after: str = "24h", workers: int = WORKERS, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.abandoned_after = abandoned_after
        self.workers = workers

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what was put into packs, and what waits for the next run."""
        with no_retry_when_refused():
            mode = self._mode()
            after = parse_duration(required(self.abandoned_after, "abandoned_after"), field="abandoned_after")
            place = self._repository_place()
            plan = plan_migrate(Repository.open(place), name=text(self.name))
            result = self._shown(plan)
            if mode == PLAN:
                return result
            shown = text(self.fingerprint)
            if shown not in (None, plan.fingerprint) and plan.steps:
                raise RefusedError(
                    f"the plan that was shown ({shown}) is not the one that would be carried out now ({plan.fingerprint}): other "
                    "objects would be packed; nothing was changed",
                    hint="show a new plan, and apply that; or leave the fingerprint out: no backup changes",
                )
            outcome = apply_migrate(
                place,
                plan,
                made_by=made_by(context),
                abandoned_after=after,
                workers=self.workers,
                on_progress=ProgressLog(self.log, "Packed"),
            )
        self.log.info(
            "Put %d objects, %s, into %d packs; deleted %d",
            outcome.objects, format_size(outcome.bytes), outcome.packs, outcome.deleted,
        )  # fmt: skip
        for stream, who in outcome.waits_for.items():
            self.log.info("%s waits for the next run: %s", stream, "; ".join(who))
        return {**result, "outcome": outcome.to_json()}
