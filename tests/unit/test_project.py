"""The project's own files agree with each other, and its commands say in one line what is missing."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from requests.utils import get_environ_proxies

from airflow_ckpt_provider import __version__
from dev import slow_tests
from tests.support.source_code import statements

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
CORE: dict[str, Any] = tomllib.loads((ROOT / "core/pyproject.toml").read_text())
LOCK = (ROOT / "requirements.lock").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()


def locked() -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)(?:\[[a-z0-9,-]+\])?==([^ ;\\]+)", LOCK, re.MULTILINE))


# --- the lock ---


def test_lock_names_no_index() -> None:
    assert "://" not in LOCK
    assert "--index" not in LOCK
    assert "--find-links" not in LOCK


def test_every_locked_version_has_hashes() -> None:
    requirements = re.split(r"\n(?=[a-z0-9])", LOCK.strip())
    assert len(requirements) > 100
    assert [r for r in requirements if "--hash=sha256:" not in r] == []


def test_lock_holds_all_that_the_project_asks_for() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    asked = [
        *PROJECT["project"]["dependencies"],
        *CORE["project"]["dependencies"],
        *PROJECT["dependency-groups"]["dev"],
        *(line for extra in ("amazon", "delta", "kafka", "spark") for line in extras[extra]),
        *(line for extra in ("amazon", "delta", "kafka") for line in CORE["project"]["optional-dependencies"][extra]),
    ]
    names = {re.match(r"[A-Za-z0-9-]+", line)[0] for line in asked}  # type: ignore[index]
    assert names - {CORE["project"]["name"]} <= set(locked())


def test_both_pysparks_are_one_version() -> None:
    # They fill the same directory: the one installed last would overwrite parts of the other.
    assert locked()["pyspark"] == locked()["pyspark-client"]


# --- the package ---


def test_changelog_begins_with_this_version() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert next(heading for heading in headings if heading != "Unreleased") == __version__


def test_extras_are_the_documented_ones() -> None:
    assert set(PROJECT["project"]["optional-dependencies"]) == {
        "databricks",
        "databricks-sdk",
        "kafka",
        "spark",
        "amazon",
        "google",
        "azure",
        "delta",
        "encryption",
        "iceberg",
        "openlineage",
    }


def test_every_extra_that_a_message_names_exists() -> None:
    from airflow_ckpt_provider.places import _EXTRAS as OF_CONNECTIONS
    from airflow_ckpt_provider.storage.opening import _EXTRAS as OF_STORES

    extras = set(PROJECT["project"]["optional-dependencies"])
    assert set(OF_CONNECTIONS.values()) | set(OF_STORES.values()) <= extras


def test_the_core_is_a_distribution_that_the_provider_depends_on() -> None:
    assert f"{CORE['project']['name']}=={__version__}" in PROJECT["project"]["dependencies"]
    assert not [line for line in CORE["project"]["dependencies"] if "airflow" in line]
    for extra, lines in CORE["project"]["optional-dependencies"].items():
        assert not [line for line in lines if "airflow" in line]
        assert f"airflow-ckpt-core[{extra}]" in PROJECT["project"]["optional-dependencies"][extra]
    for field in ("license", "requires-python"):
        assert CORE["project"][field] == PROJECT["project"][field]


def wheel_of(project: Path, directory: Path) -> tuple[str, set[str]]:
    """Build a wheel: its name, and the files in it."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    [wheel] = directory.glob("*.whl")
    return wheel.name, set(zipfile.ZipFile(wheel).namelist())


def test_two_wheels_hold_the_package_and_nothing_else(tmp_path: Path) -> None:
    """Each file is in one of them: two distributions that install one file would break each other."""
    files = {}
    for name, project in (("airflow_ckpt_core", ROOT / "core"), ("airflow_ckpt_provider", ROOT)):
        wheel, names = wheel_of(project, tmp_path / name)
        assert wheel == f"{name}-{__version__}-py3-none-any.whl"
        info = f"{name}-{__version__}.dist-info"
        assert f"{info}/licenses/LICENSE" in names
        files[name] = {file for file in names if not file.startswith(f"{info}/")}
    core, provider = files.values()
    assert core & provider == set()
    code = {str(p.relative_to(ROOT)) for p in (ROOT / "airflow_ckpt_provider").rglob("*") if p.is_file()}
    assert core | provider == {file for file in code if "__pycache__" not in file}
    of_airflow = {file for file in code if file.endswith(".py") and imports_airflow(ROOT / file)}
    assert len(of_airflow) > 40
    assert of_airflow <= provider


