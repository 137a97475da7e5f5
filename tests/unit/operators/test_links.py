"""The link to a manifest: where a browser can open it, and never an error."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest

from airflow_ckpt_provider.links.manifest import BackupManifestLink, manifest_url
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import location_of

PATH = "backups/orders/20261121T083000Z-b000223.json"


def test_no_run_no_link() -> None:
    key = SimpleNamespace(dag_id="dag", task_id="task", run_id="run", map_index=-1)
    assert BackupManifestLink().get_link(None, ti_key=key) == ""  # type: ignore[arg-type]


def test_local(tmp_path: Path) -> None:
    place = location_of(fsspec.filesystem("file"), str(tmp_path / "my backups"))
    assert manifest_url(place, PATH) == f"file://{tmp_path}/my%20backups/{PATH}"


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ({}, f"https://s3.console.aws.amazon.com/s3/object/bucket?prefix=backups/{PATH}"),
        ({"endpoint_url": "http://localhost:8333/"}, f"http://localhost:8333/bucket/backups/{PATH}"),
        ({"client_kwargs": {"endpoint_url": "http://localhost:8333"}}, f"http://localhost:8333/bucket/backups/{PATH}"),
    ],
)
def test_s3(options: dict[str, object], url: str) -> None:
    pytest.importorskip("s3fs")
    place = location_of(fsspec.filesystem("s3", key="k", secret="s", **options), "bucket/backups")
    assert manifest_url(place, PATH) == url


def test_a_store_without_a_page_of_its_own() -> None:
    place: Location = location_of(fsspec.filesystem("memory"), "backups")
    assert manifest_url(place, PATH) == f"memory://backups/{PATH}"
