"""Fixtures of the integration tests: a process with a real Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.samples.sparks import Sparks
from tests.support.streams.spark_host import SparkHost, coordinates
from tests.support.upgrades.spark_worker import SparkWorker


@pytest.fixture(scope="session")
def spark_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkHost]:
    """One Spark for all tests that need no special one."""
    host = SparkHost(tmp_path_factory.mktemp("spark") / "spark.log", packages=coordinates("spark-jars.txt"))
    yield host
    host.kill()


@pytest.fixture(scope="session")
def sparks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sparks]:
    """The Sparks that continue from samples of checkpoints."""
    all_of_them = Sparks(tmp_path_factory.mktemp("sparks"))
    yield all_of_them
    all_of_them.close()


@pytest.fixture(scope="session")
def spark_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkWorker]:
    """One Spark that describes, rehearses and stops queries, one after the other."""
    worker = SparkWorker(tmp_path_factory.mktemp("spark_worker") / "spark.log")
    yield worker
    worker.kill()
