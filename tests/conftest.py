"""What holds for every test: an Airflow of their own, the Python of the tests in Spark, and nobody's real credentials."""

from __future__ import annotations

import pytest  # isort: skip

# What an assert of a helper compared is shown like that of a test.
pytest.register_assert_rewrite("tests.support")

import tests.support.throwaway_airflow  # isort: skip  # noqa: E402, F401

import gc  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from collections.abc import Generator  # noqa: E402
from typing import Any  # noqa: E402

# Here and nowhere else: each conftest.py or module that imports a fixture of the session has one of its own.
from tests.support.kafka_broker import kafka_broker as kafka_broker  # noqa: E402
from tests.support.s3_server import s3_server as s3_server  # noqa: E402

#: What would lead a client to a real account, or to an address other than the test's own.
_REAL_ACCOUNTS = (
    *("AWS_", "AZURE_", "GOOGLE_APPLICATION_", "DATABRICKS_"),
    *("AIRFLOW_CONN_", "AIRFLOW_VAR_", "AIRFLOW_CKPT_", "CKPT_"),
)

#: ``make contract`` asks a real workspace, with its user's own login; nothing else does.
_KEPT = (
    "AWS_CA_BUNDLE",
    *(name for name in os.environ if name.startswith("DATABRICKS_") and "CONTRACT_HOST" in os.environ),
)

for name in list(os.environ):
    if name.startswith(_REAL_ACCOUNTS) and name not in _KEPT:
        del os.environ[name]

#: The servers of the tests are asked without a proxy; ``urllib`` and ``requests`` prefer the name in small letters.
_not_by_proxy = [os.environ.get("no_proxy") or os.environ.get("NO_PROXY", ""), "127.0.0.1", "localhost"]
os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(filter(None, _not_by_proxy))

os.environ.update(
    {
        "AIRFLOW_CKPT_PROFILES": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--repository-format 2`` or ``mixed`` runs any test with such repositories, where this process makes them."""
    parser.addoption(
        "--repository-format",
        choices=("1", "2", "mixed"),
        default="1",
        help="format of new repositories; mixed: 1 until the first backup is made, then 2",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let repositories get format 2 after their first backup, if that is asked for."""
    if config.getoption("--repository-format") == "mixed":
        from tests.support.mixed_formats import raise_after_first_backup

        raise_after_first_backup()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Say which tests run in the same worker, where ``--dist loadfile`` is asked for."""
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.support.one_worker import EachForItself, OneWorker

    return (EachForItself if config.getoption("markexpr") == "slow" else OneWorker)(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes longest, where several workers run the tests."""
    if hasattr(config, "workerinput"):
        from tests.support.one_worker import SHARED, shared_by

        order = list(SHARED)
        items.sort(key=lambda item: order.index(what) if (what := shared_by(item.nodeid)) else len(order))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while tests are loaded, and leave what is loaded by then out of later collections and of forks."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Set what new repositories are; a test with the marker ``format_1`` is about repositories of format 1."""
    from airflow_ckpt_provider.backup import repository
    from tests.support import mixed_formats

    asked = item.config.getoption("--repository-format")
    pinned = item.get_closest_marker("format_1") is not None
    repository.DEFAULT_FORMAT = 2 if asked == "2" and not pinned else 1
    mixed_formats.wanted = asked == "mixed" and not pinned


@pytest.fixture(params=[1, 2], ids=["format-1", "format-2"])
def repository_format(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a test with new repositories of either format."""
    from airflow_ckpt_provider.backup import repository

    monkeypatch.setattr(repository, "DEFAULT_FORMAT", request.param)
    version: int = request.param
    return version
