"""Imports point down, and the core loads neither Airflow nor Spark nor a network client."""

from __future__ import annotations

import ast
import functools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.source_code import statements

PACKAGE = "airflow_ckpt_provider"
ROOT = Path(__file__).parents[2] / PACKAGE

#: What every layer may use; of these, json_text may use errors, and errors redaction.
BOTTOM = {"errors", "fingerprint", "json_text", "markdown", "parallel", "redaction", "source_settings", "units"}
#: Layer of the pure core -> what it may import of this package, beside itself, the bottom and the version.
MAY_IMPORT: dict[str, set[str]] = {
    "redaction": set(),
    "errors": set(),
    "fingerprint": set(),
    "json_text": set(),
    "markdown": set(),
    "parallel": set(),
    "source_settings": set(),
    "units": set(),
    "storage": set(),
    "verdict": {"storage"},
    "checkpoint": {"storage", "verdict"},
    "backup": {"storage", "verdict", "checkpoint"},
    "guards": {"storage", "verdict", "checkpoint"},
}
MAY_IMPORT["sinks"] = {*MAY_IMPORT["guards"], "guards", "backup"}
MAY_IMPORT["change"] = {*MAY_IMPORT["sinks"], "sinks"}
MAY_IMPORT["recovery"] = {*MAY_IMPORT["change"], "change"}
MAY_IMPORT["upgrade"] = MAY_IMPORT["fleet"] = {*MAY_IMPORT["recovery"], "recovery"}
MAY_IMPORT["page"] = {*MAY_IMPORT["fleet"], "fleet", "streams"}
MAY_IMPORT["advisor"] = {*MAY_IMPORT["fleet"], "lakeflow"}
#: Shares only verdicts and positions with the rest: no checkpoint of a pipeline is in reach.
MAY_IMPORT["lakeflow"] = {"storage", "verdict", "checkpoint", "guards"}
MAY_IMPORT["jobs"] = {*MAY_IMPORT["upgrade"], "upgrade", "advisor"}
MAY_IMPORT["spark"] = {"storage"}
#: The declaration names things; what reaches them is above.
MAY_IMPORT["streams"] = {"storage", "verdict", "checkpoint", "backup"}
MAY_IMPORT["fleet"] = {*MAY_IMPORT["fleet"], "streams"}
#: Takes what verbs say of themselves as JSON, and knows none of them.
MAY_IMPORT["lineage"] = {"storage", "streams"}
#: What lies above the core, and may import Airflow.
ABOVE = {"assets", "cli", "get_provider_info", "hooks", "links", "notifications", "operators", "places", "plugins"}
ABOVE |= {"configuration", "dag_factory", "sensors", "task_groups", "triggers"}
#: What is loaded when all of the core is: each is small and talks to no network by itself (fsspec loads lz4 where it is there).
MAY_LOAD = {"_yaml", "cramjam", "cython_runtime", "fsspec", "lz4", "yaml"}
#: `guards` holds one client a file and `jobs` are Spark applications: both load more than the core may.
PURE = ("redaction", "errors", "fingerprint", "json_text", "storage", "verdict", "checkpoint", "backup")
PURE += ("sinks", "change", "recovery")
PURE += (
    "source_settings",
    "lakeflow",
    "upgrade",
    "fleet",
    "advisor",
    "streams",
    "lineage",
    "units",
    "page",
    "markdown",
    "parallel",
)
#: Layer -> what it loads besides.
LOADS_TOO = {"page": {"jinja2", "markupsafe"}}
#: What talks to a network, or brings a framework along.
CLIENTS = {
    "adlfs",
    "aiobotocore",
    "aiohttp",
    "azure",
    "boto3",
    "botocore",
    "gcsfs",
    "google",
    "httpx",
    "obstore",
    "s3fs",
}
CLIENTS |= {"confluent_kafka", "databricks", "delta", "deltalake", "duckdb", "kafka", "pandas", "pyarrow", "requests"}
CLIENTS |= {"airflow", "pyiceberg", "pyspark", "urllib3"}
#: The module that opens a kind of store -> its client.
MAY_NAME = {f"{PACKAGE}.storage.s3_store": {"obstore"}}


def layer_of(module: str) -> str:
    return module.removeprefix(f"{PACKAGE}.").partition(".")[0]


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        yield ".".join(part for part in parts if part != "__init__"), path


