from __future__ import annotations

import json
from typing import Any

import pytest
from fsspec import AbstractFileSystem
from hypothesis import given

from airflow_ckpt_provider.errors import RefusedError, UnreadableLogError
from airflow_ckpt_provider.recovery.restore.relocate import (
    foreign_place,
    holds_absolute_paths,
    original_place,
    relocated,
    spark_uri,
)
from airflow_ckpt_provider.storage.fsspec_store import FsspecStore
from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.storage.location import Location
from tests.support.checkpoints import operator_metadata
from tests.support.damaged_bytes import anything, truncated, unreadable_at_most

PATH = "state/0/_metadata/v2/3"
OLD = "s3a://old/state/0/ck"  # a place whose own name looks like a part of a checkpoint
SCHEMAS = [f"{OLD}/state/0/_stateSchema/default/0_f2e3", f"{OLD}/state/0/_stateSchema/default/3_9a1b"]
DATA = operator_metadata(name="transformWithStateExec", schema_files=SCHEMAS)


@pytest.mark.parametrize(
    ("path", "holds"),
    [
        (PATH, True),
        ("state/12/_metadata/v2/0", True),
        ("state/0/_metadata/metadata", False),
        ("state/0/_metadata/v2/.3.crc", False),
        ("other/state/0/_metadata/v2/3", False),
        ("offsets/3", False),
        ("_schema_log_5f6c-1/0", True),
        ("below/_schema_log_5f6c-1_mine/12", True),
        ("_schema_log_5f6c-1/.0.crc", False),
    ],
)
def test_which_files(path: str, holds: bool) -> None:
    assert holds_absolute_paths(path) is holds


def test_rewritten_and_nothing_else_touched() -> None:
    moved = relocated(DATA, path=PATH, target="file:/new/place")
    head, _, body = moved.partition(b"\n")
    assert head == b"v2"
    expected = json.loads(DATA.partition(b"\n")[2])
    expected["stateStoreInfo"][0]["stateSchemaFilePaths"] = [
        "file:/new/place/state/0/_stateSchema/default/0_f2e3",
        "file:/new/place/state/0/_stateSchema/default/3_9a1b",
    ]
    assert json.loads(body) == expected
    assert list(json.loads(body)) == list(expected)
    assert b"\n" not in body


def test_there_and_back() -> None:
    there = relocated(DATA, path=PATH, target="file:/new")
    assert relocated(there, path=PATH, target=OLD) == DATA
    assert relocated(there, path=PATH, target="file:/new") == there


def test_original_place() -> None:
    assert original_place(DATA, path=PATH) == OLD
    assert original_place(operator_metadata(), path=PATH) is None
    assert original_place(operator_metadata(schema_files=[]), path=PATH) is None


def test_a_uri_that_is_none_of_a_checkpoint_stays() -> None:
    data = operator_metadata(schema_files=["somewhere"])
    assert relocated(data, path=PATH, target="file:/new") == data
    assert original_place(data, path=PATH) is None


@pytest.mark.parametrize(
    "read", [lambda d: relocated(d, path=PATH, target="file:/x"), lambda d: original_place(d, path=PATH)]
)
def test_damage_is_named(read: Any) -> None:
    for data in [*truncated(DATA), b"v2\n[]", b"v2\n{}", b'v2\n{"stateStoreInfo":[1]}', b"v9\n{}"]:
        with pytest.raises(UnreadableLogError) as error:
            read(data)
        assert error.value.path == PATH


@given(anything(b"v2\n", b'v2\n{"stateStoreInfo":'))
def test_arbitrary_bytes_raise_nothing_else(data: bytes) -> None:
    for read in (lambda: relocated(data, path=PATH, target="file:/x"), lambda: original_place(data, path=PATH)):
        with unreadable_at_most(PATH):
            read()


class Somewhere(AbstractFileSystem):  # type: ignore[misc]
    """A filesystem of which only the scheme counts."""

    cachable = False

    def __init__(self, protocol: str) -> None:
        super().__init__()
        self.protocol = protocol


def somewhere(protocol: str, root: str) -> Location:
    return Location(FsspecStore(Somewhere(protocol)), root)


@pytest.mark.parametrize(
    ("protocol", "root", "like", "uri"),
    [
        ("s3", "bucket/ck", "s3a://old/ck", "s3a://bucket/ck"),
        ("s3", "bucket/ck", "s3://old/ck", "s3://bucket/ck"),
        ("s3", "bucket/ck", "s3n://old/ck", "s3n://bucket/ck"),
        ("s3", "bucket/ck", "file:/old/ck", "s3a://bucket/ck"),
        ("gcs", "bucket/ck", "gs://old/ck", "gs://bucket/ck"),
        ("hdfs", "nn:8020/new/ck", "hdfs://other/old/ck", "hdfs://nn:8020/new/ck"),
        ("hdfs", "nn:8020/new/ck", "file:/old/ck", "hdfs://nn:8020/new/ck"),
    ],
)
def test_names_as_spark_has_them(protocol: str, root: str, like: str, uri: str) -> None:
    assert spark_uri(somewhere(protocol, root), like=like) == uri


