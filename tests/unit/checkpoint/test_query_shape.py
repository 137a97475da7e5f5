"""What a checkpoint shows of its query, on samples of real Sparks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.query_shape import QueryShape, read_query_shape
from airflow_ckpt_provider.checkpoint.state_schema import parse_store_schemas
from airflow_ckpt_provider.errors import UnreadableLogError
from airflow_ckpt_provider.storage.opening import open_location
from tests.samples.archives import HOME, kinds_of, sample
from tests.support.checkpoints import schema_file, utf
from tests.support.damaged_bytes import flipped_bits, truncated, unreadable_at_most

PATH = "state/0/_stateSchema/default/0_x"


def shape_of(kind: str, place: Path, version: str = "4.0.0") -> QueryShape:
    checkpoint = Checkpoint.at(open_location(str(sample(version, kind).unpack(place / version / kind))))
    newest = checkpoint.progress().newest
    assert newest
    return read_query_shape(checkpoint.tree(), newest)


def test_every_kind_goes_through_json(tmp_path: Path):
    for kind in kinds_of("4.0.0"):
        shape = shape_of(kind, tmp_path)
        assert QueryShape.from_json(json.loads(json.dumps(shape.to_json()))) == shape
        if shape.operators:
            assert all(operator.name and operator.stores for operator in shape.operators), kind
            assert shape.partitions == 2


def test_an_aggregation(tmp_path: Path):
    shape = shape_of("hdfs_agg", tmp_path)
    (source,) = shape.sources
    assert (source.kind, source.reads) == ("file", (f"file:{HOME}/hdfs_agg/in",))
    (operator,) = shape.operators
    assert str(operator) == "operator 0 (stateStoreSave)"
    (schema,) = operator.stores["default"]
    assert [field["name"] for field in schema.key["fields"]] == ["k"]
    assert [field["name"] for field in schema.value["fields"]] == ["count", "sum"]
    assert (shape.offset_log, shape.commit_log) == (1, 1)


def test_a_join_and_a_stateful_processor(tmp_path: Path):
    (join,) = shape_of("hdfs_ssjoin", tmp_path).operators
    assert len(join.stores) == 4
    (one_store,) = shape_of("rocks_ssjoin_v3", tmp_path, "4.3.0").operators
    assert one_store.stores["default"][0].name == "left-keyToNumValues"
    (processor,) = shape_of("tws_rocks", tmp_path).operators
    assert processor.properties == {"timeMode": "ProcessingTime", "outputMode": "Update"}
    assert processor.variables["total"] == "ValueState"
    assert {"total", "values", "seen"} <= {schema.name for schema in processor.stores["default"]}


def test_spark_3_5_has_schemas_and_no_names(tmp_path: Path):
    (operator,) = shape_of("hdfs_agg", tmp_path, "3.5.9").operators
    assert (operator.name, list(operator.stores)) == (None, ["default"])
    assert str(operator) == "operator 0 (of an unknown name)"


def test_named_sources(tmp_path: Path):
    assert [s.source for s in shape_of("named_sources", tmp_path, "4.3.0").sources] == ["orders", "returns"]


def test_what_a_source_that_spark_4_2_names_reads(tmp_path: Path):
    """Its directory bears the name, its offset the position."""
    checkpoint = sample("4.0.0", "hdfs_agg").unpack(tmp_path / "hdfs_agg")
    (checkpoint / "sources/0").rename(checkpoint / "sources/orders")
    opened = Checkpoint.at(open_location(str(checkpoint)))
    newest = opened.progress().newest
    assert newest
    (source,) = read_query_shape(opened.tree(), newest).sources
    assert source.reads == (f"file:{HOME}/hdfs_agg/in",)


@pytest.mark.parametrize("version", [1, 2])
def test_keys_and_values_of_one_store(version: int):
    (found,) = parse_store_schemas(schema_file([("k", "string")], version=version), path=PATH)
    assert (found.name, found.key["fields"][0]["name"]) == ("", "k")
    assert "fields" in found.value


def test_a_damaged_schema_raises_nothing_else():
    data = next(d for p, d in sample("4.0.0", "tws_rocks").files.items() if "/_stateSchema/" in p)
    for cut in list(truncated(data))[::97]:
        with pytest.raises(UnreadableLogError, match="not a readable state schema"):
            parse_store_schemas(cut, path=PATH)
    for flipped in flipped_bits(data[:300]):
        with unreadable_at_most(PATH):
            parse_store_schemas(flipped, path=PATH)
    with pytest.raises(UnreadableLogError):
        parse_store_schemas(utf("v3") + b"\xff\xff\xff\x7f", path=PATH)
