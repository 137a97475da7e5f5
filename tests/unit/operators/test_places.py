"""URIs and connections as DAG authors write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_ckpt_provider.assets import backup_asset
from airflow_ckpt_provider.errors import MissingExtraError, RefusedError
from airflow_ckpt_provider.places import address, open_place


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("/data/orders", ("file", "/data/orders")),
        ("file:///data/orders", ("file", "/data/orders")),
        ("s3a://bucket/orders", ("s3", "bucket/orders")),
        ("s3://conn@bucket/orders", ("s3", "conn@bucket/orders")),
        ("abfss://box@account.dfs.core.windows.net/orders", ("abfs", "box/orders")),
        ("abfs://conn@box/orders", ("abfs", "conn@box/orders")),
    ],
)
def test_address(uri: str, expected: tuple[str, str]) -> None:
    assert address(uri) == expected


def test_local(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    for uri in (str(tmp_path), f"file://{tmp_path}"):
        assert open_place(uri).read("file") == b"1"
        assert open_place(uri).uri == str(tmp_path)


def test_local_with_a_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_DISK", '{"conn_type": "fs"}')
    assert open_place(str(tmp_path), "disk").uri == str(tmp_path)


def test_scheme_that_only_fsspec_knows() -> None:
    place = open_place("memory://box/orders")
    place.replace("file", b"1")
    assert open_place("memory://box/orders").read("file") == b"1"


def test_scheme_that_airflow_does_not_know_with_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SOME_CONNECTION", '{"conn_type": "generic"}')
    with pytest.raises(MissingExtraError) as e:
        open_place("memory://box/orders", "some_connection")
    assert str(e.value) == (
        "memory://box/orders: Airflow has no filesystem for memory:// (No filesystem registered for scheme memory)\n"
        "HINT: install the Airflow provider that brings memory://, or leave the connection id out"
    )


def test_s3_through_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("airflow.providers.amazon.aws.fs.s3")
    monkeypatch.setenv("AIRFLOW_CONN_STORE", '{"conn_type": "aws", "login": "key", "password": "secret"}')
    assert open_place("s3a://bucket/orders", "store").uri == "s3://bucket/orders"


@pytest.mark.parametrize("uri", ["s3://bucket/orders", "/data/orders", "s3://nowhere@bucket/orders"])
def test_connection_that_is_not_there(uri: str) -> None:
    with pytest.raises(RefusedError) as e:
        open_place(uri, None if "@" in uri else "nowhere")
    assert str(e.value) == (
        f"{uri}: there is no Airflow connection 'nowhere'\n"
        "HINT: create it (airflow connections add nowhere …), or leave the connection id out"
    )


@pytest.mark.parametrize(
    ("repository", "uri"),
    [
        ("s3a://bucket/backups/", "ckpt://backups/s3/bucket/backups/orders"),
        ("s3://conn@bucket/backups", "ckpt://backups/s3/bucket/backups/orders"),
        ("s3://bucket/a@b", "ckpt://backups/s3/bucket/a@b/orders"),
        ("abfss://c@acc.dfs.core.windows.net/backups", "ckpt://backups/abfs/c/backups/orders"),
        ("hdfs://alice@namenode:8020/backups", "ckpt://backups/hdfs/namenode:8020/backups/orders"),
        ("/data/backups", "ckpt://backups/file/data/backups/orders"),
        ("file:///data/backups", "ckpt://backups/file/data/backups/orders"),
        ("/data/a b#c?d", "ckpt://backups/file/data/a%20b%23c%3Fd/orders"),
        ("memory://backups", "ckpt://backups/memory/backups/orders"),
    ],
)
def test_asset_of_a_streams_backups(repository: str, uri: str) -> None:
    assert backup_asset(repository, "orders").uri == uri


def test_asset_is_the_same_from_the_authors_spelling_and_from_the_open_place(tmp_path: Path) -> None:
    for uri in (str(tmp_path), f"file://{tmp_path}/", "memory://backups/"):
        assert backup_asset(open_place(uri).uri, "orders") == backup_asset(uri, "orders")