@functools.cache
def imports(path: Path) -> tuple[tuple[int, str], ...]:
    """Every import in a file with its line, those inside functions and under TYPE_CHECKING too."""
    found: list[tuple[int, str]] = []
    for node in statements(path):
        if isinstance(node, ast.Import):
            found += ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                found.append((node.lineno, f"{PACKAGE}.<relative>"))
            elif node.module == PACKAGE:
                found += ((node.lineno, f"{PACKAGE}.{alias.name}") for alias in node.names)
            elif node.module:
                found.append((node.lineno, node.module))
    return tuple(found)


CORE = [(name, path) for name, path in modules() if layer_of(name) in MAY_IMPORT]


def offenders(found: list[tuple[str, Path]], forbidden: Callable[[str, str], bool]) -> list[str]:
    """Imports of these modules that are forbidden, by file and line.

    :param forbidden: given the importing module and what it imports.
    """
    return [
        f"{path.relative_to(ROOT)}:{line} imports {target}"
        for name, path in found
        for line, target in imports(path)
        if forbidden(name, target)
    ]


def test_every_module_has_its_layer() -> None:
    found = {layer_of(name) for name, _ in modules() if name != PACKAGE}
    assert {"errors", "storage", "verdict", "checkpoint", "backup", "change"} <= found
    assert found <= set(MAY_IMPORT) | ABOVE
    assert len(CORE) > 200


def test_imports_point_down() -> None:
    def is_up(name: str, target: str) -> bool:
        layer = layer_of(name)
        below = {"redaction"} if layer == "errors" else BOTTOM
        allowed = MAY_IMPORT[layer] | {layer, "__version__"} | below
        return target.startswith(f"{PACKAGE}.") and layer_of(target) not in allowed

    assert offenders(CORE, is_up) == []
    assert is_up(f"{PACKAGE}.storage.store", f"{PACKAGE}.backup.create"), "the test can tell"


def test_the_core_never_names_airflow() -> None:
    assert offenders(CORE, lambda _, target: target.partition(".")[0] == "airflow") == []
    above = [(name, path) for name, path in modules() if layer_of(name) == "operators"]
    assert offenders(above, lambda _, target: target.partition(".")[0] == "airflow"), "the test can tell"


def test_a_pure_layer_never_names_a_client() -> None:
    """Not inside a function, not for type checkers either: a client has its one file in guards, hooks or storage."""
    pure = [(name, path) for name, path in CORE if layer_of(name) in PURE]
    assert offenders(pure, lambda name, t: t.partition(".")[0] in CLIENTS - MAY_NAME.get(name, set())) == []
    assert offenders(pure, lambda _, target: target.partition(".")[0] == "obstore"), "the test can tell"


def loaded_by(names: list[str]) -> set[str]:
    """Third-party top-level packages that a fresh Python loads for these modules."""
    program = (
        "import importlib, json, sys\n"
        "before = set(sys.modules)\n"
        "for name in json.loads(sys.argv[1]): importlib.import_module(name)\n"
        "after = {m.partition('.')[0] for m in set(sys.modules) - before}\n"
        "own = {m for m in after if m in sys.stdlib_module_names or m.startswith(('_sysconfigdata', '_cython_'))}\n"
        "print(json.dumps(sorted(after - own)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, json.dumps(names)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return set(json.loads(run.stdout)) - {PACKAGE}


@pytest.mark.parametrize("layer", [layer for layer in PURE if list(ROOT.glob(f"{layer}*"))])
def test_a_pure_layer_loads_nothing_but_fsspec(layer: str) -> None:
    names = [name for name, _ in modules() if layer_of(name) == layer]
    assert names
    assert loaded_by(names) <= MAY_LOAD | LOADS_TOO.get(layer, set())


def test_the_command_line_starts_without_airflow() -> None:
    # Loading Airflow takes seconds; whoever types a command at three in the morning does not wait for it.
    loaded = loaded_by([f"{PACKAGE}.cli.program"])
    assert loaded.isdisjoint({"airflow", "pyspark", "s3fs", "botocore", "aiohttp", "deltalake", "pandas"})


def test_importing_the_package_is_free() -> None:
    assert loaded_by([PACKAGE, f"{PACKAGE}.get_provider_info"]) == set()


def test_names_that_airflow_3_1_has_elsewhere_come_from_the_compat_package() -> None:
    """Airflow 3.1 has no exceptions in ``airflow.sdk.exceptions``; `make matrix` imports every module with it."""
    sources = ROOT.rglob("*.py")
    assert [str(file.relative_to(ROOT)) for file in sources if "airflow.sdk.exceptions" in file.read_text()] == []
