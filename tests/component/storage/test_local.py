"""What is particular to local disks."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_ckpt_provider.errors import FileChangedError, StorageError
from airflow_ckpt_provider.storage import local_store
from airflow_ckpt_provider.storage.exchange import exchange, locked
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.storage.store import StoredFile

_FREE = "HINT: free some space, then run the same command again"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    where = tmp_path / "small"
    where.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(where)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system needs more rights than this user has")
    yield where
    subprocess.run(["umount", str(where)], check=True)


@pytest.fixture
def ordinary_user() -> Iterator[Path]:
    """A directory of root's that anybody may read, while this process is not root."""
    with tempfile.TemporaryDirectory() as name:
        where = Path(name)
        (where / "offsets").mkdir()
        (where / "offsets" / "0").write_bytes(b"v1")
        for directory in (where, where / "offsets"):
            directory.chmod(0o555)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        yield where
        if user == 0:
            os.seteuid(0)
        for directory in (where, where / "offsets"):
            directory.chmod(0o755)


@pytest.mark.parametrize("read", ["read", "read_document", "read_part"])
def test_a_pipe_is_refused_and_not_waited_for(read: str, tmp_path: Path) -> None:
    """Somebody has made it under the name of a document: whoever reads it would wait without end."""
    os.mkfifo(tmp_path / "000001.json")
    location = open_location(str(tmp_path))
    calls = {
        "read": lambda: location.read("000001.json"),
        "read_document": lambda: location.read_document("000001.json"),
        "read_part": lambda: location.read_part("000001.json", 0, 4),
    }
    with pytest.raises(StorageError, match=r"000001\.json: it is a device, a pipe or a socket") as refused:
        calls[read]()
    assert refused.value.hint
    (tmp_path / "directory").mkdir()
    with pytest.raises(StorageError, match="Is a directory"):
        location.read("directory")


def test_disk_full(small_disk: Path) -> None:
    location = open_location(str(small_disk))
    location.create("a", b"x" * 10_000)
    for write in (location.create, location.replace):
        with pytest.raises(StorageError) as e:
            write("state/big", b"x" * 200_000)
        assert str(e.value).splitlines()[1] == _FREE
        assert "No space left on device" in e.value.message
    assert set(location.walk()) == {"a"}


