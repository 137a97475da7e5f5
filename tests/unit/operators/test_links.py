"""The link to a manifest: where a browser can open it, and never an error."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest

from airflow_ckpt_provider.links.manifest import BackupManifestLink, manifest_url, page_url
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import location_of

PATH = "backups/orders/20261121T083000Z-b000223.json"


def test_no_run_no_link() -> None:
    key = SimpleNamespace(dag_id="dag", task_id="task", run_id="run", map_index=-1)
    assert BackupManifestLink().get_link(None, ti_key=key) == ""  # type: ignore[arg-type]


@pytest.mark.parametrize("scheme", ["file", "memory", "hdfs", "abfs"])
def test_a_place_that_no_browser_opens_has_no_link(scheme: str, tmp_path: Path) -> None:
    place = location_of(fsspec.filesystem("file" if scheme != "memory" else scheme), str(tmp_path / "backups"))
    store = SimpleNamespace(protocol=scheme)
    if scheme in ("hdfs", "abfs"):  # neither a client nor a server is needed to say no
        place = Location(store, place.root)  # type: ignore[arg-type]
    assert manifest_url(place, PATH) == ""


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ({}, f"https://s3.console.aws.amazon.com/s3/object/bucket?prefix=backups/{PATH}"),
        # Such a server refuses an address without a signature.
        ({"endpoint_url": "http://localhost:8333/"}, ""),
        ({"client_kwargs": {"endpoint_url": "http://localhost:8333"}}, ""),
    ],
)
def test_s3(options: dict[str, object], url: str) -> None:
    pytest.importorskip("s3fs")
    place = location_of(fsspec.filesystem("s3", key="k", secret="s", **options), "bucket/backups")
    assert manifest_url(place, PATH) == url


def test_the_page_in_airflow_comes_first_where_it_is_about_this_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    place = location_of(fsspec.filesystem("file"), "/backups")
    assert page_url(place, "orders", "b1") == ""
    monkeypatch.setenv("AIRFLOW__CKPT__REPOSITORY", "/other")
    assert page_url(place, "orders", "b1") == ""
    monkeypatch.setenv("AIRFLOW__CKPT__REPOSITORY", "/backups/")
    assert page_url(place, "orders", "b1") == "/plugin/checkpoints/ckpt/backup?name=orders&id=b1"
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://example.com/airflow/")
    assert page_url(place, "orders", "b1").startswith("/airflow/plugin/checkpoints/")
