"""What the recovery asks of a Databricks workspace: few calls, each one request or one listing.

The core knows no network; :class:`~airflow_ckpt_provider.hooks.databricks_pipelines.DatabricksPipelinesHook` is one of
these. All answers are the workspace's own JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol


class Workspace(Protocol):
    """The calls that concern pipelines.

    Reads are repeated by the implementation where the workspace is throttled or out of order for a moment; the start of an
    update is sent exactly once a call.
    """

    def ask(self, pipeline_id: str, path: str = "") -> dict[str, Any]:
        """GET the pipeline itself, or what lies below it, such as ``updates/<id>``.

        :raises NoSuchPipelineError: there is no such pipeline or update.
        :raises WorkspaceError: no usable answer.
        """
        ...

    def iter_updates(self, pipeline_id: str) -> Iterator[dict[str, Any]]:
        """All updates (``UpdateInfo``), newest first, page by page as they are taken."""
        ...

    def iter_events(self, pipeline_id: str, *, filter: str = "", max_results: int = 100) -> Iterator[dict[str, Any]]:
        """Events, newest first, page by page as they are taken.

        :param filter: the interface's own grammar, such as ``level='ERROR'``.
        :param max_results: events a page.
        """
        ...

    def start_update(self, pipeline_id: str, body: Mapping[str, Any]) -> str:
        """POST the start of an update, once; return its id.

        :raises ActiveUpdateError: another one is active; it continues.
        :raises UnknownStartError: no answer that says whether it was started.
        :raises RefusedError: the workspace refused the request; nothing was started.
        """
        ...

    def stop_pipeline(self, pipeline_id: str) -> None:
        """POST the stop of whatever is active; may be repeated."""
        ...

    def edit_pipeline(self, pipeline_id: str, body: Mapping[str, Any]) -> None:
        """PUT all settings of a pipeline, once; what is left out is gone.

        :raises ActiveUpdateError: a conflict: they are newer than ``expected_last_modified``.
        :raises WorkspaceError: no answer that says whether they were taken.
        """
        ...

    def get_table(self, name: str) -> dict[str, Any] | None:
        """GET a table of Unity Catalog; ``None`` where it cannot be seen."""
        ...
