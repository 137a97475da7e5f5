"""The tests marked ``slow`` in parts: ``make slow PART=doctor``, ``make slow-all``.

Each part is meant to end within half an hour on two cores. The files of a part run side by side, each with a Spark, an
Airflow or a broker of its own, and so do the tests of a file of ``unit/``; those that measure run one after the other.
``ARGS="-n 0 -s"`` runs any part's one after the other and shows what they print. ``all`` runs the files of all parts side by
side, so that no part waits for the last file of another, then the parts that measure; at the end it shows a table.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.etree import ElementTree

#: Part -> its files, as patterns below tests/; a file is in the first part that names it. Each file with slow tests is in a
#: part: tests/unit/test_project.py.
PARTS: dict[str, tuple[str, ...]] = {
    "prune": ("unit/backup/test_prune*.py",),
    "repository": (
        "unit/backup/*.py",
        "component/test_benchmark.py",
        "component/test_damage*.py",
        "component/test_fleet_scale.py",
        "component/test_permissions.py",
        "component/test_repository_soak.py",
        "integration/test_copy_closure.py",
        "integration/test_executors.py",
        "integration/test_hdfs.py",
        "integration/test_live_backup.py",
    ),
    "stores": ("component/storage/*.py", "unit/storage/*.py"),
    "changes": (
        "unit/change/*.py",
        "unit/recovery/*.py",
        "component/test_attacks.py",
        "component/test_change_findings.py",
        "integration/test_stop_anywhere.py",
    ),
    "seal": ("integration/test_rest.py", "integration/test_seal*.py", "integration/test_stopping.py"),
    "doctor": ("integration/test_doctor_against_spark.py", "integration/test_explain_*.py", "*/test_audit_state.py"),
    "closures": (
        "unit/checkpoint/*.py",
        "integration/test_closure_continues.py",
        "integration/test_downgrade.py",
        "integration/test_rehearse.py",
    ),
    "sources": (
        "*/guards/*.py",
        "component/test_mirrored_positions.py",
        "integration/test_commit_gap_live.py",
        "integration/test_delta_guard.py",
        "integration/test_file_guard.py",
        "integration/test_health_gate.py",
        "integration/test_kafka_*.py",
        "integration/test_mirrored_stream.py",
        "integration/test_no_false_alarm.py",
    ),
    "sinks": ("unit/sinks/*.py", "integration/test_sink_by_name.py"),
    "histories": ("integration/test_*_histories.py",),
    "rewind": ("integration/test_rewind*.py", "integration/test_positions_replay.py", "integration/test_reset.py"),
    "upgrade": (
        "unit/upgrade/*.py",
        "integration/test_application.py",
        "integration/test_safe_upgrade.py",
        "integration/test_upgrade_changes.py",
    ),
    "endings": ("system/test_safe_upgrade*.py", "system/test_upgrade_application.py"),
    "lakeflow": ("component/lakeflow/*.py", "contract/*.py", "system/test_lakeflow*.py"),
    "airflow": (
        "unit/fleet/*.py",
        "unit/page/*.py",
        "system/test_airflow_command.py",
        "system/test_declared_*.py",
        "system/test_demo.py",
        "system/test_factory_dags.py",
        "system/test_fleet.py",
        "system/test_no_credential_is_shown.py",
        "system/test_re*.py",
        "system/test_watch_stream.py",
    ),
    "matrix": ("system/test_airflow_versions.py",),
    "install": ("component/test_without_airflow.py", "integration/test_notebooks.py"),
}

#: Parts with tests that go by the clock: other tests beside them would be measured too.
BY_THE_CLOCK = ("stores",)

TESTS = Path(__file__).parents[1] / "tests"


def files_of(part: str) -> list[str]:
    """The test modules of a part, as paths that pytest takes.

    :param part: a key of :data:`PARTS`.
    """
    earlier = list(PARTS)[: list(PARTS).index(part)]
    return sorted(map(str, _named_by(part).difference(*map(_named_by, earlier))))


def _named_by(part: str) -> set[Path]:
    return {path for pattern in PARTS[part] for path in TESTS.glob(pattern) if path.name.startswith("test_")}


def run(parts: Sequence[str], arguments: list[str]) -> int:
    """Run the slow tests of some parts by pytest.

    :param parts: keys of :data:`PARTS`, all of them by the clock or none.
    :param arguments: more for pytest.
    :return: pytest's exit code.
    """
    workers = "0" if parts[0] in BY_THE_CLOCK else "auto"
    side_by_side = ["-n", workers, "--dist", "loadfile", "--no-loadscope-reorder"]
    files = [file for part in parts for file in files_of(part)]
    tests = [sys.executable, "-m", "pytest", "-m", "slow", *side_by_side, *files, *arguments]
    return subprocess.run([Path(__file__).with_name("in-memory.sh"), *tests]).returncode


def run_all(arguments: list[str]) -> int:
    """Run the slow tests of all parts, and show what each part took and what failed in it.

    :param arguments: more for pytest.
    :return: 0 if all passed.
    """
    groups = [part for part in PARTS if part not in BY_THE_CLOCK], [part for part in PARTS if part in BY_THE_CLOCK]
    table: list[tuple[str, int, int, float]] = []
    codes = []
    began = time.monotonic()
    for parts in groups:
        report = TESTS.parent / f".cache/slow-tests-{parts[0]}.xml"
        report.unlink(missing_ok=True)
        codes.append(run(parts, [*arguments, f"--junitxml={report}"]))
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []  # noqa: S314
        table += [(part, *of_part(part, cases)) for part in parts]
    print(f"{'part':<12} {'tests':>5} {'failed':>6} {'minutes of a worker':>20}")
    for part, tests, failed, minutes in table:
        print(f"{part:<12} {tests:>5} {failed:>6} {minutes:>20.1f}")
    print(f"all          {sum(tests for _, tests, *_ in table):>5} in {(time.monotonic() - began) / 60:.0f} minutes")
    return int(any(codes))


def of_part(part: str, cases: Iterable[ElementTree.Element]) -> tuple[int, int, float]:
    """How many tests of a report are of a part, how many of these failed, and the minutes that they took.

    :param part: a key of :data:`PARTS`.
    :param cases: the elements ``testcase`` of pytest's report.
    """
    modules = {".".join(Path(file).relative_to(TESTS.parent).with_suffix("").parts) for file in files_of(part)}
    # A test of a class is named ``tests.unit.test_module.TestClass``.
    own = [case for case in cases if re.sub(r"(\.Test\w*)+$", "", case.get("classname", "")) in modules]
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in own)
    return len(own), failed, sum(float(case.get("time", 0)) for case in own) / 60


def main() -> int:
    """Run one part, or all of them."""
    parser = argparse.ArgumentParser(prog="dev.slow_tests", description=__doc__)
    parser.add_argument("part", choices=[*PARTS, "all"], help="which tests")
    chosen, arguments = parser.parse_known_args()
    return run_all(arguments) if chosen.part == "all" else run([chosen.part], arguments)


if __name__ == "__main__":
    sys.exit(main())
