"""source_offsets: what is typed, what is kept byte for byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_ckpt_provider.checkpoint.source_offsets import (
    DeltaOffset,
    FileOffset,
    IcebergOffset,
    KafkaOffset,
    Offset,
    OpaqueOffset,
    RateMicroBatchOffset,
    RateOffset,
    parse_offset,
)

KAFKA = '{"orders":{"0":0,"1":1071,"2":429},"returns":{"0":7}}'
DELTA = '{"sourceVersion":1,"reservoirId":"5f6c","reservoirVersion":5,"index":-1,"isStartingVersion":false}'
ICEBERG = '{"version":1,"snapshot_id":876,"position":3,"scan_all_files":false}'
KINESIS = '{"metadata":{"streamName":"s","batchId":"1"},"shardId-0":{"iteratorType":"X","iteratorPosition":"1"}}'
CONTINUOUS = '{"0":{"value":0,"runTimeMs":1795225775707},"1":{"value":1,"runTimeMs":1795225775707}}'

TYPED: list[tuple[str, Offset]] = [
    ("1", RateOffset("1", 1)),
    ("-3", RateOffset("-3", -3)),
    ('{"logOffset":5}', FileOffset('{"logOffset":5}', 5)),
    ('{"logOffset":-1}', FileOffset('{"logOffset":-1}', -1)),
    ('{"offset":10,"timestamp":2000}', RateMicroBatchOffset('{"offset":10,"timestamp":2000}', 10, 2000)),
    (KAFKA, KafkaOffset(KAFKA, {"orders": {0: 0, 1: 1071, 2: 429}, "returns": {0: 7}})),
    (DELTA, DeltaOffset(DELTA, "5f6c", 5, -1, False)),
    (ICEBERG, IcebergOffset(ICEBERG, 876, 3, False)),
    (KINESIS, OpaqueOffset(KINESIS)),
    (CONTINUOUS, OpaqueOffset(CONTINUOUS)),
    ("true", OpaqueOffset("true")),
    ("1.5", OpaqueOffset("1.5")),
    ('"7"', OpaqueOffset('"7"')),
    ("{}", OpaqueOffset("{}")),
    ("null", OpaqueOffset("null")),
    ("2026-11-21/file-7", OpaqueOffset("2026-11-21/file-7")),
    ('{"logOffset":"5"}', OpaqueOffset('{"logOffset":"5"}')),
    ('{"logOffset":true}', OpaqueOffset('{"logOffset":true}')),
    ('{"logOffset":5,"more":1}', OpaqueOffset('{"logOffset":5,"more":1}')),
    ('{"orders":{"0":"7"}}', OpaqueOffset('{"orders":{"0":"7"}}')),
    ('{"orders":{"²":7}}', OpaqueOffset('{"orders":{"²":7}}')),
]


@pytest.mark.parametrize(("text", "offset"), TYPED, ids=[text for text, _ in TYPED])
def test_typed_exactly_or_kept(text: str, offset: Offset) -> None:
    assert parse_offset(text) == offset


def test_void() -> None:
    assert parse_offset("-") is None


def test_kinds() -> None:
    kinds = [offset.kind for _, offset in TYPED[:7]]
    assert kinds == ["rate", "rate", "file", "file", "rate-micro-batch", "kafka", "delta"]
    assert OpaqueOffset("x").kind == "unknown"


def test_delta_by_its_newer_key() -> None:
    offset = parse_offset('{"reservoirId":"5f6c","reservoirVersion":5,"index":3,"isInitialSnapshot":true}')
    assert isinstance(offset, DeltaOffset)
    assert offset.initial_snapshot


def test_to_json_is_faithful() -> None:
    assert OpaqueOffset("2026-11-21/file-7").to_json() == "2026-11-21/file-7"
    assert KafkaOffset(KAFKA, {}).to_json() == json.loads(KAFKA)


@pytest.mark.parametrize("whole", [KAFKA, DELTA, CONTINUOUS, '{"logOffset":5}'])
def test_a_cut_off_object_is_refused_at_every_point(whole: str) -> None:
    for length in range(1, len(whole)):
        with pytest.raises(ValueError, match=r"."):
            parse_offset(whole[:length])


def test_an_empty_text_is_no_offset() -> None:
    """What is left of ``orders:{"logOffset":5}`` cut off after the colon."""
    with pytest.raises(ValueError, match=r"."):
        parse_offset("")


def objects() -> st.SearchStrategy[Any]:
    scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
    keys = st.text(max_size=8) | st.sampled_from(["logOffset", "offset", "timestamp", "reservoirId", "index", "0"])
    return st.recursive(scalars, lambda c: st.lists(c, max_size=3) | st.dictionaries(keys, c, max_size=4), max_leaves=8)


@given(objects())
def test_any_json_is_typed_or_kept_and_never_changed(value: Any) -> None:
    text = json.dumps(value)
    offset = parse_offset(text)
    assert offset is not None
    assert (offset.text, offset.to_json()) == (text, value)


@given(st.text(max_size=60).filter(lambda text: not text.startswith("{") and text not in ("", "-")))
def test_any_other_text_is_kept(text: str) -> None:
    offset = parse_offset(text)
    assert offset is not None
    assert offset.text == text


_PARTITIONS = st.dictionaries(st.integers(0, 999), st.integers(0), min_size=1, max_size=3)


@given(st.dictionaries(st.text(min_size=1, max_size=8), _PARTITIONS, min_size=1, max_size=3))
def test_kafka_round_trip(topics: dict[str, dict[int, int]]) -> None:
    text = json.dumps({topic: {str(p): o for p, o in partitions.items()} for topic, partitions in topics.items()})
    assert parse_offset(text) == KafkaOffset(text, topics)
