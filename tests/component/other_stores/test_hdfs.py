"""What only HDFS has: NameNodes that are read-only, a standby or gone, writers that die, rights, quotas. On Hadoop itself."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.guards.files import FileGuard
from airflow_ckpt_provider.guards.query import from_checkpoint, guard_query
from airflow_ckpt_provider.guards.registry import GuardSettings
from airflow_ckpt_provider.places import open_place
from airflow_ckpt_provider.storage.hdfs_store import HdfsStore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.namenodes import NameNodes
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.samples.archives import sample
from tests.support.command_line import new_repository, run
from tests.support.delta_tables import delta_checkpoint, new_table, put
from tests.support.hdfs_cluster import HdfsCluster, running_hdfs

pytestmark = [pytest.mark.stores, pytest.mark.timeout(300)]


def _open(cluster: HdfsCluster, path: str, **options: Any) -> Location:
    return open_location(f"{cluster.address}/{path}", storage_options=cluster.options | options)


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    with running_hdfs(tmp_path_factory.mktemp("hdfs")) as cluster:
        yield cluster


@pytest.fixture
def place(hdfs: HdfsCluster) -> Location:
    return _open(hdfs, f"place-{uuid.uuid4().hex[:12]}")


def _plant(location: Location, files: dict[str, bytes]) -> Checkpoint:
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(location.create, files, files.values()))
    return Checkpoint.at(location)


def _sample(location: Location) -> Checkpoint:
    files = sample("4.0.0", "rocks_changelog_agg").files
    return _plant(location, {path: data for path, data in files.items() if "/." not in f"/{path}"})


class TestWriters:
    def test_of_many_clients_exactly_one_creates_a_file(self, hdfs: HdfsCluster, place: Location) -> None:
        clients = [_open(hdfs, place.name) for _ in range(6)]
        for number in range(40):
            start = threading.Barrier(len(clients))

            def create(one: tuple[int, Location], name: str = f"seal/{number}", start: Any = start) -> bytes | None:
                data = str(one[0]).encode() * 5000
                start.wait()
                try:
                    one[1].create(name, data)
                except FileExistsError:
                    return None
                return data

            with ThreadPoolExecutor(len(clients)) as pool:
                (won,) = [data for data in pool.map(create, enumerate(clients)) if data is not None]
            assert place.read(f"seal/{number}") == won
        assert len(place.list("seal").files) == 40  # and nothing hidden

    def test_a_writer_that_is_killed_leaves_nothing_that_is_seen(
        self, hdfs: HdfsCluster, place: Location, tmp_path: Path
    ) -> None:
        program = (
            "import sys\nfrom airflow_ckpt_provider.storage.opening import open_location\n"
            f"place = open_location({place.uri!r}, storage_options={hdfs.options!r})\n"
            "place.create('state/1.zip', b'x' * 400_000_000)\n"
        )
        writer = subprocess.Popen([sys.executable, "-c", program])
        client = hdfs.client()

        def under_way() -> list[dict[str, Any]]:
            try:
                return list(client.ls(f"/{place.name}/state", detail=True))
            except FileNotFoundError:
                return []

        hdfs.await_that(under_way, "file under way")
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        with pytest.raises(FileNotFoundError):
            place.read("state/1.zip")
        (left,) = under_way()
        assert left["name"].rpartition("/")[2].startswith(".1.zip.")
        assert left["size"] < 400_000_000
        place.create("state/1.zip", b"whole")
        assert place.read("state/1.zip") == b"whole"
        assert place.size("state/1.zip") == 5

    def test_an_answer_that_is_lost(self, hdfs: HdfsCluster, place: Location) -> None:
        """The rename is carried out and nobody hears of it: the second NameNode finds it done."""
        first, second = hdfs.client(), hdfs.client()
        lost: list[str] = []

        def lose(answer: Any, *_: Any, **__: Any) -> None:
            if "op=RENAME" in answer.url:
                lost.append(answer.url)
                raise ConnectionResetError("lost")

        first.session.hooks["response"].append(lose)
        location = Location(HdfsStore(NameNodes([first, second]), "hdfs", "nn"), f"nn/{place.name}")
        location.create("a", b"1")
        assert location.read("a") == b"1"
        assert len(lost) == 1
        location = Location(HdfsStore(NameNodes([first, second]), "hdfs", "nn"), f"nn/{place.name}")
        with pytest.raises(FileExistsError):
            location.create("a", b"1")
        assert [f.path for f in place.list().files] == ["a"]

    def test_a_file_that_is_still_being_written(self, hdfs: HdfsCluster, place: Location) -> None:
        """It has a size of 0 until it is closed; nobody else can create it, and whoever replaces it has the last word."""
        client = hdfs.client()
        answer = client._call("CREATE", "PUT", f"/{place.name}/f", redirect=False)
        node = urlsplit(answer.headers["Location"])
        writer = http.client.HTTPConnection(str(node.netloc))
        writer.putrequest("PUT", f"{node.path}?{node.query}")
        writer.putheader("Content-Length", "1000")
        writer.endheaders()
        writer.send(b"x" * 500)
        hdfs.await_that(lambda: place.list().files, "file")
        (found,) = place.list().files
        assert found.size == 0
        with pytest.raises(FileExistsError):
            place.create("f", b"new")
        place.replace("f", b"new")
        writer.close()
        assert place.read("f") == b"new"
        (now,) = place.list().files
        assert (now.size, now.identity == found.identity) == (3, False)


class TestRefusals:
    def test_read_only(self, hdfs: HdfsCluster, place: Location) -> None:
        checkpoint = _sample(place / "orders")
        repository = Repository.open_or_create(place / "backups")
        hdfs.admin("DFSAdmin", "-safemode", "enter")
        try:
            assert checkpoint.progress().latest_committed is not None
            before = set(place.walk("backups"))
            with pytest.raises(StorageError) as e:
                create_backup(checkpoint, repository)
            assert "Name node is in safe mode (SafeModeException)" in e.value.message
            assert e.value.hint == (
                "wait until `hdfs dfsadmin -safemode get` says OFF, then run the same command again"
            )
            with pytest.raises(StorageError, match="SafeModeException"):
                place.delete("orders/metadata")
            assert set(place.walk("backups")) == before
        finally:
            hdfs.admin("DFSAdmin", "-safemode", "leave")
        result = create_backup(checkpoint, repository)
        assert verify_backup(repository, result.manifest, read_data=ReadData()).ok

    def test_no_rights(self, hdfs: HdfsCluster, place: Location) -> None:
        """Neither an empty checkpoint nor a missing file, but an error."""
        place.create("orders/offsets/0", b"1")
        hdfs.client().chmod(f"/{place.name}/orders", "700")
        stranger = _open(hdfs, f"{place.name}/orders", user="stranger")
        for forbidden in (
            lambda: stranger.list("offsets"),
            lambda: dict(stranger.walk()),
            lambda: stranger.read("offsets/0"),
            lambda: stranger.create("offsets/1", b"1"),
            lambda: stranger.delete("offsets/0"),
        ):
            with pytest.raises(StorageError) as e:
                forbidden()  # type: ignore[no-untyped-call]
            assert "Permission denied: user=stranger, access=" in e.value.message
            assert e.value.message.endswith("(AccessControlException)")
            assert e.value.hint == (
                "check as whom it is asked (user, Kerberos ticket or token), and the permissions of the path"
            )
        assert place.read("orders/offsets/0") == b"1"

    def test_what_is_empty_in_a_directory_of_somebody_else(self, hdfs: HdfsCluster, place: Location) -> None:
        """What holds something is none to remove; the others are told by the cause of the error."""
        place.create("orders/offsets/0", b"1")
        hdfs.client().chmod(f"/{place.name}", "755")
        hdfs.client().chmod(f"/{place.name}/orders", "777")
        stranger = _open(hdfs, f"{place.name}/orders", user="stranger")
        stranger.create("metadata", b"1")
        (stranger / "offsets").remove_empty_directories()
        stranger.remove_empty_directories()
        assert set(stranger.walk()) == {"offsets/0", "metadata"}
        place.delete("orders/offsets/0")
        stranger.delete("metadata")
        with pytest.raises(StorageError, match="Permission denied: user=stranger") as e:
            stranger.remove_empty_directories()
        assert isinstance(e.value.__cause__, PermissionError)
        assert place.list().directories == ("orders",)

    def test_a_quota(self, hdfs: HdfsCluster, place: Location) -> None:
        place.create("a", b"1")
        hdfs.admin("DFSAdmin", "-setQuota", "2", f"/{place.name}")
        with pytest.raises(StorageError) as e:
            place.create("b", b"1")
        assert e.value.message.endswith("(NSQuotaExceededException)")
        assert str(e.value.hint).startswith("raise the quota or free some space")
        assert set(place.walk()) == {"a"}

    def test_a_file_where_a_directory_should_be(self, place: Location) -> None:
        place.create("a", b"1")
        assert place.list("a/b").files == ()
        assert set(place.walk("a/b")) == set()
        with pytest.raises(StorageError) as e:
            place.create("a/b", b"1")
        assert e.value.hint == "a part of this path is a file: correct the address"
        (place / "a").remove_empty_directories()
        assert place.read("a") == b"1"

    def test_the_port_of_the_rpc_is_not_that_of_webhdfs(self, hdfs: HdfsCluster) -> None:
        with pytest.raises(StorageError) as e:
            open_location(f"webhdfs://127.0.0.1:{hdfs.rpc_ports[0]}/ck").list()
        assert "it is the NameNode's HTTP address" in str(e.value.hint)


def test_by_a_connection_and_from_the_command_line(
    hdfs: HdfsCluster, place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A nameservice in the address; the command line has the NameNodes from an option, Airflow from a connection."""
    _sample(place / "orders")
    host, uri = hdfs.options["host"], f"hdfs://lake/{place.name}"
    shell = ("--storage-option", f"host=127.0.0.1:9,{host}", "--json")
    new_repository(f"{uri}/backups", *shell)
    backup = run("backup", f"{uri}/orders", f"{uri}/backups", *shell)
    assert backup.code == 0, backup.err
    assert run("restore", f"{uri}/backups", "latest", f"{uri}/again", "--apply", *shell).code == 0
    port = hdfs.http_ports[0]
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "webhdfs", "host": "127.0.0.1", "port": port}))
    (manifest,) = Repository.open(open_place(f"{uri}/backups", "lake")).backups()
    assert manifest.checkpoint == f"{uri}/orders"
    assert set(open_place(f"hdfs://lake@lake/{place.name}/again").walk()) == {f.path for f in manifest.files}