@pytest.mark.parametrize(
    ("protocol", "root", "named", "is_foreign"),
    [
        ("file", "/data/orders", "file:/data/orders", False),
        ("file", "/data/orders", "file:///data/orders", False),
        ("file", "/data/orders", "file:/mnt/before/data/orders", True),
        ("file", "/data/orders", "file:/backup-of/data/orders", True),
        ("s3", "bucket/orders", "s3a://bucket/orders", False),
        ("s3", "bucket/orders", "s3a://other/bucket/orders", True),
        ("s3", "bucket/orders", "s3a://my-bucket/orders", True),
        ("gcs", "bucket/orders", "gs://bucket/orders", False),
        ("hdfs", "/data/orders", "hdfs://namenode:8020/data/orders", False),
        ("hdfs", "/data/orders", "hdfs://namenode:8020/before/data/orders", True),
        ("memory", "/data/orders", "abfss://lake@account/data/orders", False),
        ("memory", "/data/orders", "abfss://lake@account/before/orders", True),
    ],
)
def test_a_place_that_only_ends_like_this_one_is_another(
    protocol: str, root: str, named: str, is_foreign: bool
) -> None:
    location = Location(LocalStore(), root) if protocol == "file" else somewhere(protocol, root)
    data = operator_metadata(schema_files=[f"{named}/state/0/_stateSchema/default/0_f2e3"])
    assert foreign_place(data, path=PATH, location=location) == (named if is_foreign else None)


def test_every_schema_file_has_to_be_of_this_place() -> None:
    own, other = (f"file:{root}/state/0/_stateSchema/default/0_f2e3" for root in ("/data/orders", "/before/orders"))
    data = operator_metadata(schema_files=[own, other])
    assert foreign_place(data, path=PATH, location=Location(LocalStore(), "/data/orders")) == "file:/before/orders"


def test_a_local_place() -> None:
    assert spark_uri(Location(LocalStore(), "/new/ck"), like="s3a://old/ck") == "file:/new/ck"


@pytest.mark.parametrize("protocol", ["memory", "abfs", "az", "sftp", "webhdfs"])
def test_a_name_that_cannot_be_derived(protocol: str) -> None:
    place = somewhere(protocol, "container/ck")
    with pytest.raises(RefusedError) as error:
        spark_uri(place, like="abfss://c@account.dfs.core.windows.net/old")
    assert error.value.message == (
        f"the checkpoint names absolute places, and how Spark names {place} cannot be derived"
    )
    assert error.value.hint == "give it to a restore: --target-uri, as the query will have it in checkpointLocation"


SCHEMA_LOG = "_schema_log_5f6c/0"


@pytest.mark.parametrize(
    ("protocol", "root", "named", "is_foreign"),
    [
        ("file", "/data/orders", "file:/data/orders", False),
        ("file", "/data/orders", "file:/before/orders", True),
        ("s3", "bucket/orders", "s3a://bucket/orders", False),
        ("s3", "bucket/orders", "s3a://other/orders", True),
        ("abfs", "lake/data/orders", "abfss://lake@account/data/orders", False),
    ],
)
def test_a_schema_log(protocol: str, root: str, named: str, is_foreign: bool) -> None:
    location = Location(LocalStore(), root) if protocol == "file" else somewhere(protocol, root)
    data = f'v1\n{{"tableId":"5f6c","sourceMetadataPath":"{named}/sources/0"}}'.encode()
    assert original_place(data, path=SCHEMA_LOG) == named
    assert foreign_place(data, path=SCHEMA_LOG, location=location) == (named if is_foreign else None)
    moved = relocated(data, path=SCHEMA_LOG, target="s3a://new/ck")
    assert moved == b'v1\n{"tableId":"5f6c","sourceMetadataPath":"s3a://new/ck/sources/0"}'


def test_a_schema_log_that_names_no_place() -> None:
    for data in (b"v1", b"v1\n{}"):
        assert original_place(data, path=SCHEMA_LOG) is None
    with pytest.raises(UnreadableLogError) as error:
        original_place(b'v1\n{"sourceMetadataPath":5}', path=SCHEMA_LOG)
    assert error.value.message.startswith(f"{SCHEMA_LOG}: not readable schema log")
