"""A set of files says exactly what a dictionary of them would say; one of many files in a tenth of the room."""

from __future__ import annotations

import sys
import threading
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime

import hypothesis.strategies as st
import pytest
from hypothesis import given

from airflow_ckpt_provider.storage import file_set
from airflow_ckpt_provider.storage.file_set import FileSet, order
from airflow_ckpt_provider.storage.store import StoredFile
from tests.support.every_run import of_these

names = st.one_of(
    st.sampled_from(["1.changelog", "10.changelog", "2.changelog", "metadata", "a", "b", "é", "a b"]),
    st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=4),
)
paths = st.lists(names, min_size=1, max_size=3).map("/".join)
marks = st.none() | st.sampled_from(
    [
        f"etag:{'0af3' * 8}",
        f"etag:{'0AF3' * 8}",
        f"etag:{'0af3' * 8}-2",
        f"etag:{'0a f' * 8}",
        "etag:",
        "",
        "1-2-3",
        "sha256:ü",
    ]
)
times = st.none() | st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1)).map(lambda time: time.replace(tzinfo=UTC))
files = st.builds(
    StoredFile, path=paths, size=st.integers(0, 2**63), identity=marks, checksum=marks, modified=times
) | st.builds(StoredFile, path=paths, size=st.just(1), identity=st.just("x"), checksum=st.just("x"), modified=times)


@pytest.fixture(autouse=True, scope="module", params=of_these([0, 3, 10_000], 3, 10_000))
def few(request: pytest.FixtureRequest) -> Iterator[int]:
    """How many files a set keeps as they are: so that all, most and none of those here are packed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_set, "FEW", request.param)
        yield request.param


def as_dict(files: list[StoredFile]) -> dict[str, StoredFile]:
    last = {file.path: file for file in files}
    return {path: last[path] for path in sorted(last, key=order)}


@given(st.lists(files, max_size=40))
def test_the_same_as_a_dictionary(added: list[StoredFile]) -> None:
    found, expected = FileSet(added), as_dict(added)
    assert list(found.items()) == list(expected.items())
    assert list(found) == list(expected)
    assert list(found.values()) == list(expected.values())
    assert len(found) == len(expected)
    for path, file in expected.items():
        assert found[path] == found.get(path) == file
        assert path in found
        directory, _, name = path.rpartition("/")
        assert found.files(directory)[name] == file
    assert {d: dict(found.files(d)) for d in found.directories} == {
        d: {p.rpartition("/")[2]: f for p, f in expected.items() if p.rpartition("/")[0] == d}
        for d in {path.rpartition("/")[0] for path in expected}
    }


@given(st.lists(files, max_size=20), paths)
def test_what_is_not_there(added: list[StoredFile], path: str) -> None:
    found = FileSet(file for file in added if file.path != path)
    assert path not in found
    assert found.get(path) is None
    with pytest.raises(KeyError):
        found[path]


@given(st.lists(files, max_size=20), st.lists(paths, max_size=20), st.lists(files, max_size=5))
def test_a_part_and_what_is_added_to_it(added: list[StoredFile], some: list[str], later: list[StoredFile]) -> None:
    whole = FileSet(added)
    chosen = [*some, *(file.path for file in added[::2])]
    part = whole.part(chosen)
    assert dict(part) == {path: file for path, file in as_dict(added).items() if path in chosen}
    assert bool(part) == bool(dict(part))
    assert bool(whole.part(["not/there", "a/not there", "not there"])) is False
    for file in later:
        part.add(file)
    assert dict(part) == {p: f for p, f in as_dict(added).items() if p in chosen} | {f.path: f for f in later}
    assert dict(whole) == as_dict(added)


@given(st.lists(files, max_size=20), st.lists(files, max_size=20), st.lists(files, max_size=5))
def test_sets_together(ones: list[StoredFile], others: list[StoredFile], later: list[StoredFile]) -> None:
    one, other, both = FileSet(ones), FileSet(others), FileSet()
    for each in (one, other):
        both.take_over(each)
    for file in later:
        both.add(file)
    assert dict(both) == as_dict([*ones, *others, *later])
    assert (dict(one), dict(other)) == (as_dict(ones), as_dict(others))


@given(st.lists(files, max_size=30), st.sets(paths, max_size=5))
def test_without(added: list[StoredFile], going: set[str]) -> None:
    going |= {file.path for file in added[::3]}
    assert dict(FileSet(added).without(going.__contains__)) == {
        path: file for path, file in as_dict(added).items() if path not in going
    }


def file_of(partition: int, version: int) -> StoredFile:
    mark = f"etag:{'0af3' * 8}"
    return StoredFile(f"state/0/{partition}/{version}.changelog", version, mark, mark)


def test_in_little_room(few: int) -> None:
    files = few + 20_000
    tracemalloc.start()
    try:
        found = FileSet(file_of(n // 5000, n % 5000) for n in range(files))
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        found.part(path for path in found)
        assert tracemalloc.get_traced_memory()[1] - held < 80 * files
    finally:
        tracemalloc.stop()
    assert held < 80 * files


@pytest.mark.parametrize("few", [1_000], indirect=True)
def test_many_sets_of_few_files_are_one_in_little_room(few: int) -> None:
    together = FileSet()
    tracemalloc.start()
    try:
        for partition in range(20):
            found = FileSet(file_of(partition, version) for version in range(few))
            together.take_over(found.part(list(found)) if partition % 2 else found)
        del found
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(together) == len(list(together)) == 20 * few
    assert held < 80 * len(together)


@pytest.mark.parametrize("few", [0, 3, 1_000, 10_000], indirect=True)
def test_several_threads_at_once() -> None:
    found = FileSet([StoredFile("shard0/first", 0)])
    seen_from_the_start = found.files("shard0")
    wrong: list[str] = []

    def add(worker: int) -> None:
        for number in range(500):
            path = f"shard{number % 3}/{number * 7919 % 1000:04}-{worker}"
            found.add(StoredFile(path, number))
            if (file := found.get(path)) is None or file.size != number:
                wrong.append(path)

    workers = [threading.Thread(target=add, args=(n,)) for n in range(4)]
    often = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(often)
    assert not wrong
    assert len(found) == len(list(found)) == 2001
    assert list(seen_from_the_start) == list(found.files("shard0"))
