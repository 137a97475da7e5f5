"""Damaged samples, started in real Sparks: what these say is recognised, word for word as they say it today.

A few under the locked Spark in every run; all of them marked ``slow``, and under the other Sparks by ``make samples``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ckpt_provider.advisor.advice import recovery_advice
from tests.samples.archives import VERSIONS
from tests.samples.failing import CASES, FailingSpark, cases_of
from tests.samples.spark_versions import python_with

pytestmark = pytest.mark.timeout(900)
LOCKED = "4.0.0"


def marks_of(version: str, name: str) -> list[pytest.MarkDecorator]:
    if version != LOCKED:
        return [pytest.mark.other_spark]
    return [pytest.mark.spark] if CASES[name].quick else [pytest.mark.spark, pytest.mark.slow]


class Sparks:
    """One Spark at a time, kept while the version stays the same."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._version = ""
        self._spark: FailingSpark | None = None

    def of(self, version: str) -> FailingSpark:
        if self._spark is None or self._version != version:
            self.close()
            self._version, self._spark = version, FailingSpark(python_with(version), self._logs / f"{version}.log")
        return self._spark

    def close(self) -> None:
        if self._spark:
            self._spark.close()
        self._spark = None


@pytest.fixture(scope="module")
def sparks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sparks]:
    found = Sparks(tmp_path_factory.mktemp("failing"))
    yield found
    found.close()


@pytest.mark.parametrize(
    ("version", "name"),
    [
        pytest.param(version, name, id=f"{version}-{name}", marks=marks_of(version, name))
        for version in VERSIONS
        for name in cases_of(version)
    ],
)
def test_what_spark_says_is_recognised(version: str, name: str, sparks: Sparks, tmp_path: Path):
    said = sparks.of(version).said(name, tmp_path, version=version)
    expected = CASES[name].code(version)
    if expected is None:
        assert said["message"] == "", "this Spark was not expected to complain"
        return
    assert said["message"], "Spark started and ended without an error"
    for form in (said["message"], said["trace"]):
        if form:
            advice = recovery_advice(form)
            assert advice.condition, form
            assert advice.condition.code == expected
            if advice.facts.checkpoint:
                assert advice.facts.checkpoint == str(tmp_path / "ck")
