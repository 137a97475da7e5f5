"""What a guard's task does with its report: tell it, keep it, and fail or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.verdict import Verdict

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.types import Logger

    from airflow_ckpt_provider.guards.report import GuardReport

#: What is done about a verdict other than ``SAFE``.
REACTIONS = ("fail", "warn")


def conclude(report: GuardReport, reaction: str, context: Context, log: Logger) -> dict[str, Any]:
    """Return the report as the task's result.

    :param reaction: one of :data:`REACTIONS`.
    :raises RefusedError: the verdict is not ``SAFE`` and the reaction is to fail; the report is then pushed before, as the
        XCom ``report``.
    """
    result = report.to_json()
    tell = log.info if report.verdict is Verdict.SAFE else log.warning
    tell("%s", report.to_markdown())
    if report.verdict is not Verdict.SAFE and reaction == "fail":
        if "ti" in context:
            context["ti"].xcom_push(key="report", value=result)
        raise RefusedError(
            f"{report.verdict.value}: {report.subject}: {'; '.join(report.reasons)}",
            hint="the report is in the log and in the XCom `report`; on_finding='warn' only tells",
        )
    return result
