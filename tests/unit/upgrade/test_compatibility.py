"""Comparing a checkpoint with a description: on samples of real Sparks, the description being the sample's own, changed."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.query_shape import OperatorShape, QueryShape, SourceShape, read_query_shape
from airflow_ckpt_provider.checkpoint.state_schema import StoreSchema
from airflow_ckpt_provider.errors import NotACheckpointError, RefusedError
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.upgrade.compatibility.compatibility import Compatibility
from airflow_ckpt_provider.upgrade.compatibility.compatibility import compare as compare_with_old
from airflow_ckpt_provider.upgrade.compatibility.description import QueryDescription, parse_description
from airflow_ckpt_provider.upgrade.compatibility.kinds import KINDS
from airflow_ckpt_provider.upgrade.compatibility.schemas import goes_into
from airflow_ckpt_provider.upgrade.compatibility.sources import source_changes
from airflow_ckpt_provider.upgrade.compatibility.versions import release, written_by
from airflow_ckpt_provider.verdict import Verdict
from tests.samples.archives import VERSIONS, kinds_of, sample

Open = Callable[..., tuple[Checkpoint, QueryDescription]]
#: Samples of sources whose offsets are numbers only: which rate, socket or table it is, nothing shows.
_NAMELESS = ("rate_async_progress", "rate_micro_batch", "rate_to_console")
_PLAN = ("EventTimeWatermark ts, 30 seconds",)


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    """A sample, and a description of the code that wrote it."""

    def open_sample(kind: str, version: str = "4.0.0") -> tuple[Checkpoint, QueryDescription]:
        checkpoint = Checkpoint.at(open_location(str(sample(version, kind).unpack(tmp_path / version / kind))))
        newest = checkpoint.progress().newest
        assert newest
        shape = read_query_shape(checkpoint.tree(), newest)
        state_format = 2 if shape.commit_log == 2 else 1
        return checkpoint, QueryDescription("orders:build", version, "", "append", state_format, _PLAN, shape)

    return open_sample


def compare(checkpoint: Checkpoint, description: QueryDescription) -> Compatibility:
    """Compare a checkpoint with new code that has the plan of the old code."""
    return compare_with_old(checkpoint, description, before=description)


def with_shape(description: QueryDescription, **changes: Any) -> QueryDescription:
    return replace(description, shape=replace(description.shape, **changes))


def codes(found: Compatibility) -> list[str]:
    return [change.kind.code for change in found.changes]


def column(name: str, kind: Any = "string", *, nullable: bool = True) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": {}}


def struct(*columns: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(columns)}


def with_state(description: QueryDescription, **changes: Any) -> QueryDescription:
    """The description with another key or value schema of the only operator."""
    (operator,) = description.shape.operators
    stores = {name: tuple(replace(s, **changes) for s in found) for name, found in operator.stores.items()}
    return with_shape(description, operators=(replace(operator, stores=stores),))


@pytest.mark.parametrize("version", ["4.0.0", *(pytest.param(v, marks=pytest.mark.slow) for v in ("3.5.9", "4.3.0"))])
def test_unchanged_code_is_safe_on_every_kind(version: str, opened: Open):
    for kind in kinds_of(version):
        if kind == "rate_continuous":
            continue  # a source whose offsets are its own
        checkpoint, description = opened(kind, version)
        parsed = parse_description(json.dumps(description.to_json()), path="d.json")
        assert parsed == description
        found = compare(checkpoint, parsed)
        if kind in _NAMELESS:
            assert set(codes(found)) == {"SOURCE-UNKNOWN"}, kind
            continue
        assert (codes(found), found.verdict) == ([], Verdict.SAFE), kind


@pytest.mark.parametrize("version", VERSIONS)
def test_the_spark_that_wrote_a_sample_is_recognised(version: str, opened: Open):
    _, description = opened("hdfs_agg", version)
    # 4.1 pins what 4.0 pins.
    assert written_by(description.shape) == {(4, 1): (4, 0)}.get(release(version), release(version))


def test_other_numbers_of_operators(opened: Open):
    checkpoint, description = opened("hdfs_agg")
    two = (*description.shape.operators, OperatorShape(1, "dedupe", {}, {}, {}))
    found = compare(checkpoint, with_shape(description, operators=two))
    assert (codes(found), found.verdict) == (["OPERATORS-ADDED"], Verdict.WILL_FAIL)
    assert found.changes[0].message == (
        "0 stateStoreSave in the checkpoint, 0 stateStoreSave, 1 dedupe in the new code"
    )
    found = compare(checkpoint, with_shape(description, operators=()))
    assert codes(found) == ["OPERATORS-ALL-REMOVED"]
    checkpoint, description = opened("hdfs_two_operators")
    found = compare(checkpoint, with_shape(description, operators=description.shape.operators[:1]))
    assert codes(found) == ["OPERATORS-REMOVED"]
    assert found.changes[0].subject == "dedupe"
    turned = tuple(replace(o, operator_id=1 - o.operator_id) for o in reversed(description.shape.operators))
    found = compare(checkpoint, with_shape(description, operators=turned))
    assert (codes(found), found.changes[0].subject) == (["OPERATORS-CHANGED"], "operator 0, operator 1")
    checkpoint, description = opened("file_to_file")
    found = compare(checkpoint, with_shape(description, operators=two[1:]))
    assert (codes(found), found.verdict) == (["OPERATORS-BEGUN"], Verdict.WILL_FAIL)


def test_state_schemas(opened: Open):
    checkpoint, description = opened("hdfs_agg")
    found = compare(checkpoint, with_state(description, key=struct(column("k"), column("id"))))
    assert (codes(found), found.verdict) == (["STATE-KEYS"], Verdict.WILL_FAIL)
    assert found.changes[0].message == (
        "keys of operator 0 (stateStoreSave): (k string) before, (k string, id string) now"
    )
    found = compare(checkpoint, with_state(description, key=struct(column("id"))))
    assert (codes(found), found.verdict) == (["STATE-NAMES"], Verdict.UNKNOWN)
    found = compare(checkpoint, with_state(description, value=struct(column("count", "long", nullable=False))))
    assert codes(found) == ["STATE-VALUES"]


def test_a_join_says_once_what_differs_in_its_four_stores(opened: Open):
    checkpoint, description = opened("hdfs_ssjoin")
    (operator,) = description.shape.operators
    stores = {
        name: tuple(replace(s, key=struct(column("field0", "long"), *s.key["fields"][1:])) for s in found)
        for name, found in operator.stores.items()
    }
    found = compare(checkpoint, with_shape(description, operators=(replace(operator, stores=stores),)))
    assert set(codes(found)) == {"STATE-KEYS"}
    assert len(found.changes) == 2  # with the index among the keys, and without


def test_deduplication_has_keys_only(opened: Open):
    checkpoint, description = opened("hdfs_dedup")
    found = compare(checkpoint, with_state(description, value=struct(column("x", "long"))))
    assert (codes(found), found.verdict) == (["STATE-VALUES-UNCHECKED"], Verdict.SAFE)


def test_state_variables(opened: Open):
    checkpoint, description = opened("tws_rocks")
    (operator,) = description.shape.operators

    def with_operator(**changes: Any) -> Compatibility:
        return compare(checkpoint, with_shape(description, operators=(replace(operator, **changes),)))

    more = {**operator.variables, "last": "ValueState"}
    assert codes(with_operator(variables=more)) == ["VARIABLE-ADDED"]
    fewer = {name: kind for name, kind in operator.variables.items() if name != "seen"}
    assert codes(with_operator(variables=fewer)) == ["VARIABLE-REMOVED"]
    found = with_operator(variables={**operator.variables, "total": "ListState"})
    assert (codes(found), found.verdict) == (["VARIABLE-TYPE"], Verdict.WILL_FAIL)
    assert found.changes[0].message.startswith("total of operator 0")
    found = with_operator(properties={**operator.properties, "timeMode": "EventTime"})
    assert (codes(found), found.changes[0].kind.spark) == (
        ["OPERATOR-SETTINGS"],
        "STATE_STORE_INVALID_CONFIG_AFTER_RESTART",
    )


def test_sources(opened: Open):
    checkpoint, description = opened("two_sources_union")
    first, second = description.shape.sources
    found = compare(checkpoint, with_shape(description, sources=(first,)))
    assert (codes(found), found.verdict) == (["SOURCES-COUNT"], Verdict.WILL_FAIL)
    turned = replace(second, source="0"), replace(first, source="1")
    found = compare(checkpoint, with_shape(description, sources=turned))
    assert (codes(found), found.verdict) == (["SOURCES-ORDER"], Verdict.UNKNOWN)
    kafka = SourceShape("1", "kafka", ("orders",))
    assert codes(compare(checkpoint, with_shape(description, sources=(first, kafka)))) == ["SOURCE-KIND"]
    moved = replace(second, reads=("file:/elsewhere",))
    assert codes(compare(checkpoint, with_shape(description, sources=(first, moved)))) == ["SOURCE-PATH"]
    strange = SourceShape("1", "unknown", ())
    assert codes(compare(checkpoint, with_shape(description, sources=(first, strange)))) == ["SOURCE-UNKNOWN"]


@pytest.mark.parametrize("reads", ["nothing", "a directory in it", "a partition of it", "the directory above"])
def test_a_file_source_that_may_read_other_files(opened: Open, reads: str):
    checkpoint, description = opened("two_sources_union")
    first, second = description.shape.sources
    (place,) = second.reads
    others = {
        "nothing": (),
        "a directory in it": (f"{place}/part",),
        "a partition of it": (f"{place}/day=1",),
        "the directory above": (posixpath.dirname(place),),
    }
    other = replace(second, reads=others[reads])
    found = compare(checkpoint, with_shape(description, sources=(first, other)))
    assert (codes(found), found.verdict) == (["SOURCE-UNKNOWN"], Verdict.UNKNOWN)


@pytest.mark.parametrize(
    ("before", "now"),
    [("ab", "ac"), ("ab", "01"), ("01", "ab")],
    ids=["one was replaced", "names were removed", "names are new"],
)
def test_sources_of_other_names(before: str, now: str) -> None:
    def named(names: str) -> QueryShape:
        sources = tuple(SourceShape(name, "kafka", ("orders",)) for name in names)
        return QueryShape(sources, operators=(), conf={}, partitions=None, offset_log=2, commit_log=None)

    assert [change.kind.code for change in source_changes(named(before), named(now))] == ["SOURCES-NAMES"]
    assert not list(source_changes(named(before), named(before)))


def test_pinned_settings_are_ignored(opened: Open):
    checkpoint, description = opened("hdfs_agg")
    changed = {
        "spark.sql.shuffle.partitions": "5",
        "spark.sql.streaming.stateStore.providerClass": "org.example.Other",
        "spark.sql.streaming.multipleWatermarkPolicy": "max",
    }
    found = compare(checkpoint, with_shape(description, conf={**description.shape.conf, **changed}))
    assert sorted(codes(found)) == ["PARTITIONS-IGNORED", "PROVIDER-IGNORED", "SETTING-IGNORED"]
    assert found.verdict is Verdict.SAFE
    assert "spark.sql.shuffle.partitions=2 in the checkpoint, 5 in the new code" in [c.message for c in found.changes]


def test_schemas_of_another_layout_are_not_compared(opened: Open):
    checkpoint, description = opened("hdfs_ssjoin")
    conf = {**description.shape.conf, "spark.sql.streaming.join.stateFormatVersion": "3"}
    found = compare(checkpoint, with_shape(description, conf=conf))
    assert (codes(found), found.verdict) == (["SCHEMA-UNKNOWN", "SETTING-IGNORED"], Verdict.UNKNOWN)
    assert found.changes[0].remedy.endswith("--conf spark.sql.streaming.join.stateFormatVersion=2")


@pytest.mark.parametrize(
    ("kind", "since", "says"),
    [
        ("offset_log_v2", "4.2", "the offset log (version 2)"),
        ("commit_log_v3", "4.3", "the commit log (version 3)"),
        ("rocks_ssjoin_v4", "4.2", "spark.sql.streaming.join.stateFormatVersion=4"),
        ("rocks_rowchecksum", "4.2", "spark.sql.streaming.stateStore.rowChecksum.enabled=true"),
    ],
)
def test_what_an_older_spark_cannot_read(kind: str, since: str, says: str, opened: Open):
    checkpoint, description = opened(kind, "4.3.0")
    found = compare(checkpoint, replace(description, spark="4.0.0"))
    assert (found.verdict, found.changes[0].kind.code) == (Verdict.WILL_FAIL, "NEEDS-NEWER-SPARK")
    assert f"{says} needs Spark {since} or later; the new code runs on 4.0.0" in [c.message for c in found.changes]


@pytest.mark.parametrize(
    ("kind", "needs"),
    [
        ("rocks_changelog_agg", "changelogs of RocksDB"),
        ("rocks_ckptv2_agg", "state files of format 2"),
        ("tws_rocks", "operator metadata of version 2"),
    ],
)
def test_what_3_4_cannot_read(kind: str, needs: str, opened: Open):
    checkpoint, description = opened(kind)
    found = compare(checkpoint, replace(description, spark="3.4.3"))
    assert any(c.subject.startswith(needs) for c in found.changes if c.kind.code == "NEEDS-NEWER-SPARK")


def test_up_and_down(opened: Open):
    checkpoint, new = opened("hdfs_agg", "4.3.0")
    _, old = opened("hdfs_agg", "4.0.0")
    down = compare(checkpoint, replace(new, spark="4.0.0", shape=replace(new.shape, conf=old.shape.conf)))
    assert (codes(down), down.verdict) == (["WRITTEN-BY-NEWER-SPARK"], Verdict.UNKNOWN)
    old_checkpoint, _ = opened("hdfs_agg", "4.0.0")
    up = compare(old_checkpoint, replace(new, shape=replace(new.shape, sources=old.shape.sources)))
    # 4.3 lays state out in another way by default, and in the old one where the checkpoint does not say.
    key = "spark.sql.streaming.statefulOperator.alwaysNullableOutput.enabled"
    assert (up.changes[0].kind.code, up.verdict) == ("SCHEMA-UNKNOWN", Verdict.UNKNOWN)
    assert up.changes[0].remedy.endswith(f"--conf {key}=false")
    as_before = replace(old.shape, conf={**new.shape.conf, key: "false"})
    up = compare(old_checkpoint, replace(new, shape=as_before))
    assert set(codes(up)) == {"SPARK-NEWER", "SETTING-DEFAULT"}
    assert up.verdict is Verdict.SAFE


def test_the_format_of_the_state_counts_before_4_3(opened: Open):
    checkpoint, description = opened("rocks_ckptv2_agg")
    assert codes(compare(checkpoint, replace(description, state_format=1))) == ["STATE-FORMAT"]
    checkpoint, description = opened("rocks_ckptv2_agg", "4.3.0")
    assert codes(compare(checkpoint, replace(description, state_format=1))) == []


def test_a_databricks_runtime_is_not_judged(opened: Open):
    checkpoint, description = opened("hdfs_agg")
    found = compare(checkpoint, replace(description, databricks_runtime="17.3.x-scala2.13"))
    assert (codes(found), found.verdict) == (["DATABRICKS-RUNTIME"], Verdict.UNKNOWN)


def test_the_old_description_shows_what_no_checkpoint_holds(opened: Open):
    checkpoint, description = opened("hdfs_ssjoin")
    before = replace(description, plan=("Join Inner, (id = id)", "EventTimeWatermark ts, 30 seconds"))
    now = replace(before, plan=("Join LeftOuter, (id = id)", "EventTimeWatermark ts, 30 seconds"), output_mode="update")
    found = compare_with_old(checkpoint, now, before=before)
    assert (sorted(codes(found)), found.verdict) == (["OUTPUT-MODE", "PLAN-CHANGED"], Verdict.UNKNOWN)
    assert "`Join Inner, (id = id)` before, `Join LeftOuter, (id = id)` now" in [c.message for c in found.changes]


@pytest.mark.parametrize(("before", "now"), [("ab", "ba"), ("aab", "abb"), ("a", "aa"), ("abb", "bab")])
def test_parts_of_the_plan_that_change_places_or_numbers(opened: Open, before: str, now: str):
    """Such as the two watermarks of a join: each of them belongs to one input."""
    checkpoint, description = opened("hdfs_ssjoin")
    old, new = (replace(description, plan=tuple(f"EventTimeWatermark {c}" for c in plan)) for plan in (before, now))
    found = compare_with_old(checkpoint, new, before=old)
    assert (codes(found), found.verdict) == (["PLAN-CHANGED"], Verdict.UNKNOWN)


@pytest.mark.parametrize("other", ["hdfs_two_operators", "file_to_file", "hdfs_agg"])
def test_an_old_description_of_another_query_shows_nothing(opened: Open, other: str):
    checkpoint, description = opened("hdfs_ssjoin")
    found = compare_with_old(checkpoint, description, before=opened(other)[1])
    assert (codes(found), found.verdict) == (["PLAN-UNKNOWN"], Verdict.UNKNOWN)
    assert (
        "not shown to be of the query that wrote the checkpoint: SOURCES-COUNT at sources" in found.changes[0].message
    )


@pytest.mark.parametrize("old", ["none", "without a plan"])
def test_without_the_old_description_code_with_state_is_never_safe(opened: Open, old: str):
    checkpoint, description = opened("hdfs_ssjoin")
    before = None if old == "none" else replace(description, plan=())
    found = compare_with_old(checkpoint, description, before=before)
    assert (codes(found), found.verdict) == (["PLAN-UNKNOWN"], Verdict.UNKNOWN)
    assert "old_description" in found.changes[0].to_json()["remedy"]
    checkpoint, description = opened("file_to_file")
    found = compare_with_old(checkpoint, description, before=None if before is None else description)
    assert (codes(found), found.verdict) == ([], Verdict.SAFE)


def test_spark_3_5_says_no_names(opened: Open):
    checkpoint, description = opened("hdfs_two_operators", "3.5.9")
    assert [o.name for o in description.shape.operators] == [None, None]
    found = compare(checkpoint, with_shape(description, operators=description.shape.operators[:1]))
    assert codes(found) == ["OPERATORS-REMOVED"]


def test_json_and_markdown(opened: Open):
    checkpoint, description = opened("hdfs_agg")
    found = compare(checkpoint, with_shape(description, sources=()))
    document = found.to_json()
    assert document["verdict"] == "WILL_FAIL"
    assert document["changes"][0].keys() == {"code", "effect", "subject", "message", "spark", "remedy"}
    assert document["reasons"][0].startswith("SOURCES-COUNT: 1 in the checkpoint")
    text = found.to_markdown()
    assert text.startswith("### Compatibility: **WILL_FAIL**")
    assert "| forbidden | `SOURCES-COUNT` |" in text
    assert "Nothing has changed" in compare(checkpoint, description).to_markdown()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "other", "version": 1}', "\x00"])
def test_what_is_no_description_is_refused(text: str):
    with pytest.raises(RefusedError, match=r"d\.json is not the description of a query"):
        parse_description(text, path="d.json")


def test_a_description_of_a_later_version_is_refused(opened: Open):
    _, description = opened("hdfs_agg")
    with pytest.raises(RefusedError, match="version 2, known here"):
        parse_description(json.dumps({**description.to_json(), "version": 2}), path="d.json")


def test_nothing_planned_yet(tmp_path: Path, opened: Open):
    _, description = opened("hdfs_agg")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "metadata").write_text('{"id":"199ce9d3-fd64-4a41-a1cf-23002acf0134"}')
    with pytest.raises(NotACheckpointError):
        compare(Checkpoint.at(open_location(str(tmp_path / "new"))), description)


@pytest.mark.parametrize(
    ("new", "old", "fits"),
    [
        ("long", "long", True),
        ("integer", "long", False),
        (struct(column("b", "long")), struct(column("a", "long")), True),
        (struct(column("a", nullable=True)), struct(column("a", nullable=False)), False),
        (struct(column("a", nullable=False)), struct(column("a", nullable=True)), True),
        (struct(column("a"), column("b")), struct(column("a")), False),
        (
            {"type": "array", "elementType": "long", "containsNull": True},
            {"type": "array", "elementType": "long", "containsNull": False},
            False,
        ),
        (
            {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": False},
            {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True},
            True,
        ),
        ({"type": "udt", "class": "a"}, {"type": "udt", "class": "b"}, False),
        ("long", struct(), False),
    ],
)
def test_types_go_by_position_and_nulls(new: Any, old: Any, fits: bool):
    assert goes_into(new, old) is fits


def test_every_kind_has_a_code_of_its_own():
    assert len({kind.code for kind in KINDS}) == len(KINDS) > 25
    assert all(kind.meaning.endswith(".") and kind.spark and kind.remedy for kind in KINDS)


def test_a_shape_that_is_none():
    with pytest.raises(ValueError, match="no shape of a query"):
        QueryShape.from_json({"sources": 1})
    assert StoreSchema("", struct(), struct()).to_json() == {"name": "", "key": struct(), "value": struct()}
