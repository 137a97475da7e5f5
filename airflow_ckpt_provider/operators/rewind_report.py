"""The last task of a rewind: what became of it, and what to do where a task before has failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_ckpt_provider.backup.beside import repository_at
from airflow_ckpt_provider.operators.place_operators import CheckpointOperator, RepositoryOperator
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.recovery.status import REWOUND, UNDER_WAY, status_of

if TYPE_CHECKING:
    from airflow.sdk import Context


class RewindReportOperator(CheckpointOperator, RepositoryOperator):
    """Say how a rewind ended. Runs whatever happened before (``trigger_rule="all_done"``).

    Fails where a task has failed; where the checkpoint is sealed half-way; and where it was rewound, a task was skipped, and the
    stream has not run since: nobody may have started it. The report has the status of the checkpoint now (untouched, half-way
    and sealed, rewound, running again), and the commands that continue from there. The result is ``kind``, ``message``,
    ``commands``, ``plan_id``, ``failed`` and ``skipped`` (ids of tasks) and ``markdown``; it is there as the XCom ``report``
    when the task fails.

    Parameters: see :class:`~.place_operators.CheckpointOperator` and :class:`~.place_operators.RepositoryOperator` (the one that
    the rewind was carried out with; ``None``: ``<checkpoint>.rewinds``).

    .. code-block:: python

        RewindReportOperator(
            task_id="report",
            checkpoint="s3://lake/checkpoints/orders",
            trigger_rule="all_done",
        )

    .. seealso:: :doc:`/howto/rewind`
    """

    template_fields: Sequence[str] = (*CheckpointOperator.template_fields, *RepositoryOperator.template_fields)
    ui_color = "#dae8fc"

    def __init__(self, *, repository: str | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("trigger_rule", "all_done")
        super().__init__(repository=repository, **kwargs)

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the report; fail where the stream is not as the run was to leave it."""
        with no_retry_when_refused():
            checkpoint = self._checkpoint()
            repository = repository_at(self._repository_beside(checkpoint.location), checkpoint.location)
            situation = status_of(checkpoint, repository, since=context["dag_run"].start_date)
        failed, skipped = self._in_state(context, "failed"), self._in_state(context, "skipped")
        half_way = situation.kind == UNDER_WAY or (situation.kind == REWOUND and bool(skipped))
        stopped = failed or (skipped if half_way else [])
        title = f"# {'Stopped in ' + ', '.join(stopped) if stopped else 'Half-way' if half_way else 'Ended'}"
        report = {
            **situation.to_json(),
            "failed": failed,
            "skipped": skipped,
            "markdown": f"{title}\n\n{situation.to_markdown()}\n",
        }
        self.log.info("\n%s", report["markdown"])
        if failed or half_way:
            context["ti"].xcom_push(key="report", value=report)
            raise AirflowFailException(report["markdown"])
        return report

    def _in_state(self, context: Context, wanted: str) -> list[str]:
        ti = context["ti"]
        states = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id]).get(ti.run_id, {})
        return sorted(task_id for task_id, state in states.items() if state == wanted)
