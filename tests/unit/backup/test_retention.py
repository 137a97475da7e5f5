"""retention: the rules are restic's, by restic's own answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_ckpt_provider.backup.retention import UNLIMITED, Policy, Span, reasons_to_keep
from airflow_ckpt_provider.errors import RefusedError
from tests.support import restic_histories
from tests.support.restic_histories import Answer, History

RECORDED = Path(__file__).parent / "restic_answers.json"


@dataclass(frozen=True)
class Made:
    created: datetime
    tags: Mapping[str, str] = field(default_factory=dict)


def policy(options: Mapping[str, Any]) -> Policy:
    values: dict[str, Any] = {}
    for option, value in options.items():
        name = option.removeprefix("keep-").replace("-", "_")
        if name == "tag":
            values["tags"] = tuple(tuple(each.split(",")) for each in value)
        else:
            values[name] = Span.parse(value) if name.startswith("within") else int(value)
    return Policy(**values)


def made(*times: str) -> list[Made]:
    return [Made(datetime.fromisoformat(time)) for time in times]


def compare(answer: Answer) -> None:
    """Ours against restic's, reasons included.

    restic 0.14 (Debian 12) does not know the rule that the oldest is kept while there are counts left: 0.16 brought it.
    """
    history = answer.history
    backups = [
        (str(position), Made(datetime.fromisoformat(time), dict(tag.split("=") for tag in tags)))
        for position, (time, tags) in enumerate(zip(history.times, history.tags, strict=True))
    ]
    backups.reverse()
    ours = reasons_to_keep([backup for _, backup in backups], policy(history.options))
    for (position, _), why in zip(backups, ours, strict=True):
        wanted = [reason.replace("snapshot", "backup") for reason in answer.kept.get(position, ())]
        assert without_oldest(why) == without_oldest(wanted), (history, position)


def without_oldest(reasons: Iterable[str]) -> list[str]:
    return [reason for reason in reasons if not reason.startswith("oldest ")]


def recorded() -> list[Answer]:
    return [Answer(History(**a["history"]), a["kept"]) for a in json.loads(RECORDED.read_text())["answers"]]


def test_recorded_answers_of_restic() -> None:
    answers = recorded()
    assert len(answers) >= 80
    assert {rule for a in answers for rule in a.history.options} == {
        *(f"keep-{rule}" for rule in (*restic_histories.RULES, *restic_histories.SPANS)),
        "keep-tag",
    }
    for answer in answers:
        compare(answer)


@pytest.mark.slow
def test_a_thousand_histories_of_restic(tmp_path: Path) -> None:
    count = 0
    for answer in restic_histories.answers(1000, tmp_path / "repository"):
        compare(answer)
        count += 1
    print(f"{count} histories: equal to {restic_histories.version()}")


def test_within_reaches_back_from_the_newest_not_from_now() -> None:
    backups = made("2020-03-03T12:00:00Z", "2020-03-02T13:00:00Z", "2020-03-02T12:00:00Z")
    assert reasons_to_keep(backups, Policy(within=Span(days=1))) == [("within 1d",), ("within 1d",), ()]


def test_the_oldest_stays_while_there_are_counts_left() -> None:
    backups = made("2020-03-03T12:00:00Z", "2020-03-03T11:00:00Z", "2020-03-03T10:00:00Z")
    assert reasons_to_keep(backups, Policy(daily=2)) == [("daily backup",), (), ("oldest daily backup",)]
    assert reasons_to_keep(backups, Policy(daily=1)) == [("daily backup",), (), ()]


def test_unlimited() -> None:
    backups = made("2020-03-03T12:00:00Z", "2020-03-02T11:00:00Z", "2020-03-02T10:00:00Z", "2020-03-01T10:00:00Z")
    assert [bool(r) for r in reasons_to_keep(backups, Policy(daily=UNLIMITED))] == [True, True, False, True]


def test_the_days_are_those_of_utc_whatever_the_writer_had() -> None:
    backups = made("2020-03-03T00:30:00+02:00", "2020-03-02T12:00:00+00:00")
    assert [bool(r) for r in reasons_to_keep(backups, Policy(daily=1))] == [True, False]


def test_tags_by_key_and_by_value() -> None:
    backups = [
        Made(datetime(2020, 3, 3, tzinfo=UTC), {"env": "prod"}),
        Made(datetime(2020, 3, 2, tzinfo=UTC), {"env": "test"}),
        Made(datetime(2020, 3, 1, tzinfo=UTC), {"deploy": "7"}),
    ]
    assert [bool(r) for r in reasons_to_keep(backups, Policy(tags=(("env=prod",),)))] == [True, False, False]
    assert [bool(r) for r in reasons_to_keep(backups, Policy(tags=(("env",),)))] == [True, True, False]
    assert [bool(r) for r in reasons_to_keep(backups, Policy(tags=(("env", "deploy"),)))] == [False] * 3
    assert [bool(r) for r in reasons_to_keep(backups, Policy(tags=(("env=test",), ("deploy",))))] == [False, True, True]


@pytest.mark.parametrize(
    ("span", "time", "before"),
    [
        ("1m", "2021-03-31T10:00:00+00:00", "2021-03-03T10:00:00+00:00"),  # as Go has it: 31 February
        ("1y", "2020-02-29T10:00:00+00:00", "2019-03-01T10:00:00+00:00"),
        ("2y5m7d3h", "2026-11-21T02:00:00+00:00", "2024-06-13T23:00:00+00:00"),
        ("3000y", "2026-11-21T02:00:00+00:00", "0001-01-01T00:00:00+00:00"),
    ],
)
def test_spans_of_the_calendar(span: str, time: str, before: str) -> None:
    assert Span.parse(span).before(datetime.fromisoformat(time)).isoformat() == before
    assert str(Span.parse(span)) == span


@pytest.mark.parametrize("text", ["", "3", "d", "3x", "-3d", "3d 4", "0d", "3d,4h"])
def test_what_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(RefusedError, match="is no span of time"):
        Span.parse(text)


@pytest.mark.parametrize(
    "tags",
    [{"env": "prod"}, [{"env": "prod"}], [["a", "b"]], True, [True], "a,,b", ["", "a"], " ", [None]],
    ids=repr,
)
def test_tags_that_no_backup_could_have_are_refused(tags: object) -> None:
    # `tag: [env: prod]` of YAML is a mapping: it would keep nothing, and the backups that were meant would expire.
    with pytest.raises(RefusedError, match=r"keep-tag is .*\nHINT: give `key` or `key=value`"):
        Policy.parse({"daily": 30, "tag": tags})


def test_tags_of_one_text_of_several_and_of_a_number() -> None:
    assert Policy.parse({"tag": "a, b=1"}).tags == (("a", "b=1"),)
    assert Policy.parse({"keep-tag": ["a", 2024]}).tags == (("a",), ("2024",))
    assert Policy.parse({"tag": 2024}).tags == (("2024",),)


@pytest.mark.parametrize(
    "rules", [{"daily": 30, "keep-daily": 3}, {"within-daily": "30d", "within_daily": "1d"}], ids=repr
)
def test_a_rule_in_two_spellings_is_refused(rules: dict[str, object]) -> None:
    with pytest.raises(RefusedError, match=r"keep-(within-)?daily is given twice"):
        Policy.parse(rules)


def test_a_policy_in_words_and_json() -> None:
    given = Policy(last=3, within_daily=Span(days=14), tags=(("a", "b=1"), ("c",)), monthly=UNLIMITED)
    assert str(given) == "keep-last 3, keep-monthly unlimited, keep-within-daily 14d, keep-tag a,b=1 or c"
    assert given.to_json() == {"last": 3, "monthly": -1, "within_daily": "14d", "tags": ["a,b=1", "c"]}
    assert Policy().is_empty
    assert not given.is_empty


@given(
    seconds=st.lists(st.integers(0, 400 * 86400), min_size=1, max_size=30),
    counts=st.fixed_dictionaries({name: st.integers(0, 4) for name in ("last", "hourly", "daily", "weekly", "yearly")}),
)
def test_more_never_keeps_less(seconds: list[int], counts: dict[str, int]) -> None:
    backups = [Made(datetime.fromtimestamp(1_700_000_000 + s, UTC)) for s in sorted(seconds, reverse=True)]
    fewer = reasons_to_keep(backups, Policy(**counts))
    more = reasons_to_keep(backups, Policy(**{name: count + 1 for name, count in counts.items()}, monthly=2))
    kept = [bool(f) for f in fewer[:-1]]  # the oldest goes by whether counts are left
    assert all(m or not k for k, m in zip(kept, map(bool, more[:-1]), strict=True))
    assert more[0]
