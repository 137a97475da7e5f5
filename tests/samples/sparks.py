"""The Sparks of one version at a time, one for each group of kinds that bear each other in a JVM."""

from __future__ import annotations

from pathlib import Path

from tests.samples.service import SampleService
from tests.samples.spark_versions import python_with


class Sparks:
    """Starts them as they are asked for, and keeps them for the next question.

    :param logs: where Spark's own output goes.
    """

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._version = ""
        self._services: dict[str, SampleService] = {}

    def of(self, version: str, jvm: str) -> SampleService:
        """The Spark of a version for a group of kinds. No checkpoint may be given to it twice."""
        if version != self._version:
            self.close()
            self._version = version
        if jvm not in self._services:
            log = self._logs / f"{version}, {jvm}.log"
            self._services[jvm] = SampleService(python_with(version), log)
            assert self._services[jvm].spark_version == version
        return self._services[jvm]

    def close(self) -> None:
        """Stop them."""
        for service in self._services.values():
            service.close()
        self._services.clear()
