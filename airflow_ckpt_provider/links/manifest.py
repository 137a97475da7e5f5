"""From the page of a backup task to the manifest it wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow_ckpt_provider.links.page import LinkOfTask

if TYPE_CHECKING:
    from airflow_ckpt_provider.storage.location import Location


class BackupManifestLink(LinkOfTask):
    """Opens the manifest where a browser can; there is no link where it cannot.

    .. code-block:: python

        class MyBackupOperator(CheckpointBackupOperator):
            operator_extra_links = (BackupManifestLink(),)
    """

    name = "Backup manifest"
    XCOM_KEY = "backup_manifest_url"


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


def _own_endpoint(place: Location) -> bool:
    """Whether it is an S3 server that is not Amazon's."""
    settings = getattr(place.store, "settings", None)
    fs = getattr(place.store, "fs", None)
    client = getattr(fs, "client_kwargs", None) or {}
    return bool(getattr(settings, "endpoint", None) or getattr(fs, "endpoint_url", None) or client.get("endpoint_url"))
