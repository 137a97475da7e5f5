"""Back up a live stream from Airflow, kill it, lose its checkpoint, restore it, and compare every row.

    python -m demo.main [--short] [--output DIRECTORY]

Everything in it is real: Spark, Delta, Airflow, ``kill -9``. Exit code 0 only if no row was lost or doubled.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.progress import Progress
from airflow_ckpt_provider.errors import CkptError
from airflow_ckpt_provider.storage.opening import open_location
from demo.comparison import Comparison, compare, read, totals_of
from demo.control import LATENCY, Attempt, Copies
from demo.interruptions import Interruptions
from demo.orders import Arrivals
from demo.output import clear_output
from demo.own_airflow import Airflow, DagRun
from demo.processes import Process, Processes, ProcessFailedError, wait_until
from demo.report import ControlResult, losses, summary, write
from demo.spark_errors import reason
from demo.timeline import Timeline

NAME = "orders"


@dataclass(frozen=True)
class Scale:
    """How long the demo is.

    :param files: of input.
    :param first: batches before the backup.
    :param more: batches after it, before the stream is killed.
    :param copies: recursive copies, for the control.
    """

    files: int
    first: int
    more: int
    copies: int


FULL = Scale(files=240, first=2, more=6, copies=4)
SHORT = Scale(files=160, first=1, more=4, copies=1)


@dataclass
class Demo:
    """The job and where its parts are.

    :param output: directory for all of it.
    :param scale: how long it is.
    :param timeline: where to tell.
    """

    output: Path
    scale: Scale
    timeline: Timeline

    def __post_init__(self) -> None:
        self.orders = self.output / "orders"
        self.checkpoint = self.output / "checkpoints" / NAME
        self.table = self.output / "table"
        self.repository = self.output / "repository"
        self.control = self.output / "control"
        self.reference = self.output / "reference"
        self.temporary = self.output / "tmp"
        self.airflow_home = self.output / "airflow"
        self.interruptions = Interruptions()
        self.processes = Processes(self.output / "logs", self.temporary, self.interruptions)
        self.arrivals = Arrivals(self.orders, files=self.scale.files, every=0.5)
        self.starts = 0
        self.facts: dict[str, Any] = {}

    def run(self) -> bool:
        """Run the whole of it; return whether no row was lost or doubled."""
        clear_output(self.output)
        for directory in (
            self.orders,
            self.temporary,
            self.airflow_home,
            self.processes.logs,
            self.control,
            self.reference,
        ):
            directory.mkdir(parents=True)
        Repository.open_or_create(open_location(str(self.repository)))
        try:
            stream = self._stream_runs()
            airflow = self._airflow_starts(stream)
            self._back_up(airflow)
            copies = self._more_data(stream)
            self._kill(stream)
            self._damage()
            self._lose()
            self._plan(airflow)
            self._restore(airflow)
            self._finish()
            return self._compare(copies)
        finally:
            with self.interruptions.held():
                self.arrivals.end()
                self.processes.end()
                shutil.rmtree(self.temporary, ignore_errors=True)
                shutil.rmtree(self.airflow_home, ignore_errors=True)

    # The steps, in order.

    def _stream_runs(self) -> Process:
        self.timeline.step("A stream runs: orders arrive as files, Spark keeps totals by customer in a Delta table")
        self.arrivals.start()
        stream = self._start_stream()
        with self.timeline.waiting("Spark starts"):
            self._wait_for_batch(0, stream)
        self._tell_progress()
        return stream

    def _airflow_starts(self, stream: Process) -> Airflow:
        self.timeline.step("Airflow starts, with a new metadata database")
        # After Spark: both want all cores while they start.
        airflow = Airflow.start(self.processes, self.airflow_home, "scheduled_backup", "restore_checkpoint")
        with self.timeline.waiting("Airflow starts"):
            self._wait_for_batch(self.scale.first, stream)
            airflow.wait_until_ready()
        self._tell_progress()
        return airflow

    def _tell_progress(self) -> None:
        committed = self._progress().latest_committed
        self.timeline.say(f"batch {committed} is committed, {self.arrivals.written} files have arrived")

    def _back_up(self, airflow: Airflow) -> None:
        self.timeline.step("Backup while it writes: Airflow runs the DAG scheduled_backup")
        before = self._progress().latest_committed
        with self.timeline.waiting("DAG scheduled_backup runs"):
            run = airflow.run(
                "scheduled_backup",
                checkpoint=str(self.checkpoint),
                repository=str(self.repository),
                name=NAME,
                reason="before the demo breaks it",
                read_data="all",
            )
        backup, report = run.results["back_up"], run.results["verify"]
        after = self._progress().latest_committed
        self.timeline.say(
            f"backup {backup['backup_id']}: batch {backup['batch_id']}, {backup['files']} files, "
            f"{backup['bytes']:,} bytes, copied in {backup['seconds']:.2f} s"
        )
        self.timeline.say(f"verified: {report['read_files']} files read back, {len(report['findings'])} findings")
        self.timeline.say(f"the stream was not stopped: batch {before} before the DAG run, batch {after} after it")
        self.facts["backup"] = {key: backup[key] for key in ("backup_id", "batch_id", "files", "bytes", "seconds")}

    def _more_data(self, stream: Process) -> Copies:
        self.timeline.step(
            f"More data arrives; the control copies the checkpoint file by file, {self.scale.copies} times, "
            f"with {1000 * LATENCY:.0f} ms a request, as from an object store"
        )
        copies = Copies(self.checkpoint, self.control, self.scale.copies)
        copies.start()
        with self.timeline.waiting("the stream continues"):
            self._wait_for_batch(self.facts["backup"]["batch_id"] + self.scale.more, stream)
            wait_until(lambda: copies.is_done, at_most=120, what="the copies", process=stream)
        for copy in copies.taken:
            self.timeline.say(str(copy))
        return copies

    def _kill(self, stream: Process) -> None:
        self.timeline.step("kill -9, in the middle of a batch")
        wait_until(lambda: self._progress().gap == 1, at_most=60, what="a batch under way", process=stream)
        stream.kill()
        now = self._progress()
        begun = f"batch {now.latest_logged} was begun" if now.gap else "and no other one was begun yet"
        self.timeline.say(f"batch {now.latest_committed} is committed, {begun}")
        self.facts["killed"] = {"committed": now.latest_committed, "logged": now.latest_logged}
        # Each copy of the control gets the sink as it is now, as the restored stream does.
        for number in range(1, self.scale.copies + 1):
            shutil.copytree(self.table, self.control / str(number) / "table")

    def _damage(self) -> None:
        self.timeline.step("One state file is lost")
        checkpoint = Checkpoint.at(open_location(str(self.checkpoint)))
        last = self._progress().latest_committed or 0
        files = [file.path for store in checkpoint.closure(last).stores for file in store.files]
        # Another state file, a snapshot, might be one that Spark can do without.
        lost = max(files, key=lambda path: (path.endswith(".changelog"), path.endswith(".sst")))
        (self.checkpoint / lost).unlink()
        self.timeline.say(f"deleted {lost}; starting the stream")
        stream = self._start_stream()
        with self.timeline.waiting("Spark starts"):
            code = stream.wait(at_most=300)
        if code == 0:
            raise ProcessFailedError(f"Spark started without {lost}")
        error = reason(stream.log.read_text())
        self.timeline.spark_says(error)
        self.facts["damage"] = {"lost": lost, "error": error}

    def _lose(self) -> None:
        self.timeline.step("Then the whole checkpoint is lost")
        files = sum(path.is_file() for path in self.checkpoint.rglob("*"))
        shutil.rmtree(self.checkpoint)
        self.timeline.say(f"deleted {self.checkpoint.relative_to(self.output)} with {files} files")

    def _plan(self, airflow: Airflow) -> None:
        self.timeline.step("Restore planned: Airflow runs the DAG restore_checkpoint with mode plan")
        with self.timeline.waiting("DAG restore_checkpoint runs"):
            run = self._restore_dag(airflow, mode="plan")
        if run.tasks["apply"] != "skipped" or self.checkpoint.exists():
            raise ProcessFailedError("mode plan has changed something")
        markdown = run.results["plan"]["markdown"]
        (self.output / "plan.md").write_text(markdown)
        self.timeline.document(markdown)

    def _restore(self, airflow: Airflow) -> None:
        self.timeline.step("Restore applied: the same DAG with mode apply")
        with self.timeline.waiting("DAG restore_checkpoint runs"):
            run = self._restore_dag(airflow, mode="apply")
        outcome = run.results["apply"]["outcome"]
        self.timeline.say(
            f"batch {outcome['batch_id']} is back: {outcome['files']} files, {outcome['bytes']:,} bytes, "
            f"in {outcome['seconds']:.2f} s; Spark continues with batch {outcome['batch_id'] + 1}"
        )
        self.facts["restore"] = {key: outcome[key] for key in ("plan_id", "batch_id", "files", "bytes", "seconds")}

    def _finish(self) -> None:
        self.timeline.step("The stream starts again and finishes the input")
        self.arrivals.hurry()
        stream = self._start_stream()
        with self.timeline.waiting("the stream catches up"):
            code = stream.wait(at_most=600)
        if code:
            raise ProcessFailedError(f"the stream failed: {reason(stream.log.read_text())}; see {stream.log}")
        self.timeline.say(
            f"batch {self._progress().latest_committed} is the last one; {self.arrivals.written} files have arrived in all"
        )

    def _compare(self, copies: Copies) -> bool:
        self.timeline.step("The same input through a run that never failed, and through the control's copies")
        attempts = self._catch_up(copies)
        if error := attempts["reference"].error:
            raise ProcessFailedError(f"the run that never failed has failed: {error}")
        expected = read(self.reference / "table")
        result = compare(read(self.table), expected)
        counted = totals_of(self.orders)
        if counted != (result.expected_orders, result.expected_cents):
            raise ProcessFailedError(f"the run that never failed is not what the input adds up to: {counted}")
        controls = []
        for copy in copies.taken:
            error = attempts[str(copy.number)].error
            table = read(self.control / str(copy.number) / "table")
            until = max(row["last_order"] for row in table) if error else None
            controls.append(ControlResult(copy, error, compare(table, expected), until))
        self._tell(result, controls)
        return result.is_exact

    # What the steps are made of.

    def _start_stream(self) -> Process:
        self.starts += 1
        return self.processes.start(f"stream-{self.starts}", "demo.stream", self.orders, self.checkpoint, self.table)

    def _progress(self) -> Progress:
        return Checkpoint.at(open_location(str(self.checkpoint))).progress()

    def _wait_for_batch(self, batch: int, stream: Process) -> None:
        def is_there() -> bool:
            commits = self.checkpoint / "commits"
            newest = self._progress().latest_committed if commits.exists() else None
            return newest is not None and newest >= batch

        wait_until(is_there, at_most=180, what=f"batch {batch}", process=stream)

    def _restore_dag(self, airflow: Airflow, *, mode: str) -> DagRun:
        return airflow.run(
            "restore_checkpoint",
            mode=mode,
            repository=str(self.repository),
            name=NAME,
            backup_id="latest",
            target=str(self.checkpoint),
            reason="the demo lost its checkpoint",
        )

    def _catch_up(self, copies: Copies) -> dict[str, Attempt]:
        results = self.output / "logs" / "catch_up.json"
        streams = {"reference": self.reference} | {str(c.number): c.checkpoint.parent for c in copies.taken}
        named = [f"{name}={directory}" for name, directory in streams.items()]
        process = self.processes.start("catch_up", "demo.catch_up", self.orders, results, *named)
        with self.timeline.waiting(f"{len(named)} streams run"):
            code = process.wait(at_most=600)
        if code:
            raise ProcessFailedError(f"{process.name} failed; see {process.log}")
        return Attempt.read(results)

    def _tell(self, result: Comparison, controls: list[ControlResult]) -> None:
        for line in map(str, controls):
            self.timeline.say(line, style="yellow")
        table = losses(result, controls)
        self.timeline.document("\n".join(table))
        lines = [
            f"rows lost {result.rows_lost}, rows doubled {result.rows_doubled}",
            f"restored: {result.rows_equal} of {result.rows} table rows equal in every column; "
            f"totals {result.orders:,} orders, {result.cents:,} cents, "
            f"without the failure {result.expected_orders:,} and {result.expected_cents:,}",
            summary(controls),
        ]
        self.timeline.verdict(result.is_exact, *lines)
        self.facts |= {
            "seconds": round(self.timeline.elapsed, 1),
            "result": {**asdict(result), "is_exact": result.is_exact},
            "control": [control.to_json() for control in controls],
            "steps": self.timeline.steps,
        }
        steps = [f"| {s['at']} | {s['step']} | {s['title']} |" for s in self.timeline.steps]
        write(
            self.output,
            self.facts,
            ["# The demo's last run", "", *(f"- {line}" for line in lines), "", "## Control", ""]
            + [f"- {control}" for control in controls]
            + ["", *table]
            + ["", "## Timeline", "", "| at (s) | step | what |", "| --- | --- | --- |", *steps],
        )


def main(argv: list[str] | None = None) -> int:
    """Run the demo and return the exit code.

    :param argv: the command line, by default the process's own.
    """
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--short", action="store_true", help="less input, one copy for the control")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="emptied first (default: %(default)s)")
    arguments = parser.parse_args(argv)
    timeline = Timeline()
    timeline.headline(
        "Back up a live stream, lose its checkpoint, restore it",
        f"Spark {version('pyspark')}, Airflow {version('apache-airflow')}, {os.cpu_count()} cores; "
        f"all output in {arguments.output}/",
    )
    demo = Demo(arguments.output.absolute(), SHORT if arguments.short else FULL, timeline)
    try:
        with demo.interruptions:
            exact = demo.run()
    except (ProcessFailedError, CkptError) as e:
        timeline.verdict(False, f"failed: {e}")
        return 1
    except KeyboardInterrupt:
        timeline.verdict(False, "interrupted; every process that was started has been ended")
        return 130
    output = arguments.output
    read_table = f"from deltalake import DeltaTable as T; print(T('{output}/table').to_pandas())"
    timeline.hint("")
    timeline.hint(f'  the table       .venv/bin/python -c "{read_table}"')
    timeline.hint(f"  the backups     .venv/bin/airflow-ckpt backups {output}/repository")
    timeline.hint(f"  the checkpoint  .venv/bin/airflow-ckpt inspect {output}/checkpoints/{NAME}")
    timeline.hint(f"  plan, report    {output}/plan.md, {output}/report.md, {output}/report.json")
    timeline.hint(f"{timeline.elapsed:.0f} s in all")
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
