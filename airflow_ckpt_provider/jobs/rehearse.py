"""Rehearse: does this code go on from the newest backup, and what does it give? Nothing of production is written.

    spark-submit rehearse.py s3://lake/backups --name orders --scratch s3a://lake/scratch \
        --build orders.stream:build --old-build orders_v1.stream:build --batches 3 --output s3://lake/reports/orders.json

The backup is restored below the scratch place, the code is started on it for a bounded number of batches with a sink that drops
the rows, or keeps them at the scratch place for the comparison with what the old code gives for the same offsets. The report says
whether it starts, else Spark's error and what to do; batches, rows, times, state. With ``--drill`` the code is the one in
production, and what is proven is the backup: a record of it goes into the repository.

Needs pyspark, this package, fsspec and cramjam on the driver, not Airflow.

Exit codes: 0 fine, 1 findings, 2 wrong usage, 3 could not read or write.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.backup.drills import record_drill
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import LATEST, Repository
from airflow_ckpt_provider.checkpoint.health import measure
from airflow_ckpt_provider.errors import CkptError, NoSuchBackupError, RefusedError, StorageError
from airflow_ckpt_provider.jobs.application_trial import run_application
from airflow_ckpt_provider.jobs.build_function import BuildError, frame_of, load_build, session_of, settings_of
from airflow_ckpt_provider.jobs.describe_query import write
from airflow_ckpt_provider.jobs.trial import Trial, as_text, difference, refuse_source_changes, run_trial
from airflow_ckpt_provider.recovery.rehearsal.report import Failure, Rehearsal, RowDifference
from airflow_ckpt_provider.recovery.rehearsal.scratch import (
    Scratch,
    check_apart,
    plan_as,
    plannable,
    remove_all,
    restore_scratch,
    state_bytes,
)
from airflow_ckpt_provider.recovery.rehearsal.untouched import compare_snapshots, take_snapshot
from airflow_ckpt_provider.recovery.sinks.delta_history import read_table_history
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location

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
    :param build: the new code, ``module:function``; empty where an application is given.
    :param application: a command that takes ``--checkpoint`` and ``--sink``.
    :param old_build: the old code, to compare rows with.
    :param name: name of the stream; needed for ``latest`` where the repository holds several.
    :param backup_id: the backup, or ``latest``.
    :param batch: batch of the backup; by default its newest.
    :param batches: how many batches are run at most.
    :param timeout: seconds for each of them, and for the first to come.
    :param output_mode: as the application writes.
    :param conf: settings of the new code's session.
    :param checkpoint: the checkpoint in production: pace, offsets after the backup, and proof that it is not written.
    :param sink: the Delta table that the old code writes: rows to compare with, and the same proof.
    :param watch: further places that must not be written.
    :param keep: leave the scratch copies where they are.
    :param drill: a restore drill, with the old code: recorded in the repository when it is ``SAFE``.
    :param made_by: the run or user, for audit records.
    """

    repository: str
    scratch: str
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


def rehearse(request: Request, spark: SparkSession | None = None) -> Rehearsal:
    """Carry a rehearsal out.

    :param request: what is to be rehearsed.
    :param spark: a session; an application needs none.
    :raises RefusedError: the request makes no sense, or the scratch place lies in production.
    :raises StorageError: a place could not be read or written.
    """
    if bool(request.build) == bool(request.application):
        raise RefusedError("give either --build or --application", hint="see --help")
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
    check_apart(scratch, *watched, open_location(request.repository))
    before = [take_snapshot(place) for place in watched]
    try:
        repository = Repository.open(open_location(request.repository))
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
        """Run the batches of a reference one by one, or freely where there is none."""
        request = self.request
        settings: dict[str, Any] = {
            "checkpoint": f"{self.uri}/{name}",
            "output_mode": request.output_mode,
            "timeout": request.timeout,
            "keep_rows": f"{self.uri}/rows/{name}" if keep else None,
        }
        if reference is None:
            return run_trial(frame, last=after + request.batches, **settings)
        trial = Trial()
        for batch in batches:
            plan_as(place, reference, batch)
            run_trial(frame, last=batch, into=trial, **settings)
            if trial.failure:
                break
        return trial

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
        table = _Table(spark, self.request.sink, self.manifest.query_id)
        unknown = [batch for batch in batches if batch not in table.versions]
        if unknown:
            return RowDifference(against, not_compared=f"the table's log has no commit of batch {unknown[0]}")
        return difference(spark, table.rows_of, new, batches, against=against)


