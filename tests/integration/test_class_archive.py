"""dev/class_archive.py: the archive is one that Java takes with the class path of the tests' Sparks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev import class_archive

pytestmark = pytest.mark.spark


def submitted(**environment: str) -> subprocess.CompletedProcess[str]:
    """Start Java as Spark does, and have it fail if it cannot use the archive."""
    options = environment.pop("SPARK_SUBMIT_OPTS") + " -Xshare:on"
    return subprocess.run(
        [Path(sys.executable).with_name("spark-submit"), "--version"],
        env=os.environ | environment | {"SPARK_SUBMIT_OPTS": options},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_java_takes_the_archive_with_this_class_path_and_no_other(tmp_path: Path) -> None:
    environment = class_archive.environment()
    assert "-XX:SharedArchiveFile=" in environment["SPARK_SUBMIT_OPTS"], "make jars; then see .cache/java/spark.log"
    assert "delta-spark" in environment["SPARK_DIST_CLASSPATH"]
    done = submitted(**environment)
    assert done.returncode == 0, done.stderr
    assert "version 4.0.0" in done.stderr
    first, _, others = environment["SPARK_DIST_CLASSPATH"].partition(os.pathsep)
    assert submitted(**environment | {"SPARK_DIST_CLASSPATH": others + os.pathsep + first}).returncode != 0


def test_a_jar_that_spark_brings_itself_is_left_out() -> None:
    names = [Path(jar).name for jar in class_archive.class_path().split(os.pathsep)]
    assert [name for name in names if "hadoop-client-api" in name or "slf4j-api" in name] == []
    assert [name for name in names if "iceberg-spark-runtime" in name] != []


def test_only_what_is_not_on_the_class_path_is_resolved() -> None:
    known = class_archive.coordinates(class_archive.ROOT / "dev" / "spark-jars.txt")
    assert class_archive.not_on_class_path([*known, "org.apache.hadoop:hadoop-aws:3.4.1"]) == [
        "org.apache.hadoop:hadoop-aws:3.4.1"
    ]


@pytest.fixture
def forgotten() -> Iterator[None]:
    """What was found is found again, in the test and after it."""
    class_archive.class_path.cache_clear()
    yield
    class_archive.class_path.cache_clear()


@pytest.mark.usefixtures("forgotten")
def test_another_spark_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(class_archive, "version", lambda name: "4.1.4")
        assert class_archive.environment() == {}
        known = class_archive.coordinates(class_archive.ROOT / "dev" / "spark-jars.txt")
        assert class_archive.not_on_class_path(known) == known


@pytest.mark.usefixtures("forgotten")
def test_a_listing_that_was_changed_since_is_not_on_the_class_path(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(
            class_archive, "ready", lambda listing: Path("/nowhere") if "iceberg" in listing.name else Path("/")
        )
        assert "iceberg" not in class_archive.class_path()
        (package, *_) = class_archive.coordinates(class_archive.ROOT / "dev" / "iceberg-jars.txt")
        assert class_archive.not_on_class_path([package]) == [package]
