"""The frame: the worst verdict wins, reasons come worst first, JSON is plain and Markdown names what is not fine."""

from __future__ import annotations

import itertools
import json

import pytest

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.report import GuardReport, Judgement, PartReport, SourceReport
from airflow_ckpt_provider.units import format_duration, parse_seconds
from airflow_ckpt_provider.verdict import WORST_FIRST, Verdict, worst


def source(*verdicts: Verdict, name: str = "0", lost: int | None = 0, left: float | None = None) -> SourceReport:
    judgements = tuple(Judgement(v, f"because {v.value}") for v in verdicts)
    return SourceReport(name, "kafka", judgements, (), lost, left)


def test_every_verdict_has_its_rank() -> None:
    assert set(WORST_FIRST) == set(Verdict)
    assert worst([]) is Verdict.SAFE
    for a, b in itertools.combinations(WORST_FIRST, 2):
        assert worst([b, a]) is a


def test_a_query_is_as_good_as_its_worst_source() -> None:
    report = GuardReport("ck", (source(Verdict.SAFE), source(Verdict.UNKNOWN, Verdict.WILL_FAIL, name="one")))
    assert report.verdict is Verdict.WILL_FAIL
    assert report.reasons == (
        "source one (kafka): because WILL_FAIL",
        "source one (kafka): because UNKNOWN",
        "source 0 (kafka): because SAFE",
    )
    assert GuardReport("ck", (source(),), (Judgement(Verdict.WILL_SKIP, "x"),)).verdict is Verdict.WILL_SKIP


def test_parts_count_too() -> None:
    part = PartReport("orders-1", Verdict.WILL_LOSE, {"lost": 7})
    report = SourceReport("0", "kafka", (), (part,), 7)
    assert report.verdict is Verdict.WILL_LOSE
    assert "| orders-1 | WILL_LOSE | 7 |" in report.to_markdown()


def test_sums() -> None:
    report = GuardReport("ck", (source(lost=3, left=10.0), source(lost=4)))
    assert (report.lost, report.seconds_left) == (7, 10.0)
    assert GuardReport("ck", (source(lost=3), source(lost=None))).lost is None


def test_json_is_plain_and_keyed_as_the_offset_log() -> None:
    report = GuardReport("ck", (source(Verdict.SAFE), source(name="clicks")), batch_id=4)
    value = report.to_json()
    assert json.loads(json.dumps(value)) == value
    assert [next(iter(s)) for s in value["sources"]] == ["index", "name"]
    assert (value["verdict"], value["batch_id"], value["subject"]) == ("SAFE", 4, "ck")


def test_how_long_the_stream_is_down_is_shown_with_its_unit() -> None:
    """``--max-downtime 24`` is 24 seconds, and its ``SAFE`` was not to be told from that of 24 hours."""
    report = GuardReport("ck", (source(Verdict.SAFE),), batch_id=4, max_downtime=24.0)
    assert report.to_json()["max_downtime"] == 24.0
    assert "The stream is down for 24 s from now on." in report.to_markdown()
    assert "is down" not in GuardReport("ck", (source(Verdict.SAFE),), batch_id=4).to_markdown()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("24h", 86400), ("1d 12h", 129600), ("1d12h", 129600), ("90min", 5400), ("90m", 5400), ("1.5h", 5400), ("7", 7)],
)
def test_lengths_of_time(text: str, seconds: float) -> None:
    assert parse_seconds(text, field="max_downtime") == seconds


@pytest.mark.parametrize("text", ["", "h", "24 hours", "-1h", "1h-", "tomorrow"])
def test_no_length_of_time(text: str) -> None:
    with pytest.raises(RefusedError) as e:
        parse_seconds(text, field="max_downtime")
    assert str(e.value).startswith(f"max_downtime is {text!r}, which is no duration\nHINT: ")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0.0 s"),
        (59.9, "59 s"),
        (3600, "1 h"),
        (3661, "1 h 1 min"),
        (100_000, "1 d 3 h"),
        (86_459, "1 d"),
        (-60, "-1 min"),
    ],
)
def test_in_words(seconds: float, words: str) -> None:
    assert format_duration(seconds) == words


@pytest.mark.parametrize(
    ("source", "key"), [("0", {"index": 0}), ("²", {"name": "²"}), ("9" * 5000, {"name": "9" * 5000})]
)
def test_a_source_whose_name_looks_like_a_number(source: str, key: dict[str, object]) -> None:
    assert SourceReport(source, "delta").to_json().items() >= key.items()