def _kept(spark: SparkSession, trial: Trial, batch: int) -> tuple[DataFrame, StructType]:
    if trial.schema is None:
        raise RefusedError(f"no rows of batch {batch} were kept", hint="this is a defect: please report it")
    return spark.read.text(trial.rows[batch]).toDF("row"), trial.schema


class _Table:
    """What each batch of a query added to a Delta table."""

    def __init__(self, spark: SparkSession, uri: str, query_id: str) -> None:
        self._spark, self._uri = spark, uri
        lineage = read_table_history(open_location(uri)).lineage() or ()
        self.versions = {c.txns[query_id]: c.version for c in lineage if query_id in c.txns}

    def rows_of(self, batch: int) -> tuple[DataFrame, StructType]:
        version = self.versions[batch]
        after = self._at(version)
        schema, rows = after.schema, as_text(after)
        return (rows.exceptAll(as_text(self._at(version - 1))) if version else rows), schema

    def _at(self, version: int) -> DataFrame:
        return self._spark.read.format("delta").option("versionAsOf", version).load(self._uri)


def main(argv: Sequence[str] | None = None) -> int:
    """Rehearse and write the report.

    :param argv: the arguments; by default those of the process.
    :return: the exit code.
    """
    args = _parser().parse_args(argv)
    try:
        request = Request(
            repository=args.repository,
            scratch=args.scratch,
            build=args.build,
            application=args.application,
            old_build=args.old_build,
            name=args.name,
            backup_id=args.backup,
            batch=args.batch,
            batches=args.batches,
            timeout=args.timeout,
            output_mode=args.output_mode,
            conf=settings_of(args.conf),
            checkpoint=args.checkpoint,
            sink=args.sink,
            watch=tuple(args.watch),
            keep=args.keep,
            drill=args.drill,
            made_by=args.made_by,
        )
        spark = None
        if request.build:
            from pyspark.sql import SparkSession

            spark = SparkSession.builder.appName(f"rehearse {request.build}").getOrCreate()
        report = rehearse(request, spark)
        if request.drill and report.verdict == "SAFE":
            record_drill(Repository.open(open_location(request.repository)), report.to_json())
        print(report.to_markdown(), file=sys.stderr)
        write(json.dumps(report.to_json(), indent=2), args.output)
    except StorageError as e:
        print(e, file=sys.stderr)
        return 3
    except CkptError as e:
        print(e, file=sys.stderr)
        return 1
    return 0 if report.verdict == "SAFE" else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("repository", metavar="REPOSITORY")
    add(
        "--scratch",
        required=True,
        metavar="URI",
        help="directory for scratch copies; what is made in it is deleted again",
    )
    add("--build", default="", metavar="MODULE:FUNCTION", help="the new code; or path/to/file.py:function")
    add("--application", default="", metavar="COMMAND", help="instead: a command that takes --checkpoint and --sink")
    add(
        "--old-build",
        default="",
        metavar="MODULE:FUNCTION",
        help="the old code: run on the same offsets, rows compared",
    )
    add("--name", help="name of the stream in the repository")
    add("--backup", default=LATEST, metavar="ID", help="the backup (default: %(default)s)")
    add("--batch", type=int, metavar="N", help="batch of the backup (default: its newest)")
    add("--batches", type=int, default=3, metavar="N", help="how many batches at most (default: %(default)s)")
    add("--timeout", type=int, default=600, metavar="SECONDS", help="for a run of the code (default: %(default)s)")
    add("--output-mode", default="append", choices=("append", "update", "complete"))
    add("--conf", action="append", default=[], metavar="KEY=VALUE", help="setting of the code's session; repeatable")
    add(
        "--checkpoint",
        default="",
        metavar="URI",
        help="the checkpoint in production: its pace, and proof that it is untouched",
    )
    add(
        "--sink",
        default="",
        metavar="URI",
        help="the Delta table of production: rows to compare with, and the same proof",
    )
    add(
        "--watch",
        action="append",
        default=[],
        metavar="URI",
        help="further places that must stay untouched; repeatable",
    )
    add("--keep", action="store_true", help="leave the scratch copies")
    add("--drill", action="store_true", help="a restore drill: where it is SAFE, record in the repository that it was")
    add("--made-by", default="", metavar="WHO", help="the run or user, for audit records")
    add("--output", metavar="URI", help="where the report goes, as JSON (default: stdout)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
