"""offsets: both versions of the write-ahead log, and every way to cut it off."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_ckpt_provider.checkpoint.offsets import OffsetEntry, SourceOffset, parse_offsets
from airflow_ckpt_provider.checkpoint.source_offsets import FileOffset, OpaqueOffset, RateOffset, parse_offset
from airflow_ckpt_provider.errors import UnreadableLogError
from tests.support.checkpoints import BEGAN, HDFS, batch_metadata, compact, offsets_log
from tests.support.damaged_bytes import HOSTILE_JSON, anything, flipped_bits, truncated, unreadable_at_most

ABOUT = batch_metadata(7, watermark=42)
FILE_5 = FileOffset('{"logOffset":5}', 5)
FILE_2 = FileOffset('{"logOffset":2}', 2)


def parse(data: bytes) -> OffsetEntry:
    return parse_offsets(data, batch_id=7)


def refusal(data: bytes) -> UnreadableLogError:
    with pytest.raises(UnreadableLogError) as error:
        parse(data)
    assert (error.value.path, error.value.batch_id) == ("offsets/7", 7)
    assert error.value.message.startswith("offsets/7: ")
    assert error.value.hint
    return error.value


def test_v1_is_positional() -> None:
    entry = parse(offsets_log('{"logOffset":5}', "-", "12", metadata=ABOUT))
    assert (entry.batch_id, entry.version) == (7, 1)
    assert entry.sources == (
        SourceOffset("0", FILE_5),
        SourceOffset("1", None),
        SourceOffset("2", RateOffset("12", 12)),
    )
    assert entry.metadata == ABOUT
    assert entry.watermark_ms == 42
    assert entry.time == datetime.fromtimestamp((BEGAN + 7000) / 1000, UTC)
    assert (entry.state_partitions, entry.state_provider, entry.state_codec) == (2, HDFS, "lz4")


def test_v2_is_by_name_in_any_order() -> None:
    entry = parse(offsets_log('returns:{"logOffset":2}', 'orders:{"logOffset":5}', metadata=ABOUT, version=2))
    assert entry.version == 2
    assert entry.sources == (SourceOffset("orders", FILE_5), SourceOffset("returns", FILE_2))
    assert all(source.is_named for source in entry.sources)


def test_v2_with_numbers_comes_out_in_plan_order() -> None:
    entry = parse(offsets_log('10:{"logOffset":5}', "1:-", "0:7", metadata=ABOUT, version=2))
    assert [s.source for s in entry.sources] == ["0", "1", "10"]
    assert not entry.sources[0].is_named
    assert entry.sources[1].offset is None


def test_v2_splits_at_the_first_colon() -> None:
    entry = parse(offsets_log("s3:a:b:c", metadata=ABOUT, version=2))
    assert entry.sources == (SourceOffset("s3", OpaqueOffset("a:b:c")),)


def test_continuous_mode_leaves_the_metadata_empty() -> None:
    data = b'v1\n\n{"1":{"value":1,"runTimeMs":2},"0":{"value":0,"runTimeMs":2}}'
    entry = parse(data)
    assert entry.metadata == {}
    assert (entry.watermark_ms, entry.time, entry.state_partitions, entry.state_provider) == (0, None, None, None)
    assert entry.conf == {}
    assert len(entry.sources) == 1
    assert entry.sources[0].kind == "unknown"


def test_what_is_not_known_is_kept() -> None:
    more = {
        **ABOUT,
        "sourceMetadataInfo": {"orders": {"sourceId": "orders", "providerName": "kafka", "apiVersion": "v2"}},
        "controlBatchInfo": {"operationType": "REPARTITION", "operationInfo": {"from": "2", "to": "3"}},
        "some": ["thing", {"new": None}],
    }
    assert parse(offsets_log("orders:-", metadata=more, version=2)).metadata == more


def test_partitions_by_the_name_that_says_so() -> None:
    """Since Spark 4.1 the number of state partitions has a setting of its own; it wins over the shuffle's."""
    about = batch_metadata(**{"spark.sql.streaming.internal.stateStore.partitions": "3"})
    assert parse(offsets_log("1", metadata=about)).state_partitions == 3


def test_old_entries_lack_settings() -> None:
    entry = parse(offsets_log("1", metadata={"batchWatermarkMs": 0, "batchTimestampMs": BEGAN}))
    assert (entry.state_partitions, entry.state_provider, entry.state_codec) == (None, None, "lz4")


def test_to_json() -> None:
    named, positional = SourceOffset("orders", FILE_5), SourceOffset("1", None)
    assert named.to_json() == {"name": "orders", "kind": "file", "offset": {"logOffset": 5}}
    assert positional.to_json() == {"index": 1, "kind": "unknown", "offset": None}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty (0 bytes): its writer was stopped half-way, or the copy was torn"),
        (b"v1", "cut off, no source offsets after the batch metadata"),
        (b"v1\n", "cut off, no source offsets after the batch metadata"),
        (b"v1\n\n", "cut off, no source offsets after the batch metadata"),
        (b"v1\n{}", "cut off, no source offsets after the batch metadata"),
        (b"v1\n{}\n", "cut off, no source offsets after the batch metadata"),
        (
            b"v1\n{\n1",
            "the JSON is broken or cut off (Expecting property name enclosed in double quotes at character 1)",
        ),
        (b"v3\n{}\n1", "log version v3 is not known here (newest known: v2)"),
        (b'v1\n{}\n{"logOf', "the offset of source '0' is broken or cut off: '{\"logOf'"),
        (b"v2\n{}\norders", "the offset of source 'orders' is broken or cut off: ''"),
        (b"v2\n{}\norders:", "the offset of source 'orders' is broken or cut off: ''"),
        (b"airflow-ckpt: sealed by", "does not start with a log version but with 'airflow-ckpt: sealed by'"),
    ],
)
def test_whole_messages(data: bytes, message: str) -> None:
    assert refusal(data).message == f"offsets/7: {message}"


