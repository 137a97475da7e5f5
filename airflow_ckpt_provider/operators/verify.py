"""Verify a backup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_ckpt_provider.backup.latest import LATEST
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.operators.fields import required, text
from airflow_ckpt_provider.operators.place_operators import StreamOperator
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.units import format_size

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.backup.repository import Repository
    from airflow_ckpt_provider.backup.verify import ReadData

#: In the place of a backup's id: all of them.
ALL = "all"
#: Findings named in the error; the report has all of them.
_SHOWN = 10


class CheckpointVerifyOperator(StreamOperator):
    """Check that a backup is whole: every file there, of the right size, and, where asked, with the right content.

    A damaged backup fails the task without retries, and what could not be read with them; the report is the task's result in
    either case. What is found is noted in the repository, and all that goes by it: see :doc:`/howto/verify`.

    Parameters of the repository: see :class:`~.place_operators.StreamOperator`.

    .. seealso:: :doc:`/howto/verify`

    :param backup_id: id of the backup; ``"latest"`` for the newest; or ``"all"`` for all backups of the stream, or of the
        repository where ``name`` is ``None``, each of whose objects is read once. (templated)
    :param read_data: which contents are read and compared with their hashes: ``"all"``, ``"1/t"`` (the t-th part that was read
        longest ago, for all within t runs), ``"n/t"`` (the n-th of t parts), ``"x%"`` (a random sample); ``None``: none, only the
        structure is checked. (templated)
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
        from airflow_ckpt_provider.backup.notes import note_verification
        from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
        from airflow_ckpt_provider.lineage.runs import of_verification
        from airflow_ckpt_provider.operators.progress_log import ProgressLog

        with no_retry_when_refused():
            chosen = text(self.read_data)
            read_data = ReadData.parse(chosen) if chosen else None
            wanted = required(self.backup_id, "backup_id")
            how = f"reading {chosen} of its contents" if chosen else "without reading contents"
            repository = self._open_repository()
            if wanted == ALL:
                return self._verify_all(repository, read_data, how, context)
            # The newest, whether it is known to be damaged or not: reading it again shows whether it still is.
            manifest = repository.manifest(wanted, name=text(self.name), whole=False)
            self.log.info(
                "Verifying backup %s of %s in %s, %s", manifest.backup_id, manifest.name, repository.location, how
            )
            report = verify_backup(repository, manifest, read_data=read_data, on_progress=ProgressLog(self.log, "Read"))
            note_verification(repository, report)
        result: dict[str, Any] = {"name": manifest.name, "batch_id": manifest.batch_id, **report.to_json()}
        self.note(of_verification, result, self.places)
        if report.coverage:
            self.log.info("%s", report.coverage)
        if not report.ok:
            findings = [finding.message for finding in report.findings]
            self._fail(result, f"backup {report.backup_id} is", findings, context, damaged=report.damaged)
        self.log.info(
            "Backup %s is whole: %d files, %s; contents read and compared: %d files, %s",
            report.backup_id,
            report.files,
            format_size(report.bytes),
            report.read_files,
            format_size(report.read_bytes),
        )
        return result

    def _verify_all(
        self, repository: Repository, read_data: ReadData | None, how: str, context: Context
    ) -> dict[str, Any]:
        from airflow_ckpt_provider.backup.verify_repository import verify_repository
        from airflow_ckpt_provider.operators.progress_log import ProgressLog

        name = text(self.name)
        self.log.info("Verifying all backups%s in %s, %s", f" of {name}" if name else "", repository.location, how)
        report = verify_repository(
            repository, name=name, read_data=read_data, on_progress=ProgressLog(self.log, "Read")
        )
        for stream in report.streams:
            if stream.coverage:
                self.log.info("%s: %s", stream.name, stream.coverage)
        if not report.ok:
            what = f"{len(report.damaged)} backups are" if len(report.damaged) != 1 else "1 backup is"
            self._fail(report.to_json(), what, list(report.findings), context, damaged=bool(report.damaged))
        self.log.info("All %d backups are whole, as far as was read", sum(s.backups for s in report.streams))
        return report.to_json()

    def _fail(
        self, result: dict[str, Any], what: str, findings: list[str], context: Context, *, damaged: bool
    ) -> NoReturn:
        for finding in findings:
            self.log.error("%s", finding)
        if "ti" in context:
            # A task that fails has no result of its own accord, and this one is for whoever is informed of the failure.
            context["ti"].xcom_push(key="return_value", value=result)
        count = "1 finding" if len(findings) == 1 else f"{len(findings)} findings"
        more = [f"… and {len(findings) - _SHOWN} more"] if len(findings) > _SHOWN else []
        if not damaged:
            lines = [f"not all could be read: {count}", *findings[:_SHOWN], *more]
            raise StorageError(
                "\n".join(lines), hint="check the store, and run it again: what could not be read may be whole"
            )
        lines = [f"{what} damaged: {count}", *findings[:_SHOWN], *more]
        raise AirflowFailException("\n".join([*lines, "HINT: take a new backup, and restore none from this one"]))