def test_file_size_limit(tmp_path: Path) -> None:
    location = open_location(str(tmp_path))
    location.create("a", b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        for path, write in (("b", location.create), ("a", location.replace)):
            with pytest.raises(StorageError) as e:
                write(path, b"x" * 100_000)
            verb = "create" if path == "b" else "write"
            assert e.value.message == f"could not {verb} {tmp_path}/{path}: File too large"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert set(location.walk()) == {"a"}
    assert location.read("a") == b"old"


def test_read_only_directory(ordinary_user: Path) -> None:
    location = open_location(str(ordinary_user))
    assert location.read("offsets/0") == b"v1"
    for write in (
        lambda: location.create("offsets/1", b"x"),
        lambda: location.replace("offsets/0", b"x"),
        lambda: location.delete("offsets/0"),
        lambda: location.create("new/1", b"x"),
    ):
        with pytest.raises(
            StorageError, match=f"could not .* {ordinary_user}/.*: Permission denied\nHINT: check the perm"
        ):
            write()
    assert set(location.walk()) == {"offsets/0"}


def test_file_in_the_place_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    location = open_location(str(tmp_path / "file"))
    with pytest.raises(StorageError) as e:
        location.create("offsets/1", b"x")
    assert str(e.value) == (
        f"could not create {tmp_path}/file/offsets/1: Not a directory\n"
        "HINT: a part of this path is a file: correct the address"
    )
    with pytest.raises(StorageError):
        location.create("1", b"x")


def test_broken_links_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert open_location(str(tmp_path)).walk() == {}


def test_a_killed_writer_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    program = (
        "import sys; from airflow_ckpt_provider.storage.opening import open_location\n"
        "location = open_location(sys.argv[1]); print('go', flush=True)\n"
        "n = 0\n"
        "while True:\n"
        "    location.create(f'new/{n}', b'x' * 1_000_000); location.replace('same', bytes([n % 256]) * 1_000_000); n += 1\n"
    )
    for _ in range(3):
        where = Path(tempfile.mkdtemp(dir=tmp_path))
        writer = subprocess.Popen([sys.executable, "-c", program, str(where)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        while not (where / "same").exists():
            assert writer.poll() is None
        writer.kill()
        writer.wait()
        writer.stdout.close()
        files = open_location(str(where)).walk()
        whole = {path for path in files if not path.endswith(".tmp")}
        assert whole
        assert {files[path].size for path in whole} == {1_000_000}
        assert all(path.rpartition("/")[2].startswith(".") for path in set(files) - whole)


def test_links_do_not_hide_that_one_place_is_in_another(tmp_path: Path) -> None:
    checkpoint, alias = tmp_path / "checkpoint", tmp_path / "alias"
    checkpoint.mkdir()
    alias.symlink_to(checkpoint)
    outer = open_location(str(checkpoint))
    assert outer.contains(open_location(str(alias / "backups" / "new")))
    assert open_location(str(alias)).contains(outer)
    assert not outer.contains(open_location(str(tmp_path / "checkpoint-2")))
    assert not outer.contains(open_location(str(tmp_path)))


def test_file_addresses_are_taken_as_they_stand(tmp_path: Path) -> None:
    for spelling in (f"file://{tmp_path}/a#b?c%20d", f"file:{tmp_path}/a#b?c%20d"):
        assert open_location(spelling).root == f"{tmp_path}/a#b?c%20d"


@pytest.mark.usefixtures("names_exchange")
class TestExchanged:
    """Somebody writes while a file and the one that replaces it exchange their names."""

    @pytest.fixture
    def location(self, tmp_path: Path) -> Location:
        location = open_location(str(tmp_path))
        location.create("a", b"old")
        return location

    @pytest.fixture
    def refused(self, location: Location, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
        """Replace the file while others act, each before an exchange; what is there then, and the error."""

        def call(*acts: Callable[[], object]) -> str:
            file, left = location.walk()["a"], list(acts)

            def after(one: str, other: str) -> bool:
                if left:
                    left.pop(0)()
                return exchange(one, other)

            monkeypatch.setattr(local_store, "exchange", after)
            with pytest.raises(FileChangedError) as e:
                location.replace_listed(file, b"mine")
            assert not left
            return str(e.value)

        return call

    def test_another_file_is_put_back(self, location: Location, refused: Callable[..., str]) -> None:
        assert "5 bytes" in refused(lambda: location.replace("a", b"newer"))
        assert {path: location.read(path) for path in location.walk()} == {"a": b"newer"}

    def test_a_missing_file_is_not_made(self, location: Location, refused: Callable[..., str]) -> None:
        assert "no file is there now" in refused(lambda: location.delete("a"))
        assert location.walk() == {}

    def test_a_directory_is_put_back(self, location: Location, refused: Callable[..., str], tmp_path: Path) -> None:
        def make() -> None:
            location.delete("a")
            location.create("a/b", b"in it")

        refused(make)
        assert {path: location.read(path) for path in location.walk()} == {"a/b": b"in it"}

    def test_a_file_written_over_the_new_one_stays(
        self, location: Location, refused: Callable[..., str], tmp_path: Path
    ) -> None:
        message = refused(lambda: location.replace("a", b"newer"), lambda: location.replace("a", b"newest"))
        (hidden,) = set(location.walk()) - {"a"}
        assert f"6 bytes ({location.walk()['a'].identity}" in message
        assert f"another version is kept as {tmp_path}/{hidden}\n" in message
        assert (location.read("a"), location.read(hidden)) == (b"newest", b"newer")

    def test_who_writes_last_stays(self, location: Location, refused: Callable[..., str]) -> None:
        refused(*(lambda number=number: location.replace("a", b"x" * number) for number in (5, 6, 7)))
        assert location.read("a") == b"x" * 7

    def test_the_new_one_was_deleted(self, location: Location, refused: Callable[..., str]) -> None:
        refused(lambda: location.replace("a", b"newer"), lambda: location.delete("a"))
        assert {path: location.read(path) for path in location.walk()} == {"a": b"newer"}

    def test_a_lost_lease_changes_nothing(self, location: Location) -> None:
        file = location.walk()["a"]

        def lose() -> None:
            raise TimeoutError("lost")

        for step in (1, 2):
            with pytest.raises(TimeoutError, match="lost"):
                location.fenced(TestListed.at_step(step, lose), request_timeout=1.0).replace_listed(file, b"mine")
            assert location.walk() == {"a": file}

    def test_a_lock_that_is_not_released(
        self, location: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As of a process that is paused: the file is renamed away instead."""
        monkeypatch.setattr(local_store, "_LOCK_WAIT", 0.0)
        monkeypatch.delattr(local_store, "exchange")
        with locked(str(tmp_path), wait=0.0) as is_locked:
            assert is_locked
            location.replace_listed(location.walk()["a"], b"mine")
        assert {path: location.read(path) for path in location.walk()} == {"a": b"mine"}

    def test_of_many_replacements_one_wins(self, location: Location) -> None:
        with ThreadPoolExecutor(8) as pool:
            for number in range(100):
                file = location.walk()["a"]

                def write(data: bytes, file: StoredFile = file) -> bytes | None:
                    try:
                        location.replace_listed(file, data)
                    except FileChangedError:
                        return None
                    return data

                won = [data for data in pool.map(write, (b"%d of %d" % (n, number) for n in range(8))) if data]
                assert len(won) == 1
                assert {path: location.read(path) for path in location.walk()} == {"a": won[0]}


class TestListed:
    """Somebody writes between the steps of a change; the check before each step is where the test acts."""

    @staticmethod
    def at_step(number: int, act: Callable[[], None]) -> Callable[[], None]:
        steps = iter(range(1, 100))
        return lambda: act() if next(steps) == number else None

    @pytest.fixture
    def no_exchange(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As on NFS."""
        monkeypatch.setattr(local_store, "exchange", lambda one, other: False)

    @pytest.mark.parametrize("exchanges", [True, False])
    def test_another_file_that_came_after_the_look_is_put_back(
        self, tmp_path: Path, exchanges: bool, request: pytest.FixtureRequest
    ) -> None:
        if not exchanges:
            request.getfixturevalue("no_exchange")
        location = open_location(str(tmp_path))
        for verb in ("delete_listed", "replace_listed"):
            location.replace("a", b"old")
            file = location.walk()["a"]
            # The first step of a replacement is the new file under a hidden name.
            check = self.at_step(1 if verb == "delete_listed" else 2, lambda: location.replace("a", b"newer"))
            fenced = location.fenced(check, request_timeout=1.0)
            with pytest.raises(FileChangedError, match=r"5 bytes .* is there now, which was left as it is\nHINT"):
                fenced.delete_listed(file) if verb == "delete_listed" else fenced.replace_listed(file, b"mine")
            assert {path: location.read(path) for path in location.walk()} == {"a": b"newer"}

    @pytest.mark.usefixtures("no_exchange")
    def test_a_new_file_under_the_free_name_stays_and_the_old_one_is_kept(self, tmp_path: Path) -> None:
        location = open_location(str(tmp_path))
        location.create("a", b"old")
        check = self.at_step(3, lambda: location.create("a", b"newer"))
        with pytest.raises(FileChangedError, match="another version is kept as ") as e:
            location.fenced(check, request_timeout=1.0).replace_listed(location.walk()["a"], b"mine")
        (hidden,) = set(location.walk()) - {"a"}
        assert f"another version is kept as {tmp_path}/{hidden}\n" in str(e.value)
        assert (location.read("a"), location.read(hidden)) == (b"newer", b"old")

    @pytest.mark.usefixtures("no_exchange")
    def test_a_lease_that_is_lost_while_the_file_is_away(self, tmp_path: Path) -> None:
        location = open_location(str(tmp_path))
        location.create("a", b"old")
        file = location.walk()["a"]

        def lose() -> None:
            assert location.find("a") is None
            raise TimeoutError("lost")

        for step, change in ((2, Location.delete_listed), (3, lambda at, file: at.replace_listed(file, b"mine"))):
            with pytest.raises(TimeoutError, match="lost"):
                change(location.fenced(self.at_step(step, lose), request_timeout=1.0), file)
            assert location.walk() == {"a": file}

    def test_a_symbolic_link_is_deleted_and_not_what_it_leads_to(self, tmp_path: Path) -> None:
        (tmp_path / "target").write_bytes(b"x")
        (tmp_path / "place").mkdir()
        (tmp_path / "place" / "link").symlink_to("../target")
        location = open_location(str(tmp_path / "place"))
        location.delete_listed(location.walk()["link"])
        assert location.walk() == {}
        assert (tmp_path / "target").read_bytes() == b"x"


def test_what_holds_something_is_no_directory_to_remove_also_where_its_parent_is_not_ours(ordinary_user: Path) -> None:
    """The system compares rights before it sees that a directory is not empty, and the change of it has ended by then."""
    place = Location(local_store.LocalStore(), str(ordinary_user))
    place.remove_empty_directories()
    assert (ordinary_user / "offsets").is_dir()


def test_a_mount_point_stays_when_it_is_empty(small_disk: Path) -> None:
    (small_disk / "offsets").mkdir()
    Location(local_store.LocalStore(), str(small_disk)).remove_empty_directories()
    assert list(small_disk.iterdir()) == []
