"""From the page of a backup task to the manifest it wrote."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from airflow.providers.common.compat.sdk import XCom, conf
from airflow.sdk import BaseOperator, BaseOperatorLink

from airflow_ckpt_provider.configuration import shown_by_the_page

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey

    from airflow_ckpt_provider.storage.location import Location

log = logging.getLogger(__name__)


class BackupManifestLink(BaseOperatorLink):
    """Opens the manifest where a browser can; there is no link where it cannot.

    .. code-block:: python

        class MyBackupOperator(CheckpointBackupOperator):
            operator_extra_links = (BackupManifestLink(),)
    """

    name = "Backup manifest"

    #: XCom under which the operator leaves the URL.
    XCOM_KEY = "backup_manifest_url"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL, or an empty string if there is none; a broken link must not break a task's page."""
        try:
            url: Any = XCom.get_value(key=self.XCOM_KEY, ti_key=ti_key)
        except Exception:
            log.debug("no URL of a manifest for %s", ti_key, exc_info=True)
            return ""
        return url if isinstance(url, str) else ""


def manifest_url(repository: Location, path: str) -> str:
    """Return where a browser can show a file of a repository to whoever may see it; an empty text where it cannot.

    The consoles of Amazon and Google ask for a login. Any other S3 server refuses an address without a signature, and a browser
    neither opens files of a worker nor knows the schemes of HDFS and Azure's data lake.

    :param repository: the repository's place.
    :param path: the manifest, relative to it.
    """
    place = repository / path
    key = quote(place.root.strip("/"))
    if place.store.protocol == "s3" and not _own_endpoint(place):
        bucket, _, prefix = key.partition("/")
        return f"https://s3.console.aws.amazon.com/s3/object/{bucket}?prefix={prefix}"
    if place.store.protocol in ("gs", "gcs"):
        return f"https://storage.cloud.google.com/{key}"
    return ""


def page_url(repository: Location, name: str, backup_id: str) -> str:
    """Return the page of a backup in Airflow; an empty text where the page is about another repository, or not set up.

    :param repository: the repository's place.
    :param name: name of the stream.
    :param backup_id: id of the backup.
    """
    from airflow_ckpt_provider.page.shown import key_of

    shown, mine = [each.key for each in shown_by_the_page()], key_of(repository.uri)
    if mine not in shown:
        return ""
    # Airflow shows the address behind the route of the view in its frame.
    prefix = urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")
    query = {"name": name, "id": backup_id, **({"at": mine} if len(shown) > 1 else {})}
    return f"{prefix}/plugin/checkpoints/ckpt/backup?{urlencode(query)}"


def _own_endpoint(place: Location) -> bool:
    """Whether it is an S3 server that is not Amazon's."""
    settings = getattr(place.store, "settings", None)
    fs = getattr(place.store, "fs", None)
    client = getattr(fs, "client_kwargs", None) or {}
    return bool(getattr(settings, "endpoint", None) or getattr(fs, "endpoint_url", None) or client.get("endpoint_url"))
