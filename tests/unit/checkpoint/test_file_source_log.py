"""The file source's log: what was read up to a log id, from plain and compacted files, whole and damaged."""

from __future__ import annotations

import json

import pytest

from airflow_ckpt_provider.checkpoint.file_source_log import SEEDED, FileSourceLog, parse_file_log, read_file_log
from airflow_ckpt_provider.errors import UnreadableLogError

Names = dict[str, bytes]


def log(*ids: int, step: int = 1000) -> bytes:
    lines = (json.dumps({"path": f"file:///in/f{i}", "timestamp": step * i, "batchId": i}) for i in ids)
    return "\n".join(["v1", *lines]).encode()


def read(files: Names, last: int) -> FileSourceLog:
    def content(name: str) -> bytes:
        try:
            return files[name]
        except KeyError:
            raise FileNotFoundError(name) from None

    return read_file_log(files.keys(), content, last, directory="sources/0")


def ids(found: FileSourceLog) -> tuple[list[int], list[int]]:
    return [f.log_id for f in found.read], [f.log_id for f in found.beyond]


def test_plain_files() -> None:
    files = {str(i): log(i) for i in range(4)}
    assert ids(read(files, 1)) == ([0, 1], [2, 3])
    assert ids(read(files, -1)) == ([], [0, 1, 2, 3])
    assert read(files, 3).unread == ()


@pytest.mark.parametrize("last", range(13))
def test_a_compacted_file_holds_what_came_before(last: int) -> None:
    files = {"9.compact": log(*range(10)), **{str(i): log(i) for i in (10, 11, 12)}}
    found = read(files, last)
    assert ids(found) == (list(range(last + 1)), list(range(last + 1, 13)))
    assert found.unread == ()


def test_an_older_compacted_file_stands_in_for_a_damaged_one() -> None:
    files = {"2.compact": log(0, 1, 2), "3": log(3), "4": log(4), "5.compact": b"v1\n{", "6": log(6)}
    found = read(files, 6)
    assert ids(found)[0] == [0, 1, 2, 3, 4, 6]  # what 5.compact alone named is missing, and named
    ((path, reason),) = found.unread
    assert path == "sources/0/5.compact"
    assert "broken or cut off" in reason


def test_a_missing_file_is_named() -> None:
    found = read({"0": log(0), "2": log(2)}, 2)
    assert ids(found)[0] == [0, 2]
    assert found.unread == (("sources/0/1", "the file is missing"),)


def test_seeded_files_count_as_read_whatever_the_division() -> None:
    seed = b'v1\n{"path":"file:///in/old","timestamp":5,"batchId":%d}' % SEEDED
    found = read({"0": seed, "1": log(1), "2": log(2)}, 1)
    assert ids(found) == ([1, SEEDED], [2])


@pytest.mark.parametrize("line", ["[]", '{"path":"x"}', '{"path":"x","timestamp":"late","batchId":1}', "{"])
def test_what_is_no_file_is_an_error(line: str) -> None:
    with pytest.raises(UnreadableLogError) as e:
        parse_file_log(b"v1\n" + line.encode(), path="sources/0/1", log_id=1)
    assert e.value.path == "sources/0/1"
