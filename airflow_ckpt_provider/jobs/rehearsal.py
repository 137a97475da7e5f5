"""A rehearsal: the newest backup restored to a scratch place, the code run on it, rows compared, production proven untouched."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.backup.latest import LATEST
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.health import measure
from airflow_ckpt_provider.errors import CkptError, NoSuchBackupError, RefusedError, StorageError
from airflow_ckpt_provider.jobs.application_trial import run_application
from airflow_ckpt_provider.jobs.build_function import BuildError, frame_of, load_build, session_of
from airflow_ckpt_provider.jobs.shadow import Shadow
from airflow_ckpt_provider.jobs.table_batches import TableBatches
from airflow_ckpt_provider.jobs.trial import Trial, difference, refuse_source_changes, run_trial
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.storage.signatures import Signing
from airflow_ckpt_provider.upgrade.rehearsal.report import Failure, Rehearsal, RowDifference
from airflow_ckpt_provider.upgrade.rehearsal.scratch import (
    Scratch,
    check_apart,
    plan_as,
    plannable,
    remove_all,
    restore_scratch,
    state_bytes,
)
from airflow_ckpt_provider.upgrade.rehearsal.untouched import compare_snapshots, take_snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

#: Batches of production by which its pace is measured.
_PACE_OF = 20


@dataclass(frozen=True)
class Request:
    """What is to be rehearsed.

    :param repository: URI of the repository.
    :param scratch: a directory for scratch copies, by a name that Spark and fsspec both know.
    :param key: of an encrypted repository.
    :param signing: what signs the documents of the repository, and what they have to be signed by.
    :param repository_id: id that the repository has to have; ``None``: any.
    :param build: the new code, ``module:function``; empty where an application is given.
    :param application: a command that takes ``--checkpoint`` and ``--sink``.
    :param old_build: the old code, to compare rows with.
    :param name: name of the stream; needed for ``latest`` where the repository holds several.
    :param backup_id: the backup, or ``latest``.
    :param batch: batch of the backup; by default its newest.
    :param batches: how many batches are run at most; while following, how many are compared at least.
    :param timeout: seconds for each of them, and for the first to come; while following, for all of it.
    :param output_mode: as the application writes.
    :param conf: settings of the new code's session.
    :param checkpoint: the checkpoint in production: pace, offsets after the backup, and proof that it is not written.
    :param sink: the Delta table that the old code writes: rows to compare with, and the same proof.
    :param watch: further places that must not be written.
    :param keep: leave the scratch copies where they are.
    :param drill: a restore drill, with the old code: recorded in the repository when it is ``SAFE``.
    :param made_by: the run or user, for audit records.
    :param follow: continue beside production, batch by batch, until it is caught up with (shadow).
    :param idle: while following: seconds without a new batch after which production has stopped.
    :param stop_at_difference: while following: end at the first batch whose rows differ.
    """

    repository: str
    scratch: str
    key: bytes | None = field(default=None, repr=False)
    signing: Signing | None = field(default=None, repr=False)
    repository_id: str | None = None
    build: str = ""
    application: str = ""
    old_build: str = ""
    name: str | None = None
    backup_id: str = LATEST
    batch: int | None = None
    batches: int = 3
    timeout: int = 600
    output_mode: str = "append"
    conf: dict[str, str] = field(default_factory=dict)
    checkpoint: str = ""
    sink: str = ""
    watch: tuple[str, ...] = ()
    keep: bool = False
    drill: bool = False
    made_by: str = ""
    follow: bool = False
    idle: int = 60
    stop_at_difference: bool = False

    @property
    def repository_place(self) -> Location:
        """The repository, with its keys and the id that it has to have."""
        place = open_location(self.repository)
        return replace(place, key=self.key, signing=self.signing, repository_id=self.repository_id)


def rehearse(request: Request, spark: SparkSession | None = None) -> Rehearsal:
    """Carry a rehearsal out.

    :param request: what is to be rehearsed.
    :param spark: a session; an application needs none.
    :raises RefusedError: the request makes no sense, or the scratch place lies in production.
    :raises StorageError: a place could not be read or written.
    """
    if bool(request.build) == bool(request.application):
        raise RefusedError("give either --build or --application", hint="see --help")
    if request.follow and not (request.build and request.checkpoint and request.sink):
        raise RefusedError(
            "--follow needs --build, --checkpoint and --sink", hint="an application cannot be led batch by batch"
        )
    if request.follow and (request.old_build or request.drill or request.batches < 1):
        raise RefusedError(
            "--follow compares at least one batch with what production wrote, without --old-build or --drill",
            hint="see --help",
        )
    began, clock = datetime.now(UTC), time.monotonic()
    report = Rehearsal(
        name=request.name or "",
        backup_id="",
        batch_id=-1,
        code=request.build or request.application,
        spark=spark.version if spark and request.build else "",
        began=began,
        seconds=0.0,
    )
    watched = [open_location(uri) for uri in (request.checkpoint, request.sink, *request.watch) if uri]
    run = f"rehearsal-{uuid.uuid4().hex[:12]}"
    uri = f"{request.scratch.rstrip('/')}/{run}"
    scratch = open_location(uri)
    check_apart(scratch, *watched, request.repository_place)
    before = [take_snapshot(place) for place in watched]
    try:
        repository = Repository.open(request.repository_place)
        manifest = repository.manifest(request.backup_id, name=request.name)
        with suppress(StorageError):  # a store that cannot be reached from here cannot be written from here either
            check_apart(scratch, open_location(manifest.checkpoint))
        report = replace(report, name=manifest.name, backup_id=manifest.backup_id, batch_id=manifest.batch_id)
        report = _Rehearsing(request, spark, repository, manifest, scratch, uri, run).carried_out(report)
    except NoSuchBackupError as e:
        report = replace(report, failure=Failure("NO-BACKUP", str(e)))
    except BuildError as e:
        report = replace(report, failure=Failure(e.code, str(e)))
    finally:
        if not request.keep:
            remove_all(scratch)
    compared = tuple(compare_snapshots(b, take_snapshot(p)) for b, p in zip(before, watched, strict=True))
    return replace(report, seconds=time.monotonic() - clock, production=compared)


@dataclass
class _Rehearsing:
    """A rehearsal under way."""

    request: Request
    spark: SparkSession | None
    repository: Repository
    manifest: Manifest
    scratch: Location
    uri: str
    run: str

    def carried_out(self, report: Rehearsal) -> Rehearsal:
        request = self.request
        if request.build and self.spark is None:
            raise RefusedError("a build function needs a Spark session", hint="run it by spark-submit")
        production = open_location(request.checkpoint) if request.checkpoint else None
        baseline = None
        if production is not None:
            with suppress(CkptError):  # a checkpoint that is lost has no pace; the backup is what counts
                baseline = measure(production, batches=_PACE_OF).to_json()
        if request.application:
            return self._application(replace(report, baseline=baseline))
        return self._build(replace(report, baseline=baseline), production)

    def _restored(self, place: str, batch: int | None) -> Scratch:
        return restore_scratch(
            self.repository,
            self.manifest,
            self.scratch / place,
            batch=batch,
            made_by=self.request.made_by,
            reason=f"{'restore drill' if self.request.drill else 'rehearsal'} {self.run}",
        )

    def _application(self, report: Rehearsal) -> Rehearsal:
        copy = self._restored("new", self.request.batch)
        batches, failure = run_application(
            self.request.application,
            copy.location,
            checkpoint=f"{self.uri}/new",
            sink=f"{self.uri}/sink",
            after=copy.batch_id,
            last=copy.batch_id + self.request.batches,
            timeout=self.request.timeout,
        )
        state = self._state(copy, batches[-1].batch_id if batches else None, None)
        return replace(report, batch_id=copy.batch_id, batches=tuple(batches), failure=failure, state=state)

    def _build(self, report: Rehearsal, production: Location | None) -> Rehearsal:
        request, spark = self.request, self.spark
        if spark is None:
            raise RefusedError("a build function needs a Spark session", hint="run it by spark-submit")
        # All that can be wrong with the code is found before anything is copied.
        frame = self._frame(spark, request.build)
        old_frame = self._frame(spark, request.old_build) if request.old_build else None
        copy = self._restored("new", request.batch)
        report = replace(report, batch_id=copy.batch_id)
        if request.follow and production is not None:
            return self._shadow(report, spark, frame, copy, production)
        reference, batches = self._reference(copy, production)
        old = Trial()
        if old_frame is not None:
            self._restored("old", request.batch)
            place = self.scratch / "old"
            old = self._run(old_frame, "old", copy.batch_id, place, reference, batches, keep=True)
            if old.failure:
                said = f"the old code {request.old_build} failed: {old.failure.message}"
                return replace(report, failure=replace(old.failure, code="OLD-CODE-FAILED", message=said))
            reference, batches = reference or place, [b.batch_id for b in old.batches]
        compares = bool(request.old_build or request.sink)
        new = self._run(
            frame,
            "new",
            copy.batch_id,
            copy.location,
            reference if compares and batches else None,
            batches,
            keep=compares and bool(batches),
        )
        last = new.batches[-1].batch_id if new.batches else None
        return replace(
            report,
            batches=tuple(new.batches),
            failure=new.failure,
            state=self._state(copy, last, new.state_rows),
            difference=self._difference(spark, old, new, batches) if compares and not new.failure else None,
        )

    def _shadow(
        self, report: Rehearsal, spark: SparkSession, frame: DataFrame, copy: Scratch, production: Location
    ) -> Rehearsal:
        request = self.request
        settings = self._settings("new", f"{self.uri}/rows/new")

        def run_batch(batch: int, trial: Trial, seconds: int) -> None:
            run_trial(frame, last=batch, into=trial, timeout=seconds, **settings)

        shadow = Shadow(
            spark,
            TableBatches(spark, request.sink, self.manifest.query_id),
            production,
            copy.location,
            self.scratch / "plans",
            run_batch=run_batch,
            drop_rows=lambda batch: remove_all(self.scratch / f"rows/new/batch={batch}"),
        )
        found, followed = shadow.follow(
            after=copy.batch_id,
            batches=request.batches,
            timeout=request.timeout,
            idle=request.idle,
            stop_at_difference=request.stop_at_difference,
        )
        trial = shadow.trial
        last = trial.batches[-1].batch_id if trial.batches else None
        return replace(
            report,
            batches=tuple(trial.batches),
            failure=trial.failure,
            state=self._state(copy, last, trial.state_rows),
            difference=found,
            followed=followed,
        )

    def _frame(self, spark: SparkSession, given: str) -> DataFrame:
        frame = frame_of(load_build(given), session_of(spark, self.request.conf), given)
        refuse_source_changes(frame, given)
        return frame

    def _reference(self, copy: Scratch, production: Location | None) -> tuple[Location | None, list[int]]:
        """Whose offsets are run again: production's after the backup, or the backup's own after an older batch of it."""
        if not (self.request.old_build or self.request.sink):
            return None, []
        if production is not None and (
            found := plannable(production, after=copy.batch_id, at_most=self.request.batches)
        ):
            return production, found
        if copy.batch_id < self.manifest.batch_id:
            place = self._restored("reference", None).location
            return place, plannable(place, after=copy.batch_id, at_most=self.request.batches)
        return None, []

    def _run(
        self,
        frame: DataFrame,
        name: str,
        after: int,
        place: Location,
        reference: Location | None,
        batches: list[int],
        *,
        keep: bool,
    ) -> Trial:
        """Run the batches of a reference one by one, or freely if there is none."""
        settings = self._settings(name, f"{self.uri}/rows/{name}" if keep else None)
        if reference is None:
            return run_trial(frame, last=after + self.request.batches, timeout=self.request.timeout, **settings)
        trial = Trial()
        for batch in batches:
            plan_as(place, reference, batch)
            run_trial(frame, last=batch, into=trial, timeout=self.request.timeout, **settings)
            if trial.failure:
                break
        return trial

    def _settings(self, name: str, keep_rows: str | None) -> dict[str, Any]:
        return {
            "checkpoint": f"{self.uri}/{name}",
            "output_mode": self.request.output_mode,
            "keep_rows": keep_rows,
        }

    def _state(self, copy: Scratch, last: int | None, rows: int | None) -> dict[str, int | None]:
        after = None
        if last is not None:
            with suppress(CkptError):  # maintenance may be at work in what is to be deleted anyway
                after = state_bytes(copy.location, last)
        return {"bytes_before": copy.state_bytes, "bytes_after": after, "rows": rows}

    def _difference(self, spark: SparkSession, old: Trial, new: Trial, batches: list[int]) -> RowDifference:
        against = "old code" if self.request.old_build else self.request.sink
        if not batches:
            why = "nothing was read" if self.request.old_build else "production has no batch after the backup"
            return RowDifference(against, not_compared=why)
        missing = [batch for batch in batches if batch not in new.rows]
        if missing:
            return RowDifference(against, not_compared=f"the new code did not run batch {missing[0]}")
        if self.request.old_build:
            return difference(spark, lambda batch: _kept(spark, old, batch), new, batches, against=against)
        table = TableBatches(spark, self.request.sink, self.manifest.query_id)
        unknown = [batch for batch in batches if not table.has(batch)]
        if unknown:
            return RowDifference(against, not_compared=f"the table's log has no commit of batch {unknown[0]}")
        return difference(spark, table.rows_of, new, batches, against=against)


def _kept(spark: SparkSession, trial: Trial, batch: int) -> tuple[DataFrame, StructType]:
    if trial.schema is None:
        raise RefusedError(f"no rows of batch {batch} were kept", hint="this is a defect: please report it")
    return spark.read.text(trial.rows[batch]).toDF("row"), trial.schema