def test_a_namenode_that_is_gone_and_comes_back(hdfs: HdfsCluster, place: Location) -> None:
    checkpoint = _sample(place / "orders")
    repository = Repository.open_or_create(place / "backups")
    create_backup(checkpoint, repository)
    hdfs.kill("namenode0")
    try:
        for action in (lambda: create_backup(checkpoint, repository), lambda: repository.backups()):
            with pytest.raises(StorageError) as e:
                action()  # type: ignore[no-untyped-call]
            assert (
                f"no active NameNode: 127.0.0.1:{hdfs.http_ports[0]}: [Errno 111] Connection refused" in e.value.message
            )
    finally:
        hdfs.start_namenode()
    hdfs.await_that(lambda: hdfs.state()["FSState"] == "Operational", "end of the safe mode")
    with suppress(StorageError):
        place.read("orders/metadata")  # the DataNode has yet to notice that its connection is gone
    again = create_backup(checkpoint, repository)
    assert again.copied_files == 0  # the numbers of files stay
    assert verify_backup(repository, again.manifest, read_data=ReadData()).ok


def test_the_file_guard(hdfs: HdfsCluster, place: Location, tmp_path: Path) -> None:
    """Two files were read, two are logged for the next batch; one of these goes."""
    files = put(tmp_path / "in", 0, 1, 2, 3)
    for file in files:
        place.create(f"in/{file.name}", file.read_bytes())
    times = {f.path: f.modified for f in place.list("in").files}
    planned = delta_checkpoint(tmp_path / "orders", new_table(tmp_path / "table", 2), 2, files=files)
    contents = {str(path.relative_to(planned)): path.read_bytes() for path in planned.rglob("*") if path.is_file()}
    for number, file in enumerate(files):
        stamp = times[f"in/{file.name}"]
        assert stamp is not None
        line = {"path": f"{place.uri}/in/{file.name}".replace(" ", "%20"), "batchId": number}
        line["timestamp"] = round(stamp.timestamp() * 1000)
        contents[f"sources/1/{number}"] = f"v1\n{json.dumps(line)}".encode()
    location = _plant(place / "orders", contents).location

    def judged() -> Any:
        settings = GuardSettings(
            options={"file": {"open": lambda uri: open_location(uri, storage_options=hdfs.options)}}
        )
        return guard_query(from_checkpoint(location).of_kind("file"), settings, guards=[FileGuard(settings)]).sources[0]

    assert (judged().verdict, judged().facts["planned_files"]) == (Verdict.SAFE, 2)
    place.delete("in/f 2.json")
    assert judged().verdict is Verdict.WILL_LOSE


