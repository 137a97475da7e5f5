"""From a task to the page that shows what it is about."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlencode, urlsplit

from airflow.providers.common.compat.sdk import XCom, conf
from airflow.sdk import BaseOperator, BaseOperatorLink

from airflow_ckpt_provider.configuration import shown_by_the_page

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey

log = logging.getLogger(__name__)


class LinkOfTask(BaseOperatorLink):
    """Base of the links whose URL the task leaves as an XCom; there is no link where it left none."""

    #: XCom under which the operator leaves the URL.
    XCOM_KEY: ClassVar[str]

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL, or an empty string if there is none; a broken link must not break a task's page."""
        try:
            url: Any = XCom.get_value(key=self.XCOM_KEY, ti_key=ti_key)
        except Exception:
            log.debug("no URL for %s of %s", self.name, ti_key, exc_info=True)
            return ""
        return url if isinstance(url, str) else ""


class CheckpointsPageLink(LinkOfTask):
    """Opens the change that a task carries out, or the list of streams that it reports.

    .. code-block:: python

        class MyRestoreOperator(CheckpointRestoreOperator):
            operator_extra_links = (CheckpointsPageLink(),)
    """

    name = "Checkpoints"
    XCOM_KEY = "checkpoints_page_url"


def page_of(repository: str, page: str = "", **query: str) -> str:
    """Return a page in Airflow; an empty text where the pages are about another repository, or not set up.

    :param repository: address of the repository.
    :param page: ``backup``, ``change`` or ``stream``; empty: the list of streams.
    :param query: what it is about.
    """
    from airflow_ckpt_provider.page.shown import key_of

    shown, mine = [each.key for each in shown_by_the_page()[0]], key_of(repository)
    if mine not in shown:
        return ""
    # Airflow shows the address behind the route of the view in its frame.
    prefix = urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")
    if not page:
        return f"{prefix}/plugin/checkpoints"
    return f"{prefix}/plugin/checkpoints/ckpt/{page}?{urlencode({**query, **({'at': mine} if len(shown) > 1 else {})})}"
