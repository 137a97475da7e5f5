"""The tests marked ``slow`` in parts: ``make slow PART=doctor``, ``make slow-all``.

Each part is meant to end within half an hour on two cores. The files of a part run side by side, each with a Spark, an
Airflow or a broker of its own, and so do the tests of a file of ``unit/``; those that measure run one after the other.
``ARGS="-n 0 -s"`` runs any part's one after the other and shows what they print. ``all`` runs one part after the other, and
goes through all of them whatever fails; at the end it shows a table.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

#: Part -> its files, as patterns below tests/. Each file with slow tests is in one part: tests/unit/test_project.py.
PARTS: dict[str, tuple[str, ...]] = {
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
    "stores": ("component/storage/*.py",),
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
        "integration/test_health_gate.py",
        "integration/test_kafka_*.py",
        "integration/test_mirrored_stream.py",
        "integration/test_no_false_alarm.py",
    ),
    "sinks": ("unit/sinks/*.py", "integration/test_*_histories.py", "integration/test_sink_by_name.py"),
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
    found = {path for pattern in PARTS[part] for path in TESTS.glob(pattern) if path.name.startswith("test_")}
    return sorted(str(path) for path in found)


def run(part: str, arguments: list[str]) -> int:
    """Run the slow tests of a part by pytest.

    :param part: a key of :data:`PARTS`.
    :param arguments: more for pytest.
    :return: pytest's exit code.
    """
    side_by_side = ["-n", "0" if part in BY_THE_CLOCK else "auto", "--dist", "loadfile", "--no-loadscope-reorder"]
    tests = [sys.executable, "-m", "pytest", "-m", "slow", *side_by_side, *files_of(part), *arguments]
    return subprocess.run([Path(__file__).with_name("in-memory.sh"), *tests]).returncode


def main() -> int:
    """Run one part, or all of them."""
    parser = argparse.ArgumentParser(prog="dev.slow_tests", description=__doc__)
    parser.add_argument("part", choices=[*PARTS, "all"], help="which tests")
    chosen, arguments = parser.parse_known_args()
    if chosen.part != "all":
        return run(chosen.part, arguments)
    table = []
    for part in PARTS:
        print(f"== {part}", flush=True)
        began = time.monotonic()
        code = run(part, arguments)
        table.append((part, time.monotonic() - began, "passed" if code == 0 else "FAILED"))
    for part, seconds, result in table:
        print(f"{part:<12} {seconds / 60:6.1f} min  {result}")
    return int(any(result == "FAILED" for *_, result in table))


if __name__ == "__main__":
    sys.exit(main())
