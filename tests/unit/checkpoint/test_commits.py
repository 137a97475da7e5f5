"""commits: versions 1 to 3, with and without their line of JSON."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_ckpt_provider.checkpoint.commits import CommitEntry, parse_commit
from airflow_ckpt_provider.errors import UnreadableLogError
from tests.support.checkpoints import commit_log
from tests.support.damaged_bytes import HOSTILE_JSON, anything, flipped_bits, truncated, unreadable_at_most

IDS = {"0": [["9c7b92bc-8798-4b27-9306-481b1eeccaf4"], ["b148dec4-b04e-4ce9-9a00-2b60adcbe535"]]}
SINKS = {"mysink": {"sinkName": "mysink", "commitOffset": "-", "providerName": "Noop", "isActive": True}}


def parse(data: bytes) -> CommitEntry:
    return parse_commit(data, batch_id=3)


def test_v1() -> None:
    entry = parse(commit_log(watermark=42))
    assert (entry.batch_id, entry.version, entry.next_watermark_ms, entry.state_ids) == (3, 1, 42, {})


def test_v2_has_state_ids() -> None:
    entry = parse(commit_log(ids=IDS))
    assert (entry.version, entry.state_ids) == (2, {0: IDS["0"]})


def test_v3_keeps_the_sinks_and_whatever_else_is_there() -> None:
    entry = parse(commit_log(ids=IDS, version=3, sinkMetadataMap=SINKS, more=[1]))
    assert entry.version == 3
    assert entry.metadata == {"nextBatchWatermarkMs": 0, "stateUniqueIds": IDS, "sinkMetadataMap": SINKS, "more": [1]}
    assert parse(commit_log(version=3, sinkMetadataMap=SINKS)).state_ids == {}


def test_the_id_of_a_store() -> None:
    entry = parse(commit_log(ids=IDS))
    assert (entry.state_id(0, 1, 0), entry.state_id(1, 0, 0)) == (IDS["0"][1][0], None)
    for partition, store in ((2, 0), (1, 1)):
        with pytest.raises(UnreadableLogError) as error:
            entry.state_id(0, partition, store)
        assert error.value.message == (
            "commits/3: the commit holds what Spark would not write "
            f"(stateUniqueIds has no id for store {store} of partition {partition} of operator 0)"
        )


@pytest.mark.parametrize("data", [b"v1", b"v1\n", b"v1\n{}"])
def test_the_json_may_be_absent(data: bytes) -> None:
    entry = parse(data)
    assert (entry.next_watermark_ms, entry.state_ids, entry.metadata) == (0, {}, {})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "commits/3: the file is empty (0 bytes): its writer was stopped half-way, or the copy was torn"),
        (b"v4\n{}", "commits/3: log version v4 is not known here (newest known: v3)"),
        (b"v1\n[]", "commits/3: expected a JSON object, found '[]'"),
        (b'v1\n{"nextB', "commits/3: the JSON is broken or cut off (Unterminated string starting at at character 1)"),
        *(
            (b"v2\n" + content, f"commits/3: the commit holds what Spark would not write ({what})")
            for content, what in (
                (b'{"nextBatchWatermarkMs":null}', "nextBatchWatermarkMs is None"),
                (b'{"nextBatchWatermarkMs":"1"}', "nextBatchWatermarkMs is '1'"),
                (b'{"nextBatchWatermarkMs":true}', "nextBatchWatermarkMs is True"),
                (b'{"stateUniqueIds":[1]}', "stateUniqueIds is [1]"),
                (b'{"stateUniqueIds":{"a":[["x"]]}}', "stateUniqueIds is {'a': [['x']]}"),
                (b'{"stateUniqueIds":{"0":5}}', "stateUniqueIds is {'0': 5}"),
                (b'{"stateUniqueIds":{"0":["x"]}}', "stateUniqueIds is {'0': ['x']}"),
                (b'{"stateUniqueIds":{"0":[[1]]}}', "stateUniqueIds is {'0': [[1]]}"),
            )
        ),
    ],
)
def test_unreadable(data: bytes, message: str) -> None:
    with pytest.raises(UnreadableLogError) as error:
        parse(data)
    assert (error.value.message, error.value.path, error.value.batch_id) == (message, "commits/3", 3)


def test_cut_off_anywhere() -> None:
    """Found everywhere but right after the version, where the line may rightly be absent. Spark reads that too."""
    whole = commit_log(watermark=1795225811395, ids=IDS)
    for length, data in enumerate(truncated(whole)):
        if length in (2, 3):
            assert parse(data).metadata == {}
        else:
            with pytest.raises(UnreadableLogError):
                parse(data)


def test_a_flipped_bit_raises_nothing_else() -> None:
    for data in flipped_bits(commit_log(watermark=1795225811395, ids=IDS)):
        with unreadable_at_most("commits/3", 3):
            parse(data)


@given(anything(b"v1\n", b"v2\n{", b'v2\n{"stateUniqueIds":'))
def test_arbitrary_bytes_raise_nothing_else(data: bytes) -> None:
    with unreadable_at_most("commits/3", 3):
        parse(data)


@pytest.mark.parametrize("name", HOSTILE_JSON)
def test_hostile_json(name: str) -> None:
    with pytest.raises(UnreadableLogError):
        parse(b"v1\n" + HOSTILE_JSON[name])


@given(st.dictionaries(st.text(max_size=8), st.integers() | st.text(max_size=8) | st.none(), max_size=4))
def test_round_trip(more: dict[str, Any]) -> None:
    fields = {key: value for key, value in more.items() if key not in ("watermark", "ids", "version")}
    assert parse(commit_log(watermark=5, **fields)).metadata == {"nextBatchWatermarkMs": 5} | fields
