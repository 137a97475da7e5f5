"""logs: names, versions, JSON lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_ckpt_provider.checkpoint.logs import batch_id_of, parse_object, split_log
from airflow_ckpt_provider.errors import UnreadableLogError
from tests.support.damaged_bytes import HOSTILE_JSON, anything, unreadable_at_most

FETCH_IT = "`airflow-ckpt doctor CHECKPOINT --repair --repository REPOSITORY` fetches it from a backup"

KNOWN = frozenset({1, 2})


@pytest.mark.parametrize(
    ("name", "batch_id"),
    [
        ("0", 0),
        ("7", 7),
        ("5000", 5000),
        ("9223372036854775807", 2**63 - 1),
        (".7.crc", None),
        (".7.5b8fb6a2-0000-0000-0000-000000000000.tmp", None),
        ("9.compact", None),
        ("7.crc", None),
        ("-1", None),
        ("007", None),
        ("", None),
        ("²", None),
        ("٣", None),
        ("7 ", None),
    ],
)
def test_batch_id_of(name: str, batch_id: int | None) -> None:
    assert batch_id_of(name) == batch_id


@given(st.integers(0, 2**63 - 1))
def test_batch_id_round_trip(number: int) -> None:
    assert batch_id_of(str(number)) == number


@given(st.text(max_size=30))
def test_batch_id_of_any_name(name: str) -> None:
    found = batch_id_of(name)
    assert found is None or str(found) == name


def split(data: bytes) -> tuple[int, list[str]]:
    return split_log(data, path="offsets/7", batch_id=7, known=KNOWN)


def test_versions_and_lines() -> None:
    assert split(b"v1\n{}\nx") == (1, ["{}", "x"])
    assert split(b"v2\n\nx") == (2, ["", "x"])
    assert split(b"v1") == (1, [])


def test_kafka_writes_a_nul_byte_first() -> None:
    """One is dropped; two are not what Spark writes."""
    assert split(b'\x00v1\n{"orders":{"0":0}}') == (1, ['{"orders":{"0":0}}'])
    with pytest.raises(UnreadableLogError, match="does not start with a log version"):
        split(b"\x00\x00v1\n{}")


@pytest.mark.parametrize(
    ("data", "message", "hint"),
    [
        (
            b"",
            "offsets/7: the file is empty (0 bytes): its writer was stopped half-way, or the copy was torn",
            f"Spark refuses to start from it too; {FETCH_IT}",
        ),
        (
            b"v1\n\xff",
            "offsets/7: not UTF-8 text (invalid start byte at byte 3)",
            FETCH_IT,
        ),
        (
            b"\x00",
            "offsets/7: does not start with a log version but with ''",
            FETCH_IT,
        ),
        (
            b"v",
            "offsets/7: does not start with a log version but with 'v'",
            FETCH_IT,
        ),
        (
            b"1\n{}",
            "offsets/7: does not start with a log version but with '1'",
            FETCH_IT,
        ),
        (
            b"a sentence\nand more",
            "offsets/7: does not start with a log version but with 'a sentence'",
            FETCH_IT,
        ),
        (
            b"v3\n{}",
            "offsets/7: log version v3 is not known here (newest known: v2)",
            "a newer Spark wrote it: upgrade airflow-ckpt-provider",
        ),
    ],
)
def test_unreadable(data: bytes, message: str, hint: str) -> None:
    with pytest.raises(UnreadableLogError) as error:
        split(data)
    assert (error.value.message, error.value.hint) == (message, hint)
    assert (error.value.path, error.value.batch_id) == ("offsets/7", 7)
    assert str(error.value) == f"{message}\nHINT: {hint}"


@pytest.mark.parametrize("version", ["²", "9" * 5000, "٣"], ids=["superscript", "5000 digits", "arabic"])
def test_a_version_that_is_no_plain_number(version: str) -> None:
    with pytest.raises(UnreadableLogError):
        split(f"v{version}\n{{}}".encode())


@given(anything(b"v", b"v1\n", b"\x00v1\n"))
def test_split_log_raises_nothing_else(data: bytes) -> None:
    with unreadable_at_most("offsets/7", 7):
        version, lines = split(data)
        assert "\n".join([f"v{version}", *lines]).encode() == data.removeprefix(b"\x00")


def test_an_absent_object_is_an_empty_one() -> None:
    assert parse_object("", path="commits/3", batch_id=3) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a":', "commits/3: the JSON is broken or cut off (Expecting value at character 5)"),
        ("[1]", "commits/3: expected a JSON object, found '[1]'"),
        ("5", "commits/3: expected a JSON object, found '5'"),
    ],
)
def test_broken_object(text: str, message: str) -> None:
    with pytest.raises(UnreadableLogError) as error:
        parse_object(text, path="commits/3", batch_id=3)
    assert error.value.message == message
    assert (error.value.path, error.value.batch_id) == ("commits/3", 3)


@pytest.mark.parametrize("name", HOSTILE_JSON)
def test_hostile_object(name: str) -> None:
    with pytest.raises(UnreadableLogError):
        parse_object(HOSTILE_JSON[name].decode(), path="commits/3", batch_id=3)
