"""What every store must do with files as a listing named them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_ckpt_provider.errors import FileChangedError
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.store import StoredFile
from tests.support.stores_under_test import Place


def listed(location: Location, path: str) -> StoredFile:
    return location.walk()[path]


class TestFind:
    def test_shows_what_a_listing_shows(self, place: Place) -> None:
        for name in ("offsets/0", "two words", "empty"):
            place.location.create(name, b"" if name == "empty" else name.encode())
        for name, file in place.location.walk().items():
            found = place.location.find(name)
            assert found is not None
            assert found.is_same(file)
            assert (found.path, found.checksum) == (name, file.checksum)
        assert place.location.find("offsets") is None
        assert place.location.find("offsets/1") is None
        assert place.location.find("no/such/1") is None

    def test_no_answer_comes_from_a_cache(self, place: Place) -> None:
        place.requires("fresh")
        place.location.create("a", b"1")
        before = place.location.find("a")
        place.write_from_elsewhere("a", b"more")
        after = place.location.find("a")
        assert before is not None
        assert after is not None
        assert (before.size, after.size) == (1, 4)
        place.delete_from_elsewhere("a")
        assert place.location.find("a") is None


class TestDelete:
    def test_what_was_listed(self, place: Place) -> None:
        place.location.create("a/b", b"1")
        place.location.create("a/c", b"1")
        place.location.delete_listed(listed(place.location, "a/b"))
        assert set(place.location.walk()) == {"a/c"}

    def test_a_missing_file_is_fine(self, place: Place) -> None:
        place.location.create("a/b", b"1")
        file = listed(place.location, "a/b")
        place.delete_from_elsewhere("a/b")
        place.location.delete_listed(file)
        assert place.location.walk() == {}

    def test_another_file_stays(self, place: Place) -> None:
        place.requires("fresh")
        place.location.create("a/b", b"1")
        file = listed(place.location, "a/b")
        place.write_from_elsewhere("a/b", b"newer")
        with pytest.raises(FileChangedError) as e:
            place.location.delete_listed(file)
        assert place.location.read("a/b") == b"newer"
        assert set(place.location.walk()) == {"a/b"}, "and nothing hidden is left"
        now = listed(place.location, "a/b")
        assert f"{(place.location / 'a/b').uri} changed since it was listed: 1 bytes (" in e.value.message
        assert e.value.listed.startswith(f"1 bytes ({file.identity or 'no identity'}")
        assert e.value.found is not None
        assert e.value.found.startswith(f"5 bytes ({now.identity or 'no identity'}")
        assert e.value.hint is not None
        place.location.delete_listed(now)
        assert place.location.walk() == {}

    def test_same_size_same_second(self, place: Place) -> None:
        place.requires("fresh")
        place.requires("identity")
        place.location.create("a", b"1")
        file = listed(place.location, "a")
        place.write_from_elsewhere("a", b"2")
        with pytest.raises(FileChangedError):
            place.location.delete_listed(file)
        assert place.location.read("a") == b"2"

    def test_odd_names(self, place: Place) -> None:
        for name in ("100% sure", "already%20encoded", "naïve ☃", "a+b&c", "date=2026-11-21"):
            place.location.create(f"d {name}/{name}", b"x")
            file = listed(place.location, f"d {name}/{name}")
            written = place.location.replace_listed(file, b"yy")
            assert written is None or written.path == file.path
            place.location.delete_listed(listed(place.location, file.path))
        assert place.location.walk() == {}


class TestReplace:
    def test_what_was_listed(self, place: Place) -> None:
        place.location.create("a/b", b"1")
        written = place.location.replace_listed(listed(place.location, "a/b"), b"second")
        now = listed(place.location, "a/b")
        assert place.location.read("a/b") == b"second"
        assert set(place.location.walk()) == {"a/b"}
        assert written is None or written.is_same(now)
        if written is not None:
            place.location.replace_listed(written, b"third")
            assert place.location.read("a/b") == b"third"

    def test_another_file_stays(self, place: Place) -> None:
        place.requires("fresh")
        place.location.create("a/b", b"1")
        file = listed(place.location, "a/b")
        place.write_from_elsewhere("a/b", b"newer")
        with pytest.raises(FileChangedError, match=r"1 bytes .* was listed, 5 bytes .* is there now"):
            place.location.replace_listed(file, b"mine")
        assert place.location.read("a/b") == b"newer"
        assert set(place.location.walk()) == {"a/b"}

    def test_a_missing_file_is_not_made(self, place: Place) -> None:
        place.requires("fresh")
        place.location.create("a/b", b"1")
        file = listed(place.location, "a/b")
        place.delete_from_elsewhere("a/b")
        with pytest.raises(FileChangedError, match="no file is there now") as e:
            place.location.replace_listed(file, b"mine")
        assert e.value.found is None
        assert place.location.walk() == {}


class TestRaces:
    """The newer content is never destroyed by who lists the older one."""

    ROUNDS = 50

    @pytest.fixture(autouse=True)
    def _declared(self, place: Place) -> None:
        place.requires("compares")

    def test_delete_against_replace(self, place: Place) -> None:
        deleted = 0
        for number in range(self.ROUNDS):
            name, start = f"d/{number}", threading.Barrier(2)
            place.location.create(name, b"old")
            file = place.location.find(name)
            assert file is not None

            def delete(file: StoredFile = file, start: threading.Barrier = start) -> bool:
                start.wait()
                try:
                    place.location.delete_listed(file)
                except FileChangedError:
                    return False
                return True

            def write(name: str = name, start: threading.Barrier = start) -> None:
                start.wait()
                place.location.replace(name, b"newer")

            with ThreadPoolExecutor(2) as pool:
                deleting, writing = pool.submit(delete), pool.submit(write)
                writing.result()
                deleted += deleting.result()
            files = {path: place.location.read(path) for path in place.location.walk("d") if f"{number}" in path}
            assert b"newer" in files.values()
            assert files.get(name) == b"newer"
            place.location.delete(name)
        print(f"{deleted} of {self.ROUNDS} deleted before the write")

    def test_of_two_replacements_one_wins(self, place: Place) -> None:
        for number in range(self.ROUNDS):
            name, start = f"r/{number}", threading.Barrier(2)
            place.location.create(name, b"old")
            file = place.location.find(name)
            assert file is not None

            def write(data: bytes, file: StoredFile = file, start: threading.Barrier = start) -> bytes | None:
                start.wait()
                try:
                    place.location.replace_listed(file, data)
                except FileChangedError:
                    return None
                return data

            with ThreadPoolExecutor(2) as pool:
                won = [data for data in pool.map(write, (b"one", b"two")) if data is not None]
            assert len(won) == 1, number
            assert place.location.read(name) == won[0]
        assert len(place.location.walk("r")) == self.ROUNDS, "and nothing hidden is left"


class TestCopy:
    @pytest.fixture(autouse=True)
    def _declared(self, place: Place) -> None:
        place.requires("copies")

    def test_to_a_new_file(self, place: Place) -> None:
        place.location.create("from/a b%", b"1")
        file = listed(place.location, "from/a b%")
        place.location.copy_new(file, "to/ü+")
        place.location.copy_new(file, "x", into=place.location / "beside")
        copies = {path: (f.size, f.checksum) for path, f in place.location.walk().items()}
        assert copies == dict.fromkeys(("from/a b%", "to/ü+", "beside/x"), (1, file.checksum))

    def test_an_existing_target_stays(self, place: Place) -> None:
        place.location.create("a", b"1")
        place.location.create("b", b"other")
        with pytest.raises(FileExistsError):
            place.location.copy_new(listed(place.location, "a"), "b")
        assert place.location.read("b") == b"other"

    def test_its_own_result_is_fine(self, place: Place) -> None:
        place.location.create("a", b"1")
        file = listed(place.location, "a")
        place.location.copy_new(file, "b")
        made = listed(place.location, "b")
        place.location.copy_new(file, "b")
        assert listed(place.location, "b") == made

    def test_another_source_is_not_copied(self, place: Place) -> None:
        place.requires("fresh")
        place.location.create("a", b"1")
        file = listed(place.location, "a")
        place.write_from_elsewhere("a", b"newer")
        with pytest.raises(FileChangedError):
            place.location.copy_new(file, "b")
        assert set(place.location.walk()) == {"a"}

    def test_a_missing_source(self, place: Place) -> None:
        place.location.create("a", b"1")
        file = listed(place.location, "a")
        place.delete_from_elsewhere("a")
        with pytest.raises(FileNotFoundError):
            place.location.copy_new(file, "b")
        assert place.location.walk() == {}

    def test_of_many_exactly_one_wins(self, place: Place) -> None:
        for number in range(10):
            place.location.create(f"from/{number}", str(number).encode())
        files = list(place.location.walk("from").values())

        def copy(file: StoredFile) -> StoredFile | None:
            try:
                place.location.copy_new(file, "to")
            except FileExistsError:
                return None
            return file

        with ThreadPoolExecutor(10) as pool:
            won = [file for file in pool.map(copy, files) if file is not None]
        assert len(won) == 1
        assert listed(place.location, "to") == won[0]._replace(
            path="to", modified=listed(place.location, "to").modified
        )