V1 = offsets_log('{"logOffset":5}', '{"orders":{"0":0,"1":1071}}', metadata=ABOUT)
V2 = offsets_log('returns:{"logOffset":2}', 'orders:{"logOffset":5}', metadata=ABOUT, version=2)
BARE = offsets_log("123", metadata=ABOUT)


@pytest.mark.parametrize("whole", [V1, V2], ids=["v1", "v2"])
def test_cut_off_anywhere(whole: bytes) -> None:
    """Found at every point but two: right after a source's whole line, with its line end or without.

    Nothing in such a file says that there was another source; Spark reads it, and then refuses because the number of
    sources differs from the query's.
    """
    lines = whole.split(b"\n")
    after_first = len(b"\n".join(lines[:3]))
    silent = {after_first, after_first + 1}
    for length, data in enumerate(truncated(whole)):
        if length in silent:
            assert parse(data).sources == (parse(whole).sources[0 if whole is V1 else 1],)
        else:
            refusal(data)


def test_a_bare_number_cut_off_cannot_be_told_from_a_smaller_one() -> None:
    for length, data in enumerate(truncated(BARE)):
        digits = length - len(BARE) + 3
        if digits > 0:
            assert parse(data).sources == (SourceOffset("0", parse_offset("123"[:digits])),)
        else:
            refusal(data)


@pytest.mark.parametrize("whole", [V1, V2, BARE], ids=["v1", "v2", "bare"])
def test_a_flipped_bit_raises_nothing_else(whole: bytes) -> None:
    for data in flipped_bits(whole):
        with unreadable_at_most("offsets/7", 7):
            entry = parse(data)
            assert (entry.watermark_ms, entry.time, entry.conf) is not None


@given(anything(b"v1\n", b"v2\n{}\n", b"v1\n\n", b"v1\n{}\n{"))
def test_arbitrary_bytes_raise_nothing_else(data: bytes) -> None:
    with unreadable_at_most("offsets/7", 7):
        parse(data)


@pytest.mark.parametrize("name", HOSTILE_JSON)
@pytest.mark.parametrize("before", [b"v1\n", b"v1\n{}\n"], ids=["metadata", "offset"])
def test_hostile_json(before: bytes, name: str) -> None:
    with unreadable_at_most("offsets/7", 7):
        parse(before + HOSTILE_JSON[name] + b"\n1")


@pytest.mark.parametrize(
    "metadata",
    [
        {"batchWatermarkMs": "soon"},
        {"batchTimestampMs": 10**18},
        {"batchTimestampMs": "now"},
        {"conf": ["a"]},
        {"conf": {"spark.sql.shuffle.partitions": "many"}},
    ],
    ids=compact,
)
def test_values_of_the_wrong_kind(metadata: dict[str, Any]) -> None:
    """Whether at parsing or when asked: the file is named, no bare ``ValueError`` comes out."""
    with pytest.raises(UnreadableLogError):  # noqa: PT012 - whichever of them
        entry = parse(offsets_log("1", metadata=metadata))
        _ = (entry.watermark_ms, entry.time, entry.conf.get("x"), entry.state_partitions)


_LINE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), min_size=1, max_size=30).filter(
    lambda text: not text.startswith("{")
)


@given(st.lists(_LINE, min_size=1, max_size=4), st.dictionaries(st.text(max_size=5), st.text(max_size=5)))
def test_v1_round_trip(offsets: list[str], conf: dict[str, str]) -> None:
    entry = parse(offsets_log(*offsets, metadata={"conf": conf}))
    assert entry.conf == conf
    assert [s.source for s in entry.sources] == [str(i) for i in range(len(offsets))]
    assert [s.offset.text if s.offset else "-" for s in entry.sources] == offsets


_NAME = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)


@given(st.dictionaries(_NAME, _LINE, min_size=1, max_size=4))
def test_v2_round_trip(offsets: dict[str, str]) -> None:
    entry = parse(offsets_log(*(f"{n}:{o}" for n, o in offsets.items()), metadata=ABOUT, version=2))
    assert {s.source: s.offset.text if s.offset else "-" for s in entry.sources} == offsets
    assert [s.source for s in entry.sources] == sorted(offsets)


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("spark.sql.streaming.stateStore.providerClass", 5, "the provider of the state store is 5"),
        ("spark.sql.streaming.stateStore.providerClass", ["x"], "the provider of the state store is ['x']"),
        ("spark.sql.streaming.stateStore.compression.codec", 5, "the codec of the state store is 5"),
        ("spark.sql.streaming.stateStore.compression.codec", None, "the codec of the state store is None"),
        ("spark.sql.shuffle.partitions", "-3", "the number of state partitions is -3"),
        ("spark.sql.shuffle.partitions", "0", "the number of state partitions is 0"),
        ("spark.sql.shuffle.partitions", "2147483648", "the number of state partitions is 2147483648"),
        ("spark.sql.streaming.internal.stateStore.partitions", "-1", "the number of state partitions is -1"),
    ],
)
def test_settings_that_spark_would_not_write(key: str, value: Any, what: str) -> None:
    about = batch_metadata(7)
    found = refusal(offsets_log('{"logOffset":5}', metadata={**about, "conf": {**about["conf"], key: value}}))
    assert found.message == f"offsets/7: the batch metadata holds what Spark would not write ({what})"
