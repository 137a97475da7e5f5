"""Names of datasets: by the rules of OpenLineage, which are the ones that its integration of Spark goes by."""

from __future__ import annotations

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from airflow_ckpt_provider.lineage.names import dataset_of, full_uri, topic_of
from airflow_ckpt_provider.storage.opening import location_of


def named(uri: str) -> tuple[str, str] | None:
    found = dataset_of(uri)
    return found and (found.namespace, found.name)


@pytest.mark.parametrize(
    ("uri", "namespace", "name"),
    [
        ("/data/checkpoints/orders", "file", "/data/checkpoints/orders"),
        ("/", "file", "/"),
        ("file:///data/orders/", "file", "/data/orders"),
        ("file://nas/data/orders", "file://nas", "/data/orders"),
        ("s3://lake/checkpoints/orders", "s3://lake", "checkpoints/orders"),
        ("s3a://lake/tables/orders/", "s3://lake", "tables/orders"),
        ("S3N://lake", "s3://lake", "/"),
        ("gs://lake/t", "gs://lake", "t"),
        ("gcs://lake/t", "gs://lake", "t"),
        ("abfss://c@acc.dfs.core.windows.net/t/o", "abfss://c@acc.dfs.core.windows.net", "t/o"),
        ("abfs://c@acc.dfs.core.windows.net/t/o", "abfss://c@acc.dfs.core.windows.net", "t/o"),
        ("abfs://c/t/o", "abfss://c", "t/o"),
        ("wasb://c@acc.blob.core.windows.net/t", "wasbs://c@acc.blob.core.windows.net", "t"),
        ("hdfs://namenode:8020/warehouse/orders", "hdfs://namenode:8020", "/warehouse/orders"),
        ("hdfs://nameservice1/warehouse", "hdfs://nameservice1", "/warehouse"),
        ("dbfs://workspace/mnt/t", "dbfs://workspace", "/mnt/t"),
    ],
)
def test_places(uri: str, namespace: str, name: str) -> None:
    assert named(uri) == (namespace, name)


@pytest.mark.parametrize(
    ("uri", "namespace"),
    [
        ("s3://aws_default@lake/t", "s3://lake"),
        ("s3://AKIA:secret@lake/t", "s3://lake"),
        ("abfs://azure_conn@container/t", "abfss://container"),
        ("abfss://user:secret@acc.dfs.core.windows.net/t", "abfss://acc.dfs.core.windows.net"),
        ("hdfs://alice@namenode:8020/t", "hdfs://namenode:8020"),
        ("sftp://alice:secret@host/t", "sftp://host"),
        ("hdfs://alice:sec/ret@namenode:8020/t", "hdfs://namenode:8020"),
    ],
)
def test_a_login_and_the_id_of_a_connection_are_no_part_of_a_name(uri: str, namespace: str) -> None:
    found = named(uri)
    assert found is not None
    assert found[0] == namespace


@pytest.mark.parametrize(
    "uri", ["foreachBatch", "iceberg:lake.sales.orders", "kafka", "", "backup 1 of orders in s3://lake", "s3:///t"]
)
def test_what_has_no_name_gets_none(uri: str) -> None:
    assert dataset_of(uri) is None


@pytest.mark.parametrize(
    ("servers", "namespace"),
    [
        ("b1:9092,b2:9092", "kafka://b1:9092"),
        (" SASL_SSL://b1:9093 , b2:9093", "kafka://b1:9093"),
        ("b1", "kafka://b1:9092"),
        ("[::1]:9092", "kafka://[::1]:9092"),
        ("[::1]", "kafka://[::1]:9092"),
    ],
)
def test_topics_are_named_by_the_first_server(servers: str, namespace: str) -> None:
    found = topic_of(servers, "orders")
    assert found is not None
    assert (found.namespace, found.name) == (namespace, "orders")


@pytest.mark.parametrize("servers", ["", "?", " "])
def test_a_topic_of_a_cluster_that_is_not_known_gets_no_name(servers: str) -> None:
    assert topic_of(servers, "orders") is None


def test_of_azure_the_client_knows_the_account(monkeypatch: pytest.MonkeyPatch) -> None:
    class Azure(MemoryFileSystem):
        protocol = "abfs"
        account_name = "acc"

    place = location_of(Azure(), "container/checkpoints/orders")
    monkeypatch.setattr(type(place.store), "protocol", "abfs")
    assert full_uri(place) == "abfss://container@acc.dfs.core.windows.net/checkpoints/orders"


def test_of_any_other_store_the_address_says_all() -> None:
    assert full_uri(location_of(MemoryFileSystem(), "/a/b")) == "memory://a/b"
