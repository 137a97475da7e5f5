"""What every store must do, whichever implements it: also run over emulators."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_ckpt_provider.storage.store import Listing
from tests.support.stores_under_test import Place

ODD_NAMES = [
    "two words",
    "100% sure",
    "already%20encoded",
    "naïve ☃",
    "date=2026-11-21",
    "a+b&c",
    "q?a#b",
    "~tilde'quote",
    "_underscore",
    "1.delta",
]


def test_declares_what_it_can(place: Place) -> None:
    store = place.location.store
    declared = store.creates_if_absent, store.copies_within, store.deletes_if_same
    assert declared == (place.exclusive, place.copies, place.compares)


class TestReading:
    def test_missing_directory_is_empty(self, place: Place) -> None:
        assert place.location.list("nothing/here") == Listing((), ())
        assert place.location.walk("nothing/here") == {}

    def test_missing_file(self, place: Place) -> None:
        place.location.create("a", b"1")
        words = []
        for path in ("b", "b", "dir/b"):
            with pytest.raises(FileNotFoundError) as missing:
                place.location.read(path)
            words.append(str(missing.value))
        assert words[0] == words[1], "whoever looks twice can tell that it is the same"
        assert words[2].count("dir/b") == 1
        assert "\n" not in words[2]

    def test_content_of_any_size(self, place: Place) -> None:
        for size in (0, 1, 70_000, 6_000_000):
            data = os.urandom(size)
            place.location.create(f"size/{size}", data)
            assert place.location.read(f"size/{size}") == data
        found = place.location.walk()
        assert sorted(f.size for f in found.values()) == [0, 1, 70_000, 6_000_000]

    def test_a_part_of_a_log_that_grows(self, place: Place) -> None:
        place.location.replace("logs/driver", b"one\n")
        assert place.location.size("logs/driver") == 4
        place.location.replace("logs/driver", b"one\ntwo\nthree\n")
        assert place.location.size("logs/driver") == 14
        assert place.location.read_part("logs/driver", 4, 4) == b"two\n"
        assert place.location.read_part("logs/driver", 8, 100) == b"three\n"
        for start in (14, 100):
            assert place.location.read_part("logs/driver", start, 10) == b"", "it ends before"
        place.location.replace("logs/empty", b"")
        assert place.location.read_part("logs/empty", 0, 10) == b""
        assert (place.location / "logs/driver").read_part("", 0, 3) == b"one"
        assert place.location.size("logs/other") is None
        with pytest.raises(FileNotFoundError):
            place.location.read_part("logs/other", 0, 1)

    def test_lists_one_directory(self, place: Place) -> None:
        for path in (
            "offsets/0",
            "offsets/1",
            "offsets/deep/er/2",
            "offsets/other/3",
            "commits/0",
            "metadata",
            "offsets2/0",
        ):
            place.location.create(path, b"x")
        listing = place.location.list("offsets")
        assert sorted(f.path for f in listing.files) == ["offsets/0", "offsets/1"]
        assert listing.directories == ("deep", "other")
        top = place.location.list()
        assert [f.path for f in top.files] == ["metadata"]
        assert top.directories == ("commits", "offsets", "offsets2")

    def test_a_file_listed_as_directory_is_empty(self, place: Place) -> None:
        place.location.create("file", b"x")
        assert place.location.list("file") == Listing((), ())

    def test_walks_everything_below(self, place: Place) -> None:
        paths = {"offsets/0", "state/0/1/2.delta", "state/0/1/_metadata/schema", "metadata"}
        for path in paths:
            place.location.create(path, path.encode())
        found = place.location.walk()
        assert set(found) == paths
        assert all(found[path].path == path and found[path].size == len(path) for path in paths)
        assert set(place.location.walk("state")) == {"state/0/1/2.delta", "state/0/1/_metadata/schema"}
        assert place.location.walk("stat") == {}

    def test_more_files_than_one_page(self, place: Place) -> None:
        with ThreadPoolExecutor(32) as pool:
            list(pool.map(lambda n: place.location.create(f"d/{n}", b"x"), range(1203)))
        assert len(place.location.walk("d")) == 1203
        assert len(place.location.list("d").files) == 1203

    def test_modification_times_are_aware(self, place: Place) -> None:
        place.location.create("a", b"x")
        (file,) = place.location.list().files
        assert file.modified is None or file.modified.utcoffset() is not None

    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_odd_names(self, place: Place, name: str) -> None:
        if name in place.lost_names:
            pytest.skip(
                f"The store's client takes {name!r} for a pattern and does not find it. Declared in Place.lost_names."
            )
        location = place.location / f"in {name}"
        location.create(f"sub {name}/{name}", b"x")
        location.replace(name, b"y")
        assert set(location.walk()) == {f"sub {name}/{name}", name}
        listing = location.list()
        assert [f.path for f in listing.files] == [name]
        assert listing.directories == (f"sub {name}",)
        assert location.read(f"sub {name}/{name}") == b"x"
        assert place.location.list().directories == (f"in {name}",)
        location.delete(name)
        assert set(location.walk()) == {f"sub {name}/{name}"}

    def test_no_answer_comes_from_a_cache(self, place: Place) -> None:
        place.location.create("commits/0", b"0")
        assert len(place.location.list("commits").files) == len(place.location.walk()) == 1
        assert place.location.read("commits/0") == b"0"
        place.write_from_elsewhere("commits/1", b"1")
        place.write_from_elsewhere("commits/0", b"new")
        assert sorted(f.path for f in place.location.list("commits").files) == ["commits/0", "commits/1"]
        assert set(place.location.walk()) == {"commits/0", "commits/1"}
        assert place.location.read("commits/0") == b"new"
        place.delete_from_elsewhere("commits/1")
        assert [f.path for f in place.location.list("commits").files] == ["commits/0"]
        assert set(place.location.walk()) == {"commits/0"}
        place.write_from_elsewhere("offsets/0", b"0")
        assert place.location.list().directories == ("commits", "offsets")


class TestWriting:
    def test_create_refuses_an_existing_file(self, place: Place) -> None:
        place.location.create("a/b", b"first")
        with pytest.raises(FileExistsError):
            place.location.create("a/b", b"second")
        assert place.location.read("a/b") == b"first"

    def test_replace_writes_over(self, place: Place) -> None:
        place.location.replace("a/b", b"first")
        place.location.replace("a/b", b"2nd")
        assert place.location.read("a/b") == b"2nd"

    def test_leaves_nothing_else_behind(self, place: Place) -> None:
        place.location.create("a/b", b"1")
        place.location.replace("a/b", b"2")
        with pytest.raises(FileExistsError):
            place.location.create("a/b", b"3")
        assert set(place.location.walk()) == {"a/b"}

    def test_delete(self, place: Place) -> None:
        place.location.create("a/b", b"1")
        place.location.delete("a/b")
        place.location.delete("a/b")
        place.location.delete("never/was")
        assert place.location.walk() == {}
        place.location.create("a/b", b"again")

    def test_of_many_creators_exactly_one_wins(self, place: Place) -> None:
        place.requires("exclusive")
        for round in range(3):
            start = threading.Barrier(8)
            won: list[bytes] = []

            def create(data: bytes, path: str = f"seal/{round}", start=start, won=won) -> None:
                start.wait()
                try:
                    place.location.create(path, data)
                except FileExistsError:
                    return
                won.append(data)

            with ThreadPoolExecutor(8) as pool:
                list(pool.map(create, [str(n).encode() * 1000 for n in range(8)]))
            assert len(won) == 1
            assert place.location.read(f"seal/{round}") == won[0]

    def test_readers_see_the_whole_file_or_none(self, place: Place) -> None:
        place.requires("steady")
        contents = {bytes([n]) * 200_000 for n in range(20)}
        place.location.create("f", next(iter(contents)))
        done = threading.Event()

        def write() -> None:
            try:
                for content in contents:
                    place.location.replace("f", content)
            finally:
                done.set()

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            while not done.is_set():
                assert place.location.read("f") in contents
            writing.result()

    def test_identity_changes_with_the_content(self, place: Place) -> None:
        identities = set()
        for n in range(5):
            # Same name, same size, same second.
            place.location.replace("state/1.delta", str(n).encode())
            (file,) = place.location.list("state").files
            assert place.location.walk()["state/1.delta"].identity == file.identity
            identities.add(file.identity)
        assert (None not in identities and len(identities) == 5) if place.identity else identities == {None}

    def test_identity_stays_with_the_file(self, place: Place) -> None:
        place.location.create("a", b"1")
        before = place.location.walk()["a"]
        place.location.read("a")
        place.location.create("b", b"2")
        assert place.location.walk()["a"] == before

    def test_remove_empty_directories(self, place: Place) -> None:
        keep = place.location / "kept"
        keep.create("full/file", b"1")
        keep.create("empty/deep/file", b"1")
        keep.delete("empty/deep/file")
        keep.remove_empty_directories()
        assert set(keep.walk()) == {"full/file"}
        if place.directories:
            assert keep.list().directories == ("full",)
        keep.delete("full/file")
        keep.remove_empty_directories()
        assert place.location.walk() == {}
        if place.directories:
            assert place.location.list() == Listing((), ())
        (place.location / "never").remove_empty_directories()


class TestCopying:
    def test_within_the_store(self, place: Place) -> None:
        place.requires("copies")
        location = place.location
        for name in ["plain", *ODD_NAMES]:
            location.create(f"from/{name}", name.encode())
        for name, file in location.walk("from").items():
            location.store.copy(f"{location.root}/{name}", f"{location.root}/to/{name}", file.size)
        assert {name: (f.size, f.checksum) for name, f in location.walk("to").items()} == {
            f"to/{name}": (f.size, f.checksum) for name, f in location.walk("from").items()
        }
        assert location.read(f"to/from/{ODD_NAMES[0]}") == ODD_NAMES[0].encode()

    def test_never_over_a_file_where_the_store_says_so(self, place: Place) -> None:
        if not place.copies:
            pytest.skip("declared: copies_within is false")
        location, store = place.location, place.location.store
        location.create("a", b"first")
        location.create("b", b"other")
        store.copy(f"{location.root}/a", f"{location.root}/own", 5)  # the first one shows whether the service refuses
        assert location.read("own") == b"first"
        if not store.copies_if_absent(5):
            pytest.skip("declared: copies_if_absent is false")
        with pytest.raises(FileExistsError):
            store.copy(f"{location.root}/b", f"{location.root}/a", 5)
        assert location.read("a") == b"first"
        with ThreadPoolExecutor(8) as pool:
            copies = [pool.submit(store.copy, f"{location.root}/{n}", f"{location.root}/c", 5) for n in "ab" * 4]
        assert sorted(type(copy.exception()).__name__ for copy in copies) == ["FileExistsError"] * 7 + ["NoneType"]
        assert not store.copies_if_absent(5 * 1024**3), "that is many requests without a condition"

    def test_a_vanished_source(self, place: Place) -> None:
        place.requires("copies")
        location = place.location
        with pytest.raises(FileNotFoundError):
            location.store.copy(f"{location.root}/gone", f"{location.root}/copy", 5)
        assert location.walk() == {}


class TestThreads:
    def test_many_at_once(self, place: Place) -> None:
        location = place.location

        def work(n: int) -> None:
            location.create(f"d{n % 7}/{n}", str(n).encode() * n)
            assert location.read(f"d{n % 7}/{n}") == str(n).encode() * n
            if place.copies:
                location.store.copy(f"{location.root}/d{n % 7}/{n}", f"{location.root}/copy/{n}", n)
                assert location.read(f"copy/{n}") == str(n).encode() * n
            location.list(f"d{n % 7}")
            location.replace(f"d{n % 7}/{n}", b"z")

        with ThreadPoolExecutor(48) as pool:
            list(pool.map(work, range(120)))
        assert len(location.walk()) == (240 if place.copies else 120)
