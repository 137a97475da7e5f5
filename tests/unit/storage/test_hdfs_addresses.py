"""How addresses, options and connections of HDFS are read; nobody is asked anything."""

from __future__ import annotations

import json
from typing import Any

import fsspec
import pytest

from airflow_ckpt_provider.errors import MissingExtraError, RepositoryError, StorageError
from airflow_ckpt_provider.places import open_place
from airflow_ckpt_provider.storage.hdfs_store import HdfsStore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import location_of, open_location


def store(location: Location) -> HdfsStore:
    assert isinstance(location.store, HdfsStore)
    return location.store


def asked(location: Location) -> set[str]:
    return set(store(location).namenodes.addresses)


def parameters(location: Location) -> dict[str, str]:
    """What each request says of who asks."""
    return dict(store(location).namenodes.clients[0].pars)


@pytest.mark.parametrize(
    ("uri", "options", "name", "namenodes"),
    [
        ("webhdfs://nn:50070/ck", {}, "webhdfs://nn:50070/ck", {"nn:50070"}),
        ("webhdfs://nn/ck", {}, "webhdfs://nn/ck", {"nn:9870"}),
        ("webhdfs://nn/ck", {"use_https": True}, "webhdfs://nn/ck", {"nn:9871"}),
        # The port of hdfs:// is that of the RPC, which Spark needs and WebHDFS does not.
        ("hdfs://nn:8020/ck/", {}, "hdfs://nn:8020/ck", {"nn:9870"}),
        ("hdfs://nn:8020/ck", {"port": 14000}, "hdfs://nn:8020/ck", {"nn:14000"}),
        ("hdfs://lake/ck", {"host": "nn1, nn2:14000"}, "hdfs://lake/ck", {"nn1:9870", "nn2:14000"}),
        ("hdfs://nn1,nn2/ck", {"port": "14000"}, "hdfs://nn1,nn2/ck", {"nn1:14000", "nn2:14000"}),
        ("webhdfs://nn1:1,nn2:2/ck", {}, "webhdfs://nn1:1,nn2:2/ck", {"nn1:1", "nn2:2"}),
        ("webhdfs://me@NN:1/ck", {}, "webhdfs://NN:1/ck", {"nn:1"}),
        ("webhdfs://[::1]:9870/ck", {}, "webhdfs://[::1]:9870/ck", {"[::1]:9870"}),
        ("hdfs:///ck", {"host": "nn"}, "webhdfs://nn:9870/ck", {"nn:9870"}),
        ("hdfs://nn/100% a+b?c#d", {}, "hdfs://nn/100% a+b?c#d", {"nn:9870"}),
    ],
)
def test_addresses(uri: str, options: dict[str, Any], name: str, namenodes: set[str]) -> None:
    location = open_location(uri, storage_options=options)
    assert location.uri == name
    assert asked(location) == namenodes
    assert asked(open_location(location.uri, storage_options=options)) == namenodes


def test_one_place_by_two_names() -> None:
    spark = open_location("hdfs://nn:8020/ck/orders")
    web = open_location("webhdfs://nn:9870/ck/orders/backups")
    assert spark.contains(web)
    assert not web.contains(spark)
    assert not open_location("webhdfs://other:9870/ck").contains(web)


@pytest.mark.parametrize(
    ("options", "environment", "sent"),
    [
        ({}, {"HADOOP_USER_NAME": "ada"}, {"user.name": "ada"}),
        ({}, {"LOGNAME": "osuser"}, {"user.name": "osuser"}),
        ({"user": "eve", "proxy_to": "ada"}, {}, {"user.name": "eve", "doas": "ada"}),
        ({"token": "t0k"}, {"HADOOP_USER_NAME": "ada"}, {"delegation": "t0k"}),
        ({"user": "eve", "password": "pw"}, {}, {}),
    ],
)
def test_as_whom_it_is_asked(
    options: dict[str, Any], environment: dict[str, str], sent: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HADOOP_USER_NAME", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert parameters(open_location("hdfs://nn/ck", storage_options=options)) == sent


def test_a_user_in_the_address() -> None:
    assert parameters(open_location("webhdfs://ada@nn:9870/ck"))["user.name"] == "ada"


def test_a_filesystem_as_notebooks_have_it() -> None:
    fs = fsspec.filesystem("webhdfs", host="nn", port=9870, user="ada", skip_instance_cache=True)
    for root in ("/ck/orders/", "webhdfs://nn:9870/ck/orders"):
        location = location_of(fs, root)
        assert location.uri == "webhdfs://nn:9870/ck/orders"
        assert asked(location) == {"nn:9870"}


def test_no_namenode() -> None:
    with pytest.raises(StorageError) as e:
        open_location("hdfs:///ck")
    assert e.value.message == "hdfs:///ck names no NameNode"


def test_options_that_do_not_go_together() -> None:
    with pytest.raises(StorageError, match="do not specify the user"):
        open_location("hdfs://nn/ck", storage_options={"kerberos": True, "user": "ada"})


def test_kerberos_needs_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "requests_kerberos", None)
    with pytest.raises(MissingExtraError) as e:
        open_location("hdfs://nn/ck", storage_options={"kerberos": True})
    assert e.value.hint == "pip install requests_kerberos"


class TestConnections:
    def connect(self, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "webhdfs", **fields}))

    def test_fields(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As Airflow's WebHDFSHook reads them."""
        extra = {"use_ssl": "True", "verify": "/ca.pem", "cert": "/c.pem", "key": "/k.pem", "proxy_to": "spark"}
        self.connect(monkeypatch, host="nn1,nn2", port=14000, login="ada", extra=extra)
        for uri in ("hdfs://lake/ck", "hdfs://lake@lake/ck"):
            place = open_place(uri, None if "@" in uri else "lake")
            assert place.uri == "hdfs://lake/ck"
            assert asked(place) == {"nn1:14000", "nn2:14000"}
            assert parameters(place) == {"user.name": "ada", "doas": "spark"}
            client = store(place).namenodes.clients[0]
            assert client.url.startswith("https://")
            assert (client.session.verify, client.session.cert) == ("/ca.pem", ("/c.pem", "/k.pem"))

    def test_without_a_host_the_address_says(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.connect(monkeypatch, login="ada", extra={"use_ssl": "False", "verify": False})
        place = open_place("webhdfs://nn:14000/ck", "lake")
        assert asked(place) == {"nn:14000"}
        client = store(place).namenodes.clients[0]
        assert client.url.startswith("http://")
        assert client.session.verify is False

    def test_the_key_of_an_encrypted_repository(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.connect(monkeypatch, host="nn", extra={"ckpt_repository_secret_key": "no key"})
        with pytest.raises(RepositoryError, match="ckpt_repository_secret_key of connection 'lake' is no key"):
            open_place("hdfs://nn/ck", "lake")

    def test_without_a_connection(self) -> None:
        assert open_place("hdfs://nn:8020/ck").uri == "hdfs://nn:8020/ck"
