"""From the page of a task to the page of the update it started, in the workspace."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import XCom
from airflow.sdk import BaseOperator, BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey

log = logging.getLogger(__name__)


class PipelineUpdateLink(BaseOperatorLink):
    """Opens the update's page.

    .. code-block:: python

        class MyPipelineOperator(PipelineStopOperator):
            operator_extra_links = (PipelineUpdateLink(),)
    """

    name = "Pipeline update"

    #: XCom under which the operators leave the URL.
    XCOM_KEY = "pipeline_update_url"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL, or an empty string if there is none; a broken link must not break a task's page."""
        try:
            url: Any = XCom.get_value(key=self.XCOM_KEY, ti_key=ti_key)
        except Exception:
            log.debug("no URL of an update for %s", ti_key, exc_info=True)
            return ""
        return url if isinstance(url, str) else ""