def test_of_two_namenodes_the_active_is_asked(tmp_path: Path) -> None:
    with running_hdfs(tmp_path, namenodes=2) as pair:
        place = _open(pair, "place")
        with pytest.raises(StorageError) as e:
            place.list()
        assert [
            f"127.0.0.1:{port} is not active (StandbyException)" in e.value.message for port in pair.http_ports
        ] == [
            True,
            True,
        ]
        assert "hdfs haadmin -getAllServiceState" in str(e.value.hint)

        pair.admin("DFSHAAdmin", "-transitionToActive", "nn1")
        place.create("a", b"1")
        standby_only = open_location(f"webhdfs://127.0.0.1:{pair.http_ports[0]}/place")
        with pytest.raises(StorageError, match="is not active"):
            standby_only.read("a")
        checkpoint = _sample(place / "orders")
        repository = Repository.open_or_create(place / "backups")
        create_backup(checkpoint, repository)

        pair.kill("namenode1")
        with pytest.raises(StorageError, match="Connection refused") as e:
            repository.backups()
        assert f"127.0.0.1:{pair.http_ports[0]} is not active" in e.value.message
        pair.admin("DFSHAAdmin", "-transitionToActive", "--forceactive", "nn0")
        pair.await_that(lambda: pair.state()["FSState"] == "Operational", "end of the safe mode")
        again = create_backup(checkpoint, repository)
        assert again.copied_files == 0
        assert verify_backup(repository, again.manifest, read_data=ReadData()).ok
        with pytest.raises(FileExistsError):
            place.create("a", b"2")


def test_a_datanode_that_is_gone_is_passed_over(tmp_path: Path) -> None:
    """The NameNode sends there for another ten minutes."""
    with running_hdfs(tmp_path, datanodes=2) as hdfs:
        place = _open(hdfs, "place")
        for number in range(12):
            place.create(f"a/{number}", b"1")
        hdfs.kill("datanode0")
        for number in range(12):
            assert place.read(f"a/{number}") == b"1"
            place.create(f"b/{number}", b"2")
            assert place.read(f"b/{number}") == b"2"
        hdfs.kill("datanode1")
        for action in (lambda: place.read("a/1"), lambda: place.create("c", b"3")):
            with pytest.raises(StorageError, match=r"DataNode 127.*Connection refused") as e:
                action()  # type: ignore[no-untyped-call]
            assert "check that the DataNodes are alive" in str(e.value.hint)

        def is_read() -> bool:
            with suppress(StorageError):
                return place.read("a/1") == b"1"
            return False

        hdfs.start_datanode(0)
        hdfs.await_that(is_read, "DataNode that is back")
        assert {f.path for f in place.list().files} == set()
