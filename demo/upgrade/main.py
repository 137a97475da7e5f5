"""Upgrade a running stream with the example DAG: once well, and once with a version that is bad.

    python -m demo.upgrade.main [--bad KIND] [--output DIRECTORY]

Everything in it is real: Spark, Delta, Airflow. Exit code 0 only if the good upgrade is kept, the bad one is refused or
rolled back, and no row is lost, doubled or wrong in the end.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
from dataclasses import asdict, dataclass, field
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import CkptError
from airflow_ckpt_provider.storage.opening import open_location
from demo.interruptions import Interruptions
from demo.orders import Arrivals
from demo.output import clear_output
from demo.own_airflow import Airflow, DagRun
from demo.processes import Processes, ProcessFailedError, wait_until
from demo.spark_errors import reason
from demo.timeline import Timeline
from demo.upgrade import commands
from demo.upgrade.checks import RowCheck, check_rows
from demo.upgrade.place import Place
from demo.upgrade.versions import BAD

_CHECKOUT = Path(__file__).parents[2]
_FIRST_BATCHES = 5
#: More orders than the demo takes time for: the rest arrives at once at its end.
_FILES = 300


@dataclass
class UpgradeDemo:
    """The job and where its parts are.

    :param output: directory for all of it.
    :param bad: what is wrong with the third version.
    :param timeline: where to tell.
    """

    output: Path
    bad: str
    timeline: Timeline
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.place = Place(self.output)
        self.reference = Place(self.output / "reference")
        self.repository = self.output / "repository"
        self.temporary = self.output / "tmp"
        self.airflow_home = self.output / "airflow"
        self.interruptions = Interruptions()
        self.processes = Processes(self.output / "logs", self.temporary, self.interruptions)
        self.arrivals = Arrivals(self.place.orders, files=_FILES, every=0.5, again=10)

    def run(self) -> bool:
        """Run the whole of it; return whether all ended as it should."""
        clear_output(self.output)
        for directory in (self.place.orders, self.place.descriptions, self.temporary, self.airflow_home):
            directory.mkdir(parents=True)
        for directory in (self.processes.logs, self.reference.root):
            directory.mkdir(parents=True)
        # For the drivers as well, which the tasks of the DAG start.
        os.environ["TMPDIR"] = str(self.temporary)
        Repository.open_or_create(open_location(str(self.repository)))
        try:
            # Two cores: a Spark that starts leaves half of them, and Airflow needs none of what it makes.
            airflow = self._start_airflow()
            self._stream_runs()
            self._describe(airflow)
            self._upgrade_well(airflow)
            self._upgrade_badly(airflow)
            return self._compare()
        finally:
            with self.interruptions.held():
                self.arrivals.end()
                commands.kill(self.place)
                self.processes.end()
                shutil.rmtree(self.temporary, ignore_errors=True)
                shutil.rmtree(self.airflow_home, ignore_errors=True)

    # The steps, in order.

    def _start_airflow(self) -> Airflow:
        def command(verb: str) -> str:
            program = shlex.join([sys.executable, "-m", "demo.upgrade.commands", str(self.place.root)])
            return f"cd {shlex.quote(str(_CHECKOUT))} && {program} {verb}"

        return Airflow.start(
            self.processes,
            self.airflow_home,
            "safe_upgrade",
            CKPT_STREAM_STOP=command("stop"),
            CKPT_STREAM_DEPLOY=command('deploy "$VERSION"'),
            CKPT_STREAM_START=command("start"),
            CKPT_STREAM_ROLL_BACK=command('roll-back "$VERSION"'),
            CKPT_STREAM_CHECK=command("check"),
            CKPT_STREAM_DESCRIPTION=f"{self.place.descriptions}/{{{{ params.version }}}}.json",
            CKPT_STREAM_PROGRESS=str(self.place.progress),
            CKPT_STREAM_LOG=str(self.place.log),
            CKPT_QUIET_SECONDS="2",
            CKPT_POLL_SECONDS="1",
            CKPT_STUCK_SECONDS="60",
            # Two cores, and a driver that is seconds old.
            CKPT_DURATION_WITHIN="1000",
        )

    def _stream_runs(self) -> None:
        self.timeline.step("Version 1 runs: orders arrive as files, Spark puts each of them once into a Delta table")
        self.arrivals.start()
        commands.deploy(self.place, "1")
        commands.start(self.place)
        with self.timeline.waiting("Spark starts"):
            wait_until(lambda: self._newest() >= 0, at_most=180, what="batch 0")
        self._tell_progress()

    def _describe(self, airflow: Airflow) -> None:
        self.timeline.step("Spark describes versions 2 and 3 before they run, and Airflow has started")
        describing = self.processes.start("describe", "demo.upgrade.describe", self.place.root, "2", f"3-{self.bad}")
        with self.timeline.waiting("the new versions are described"):
            # Versions that cannot be described are not compared.
            if describing.wait(at_most=180):
                raise ProcessFailedError(f"the versions were not described; see {describing.log}")
            airflow.wait_until_ready()
            wait_until(lambda: self._newest() >= _FIRST_BATCHES, at_most=180, what=f"batch {_FIRST_BATCHES}")
        self._tell_progress()

    def _tell_progress(self) -> None:
        self.timeline.say(f"batch {self._newest()} is committed, {self.arrivals.written} files have arrived")

    def _upgrade_well(self, airflow: Airflow) -> None:
        self.timeline.step("Version 2, a good one: Airflow runs the DAG safe_upgrade")
        run = self._upgrade(airflow, "2", to="success")
        report = run.results["upgrade.report"]
        self._tell_run(run, report)
        if (report["kind"], self.place.deployed) != ("kept", ["1", "2"]):
            raise ProcessFailedError(f"version 2 is not kept: {report}")
        self.facts["good"] = {"version": "2", "downtime": report["downtime"], "times": run.times}

    def _upgrade_badly(self, airflow: Airflow) -> None:
        bad = f"3-{self.bad}"
        self.timeline.step(f"Version 3, a bad one ({self.bad}): the same DAG")
        run = self._upgrade(airflow, bad, to="failed")
        report = run.reports["upgrade.report"]
        self._tell_run(run, report)
        if report["kind"] not in ("taken_back", "untouched") or self.place.deployed[-1] != "2" or not self.place.driver:
            raise ProcessFailedError(f"version 2 is not back: {report}")
        self.facts["bad"] = {"version": bad, "kind": report["kind"], "downtime": report["downtime"], "times": run.times}

    def _compare(self) -> bool:
        self.timeline.step("The rest of the orders, and the same orders through a run that never failed")
        self.arrivals.hurry()
        with self.timeline.waiting("the stream catches up"):
            self.arrivals.join(120)
            # Its Spark starts while the stream reads the rest.
            process = self.processes.start(
                "reference", "demo.upgrade.reference", self.place.orders, self.reference.root
            )
            wait_until(self._is_level, at_most=300, what="the end of the input")
            commands.stop(self.place)
            if process.wait(at_most=300):
                raise ProcessFailedError(f"the run that never failed has failed: {reason(process.log.read_text())}")
        found = check_rows(self.place.table, self.reference.table)
        self._tell(found)
        return found.is_exact

    # What the steps are made of.

    def _upgrade(self, airflow: Airflow, to_version: str, *, to: str) -> DagRun:
        with self.timeline.waiting("DAG safe_upgrade runs"):
            return airflow.run(
                "safe_upgrade",
                approve="upgrade.approve",
                to=to,
                version=to_version,
                checkpoint=str(self.place.checkpoint),
                repository=str(self.repository),
                sink=str(self.place.table),
                new_batches=2,
                reason="the demo",
            )

    def _newest(self) -> int:
        if not (self.place.checkpoint / "commits").exists():
            return -1
        found = Checkpoint.at(open_location(str(self.place.checkpoint))).progress().latest_committed
        return -1 if found is None else found

    def _is_level(self) -> bool:
        """Whether the table has orders of the newest file; orders are read in the order in which they arrived."""
        events = [json.loads(line) for line in self.place.progress.read_text().splitlines()]
        progress = [event for event in events if event["event"] == "progress"]
        # Without input, and no file has arrived since.
        return bool(progress) and progress[-1]["input_rows"] == 0 and not self.arrivals.is_alive()

    def _tell_run(self, run: DagRun, report: dict[str, Any]) -> None:
        began = min(datetime.fromisoformat(start) for start, _ in run.times.values())
        for task_id, (start, end) in run.times.items():
            at, seconds = datetime.fromisoformat(start), datetime.fromisoformat(end) - datetime.fromisoformat(start)
            failed = run.tasks[task_id] == "failed"
            self.timeline.say(
                f"{(at - began).total_seconds():6.1f} s  {task_id.removeprefix('upgrade.'):16} "
                f"{seconds.total_seconds():5.1f} s{'  failed' if failed else ''}",
                style="yellow" if failed else "",
            )
        self.timeline.say(report["message"])
        if report["downtime"] is not None:
            self.timeline.say(f"downtime, from commit to commit: {report['downtime']:.1f} s")

    def _tell(self, found: RowCheck) -> None:
        good, bad = self.facts["good"], self.facts["bad"]
        stood = "was not down" if bad["downtime"] is None else f"was down for {bad['downtime']:.1f} s"
        lines = [
            f"rows lost {found.lost}, rows doubled or wrong {found.wrong}, of {found.rows:,}",
            f"good upgrade 1 -> 2: kept, the stream was down for {good['downtime']:.1f} s",
            f"bad upgrade 2 -> {bad['version']}: {bad['kind'].replace('_', ' ')}, the stream {stood}",
        ]
        self.timeline.verdict(found.is_exact, *lines)
        self.facts |= {
            "seconds": round(self.timeline.elapsed, 1),
            "result": {**asdict(found), "is_exact": found.is_exact},
            "steps": self.timeline.steps,
        }
        (self.output / "report.json").write_text(json.dumps(self.facts, indent=2, default=str) + "\n")


def main(argv: list[str] | None = None) -> int:
    """Run the demo and return the exit code.

    :param argv: the command line, by default the process's own.
    """
    parser = argparse.ArgumentParser(prog="make demo-upgrade", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--bad", choices=sorted(BAD), default="drops-rows", help="version 3 (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="emptied first (default: %(default)s)")
    arguments = parser.parse_args(argv)
    timeline = Timeline()
    timeline.headline(
        "Upgrade a running stream, once well and once badly",
        f"Spark {version('pyspark')}, Airflow {version('apache-airflow')}, {os.cpu_count()} cores; "
        f"all output in {arguments.output}/",
    )
    demo = UpgradeDemo(arguments.output.absolute(), arguments.bad, timeline)
    try:
        with demo.interruptions:
            exact = demo.run()
    except (ProcessFailedError, CkptError, TimeoutError) as e:
        timeline.verdict(False, f"failed: {e}")
        return 1
    except KeyboardInterrupt:
        timeline.verdict(False, "interrupted; every process that was started has been ended")
        return 130
    timeline.hint("")
    timeline.hint(f"  the backups     .venv/bin/airflow-ckpt backups {arguments.output}/repository")
    timeline.hint(f"  the logs        {arguments.output}/logs, {arguments.output}/driver.log")
    timeline.hint(f"{timeline.elapsed:.0f} s in all")
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
