"""A Databricks job run as a probe: whether the query that it runs has ended."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from airflow_ckpt_provider.errors import RefusedError, WorkspaceError
from airflow_ckpt_provider.operators.databricks_workspace import open_workspace

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DatabricksRunEnded:
    """Whether a run has ended, by its life cycle. A job that runs continuously has another run after it: give the newest.

    .. code-block:: python

        from airflow_ckpt_provider.change.rest import RestRule

        run = DatabricksRunEnded(run_id=8471)
        rule = RestRule(probes=(run,))

    :param run_id: the run.
    :param databricks_conn_id: id of a connection of type ``databricks``.
    """

    run_id: int
    databricks_conn_id: str = "databricks_default"

    def ended(self) -> str | None:
        """Return how the run has ended; ``None`` where the workspace cannot be asked.

        :raises RefusedError: it runs, or there is no such run.
        :raises MissingExtraError: the Databricks provider is not installed.
        """
        hook = open_workspace(self.databricks_conn_id, caller="DatabricksRunEnded")
        try:
            state, is_over = hook.job_run_life_cycle(self.run_id)
        except WorkspaceError as e:
            log.warning("run %s: not known whether it has ended: %s", self.run_id, e.message)
            return None
        if is_over:
            return f"Databricks run {self.run_id} is {state}"
        raise RefusedError(
            f"Databricks run {self.run_id} is {state}", hint="cancel the run, and wait until it has ended"
        )
