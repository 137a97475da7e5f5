"""Assets of ``ckpt://``: what Airflow makes of their URIs, and what they stand for."""

from __future__ import annotations

import tests.support.throwaway_airflow  # isort: skip  # noqa: F401

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from airflow.sdk import Asset

from airflow_ckpt_provider.assets import backup_asset, checkpoint_asset, convert_asset_to_openlineage, sanitize_uri
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.get_provider_info import get_provider_info
from airflow_ckpt_provider.streams.stream import Stream
from airflow_ckpt_provider.streams.streams import Streams


def test_airflow_knows_the_scheme_by_the_provider_info() -> None:
    try:
        from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime as ProvidersManager
    except ImportError:  # Airflow 3.1
        from airflow.providers_manager import ProvidersManager  # type: ignore[assignment]

    manager = ProvidersManager()
    assert manager.asset_uri_handlers["ckpt"] is sanitize_uri
    assert manager.asset_to_openlineage_converters["ckpt"] is convert_asset_to_openlineage
    made = manager.asset_factories["ckpt"](repository="s3a://b/r", name="orders", extra={"owner": "sales"})
    assert (made.uri, made.extra) == (backup_asset("s3://b/r", "orders").uri, {"owner": "sales"})
    info = get_provider_info()
    assert info["asset-uris"] == info["dataset-uris"]


@pytest.mark.parametrize(
    ("given", "uri"),
    [
        ("ckpt://backups/s3a/bucket/repo/orders", "ckpt://backups/s3/bucket/repo/orders"),
        ("ckpt://backups/abfss/c@acc.dfs.core.windows.net/repo/orders/", "ckpt://backups/abfs/c/repo/orders"),
        ("ckpt://checkpoints/file/data/a%20b", "ckpt://checkpoints/file/data/a%20b"),
        ("ckpt://checkpoints/hdfs/namenode:8020/c", "ckpt://checkpoints/hdfs/namenode:8020/c"),
    ],
)
def test_one_spelling(given: str, uri: str) -> None:
    assert Asset(given).uri == uri
    assert Asset(uri).uri == uri


@pytest.mark.parametrize(
    "uri",
    [
        "ckpt://orders",
        "ckpt://orders/backup",
        "ckpt://backups/s3/orders",
        "ckpt://backups/s3/bucket/..",
        "ckpt://backups/s3/bucket/a%2Fb",
        "ckpt://checkpoints/s3",
        "ckpt://checkpoints/s3/bucket?batch=5",
    ],
)
def test_what_names_nothing_is_refused_with_the_way_out(uri: str) -> None:
    with pytest.raises(ValueError, match=r"ckpt://backups/<scheme>/.*; use .*backup_asset or checkpoint_asset"):
        Asset(uri)


@pytest.mark.parametrize("place", ["s3://bucket/repo", "/data/a b#c", "hdfs://namenode:8020/repo", "/data/ü"])
def test_the_place_can_be_read_back(place: str) -> None:
    from airflow_ckpt_provider.assets import _parts

    uri = urlsplit(backup_asset(place, "orders").uri)
    assert uri.geturl().isascii()
    assert _parts(uri) == ("backups", place, "orders")
    assert _parts(urlsplit(checkpoint_asset(place).uri)) == ("checkpoints", place, "")
    assert sanitize_uri(uri) == uri


def test_of_a_declared_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declared = Streams([Stream("orders", checkpoint="/c", repository="s3://b/r", name_in_repository="o")])
    assert backup_asset(stream="orders", streams_file=declared) == backup_asset("s3://b/r", "o")
    file = tmp_path / "streams.yaml"
    file.write_text("streams: {orders: {checkpoint: /c, repository: /r}, clicks: {checkpoint: /d}}")
    monkeypatch.setenv("AIRFLOW__CKPT__STREAMS", str(file))
    assert backup_asset(stream="orders") == backup_asset("/r", "orders")
    with pytest.raises(RefusedError, match="the repository of clicks is not known"):
        backup_asset(stream="clicks")
    with pytest.raises(RefusedError, match="the repository of orders is not known"):
        backup_asset(name="orders")


def test_the_dataset_that_it_stands_for() -> None:
    pytest.importorskip("openlineage.client", reason="pip install 'airflow-ckpt-provider[openlineage]'")
    backups = convert_asset_to_openlineage(backup_asset("s3a://bucket/repo", "orders"), None)
    assert (backups.namespace, backups.name) == ("s3://bucket", "repo/backups/orders")
    checkpoint = convert_asset_to_openlineage(checkpoint_asset("/data/a b"), None)
    assert (checkpoint.namespace, checkpoint.name) == ("file", "/data/a b")
