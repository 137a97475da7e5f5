"""Starting positions: their shapes, and what is said of what the deployed code has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.delta_start import NO_TABLE, TABLE_READ
from airflow_ckpt_provider.guards.kafka_verdicts import NO_BROKER
from airflow_ckpt_provider.guards.report import GuardReport, PartReport, SourceReport
from airflow_ckpt_provider.lakeflow.asked_sources import OFFSETS, TIMES
from airflow_ckpt_provider.lakeflow.positions import judge_positions, positions_of
from airflow_ckpt_provider.lakeflow.recovery_steps import AboutFlow
from airflow_ckpt_provider.verdict import Verdict

#: What is asked of guards: for all that the position names.
FITTING = object()


def report_of(given: Any) -> dict[str, Any]:
    """The report of guards that have asked for all that positions name, under the name of their flow."""
    options = [position.options for position in positions_of(given)]
    kafka = [
        PartReport(f"{topic}-{n}", Verdict.SAFE, {"topic": topic, "partition": int(n), "earliest": 0, "latest": 9})
        for each in options
        for name in (OFFSETS, TIMES)
        if each.get(name, "").startswith("{")
        for topic, partitions in json.loads(each[name]).items()
        for n in partitions
    ]
    sources = (
        SourceReport("0", "kafka", parts=tuple(kafka)),
        SourceReport("1", "delta", facts={"table": "file:///t", "start_version": 1, "latest_version": 12}),
    )
    return {"f": GuardReport("the checkpoint of f", sources).to_json()}


def verdicts(
    given: Any, *, there: dict[str, str] | None = None, sources: Any = None, report: Any = FITTING
) -> list[tuple[str, str]]:
    found = judge_positions(
        ["f"],
        positions_of(given),
        {"f": ["t"]} if sources is None else sources,
        parameters={},
        configuration=there or {},
        guard_report=report_of(given) if report is FITTING else report,
    )
    return [(judgement.verdict.value, judgement.reason) for judgement in found]


def test_result_of_the_starting_positions_operator() -> None:
    xcom = {
        "sources": [
            {
                "index": 0,
                "kind": "kafka",
                "options": {"startingOffsets": '{"t":{"0":5}}'},
                "verdict": "SAFE",
                "reasons": [],
            },
            {
                "index": 1,
                "kind": "file",
                "options": {"modifiedAfter": "x"},
                "verdict": "WILL_DUPLICATE",
                "reasons": ["late"],
            },
        ],
        "carried_by": {"startingOffsets": "start", "modifiedAfter": "after"},
    }
    first, second = positions_of({"f": xcom})
    assert (first.source, first.options, first.carried_by) == (
        "0",
        {"startingOffsets": '{"t":{"0":5}}'},
        {"startingOffsets": "start"},
    )
    assert (second.verdict, second.reasons) == (Verdict.WILL_DUPLICATE, ("late",))
    assert positions_of(json.dumps({"f": xcom})) == (first, second)
    assert positions_of({"f": {**xcom, "sources": xcom["sources"][:1]}})[0].source == ""


@pytest.mark.parametrize(
    "given", ["no json", [1], {"f": 5}, {"f": {"modifiedAfter": "x"}}, {"f": [{"options": 3}]}], ids=repr
)
def test_other_shapes(given: Any) -> None:
    with pytest.raises(RefusedError, match="starting") as refused:
        positions_of(given)
    assert "carried_by" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("deployed", each) for each in ("false", "True", 2, [])),
        ("all_sources", "false"),
        *(("carried_by", each) for each in ("key", [1])),
        *(("reasons", each) for each in ("one", 5)),
        *(("verdict", each) for each in ("FINE", [])),
    ],
)
def test_a_part_of_another_kind(name: str, value: Any) -> None:
    """``"deployed": "false"`` is not taken for a word that the code has it."""
    if not value:
        value = [value]
    with pytest.raises(RefusedError, match=f"starting_positions of flow f: {name} is") as refused:
        positions_of({"f": {"options": {"modifiedAfter": "x"}, name: value}})
    assert "carried_by" in str(refused.value.hint)
    with pytest.raises(RefusedError, match="flow f: a source is 5"):
        positions_of({"f": {"sources": [5]}})


@pytest.mark.parametrize(
    "facts",
    [{"stateful": "false"}, {"stateful": 0}, {"keys": "id"}, {"carried_by": ["a"]}, {"sources": 5}, {"target": []}],
)
def test_facts_of_a_flow_of_another_kind(facts: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match="about has 'f'"):
        AboutFlow.from_json({"f": facts})


def test_of_a_flow_that_is_not_reset() -> None:
    with pytest.raises(RefusedError, match="starting position for flow g, which is not reset"):
        verdicts({"g": {"options": {}}})


@pytest.mark.parametrize(
    ("option", "wanted", "there", "verdict"),
    [
        ("modifiedAfter", "2026-08-20T05:00:00Z", "2026-08-20T05:00:00+00:00", "SAFE"),
        ("modifiedAfter", "2026-08-20T05:00:00Z", "2026-08-20T05:00:00", "UNKNOWN"),
        ("modifiedAfter", "2026-08-20T05:00:00", "2026-08-20 05:00:00", "SAFE"),
        ("modifiedAfter", "2026-08-20T05:00:00Z", "2026-08-20T05:00:01Z", "WILL_LOSE"),
        ("modifiedAfter", "2026-08-20T05:00:00Z", "2026-08-20T04:59:59Z", "WILL_DUPLICATE"),
        ("startingVersion", 12, "12", "SAFE"),
        ("startingVersion", "12", "9", "WILL_DUPLICATE"),
        ("startingVersion", "9", "12", "WILL_LOSE"),
        ("startingVersion", "9", "latest", "UNKNOWN"),
        ("startingOffsets", '{"t":{"0":5,"1":7}}', '{"t": {"1": 7, "0": 5}}', "SAFE"),
        ("startingOffsets", '{"t":{"0":5,"1":7}}', '{"t":{"0":4,"1":7}}', "WILL_DUPLICATE"),
        ("startingOffsets", '{"t":{"0":5,"1":7}}', '{"t":{"0":4,"1":8}}', "WILL_LOSE"),
        ("startingOffsets", '{"t":{"0":5}}', '{"t":{"0":-1}}', "UNKNOWN"),
        ("startingOffsets", '{"t":{"0":5}}', '{"u":{"0":5}}', "UNKNOWN"),
        ("startingOffsets", '{"t":{"0":5}}', "earliest", "UNKNOWN"),
        ("startingOffsets", '{"t":{"0":5}}', '{"t":{"0":5,"1":900}}', "UNKNOWN"),
        ("startingOffsets", '{"t":{"0":5}}', '{"t":{"0":5},"u":{"0":900}}', "UNKNOWN"),
        ("startingVersion", "1", "true", "UNKNOWN"),
        ("endingVersion", "9", "3", "WILL_LOSE"),
        ("endingVersion", "9", "12", "WILL_DUPLICATE"),
        ("endingOffsets", '{"t":{"0":9}}', '{"t":{"0":3}}', "WILL_LOSE"),
        ("modifiedBefore", "2026-08-20T05:00:00Z", "2026-08-19T05:00:00Z", "WILL_LOSE"),
    ],
)
def test_what_the_code_has(option: str, wanted: Any, there: str, verdict: str) -> None:
    given = {"f": {"options": {option: wanted}, "carried_by": {option: "key"}}}
    ((found, reason),) = verdicts(given, there={"key": there})
    assert found == verdict, reason


@pytest.mark.parametrize(
    ("zone", "there", "verdict"),
    [
        ("America/Los_Angeles", "2026-08-19T22:00:00", "SAFE"),
        ("America/Los_Angeles", "2026-08-20T05:00:00", "WILL_LOSE"),
        ("UTC", "2026-08-20T05:00:00", "SAFE"),
        ("Nowhere", "2026-08-20T05:00:00", "UNKNOWN"),
    ],
)
def test_a_time_without_a_zone_is_in_that_of_the_session(zone: str, there: str, verdict: str) -> None:
    given = {"f": {"options": {"modifiedAfter": "2026-08-20T05:00:00Z"}, "carried_by": {"modifiedAfter": "key"}}}
    ((found, reason),) = verdicts(given, there={"key": there, "spark.sql.session.timeZone": zone})
    assert found == verdict, reason
    if verdict == "UNKNOWN":
        assert "spark.sql.session.timeZone is Nowhere; give both with a zone" in reason


def test_sources_that_nobody_names() -> None:
    """The flow may union another topic, which the reset would read again from its beginning."""
    one = {"options": {"modifiedAfter": "x"}, "deployed": True}
    (first, *_) = verdicts({"f": one}, sources={})
    assert first[0] == "UNKNOWN"
    assert "flow f: it is not known what it reads" in first[1]
    assert "give sources={'f': [all that it reads]}" in first[1]
    for known in ({**one, "all_sources": True}, {"sources": [one]}):
        assert [verdict for verdict, _ in verdicts({"f": known}, sources={})] == ["SAFE"]


def test_what_cannot_be_seen() -> None:
    ((verdict, reason),) = verdicts({"f": {"options": {"modifiedAfter": "x"}}})
    assert verdict == "UNKNOWN"
    assert "carried_by" in reason
    ((verdict, _),) = verdicts({"f": {"options": {"modifiedAfter": "x"}, "deployed": True}})
    assert verdict == "SAFE"


@pytest.mark.parametrize("option", ["startingOffsets", "startingOffsetsByTimestamp"])
def test_a_position_of_kafka_is_safe_only_where_a_guard_has_asked(option: str) -> None:
    """Whoever gave it: by hand, or worked out of a checkpoint by a release that called it SAFE."""
    by_hand = {"options": {option: '{"t":{"0":5}}'}, "deployed": True}
    worked_out = {**by_hand, "verdict": "UNKNOWN", "reasons": [NO_BROKER]}
    for given in (by_hand, {**by_hand, "verdict": "SAFE"}, worked_out):
        found = verdicts({"f": given}, report=None)
        assert [verdict for verdict, _ in found] == ["UNKNOWN", "SAFE"]
        assert NO_BROKER in found[0][1]
        assert [verdict for verdict, _ in verdicts({"f": given})] == ["SAFE"]
    other = {**worked_out, "reasons": ["it cannot be known"]}
    assert [verdict for verdict, _ in verdicts({"f": other})] == ["UNKNOWN", "SAFE"]
    word = {"options": {"startingOffsets": "earliest"}, "deployed": True}
    assert [verdict for verdict, _ in verdicts({"f": word}, report=None)] == ["SAFE"]


@pytest.mark.parametrize("options", [{"startingVersion": "5"}, {"startingTimestamp": "2026-11-22T08:00:00Z"}])
def test_a_position_of_delta_is_safe_only_where_the_table_was_read(options: dict[str, str]) -> None:
    by_hand = {"options": options, "deployed": True}
    worked_out = {**by_hand, "verdict": "UNKNOWN", "reasons": [NO_TABLE]}
    for given in (by_hand, {**by_hand, "verdict": "SAFE"}, worked_out):
        found = verdicts({"f": given}, report=None)
        assert [verdict for verdict, _ in found] == ["UNKNOWN", "SAFE"]
        assert NO_TABLE in found[0][1]
        # Which version a time means, a report does not say.
        by_version = ["SAFE"] if "startingVersion" in options else ["UNKNOWN", "SAFE"]
        assert [verdict for verdict, _ in verdicts({"f": given})] == by_version
    read = {**by_hand, "verdict": "SAFE", "reasons": [f"{TABLE_READ}it has all"]}
    assert [verdict for verdict, _ in verdicts({"f": read}, report=None)] == ["SAFE"]
    of_kafka = {"options": {"startingTimestamp": "1700000000000"}, "deployed": True}
    assert [verdict for verdict, _ in verdicts({"f": of_kafka}, report=None)] == ["SAFE"]


def test_every_source_of_a_join() -> None:
    one = {"f": [{"source": "a", "options": {"startingVersion": "1"}, "deployed": True}]}
    found = verdicts(one, sources={"f": ["a", "b"]})
    assert found[0][0] == "UNKNOWN"
    assert "joins or unions a, b: there is no starting position for b" in found[0][1]
    both = {"f": [*one["f"], {"source": "b", "options": {"startingVersion": "2"}, "deployed": True}]}
    assert {verdict for verdict, _ in verdicts(both, sources={"f": ["a", "b"]})} == {"SAFE"}


@pytest.mark.parametrize(
    ("wanted", "part", "verdict"),
    [
        ({"t": {"0": 5}}, {"topic": "t", "partition": 0, "earliest": 5, "latest": 5}, "SAFE"),
        ({"t": {"0": -2}}, {"topic": "t", "partition": 0, "earliest": 5, "latest": 9}, "SAFE"),
        ({"t": {"0": 4}}, {"topic": "t", "partition": 0, "earliest": 5, "latest": 9}, "UNKNOWN"),
        ({"t": {"0": 10}}, {"topic": "t", "partition": 0, "earliest": 5, "latest": 9}, "UNKNOWN"),
        ({"t": {"0": 5}}, {"topic": "payments", "partition": 0, "earliest": 0, "latest": 9}, "UNKNOWN"),
        ({"t": {"0": 5, "1": 5}}, {"topic": "t", "partition": 0, "earliest": 0, "latest": 9}, "UNKNOWN"),
        ({"t": {"1": 5}}, {"topic": "t", "partition": 0, "earliest": 0, "latest": 9}, "UNKNOWN"),
        ({"t": {"0": 5}}, {"topic": "t", "partition": 0, "earliest": None, "latest": None}, "UNKNOWN"),
    ],
)
def test_a_report_is_about_the_offsets_that_a_position_names(
    wanted: dict[str, Any], part: dict[str, Any], verdict: str
) -> None:
    """The report of another topic, or of later offsets, has asked for nothing of this position."""
    given = {"f": {"options": {"startingOffsets": json.dumps(wanted)}, "deployed": True}}
    report = GuardReport("c", (SourceReport("0", "kafka", parts=(PartReport("p", Verdict.SAFE, part),)),)).to_json()
    for each in (report, {"any name": report}, json.dumps(report)):
        found = verdicts(given, report=each)
        assert found[0][0] == verdict, found
    bare = verdicts(given, report={"verdict": "SAFE", "reasons": []})
    assert bare[0][0] == "UNKNOWN"


@pytest.mark.parametrize(
    ("version", "name", "table", "verdict"),
    [
        ("5", "f", "s3://lake/t", "SAFE"),
        ("5", "", "t", "SAFE"),
        ("5", "t", "s3://lake/t", "SAFE"),
        ("5", "", "s3://lake/t", "UNKNOWN"),
        ("5", "g", "s3://lake/t", "UNKNOWN"),
        ("2", "f", "s3://lake/t", "UNKNOWN"),
        ("99", "f", "s3://lake/t", "UNKNOWN"),
    ],
)
def test_a_report_is_about_the_table_and_version_of_a_position(
    version: str, name: str, table: str, verdict: str
) -> None:
    given = {"f": {"options": {"startingVersion": version}, "deployed": True}}
    source = SourceReport("0", "delta", facts={"table": table, "start_version": 3, "latest_version": 12})
    report = GuardReport("c", (source,)).to_json()
    found = verdicts(given, report={name: report} if name else report)
    assert found[0][0] == verdict, found


def test_what_no_broker_answers_stays_unknown() -> None:
    """The records' timestamps need not rise: a broker that has everything does not change that."""
    by_clock = {"startingOffsetsByTimestamp": '{"t":{"0":5}}'}
    given = {
        "f": {"options": by_clock, "deployed": True, "verdict": "UNKNOWN", "reasons": ["need not rise", NO_BROKER]}
    }
    ((verdict, reason), _) = verdicts(given)
    assert verdict == "UNKNOWN"
    assert "need not rise" in reason
    assert NO_BROKER not in reason
