"""The Databricks workspace behind an Airflow connection, opened only where it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.errors import MissingExtraError

if TYPE_CHECKING:
    from airflow_ckpt_provider.hooks.databricks_pipelines import DatabricksPipelinesHook


def open_workspace(databricks_conn_id: str, *, caller: str) -> DatabricksPipelinesHook:
    """Make the hook for a workspace. Nothing is connected to yet.

    :param databricks_conn_id: id of a connection of type ``databricks``.
    :param caller: who calls, for the ``User-Agent``.
    :raises MissingExtraError: the Databricks provider is not installed; the message has the ``pip install`` line.
    """
    try:
        from airflow_ckpt_provider.hooks.databricks_pipelines import DatabricksPipelinesHook
    except ImportError as e:
        raise MissingExtraError(
            f"connection {databricks_conn_id!r} needs Airflow's Databricks provider, which is not installed ({e})",
            hint="pip install 'airflow-ckpt-provider[databricks]'",
        ) from e
    return DatabricksPipelinesHook(databricks_conn_id, caller=caller)
