"""No path that a file names leads out of the place that it is relative to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_ckpt_provider.errors import RefusedError, StorageError
from airflow_ckpt_provider.storage.location import Location, safe_relative
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.storage.store import StoredFile

LEAVING = ["..", "../x", "a/../x", "a/..", "/x", "/", "a//x", "a/", ".", "./x", "a/./x", "a/.", "//", "a\0b"]
INSIDE = [
    "a",
    "a/b",
    "...",
    "a/...",
    "..a",
    "a..",
    "a/..b",
    ".a",
    "a/.b.crc",
    "a b",
    "a\\..\\b",
    "ü☃",
    "a\nb",
    "%2e%2e/x",
]

_PARTS = st.sampled_from(["..", ".", "", "a", "b c", "...", "x.", ".y", "\0", "ü"])
PATHS = st.lists(_PARTS, max_size=5).map("/".join) | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@pytest.mark.parametrize("path", INSIDE)
def test_what_stays_inside(path: str) -> None:
    assert safe_relative(path) == path
    assert safe_relative(f"objects/{path}", below="objects") == f"objects/{path}"


@pytest.mark.parametrize("path", [*LEAVING, "", None, 1, b"x", ["x"]])
def test_what_leads_out(path: object) -> None:
    with pytest.raises(ValueError, match=r"^(it |a path is a text)"):
        safe_relative(path)


@pytest.mark.parametrize("path", ["objects", "objectsx/a", "backups/a", "objects/../backups/a", "objects//a"])
def test_what_lies_elsewhere(path: str) -> None:
    with pytest.raises(ValueError, match=r"^it "):
        safe_relative(path, below="objects")


@given(PATHS)
def test_any_path_is_refused_or_stays_inside(path: str) -> None:
    try:
        found = safe_relative(path)
    except ValueError:
        return
    assert os.path.normpath(f"/checkpoints/orders/{found}") == f"/checkpoints/orders/{found}"


VERBS: dict[str, Callable[[Location, str], Any]] = {
    "read": lambda here, path: here.read(path),
    "read part": lambda here, path: here.read_part(path, 0, 1),
    "list": lambda here, path: here.list(path),
    "walk": lambda here, path: here.walk(path),
    "find": lambda here, path: here.find(path),
    "size": lambda here, path: here.size(path),
    "create": lambda here, path: here.create(path, b"stolen"),
    "replace": lambda here, path: here.replace(path, b"stolen"),
    "delete": lambda here, path: here.delete(path),
    "delete listed": lambda here, path: here.delete_listed(StoredFile(path, 1)),
    "replace listed": lambda here, path: here.replace_listed(StoredFile(path, 1), b"stolen"),
    "copy from": lambda here, path: here.copy_new(StoredFile(path, 1), "y"),
    "copy to": lambda here, path: here.copy_new(StoredFile("in/y", 1), path),
    "a place in it": lambda here, path: here / path,
}


@pytest.mark.parametrize("uri", ["/a\0b", "file:///a\0b", "s3://bucket/a\0b", "memory://a\0b", "hdfs://nn/a\0b"])
def test_no_address_has_a_zero_byte(uri: str) -> None:
    """As an escape in ``streams.yaml`` makes one: no store takes it, and each would say so in another way."""
    with pytest.raises(RefusedError) as error:
        open_location(uri)
    assert error.value.message == f"{uri!r} is no address: it has a zero byte"


@pytest.mark.parametrize("uri", ["", "file:", "file://", "s3://", "s3:///orders", "gs:///orders", "abfss:///orders"])
def test_an_address_whose_variable_was_not_set_is_no_other_place(uri: str) -> None:
    """``file://$PLACE`` is not the current directory, and ``s3://$BUCKET/orders`` not the bucket ``orders``."""
    with pytest.raises(RefusedError, match=" is no address: it names no "):
        open_location(uri)


@pytest.mark.parametrize("uri", ["s3:/lake/backups", "dbfs:/mnt/ck", "HDFS:/user/ck"])
def test_a_slash_too_few_is_no_directory_of_this_machine(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RefusedError) as error:
        open_location(uri)
    assert error.value.message == f"{uri} is no address: two slashes follow a scheme"
    assert f"./{uri}" in str(error.value.hint)
    assert open_location(f"./{uri}").root == f"{tmp_path}/{uri}"
    assert open_location("file:/data").root == open_location("file:///data").root == "/data"


@pytest.mark.parametrize("uri", ["s3://[bucket/x", "hdfs://[::1/x", "gs://]/x", "file://[::1/x"])
def test_an_address_that_is_no_uri(uri: str) -> None:
    with pytest.raises(RefusedError) as error:
        open_location(uri)
    assert error.value.message == f"{uri} is no address: Invalid IPv6 URL"


def test_the_host_of_a_file_is_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_location("file://localhost/data/x").root == open_location("file://LOCALHOST/data/x").root == "/data/x"
    for uri, host in (("file://data/ckpt", "data"), ("file://localhost", "localhost"), ("file://./ckpt", ".")):
        with pytest.raises(RefusedError) as error:
            open_location(uri)
        assert error.value.message == f"{uri} is no address: {host} is read as the name of a machine"
        assert error.value.hint == f"write file:///{uri[7:]}, with three slashes"


def test_no_file_is_renamed_over_a_device_or_a_pipe(tmp_path: Path) -> None:
    """``fleet --prometheus /dev/null`` by root put a file in the place of the device, for all programs of the machine."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match=r"could not write .*pipe: it is a device, a pipe or a socket"):
        open_location(str(tmp_path)).replace("pipe", b"metrics")
    assert (tmp_path / "pipe").is_fifo()
    assert [each.name for each in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize("uri", ["s3://b\udcff/x", "hdfs://nn/\udcff", "memory://\udcff"])
def test_a_store_but_a_disk_takes_no_address_that_is_no_utf_8(uri: str) -> None:
    with pytest.raises(RefusedError, match="is no address: it is no UTF-8"):
        open_location(uri)
    assert open_location("memory://ü☃").root.endswith("ü☃")


def test_a_file_whose_name_is_no_utf_8_is_written_and_one_that_no_file_can_have_is_named(tmp_path: Path) -> None:
    here = open_location(str(tmp_path))
    here.create("bad\udcff", b"1")
    here.replace("bad\udcff", b"2")
    assert here.read("bad\udcff") == b"2"
    with pytest.raises(StorageError, match=r"could not create .*half.*: no file can have this name"):
        here.create("half\ud800", b"1")


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("path", LEAVING)
def test_a_place_has_no_way_out(verb: str, path: str, tmp_path: Path) -> None:
    (tmp_path / "root" / "a").mkdir(parents=True)
    (tmp_path / "x").write_bytes(b"1")
    with pytest.raises(RefusedError) as error:
        VERBS[verb](open_location(str(tmp_path / "root")), path)
    assert error.value.message.startswith(f"{path!r} is no path in {tmp_path}/root: it ")
    assert error.value.hint
    assert (tmp_path / "x").read_bytes() == b"1"
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a", "root", "x"]
