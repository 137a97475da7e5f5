"""What holds for every test: an Airflow of their own, the Python of the tests in Spark, and nobody's real credentials."""

from __future__ import annotations

import pytest  # isort: skip

# What an assert of a helper compared is shown like that of a test.
pytest.register_assert_rewrite("tests.support")

import tests.support.throwaway_airflow  # isort: skip  # noqa: E402, F401

import os  # noqa: E402
import sys  # noqa: E402

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
    """``--repository-format 2`` runs any test with new repositories of format 2."""
    parser.addoption("--repository-format", type=int, default=1, help="format of new repositories (1 or 2)")


def pytest_configure(config: pytest.Config) -> None:
    """Set what new repositories are."""
    from airflow_ckpt_provider.backup import repository

    repository.DEFAULT_FORMAT = config.getoption("--repository-format")


@pytest.fixture(params=[1, 2], ids=["format-1", "format-2"])
def repository_format(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a test with new repositories of either format."""
    from airflow_ckpt_provider.backup import repository

    monkeypatch.setattr(repository, "DEFAULT_FORMAT", request.param)
    version: int = request.param
    return version
