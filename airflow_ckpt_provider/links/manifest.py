"""From the page of a backup task to the manifest it wrote."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.providers.common.compat.sdk import XCom
from airflow.sdk import BaseOperator, BaseOperatorLink

from airflow_ckpt_provider.redaction import redacted

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey

    from airflow_ckpt_provider.storage.location import Location

log = logging.getLogger(__name__)


class BackupManifestLink(BaseOperatorLink):
    """Opens the manifest where a browser can: in the store's console, by its HTTP endpoint, or as a file."""

    name = "Backup manifest"

    #: XCom under which the operator leaves the URL.
    XCOM_KEY = "backup_manifest_url"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL, or an empty string where there is none; a broken link must not break a task's page."""
        try:
            url: Any = XCom.get_value(key=self.XCOM_KEY, ti_key=ti_key)
        except Exception:
            log.debug("no URL of a manifest for %s", ti_key, exc_info=True)
            return ""
        return url if isinstance(url, str) else ""


def manifest_url(repository: Location, path: str) -> str:
    """Return where a browser can show a file of a repository.

    :param repository: the repository's place.
    :param path: the manifest, relative to it.
    """
    place = repository / path
    scheme = place.store.protocol
    key = quote(place.root.strip("/"))
    if scheme == "file":
        return f"file:///{key}"
    if scheme == "s3":
        if endpoint := _endpoint(place):
            return f"{redacted(endpoint).rstrip('/')}/{key}"
        bucket, _, prefix = key.partition("/")
        return f"https://s3.console.aws.amazon.com/s3/object/{bucket}?prefix={prefix}"
    if scheme in ("gs", "gcs"):
        return f"https://storage.cloud.google.com/{key}"
    return place.uri


def _endpoint(place: Location) -> str | None:
    """Return the address of an S3 server that is not Amazon's."""
    settings = getattr(place.store, "settings", None)
    fs = getattr(place.store, "fs", None)
    client = getattr(fs, "client_kwargs", None) or {}
    endpoint = getattr(settings, "endpoint", None) or getattr(fs, "endpoint_url", None) or client.get("endpoint_url")
    return str(endpoint) if endpoint else None
