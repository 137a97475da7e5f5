from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_ckpt_provider.checkpoint.logs import FETCH_IT
from airflow_ckpt_provider.checkpoint.query_id import parse_query_id
from airflow_ckpt_provider.errors import UnreadableLogError
from tests.support.checkpoints import QUERY_ID, metadata
from tests.support.damaged_bytes import HOSTILE_JSON, anything, truncated, unreadable_at_most


def test_query_id() -> None:
    assert parse_query_id(metadata()) == QUERY_ID
    assert parse_query_id(metadata() + b"\n") == QUERY_ID


@given(st.uuids())
def test_round_trip(query_id: object) -> None:
    assert parse_query_id(metadata(str(query_id))) == str(query_id)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b'"id"', b"5", b"\xff\xff", b'{"id":null}', b'{"id":""}', b'{"id":[1]}']
)
def test_no_id(data: bytes) -> None:
    with pytest.raises(UnreadableLogError) as error:
        parse_query_id(data)
    assert error.value.message == f'metadata: expected {{"id":"<uuid>"}}, found {data!r}'
    assert error.value.hint == (f"{FETCH_IT}; with another id, exactly-once sinks take the query for a new one")
    assert (error.value.path, error.value.batch_id) == ("metadata", None)


def test_cut_off_anywhere() -> None:
    for data in truncated(metadata()):
        with pytest.raises(UnreadableLogError):
            parse_query_id(data)


@given(anything(b'{"id":', b'{"id":"'))
def test_arbitrary_bytes_raise_nothing_else(data: bytes) -> None:
    with unreadable_at_most("metadata"):
        assert parse_query_id(data)


@pytest.mark.parametrize("name", HOSTILE_JSON)
def test_hostile_json(name: str) -> None:
    with pytest.raises(UnreadableLogError):
        parse_query_id(HOSTILE_JSON[name])
