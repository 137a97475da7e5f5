"""The workspace that the contract is asked of."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.lakeflow.queries import Queries, warehouse_queries
from airflow_ckpt_provider.lakeflow.updates import TERMINAL
from tests.contract.recording import RecordingClient

#: Seconds that an update of a real workspace may take.
PATIENCE = 1800.0


#: Seconds between two polls at a real workspace.
_INTERVAL = float(os.environ.get("CONTRACT_INTERVAL") or 10)


@dataclass
class Target:
    """A workspace, and the pipeline that the contract has made in it.

    :param client: our own client, which records.
    :param name: of the pipeline.
    :param schema: ``catalog.schema`` of its tables.
    :param real: it is no fake one.
    """

    client: RecordingClient
    name: str
    schema: str
    warehouse: str
    real: bool
    pipeline_id: str = ""

    @property
    def source(self) -> str:
        return f"{self.schema}.{self.name}_source"

    @property
    def table(self) -> str:
        return f"{self.schema}.{self.name}_copy"

    @property
    def queries(self) -> Queries:
        return warehouse_queries(self.client, self.warehouse, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        if self.real:
            time.sleep(min(seconds, _INTERVAL))

    def until(self, look: Callable[[], Any], what: str) -> Any:
        """Wait for something that is true."""
        began = time.monotonic()
        while not (found := look()):
            assert time.monotonic() - began < PATIENCE, what
            self.sleep(_INTERVAL)
        return found

    def run(self, **body: Any) -> dict[str, Any]:
        """Start an update, and follow it to its end."""
        update_id = self.client.start_update(self.pipeline_id, body)

        def ended() -> dict[str, Any] | None:
            update = self.client.ask(self.pipeline_id, f"updates/{update_id}")["update"]
            return update if update["state"] in TERMINAL else None

        return dict(self.until(ended, f"update {update_id} ends"))

    def rows(self) -> int:
        return int(self.queries(f"SELECT count(*) AS n FROM {self.table}")[0]["n"])

    @property
    def found(self) -> dict[str, Any]:
        """What no page establishes, and this workspace shows."""
        return self.client.recording.findings
