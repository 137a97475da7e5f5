from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_ckpt_provider.checkpoint.state_schema import may_have_one_partition, parse_key_schema, read_utf
from airflow_ckpt_provider.errors import UnreadableLogError
from tests.support.checkpoints import schema_file, schema_json, utf
from tests.support.damaged_bytes import anything, flipped_bits, truncated, unreadable_at_most

PATH = "state/0/0/_metadata/schema"
KEYED = [("country", "string"), ("day", "date")]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("chunk", [7, 60_000])
def test_key_schema(version: int, chunk: int) -> None:
    data = schema_file(KEYED, version=version, chunk=chunk)
    assert parse_key_schema(data, path=PATH) == json.loads(schema_json(KEYED))


@pytest.mark.parametrize("name", ["größe", "国", "😀"])
def test_names_beyond_ascii(name: str) -> None:
    """Java's ``writeUTF`` is not UTF-8: it writes characters beyond U+FFFF as two surrogates."""
    found = parse_key_schema(schema_file([(name, "string")]), path=PATH)
    assert found["fields"][0]["name"] == name


@pytest.mark.parametrize(
    ("key", "operator", "one"),
    [
        ([], None, True),
        ([], "stateStoreSave", True),
        ([("key", "void")], None, True),
        ([("key", "void")], "globalLimit", True),
        ([("key", "null")], "globalLimit", True),
        ([("key", "null")], None, True),
        ([("key", "void")], "stateStoreSave", False),
        ([("key", "string")], "globalLimit", False),
        ([("key", "string")], None, False),
        ([("sessionStartTime", "timestamp")], "sessionWindowStateStoreSaveExec", True),
        ([("sessionStartTime", "timestamp")], "stateStoreSave", False),
        ([("sessionStartTime", "timestamp")], "dedupe", False),
        ([("sessionStartTime", "string")], "sessionWindowStateStoreSaveExec", False),
        ([("country", "string"), ("sessionStartTime", "timestamp")], "sessionWindowStateStoreSaveExec", False),
        ([("window", "struct")], None, False),
    ],
)
def test_one_partition(key: list[tuple[str, str]], operator: str | None, one: bool) -> None:
    assert may_have_one_partition(json.loads(schema_json(key)), operator) is one


@pytest.mark.parametrize(("nullable", "one"), [(False, True), (True, False), (None, False)])
def test_without_metadata_only_a_column_that_is_never_null_is_of_a_session_window(
    nullable: bool | None, one: bool
) -> None:
    """Spark 3.5 and older write the start of a session so; a column of the user can have the same name."""
    field = {"name": "sessionStartTime", "type": "timestamp", "metadata": {}}
    key = {"type": "struct", "fields": [field if nullable is None else {**field, "nullable": nullable}]}
    assert may_have_one_partition(key, None) is one


def test_read_utf() -> None:
    assert read_utf(utf("v2") + b"rest") == ("v2", b"rest")
    with pytest.raises(ValueError, match="cut off"):
        read_utf(b"\x00\x05abc")
    with pytest.raises(struct.error):
        read_utf(b"\x00")


@given(st.text(st.characters(exclude_categories=["Cs"], max_codepoint=0xFFFF, min_codepoint=1), max_size=50))
def test_utf_round_trip(text: str) -> None:
    assert read_utf(utf(text) + b"x") == (text, b"x")


def test_cut_off_in_the_key_schema() -> None:
    whole = schema_file(KEYED)
    needed = len(utf("v2")) + 4 + len(utf(schema_json(KEYED)))
    for data in truncated(whole[:needed]):
        with pytest.raises(UnreadableLogError) as error:
            parse_key_schema(data, path=PATH)
        assert error.value.path == PATH
        assert error.value.message.startswith(f"{PATH}: not a readable state schema (")
        assert error.value.hint == (
            "delete it if the state is whole (Spark writes it again, without checking the schema), or restore a backup"
        )


@pytest.mark.parametrize("version", [1, 2])
def test_a_flipped_bit_raises_nothing_else(version: int) -> None:
    for data in flipped_bits(schema_file([("key", "string")], version=version)):
        with unreadable_at_most(PATH):
            may_have_one_partition(parse_key_schema(data, path=PATH), None)


@given(anything(utf("v2"), utf("v2") + b"\x00\x00\x00\x01", utf("[]")))
def test_arbitrary_bytes_raise_nothing_else(data: bytes) -> None:
    with unreadable_at_most(PATH):
        may_have_one_partition(parse_key_schema(data, path=PATH), None)