def imports_airflow(file: Path) -> bool:
    """Whether a module needs Airflow as soon as it is loaded."""
    return re.search(r"^(?:from|import) airflow(?:\.|\s)", file.read_text(), re.MULTILINE) is not None


# --- make ---


def test_every_marker_make_asks_for_is_declared_and_left_out_of_make_test() -> None:
    options = PROJECT["tool"]["pytest"]["ini_options"]
    declared = {line.partition(":")[0] for line in options["markers"]}
    asked = set(re.findall(r"pytest -m (\w+)", MAKEFILE))
    assert asked == {
        "soak",
        "seal_soak",
        "rewind_soak",
        "change_soak",
        "slow",
        "stores",
        "s3a",
        "other_spark",
        "browser",
    }
    assert asked <= declared
    assert asked <= set(re.findall(r"\w+", options["addopts"][-1]))


def test_make_alone_explains_every_command() -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}  # as if not run by `make test`
    shown = subprocess.run(["make"], cwd=ROOT, env=env, check=True, capture_output=True, text=True).stdout
    targets = set(re.search(r"^\.PHONY: (.*)", MAKEFILE, re.MULTILINE)[1].split())  # type: ignore[index]
    assert targets - set(re.findall(r"^  make (\S+)", shown, re.MULTILINE)) == {"java", "jars-s3a"}


def test_what_the_fast_run_leaves_out_exists() -> None:
    gone = []
    for line in (ROOT / "tests/unit/thorough.txt").read_text().splitlines()[1:]:
        file, _, name = line.partition("::")
        test = name.rpartition("::")[2] or "test_"
        if not (ROOT / file).exists() or not re.search(rf"def {test}", (ROOT / file).read_text()):
            gone.append(line)
    assert gone == []


# --- the workflows; `make lint-workflows` checks their grammar ---

WORKFLOWS = {path.stem: path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml")}


def test_workflows_run_targets_that_exist() -> None:
    targets = set(re.search(r"^\.PHONY: (.*)", MAKEFILE, re.MULTILINE)[1].split())  # type: ignore[index]
    nightly = re.search(r"target: \[(.*)\]", WORKFLOWS["nightly"])[1].split(", ")  # type: ignore[index]
    nightly += re.findall(r"{ target: (\w+), part:", WORKFLOWS["nightly"])
    asked = {target for text in WORKFLOWS.values() for target in re.findall(r"run: make ([\w-]+)", text)} | {*nightly}
    assert {"lint", "lint-workflows", "test-fast", "test", "docs", "release-check", "slow"} <= asked
    assert asked <= targets


def test_workflows_run_every_python_and_airflow_that_is_supported() -> None:
    full = WORKFLOWS["full"]
    pythons = [c.rpartition(" ")[2] for c in PROJECT["project"]["classifiers"] if "Python :: 3." in c]
    assert re.search(r"python: \[(.*)\]", full)[1] == ", ".join(f'"{python}"' for python in pythons)  # type: ignore[index]
    oldest = re.search(r"apache-airflow>=3\.(\d+)", str(PROJECT["project"]["dependencies"]))[1]  # type: ignore[index]
    newest = locked()["apache-airflow"].split(".")[1]
    minors = {f"3.{minor}" for minor in range(int(oldest), int(newest) + 1)}
    assert set(re.findall(r"\b3\.\d\b(?!\d)", " ".join(re.findall(r"airflow: .*", full)))) == minors


def test_workflows_hold_no_secret_and_give_no_rights_by_default() -> None:
    for name, text in WORKFLOWS.items():
        assert "secrets." not in text, f"{name}: publishing is trusted, nothing else needs a secret"
        assert "\npermissions:\n  contents: read\n" in text, name


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run one of our scripts on a machine that has only the named programs, each a shell script or a link."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sed", "head", "echo"):
        (programs / name).symlink_to(shutil.which(name) or name)

    def run(script: str, named: str = "", **commands: str) -> subprocess.CompletedProcess[str]:
        for name, body in commands.items():
            (programs / name).write_text(f"#!/bin/sh\n{body}\n")
            (programs / name).chmod(0o755)
        env = {k: v for k, v in os.environ.items() if k not in ("JAVA_HOME", "PYTHON")}
        env |= {"PATH": str(programs), "PYTHON": named}
        return subprocess.run(
            ["/bin/sh", str(ROOT / "dev" / script)], env=env, capture_output=True, text=True, check=False
        )

    return run


