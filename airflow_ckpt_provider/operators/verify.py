"""Verify a backup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.backup.notes import note_verification
from airflow_ckpt_provider.backup.repository import LATEST
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.operators.fields import required, text
from airflow_ckpt_provider.operators.place_operators import StreamOperator
from airflow_ckpt_provider.operators.progress_log import ProgressLog, size
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused

if TYPE_CHECKING:
    from airflow.sdk import Context

#: Findings named in the error; the report has all of them.
_SHOWN = 10


class CheckpointVerifyOperator(StreamOperator):
    """Check that a backup is whole: every file there, of the right size, and, where asked, with the right content.

    A damaged backup fails the task without retries; the report is the task's result in either case.

    Parameters of the repository: see :class:`~.place_operators.StreamOperator`.

    .. seealso:: :doc:`/howto/verify`

    :param backup_id: id of the backup, or ``"latest"``. (templated)
    :param read_data: which contents are read and compared with their hashes: ``"all"``, ``"n/t"`` (the n-th of t parts,
        for all within t runs), ``"x%"`` (a random sample); ``None``: none, only the structure is checked. (templated)
    """

    template_fields: Sequence[str] = (*StreamOperator.template_fields, "backup_id", "read_data")
    ui_color = "#dae8fc"

    def __init__(self, *, backup_id: str = LATEST, read_data: str | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("multiple_outputs", False)
        super().__init__(**kwargs)
        self.backup_id = backup_id
        self.read_data = read_data

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the report; fail where it has findings."""
        with no_retry_when_refused():
            chosen = text(self.read_data)
            read_data = ReadData.parse(chosen) if chosen else None
            repository = self._open_repository()
            manifest = repository.manifest(required(self.backup_id, "backup_id"), name=text(self.name))
            self.log.info(
                "Verifying backup %s of %s in %s, %s",
                manifest.backup_id,
                manifest.name,
                repository.location,
                f"reading {chosen} of its contents" if chosen else "without reading contents",
            )
            report = verify_backup(repository, manifest, read_data=read_data, on_progress=ProgressLog(self.log, "Read"))
            note_verification(repository, report)
        result: dict[str, Any] = {"name": manifest.name, "batch_id": manifest.batch_id, **report.to_json()}
        if not report.ok:
            self._fail(result, [finding.message for finding in report.findings], context)
        self.log.info(
            "Backup %s is whole: %d files, %s; contents read and compared: %d files, %s",
            report.backup_id,
            report.files,
            size(report.bytes),
            report.read_files,
            size(report.read_bytes),
        )
        return result

    def _fail(self, result: dict[str, Any], findings: list[str], context: Context) -> None:
        for finding in findings:
            self.log.error("%s", finding)
        if "ti" in context:
            # A task that fails has no result of its own accord, and this one is for whoever is told of the failure.
            context["ti"].xcom_push(key="return_value", value=result)
        count = "1 finding" if len(findings) == 1 else f"{len(findings)} findings"
        more = [f"… and {len(findings) - _SHOWN} more"] if len(findings) > _SHOWN else []
        raise AirflowFailException(
            "\n".join(
                [
                    f"backup {result['backup_id']} is damaged: {count}",
                    *findings[:_SHOWN],
                    *more,
                    "HINT: take a new backup, and restore none from this one",
                ]
            )
        )
