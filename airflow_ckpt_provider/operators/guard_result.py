"""What a guard's task does with its report: tell it, keep it, and fail or not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowSkipException

from airflow_ckpt_provider.errors import NoSourceOfKindError, RefusedError
from airflow_ckpt_provider.operators.fields import one_of
from airflow_ckpt_provider.operators.lineage import LineageOperator
from airflow_ckpt_provider.verdict import Verdict

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.guards.report import GuardReport

#: What is done about a verdict other than ``SAFE``.
REACTIONS = ("fail", "warn")


#: What is done where a query has no source of the kind that a guard is for.
WHERE_ABSENT = ("fail", "skip")


@contextmanager
def skip_if_absent(if_absent: Any) -> Iterator[None]:
    """Skip the task where the query is known to have no source of the guard's kind, if that is what ``if_absent`` says.

    A source whose kind the checkpoint does not show, and a query that has not run a batch yet, are no reason to skip.
    """
    skips = one_of(if_absent, "if_absent", WHERE_ABSENT) == "skip"
    try:
        yield
    except NoSourceOfKindError as e:
        if not skips:
            e.add_hint("if_absent='skip' skips the task instead")
            raise
        raise AirflowSkipException(e.message) from e


def conclude(report: GuardReport, reaction: str, context: Context, task: LineageOperator) -> dict[str, Any]:
    """Return the report as the task's result.

    :param reaction: one of :data:`REACTIONS`.
    :param task: the task, which says what it found in its log and to OpenLineage.
    :raises RefusedError: the verdict is not ``SAFE`` and the reaction is to fail; the report is then pushed before, as the
        XCom ``report``.
    """
    from airflow_ckpt_provider.lineage.runs import of_guard

    result = report.to_json()
    task.note(of_guard, result, task.places)
    tell = task.log.info if report.verdict is Verdict.SAFE else task.log.warning
    tell("%s", report.to_markdown())
    if report.verdict is not Verdict.SAFE and reaction == "fail":
        if "ti" in context:
            context["ti"].xcom_push(key="report", value=result)
        raise RefusedError(
            f"{report.verdict.value}: {report.subject}: {'; '.join(report.reasons)}",
            hint="the report is in the log and in the XCom `report`; on_finding='warn' only warns",
        )
    return result