@pytest.mark.parametrize(
    ("says", "found"),
    [
        pytest.param(None, "none", id="none"),
        pytest.param('openjdk version "11.0.22" 2024-01-16', "11.0.22", id="too old"),
        pytest.param('java version "1.8.0_202"', "1.8.0", id="of the old numbering"),
        pytest.param('openjdk version "25" 2025-09-16', "25", id="too new"),
    ],
)
def test_a_java_that_spark_cannot_use_is_named_in_one_line(
    says: str | None, found: str, machine: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = machine("check-java.sh", **({"java": f"echo '{says}' >&2"} if says else {}))
    assert done.returncode == 2
    assert done.stderr == (
        f"missing: Java 17 or 21 (found: {found}); get it with: apt-get install openjdk-17-jre-headless, or set JAVA_HOME\n"
    )


@pytest.mark.parametrize("says", ['openjdk version "17.0.15" 2025-04-15', 'openjdk version "21" 2023-09-19'])
def test_a_java_that_spark_can_use_is_passed_over_in_silence(
    says: str, machine: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = machine("check-java.sh", java=f"echo '{says}' >&2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_no_python_is_named_in_one_line(machine: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = machine("find-python.sh")
    assert done.returncode == 2
    assert done.stderr == (
        "missing: Python 3.11, 3.12 or 3.13 (found: none); get it with: apt-get install python3.11 python3.11-venv, "
        "or name yours: make PYTHON=/path/to/python3.11\n"
    )


def test_an_old_python_is_named_in_one_line(machine: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = machine("find-python.sh", python3='[ "$1" = --version ] && echo "Python 3.9.2" || exit 1')
    assert done.returncode == 2
    assert done.stderr.startswith("missing: Python 3.11, 3.12 or 3.13 (found: Python 3.9.2); ")
    assert done.stderr.count("\n") == 1


def test_a_shim_without_a_python_behind_it_is_passed_over(
    machine: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = machine("find-python.sh", python3="echo 'no such version' >&2; exit 127", **{"python3.11": "exit 0"})
    assert done.returncode == 0
    assert Path(done.stdout.strip()).name == "python3.11"


def test_a_python_that_was_named_and_does_not_run_is_not_replaced_by_another(
    machine: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    """A matrix of versions would test one of them twice."""
    done = machine("find-python.sh", "python3.12", python3="exit 0", **{"python3.12": "exit 1"})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("PYTHON=python3.12 is no Python 3.11, 3.12 or 3.13 ")


def test_a_python_with_optimizations_is_preferred(machine: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """Of those on PATH; the tests need a fifth more time with the other."""
    slow = 'case "$2" in *optimizations*) exit 1; esac'
    assert Path(machine("find-python.sh", python3=slow).stdout.strip()).name == "python3"
    assert Path(machine("find-python.sh", python3=slow, python="exit 0").stdout.strip()).name == "python"
    assert Path(machine("find-python.sh", **{"python3.12": "exit 0"}).stdout.strip()).name == "python3.12"


# --- the tests ---

#: What holds what tests use, beside conftest.py: these directories, and nothing else below tests/.
HELPERS = ("support", "fake_databricks", "golden", "samples", "contract")


def misplaced(tests: Path) -> list[str]:
    """Each import of a test module or a conftest.py by another file, and each helper that lies beside the tests."""
    found = []
    for path in sorted(tests.rglob("*.py")):
        own = path.relative_to(tests)
        if not path.name.startswith("test_") and path.name != "conftest.py" and own.parts[0] not in HELPERS:
            found.append(f"{own}: a helper belongs into tests/support")
        for node in statements(path):
            named = [f"{node.module}.{name.name}" for name in node.names] if isinstance(node, ast.ImportFrom) else []
            named += [name.name for name in node.names] if isinstance(node, ast.Import) else []
            for name in named:
                parts = name.split(".")
                of_a_test = any(part.startswith("test_") for part in parts[1:-1]) or "conftest" in parts
                if parts[0] == "tests" and (of_a_test or module_of(tests, parts)):
                    found.append(f"{own}: imports {name}")
    return found


def module_of(tests: Path, parts: list[str]) -> bool:
    """Whether the whole name is that of a test module."""
    return parts[-1].startswith("test_") and tests.joinpath(*parts[1:]).with_suffix(".py").exists()


def test_nothing_is_imported_from_test_modules() -> None:
    assert misplaced(ROOT / "tests") == []


_TOOK_LESS = re.compile(r"assert .*time\.(monotonic|time|perf_counter)\(\) - \w+ <")


def test_no_test_fails_since_the_machine_is_busy() -> None:
    """None asserts that something took less than a time: waits have generous ends (``tests/support/waiting.py``)."""
    assert [path for path in (ROOT / "tests").rglob("test_*.py") if _TOOK_LESS.search(path.read_text())] == []


@pytest.mark.parametrize(
    ("what", "is_found"),
    [
        ("time.monotonic() - began < 10", True),
        ("0.2 < time.perf_counter() - began < 10", True),
        ("time.monotonic() - began > 0.4", False),
        ("time.process_time() - began < 20", False),  # of our own work, whatever else the machine is doing
    ],
)
def test_what_takes_less_than_a_time_is_found(what: str, is_found: bool) -> None:
    assert bool(_TOOK_LESS.search(f"    assert {what}")) is is_found


def test_what_is_misplaced_is_found(tmp_path: Path) -> None:
    for name, text in {
        "unit/test_a.py": "",
        "unit/conftest.py": "",
        "unit/test_b.py": "from tests.unit.test_a import rows\nfrom tests.unit import test_a\n",
        "unit/test_c.py": "import tests.unit.conftest\nfrom tests.support.conformance import test_every_store\n",
        "unit/rows.py": "",
        "support/rows.py": "",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert misplaced(tmp_path) == [
        "unit/rows.py: a helper belongs into tests/support",
        "unit/test_b.py: imports tests.unit.test_a.rows",
        "unit/test_b.py: imports tests.unit.test_a",
        "unit/test_c.py: imports tests.unit.conftest",
    ]


def test_each_slow_test_is_in_one_part() -> None:
    """``make slow-all`` runs each once."""
    parts = {part: set(slow_tests.files_of(part)) for part in slow_tests.PARTS}
    for path in (ROOT / "tests").rglob("test_*.py"):
        marked = re.search(r"mark\.slow\b|\bof_these\(", path.read_text())
        if marked and path != Path(__file__):
            of = [part for part, files in parts.items() if str(path) in files]
            assert len(of) == 1, f"{path.relative_to(ROOT)} is in {of or 'no part'} of dev/slow_tests.py"


def test_the_table_of_slow_parts_counts_tests_of_classes() -> None:
    failed = "<failure/>"
    report = ElementTree.fromstring(
        "<testsuite>"
        f'<testcase classname="tests.integration.test_rewind" time="30">{failed}</testcase>'
        f'<testcase classname="tests.integration.test_rewind.TestControls" time="60">{failed}</testcase>'
        '<testcase classname="tests.integration.test_rewind_sources" time="30"/>'
        '<testcase classname="tests.integration.test_seal" time="60"/>'
        "</testsuite>"
    )
    assert slow_tests.of_part("rewind", report.iter("testcase")) == (3, 2, 2.0)
    assert slow_tests.of_part("doctor", report.iter("testcase")) == (0, 0, 0.0)


def test_what_is_tested_without_airflow_loads_none() -> None:
    """Its imports would take longer in each worker than most of these tests: ``make test-fast``."""
    left_out = (ROOT / "tests/unit/without-airflow.txt").read_text().split()
    assert [path for path in left_out if not (ROOT / path.removeprefix("--ignore=")).exists()] == []
    code = (
        "import sys, pytest\n"
        "code = pytest.main(['-p', 'no:xdist', '-p', 'no:cacheprovider', '-qq', '--collect-only', 'tests/unit', *sys.argv[1:]])\n"
        "print(int(code), 'airflow_ckpt_provider.backup' in sys.modules, 'airflow' in sys.modules)"
    )
    command = [sys.executable, "-c", code, "@tests/unit/without-airflow.txt"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 True False", "what loads it belongs into that list"


def test_every_night_runs_every_part() -> None:
    assert re.findall(r"target: slow, part: (\w+)", WORKFLOWS["nightly"]) == list(slow_tests.PARTS)


def test_servers_of_tests_are_asked_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine in a company, where a proxy stands between it and all others."""
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://proxy.example:8080")
    assert get_environ_proxies("http://127.0.0.1:9000/bucket") == {}
    assert get_environ_proxies("http://localhost:9000/bucket") == {}
    assert get_environ_proxies("http://pypi.example/simple")["http"] == "http://proxy.example:8080"
