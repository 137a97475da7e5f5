"""Verify a backup."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_ckpt_provider.backup.latest import LATEST
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.operators.executors import AUTO, LOCAL, SPARK, ExecutorsOperator
from airflow_ckpt_provider.operators.fields import required, text
from airflow_ckpt_provider.operators.place_operators import StreamOperator
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.units import format_size

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.backup.read_engine import ReadEngine
    from airflow_ckpt_provider.backup.repository import Repository
    from airflow_ckpt_provider.backup.verify import ReadData
    from airflow_ckpt_provider.backup.verify_summary import VerifySummary

#: In the place of a backup's id: all of them.
ALL = "all"
#: The application that reads on Spark. What it imports of this package has to be importable where its driver runs.
APPLICATION = str(Path(__file__).parents[1] / "jobs" / "verify_contents.py")
#: Findings named in the error; the report has all of them.
_SHOWN = 10


class CheckpointVerifyOperator(ExecutorsOperator, StreamOperator):
    """Check that a backup is whole: every file there, of the right size, and, where asked, with the right content.

    A damaged backup fails the task without retries, and what could not be read with them; the report is the task's result in
    either case. What is found is noted in the repository, and all that goes by it: see :doc:`/howto/verify`.

    Parameters of the repository: see :class:`~.place_operators.StreamOperator`; of Spark, whose executors can read the contents:
    :class:`~.executors.ExecutorsOperator`. They find, note and report the same.

    .. code-block:: python

        CheckpointVerifyOperator(
            task_id="verify",
            repository="s3://backups/streams",
            name="orders",
            read_data="10%",
        )

    .. seealso:: :doc:`/howto/verify`, :doc:`/howto/huge-checkpoints`

    :param backup_id: id of the backup; ``"latest"`` for the newest; or ``"all"`` for all backups of the stream, or of the
        repository where ``name`` is ``None``, each of whose objects is read once. (templated)
    :param read_data: which contents are read and compared with their hashes: ``"all"``, ``"1/t"`` (the t-th part that was read
        longest ago, for all within t runs), ``"n/t"`` (the n-th of t parts), ``"x%"`` (a random sample); ``None``: none, only the
        structure is checked. (templated)
    """

    template_fields: Sequence[str] = (
        *StreamOperator.template_fields,
        *ExecutorsOperator.template_fields,
        "backup_id",
        "read_data",
    )
    ui_color = "#dae8fc"

    def __init__(self, *, backup_id: str = LATEST, read_data: str | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("multiple_outputs", False)
        super().__init__(**kwargs)
        self.backup_id = backup_id
        self.read_data = read_data

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the report; fail where it has findings."""
        from airflow_ckpt_provider.backup.verify import ReadData

        with no_retry_when_refused():
            chosen = text(self.read_data)
            read_data = ReadData.parse(chosen) if chosen else None
            wanted = required(self.backup_id, "backup_id")
            how = f"reading {chosen} of its contents" if chosen else "without reading contents"
            engine = self._engine() if read_data else LOCAL  # nothing to read: the listings are this task's in any case
            repository = self._open_repository()
            if wanted == ALL:
                return self._verify_all(repository, read_data, how, engine, context)
            return self._verify_one(repository, wanted, read_data, how, engine, context)

    def _verify_one(
        self,
        repository: Repository,
        wanted: str,
        read_data: ReadData | None,
        how: str,
        engine: str,
        context: Context,
    ) -> dict[str, Any]:
        from airflow_ckpt_provider.backup.notes import note_verification
        from airflow_ckpt_provider.backup.verify import verify_backup
        from airflow_ckpt_provider.backup.verify_summary import VerifySummary
        from airflow_ckpt_provider.lineage.runs import of_verification
        from airflow_ckpt_provider.operators.progress_log import ProgressLog

        # The newest, whether it is known to be damaged or not: reading it again shows whether it still is.
        manifest = repository.manifest(wanted, name=text(self.name), whole=False)
        self.log.info(
            "Verifying backup %s of %s in %s, %s", manifest.backup_id, manifest.name, repository.location, how
        )

        def here(reads: ReadEngine) -> VerifySummary:
            report = verify_backup(
                repository, manifest, read_data=read_data, on_progress=ProgressLog(self.log, "Read"), engine=reads
            )
            note_verification(repository, report)
            return VerifySummary.of_backup(report)

        found = self._verified(repository, engine, here, manifest.backup_id, manifest.name)
        result: dict[str, Any] = {"name": manifest.name, "batch_id": manifest.batch_id, **found.report}
        self.note(of_verification, result, self.places)
        for words in found.coverage:
            self.log.info("%s", words)
        if not found.ok:
            self._fail(result, f"backup {manifest.backup_id} is", found.findings, context, damaged=found.is_damaged)
        self.log.info(
            "Backup %s is whole: %d files, %s; contents read and compared: %d files, %s",
            manifest.backup_id,
            result["files"],
            format_size(result["bytes"]),
            result["read_files"],
            format_size(result["read_bytes"]),
        )
        return result

    def _verify_all(
        self, repository: Repository, read_data: ReadData | None, how: str, engine: str, context: Context
    ) -> dict[str, Any]:
        from airflow_ckpt_provider.backup.verify_repository import verify_repository
        from airflow_ckpt_provider.backup.verify_summary import VerifySummary
        from airflow_ckpt_provider.operators.progress_log import ProgressLog

        name = text(self.name)
        self.log.info("Verifying all backups%s in %s, %s", f" of {name}" if name else "", repository.location, how)

        def all_of(stream: str | None) -> VerifySummary:
            def here(reads: ReadEngine) -> VerifySummary:
                report = verify_repository(
                    repository,
                    name=stream,
                    read_data=read_data,
                    on_progress=ProgressLog(self.log, "Read"),
                    engine=reads,
                )
                return VerifySummary.of_repository(report)

            return self._verified(repository, engine, here, ALL, stream)

        # One stream after the other where it is decided who reads: what was read of the ones before is noted already.
        streams = (name,) if name or engine != AUTO else repository.names()
        found = VerifySummary.together([all_of(each) for each in streams], repository.location.uri)
        for words in found.coverage:
            self.log.info("%s", words)
        if not found.ok:
            damaged = sum(len(stream["damaged"]) for stream in found.report["streams"])
            what = f"{damaged} backups are" if damaged != 1 else "1 backup is"
            self._fail(found.report, what, found.findings, context, damaged=found.is_damaged)
        backups = sum(stream["backups"] for stream in found.report["streams"])
        self.log.info("All %d backups are whole, as far as was read", backups)
        return found.report

    def _verified(
        self,
        repository: Repository,
        engine: str,
        here: Callable[[ReadEngine], VerifySummary],
        backup_id: str,
        name: str | None,
    ) -> VerifySummary:
        """Verify in this task, or on Spark where that was chosen or is worth it.

        :param here: verifies in this task, given who reads.
        :param backup_id: what Spark verifies, in the application's words.
        :param name: of that stream; ``None``: of all.
        """
        from airflow_ckpt_provider.backup.engine import TooMuchForThreadsError
        from airflow_ckpt_provider.backup.read_engine import ReadUpTo, ThreadReads

        if engine != SPARK:
            threads = ThreadReads()
            try:
                return here(ReadUpTo(threads, **self._limits()) if engine == AUTO else threads)
            except TooMuchForThreadsError as e:
                self.log.info("%d files, %s, are to be read: Spark reads them", e.files, format_size(e.size))
        return self._verified_on_spark(repository, backup_id, name)

    def _verified_on_spark(self, repository: Repository, backup_id: str, name: str | None) -> VerifySummary:
        from airflow_ckpt_provider.backup.verify_summary import VerifySummary

        report_id = f"by-spark-{uuid.uuid4().hex}"
        arguments = [
            repository.location.uri,
            backup_id,
            f"--read-data={text(self.read_data)}",
            f"--report-id={report_id}",
            f"--repository-id={repository.repository_id}",
        ]
        failed = None
        try:
            self._run_on_spark(APPLICATION, [*arguments, *([f"--name={name}"] if name else [])])
        except StorageError as e:
            failed = e  # also where it has found something: then there is a report
        try:
            return VerifySummary.take(repository, report_id)
        except FileNotFoundError:
            raise failed or StorageError(
                f"Spark ended well, and {repository.location} has no report of its verify",
                hint="see that the cluster means the same place by this address, and may write there",
            ) from failed

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
