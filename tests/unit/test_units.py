"""Sizes, durations and times are read in every usual spelling and shown in one."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_ckpt_provider import units
from airflow_ckpt_provider.errors import RefusedError

NOW = datetime(2026, 11, 21, 14, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("24h", timedelta(hours=24)),
        ("1d 12h", timedelta(hours=36)),
        ("90min", timedelta(minutes=90)),
        ("90m", timedelta(minutes=90)),
        ("2w", timedelta(days=14)),
        ("1.5h", timedelta(minutes=90)),
        ("250ms", timedelta(milliseconds=250)),
        ("45", timedelta(seconds=45)),
        (45, timedelta(seconds=45)),
        (0.5, timedelta(milliseconds=500)),
        ("PT2H", timedelta(hours=2)),
        ("P1DT30M", timedelta(days=1, minutes=30)),
        ("P2W", timedelta(days=14)),
        ("pt90m", timedelta(minutes=90)),
        ("0", timedelta(0)),
        (timedelta(hours=3), timedelta(hours=3)),
        (str(timedelta(days=1, hours=3, microseconds=5)), timedelta(days=1, hours=3, microseconds=5)),
    ],
)
def test_a_duration_is_read_in_every_spelling(written: str | float | timedelta, meant: timedelta) -> None:
    assert units.parse_duration(written) == meant
    assert units.parse_seconds(written) == meant.total_seconds()


@pytest.mark.parametrize(
    "written",
    [
        "",
        "soon",
        "24 hrs",
        "P",
        "PT",
        "P1DT",
        "P1M",
        "P999999999999D",
        "P1Y",
        "-1h",
        -1,
        "1h-",
        float("nan"),
        float("inf"),
        1e30,
        True,
        None,
    ],
)
def test_what_is_no_duration_is_refused_with_the_field(written: object) -> None:
    with pytest.raises(
        RefusedError, match=r"^max_downtime is .*which is no duration\nHINT: give a duration such as 24h"
    ):
        units.parse_duration(written, field="max_downtime")  # type: ignore[arg-type]


@given(st.timedeltas(min_value=timedelta(seconds=1), max_value=timedelta(days=3650)))
def test_what_is_shown_is_read_again_as_the_same(duration: timedelta) -> None:
    shown = units.format_duration(duration)
    assert units.format_duration(units.parse_duration(shown)) == shown


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=3650)))
def test_a_duration_that_is_written_is_read_again(duration: timedelta) -> None:
    read = units.parse_duration(units.exact_duration(duration))
    assert abs(read - duration) < timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("0", 0),
        (4096, 4096),
        ("200M", 200 * 1024**2),
        ("4kB", 4096),
        ("4 KiB", 4096),
        ("1.5 GiB", 3 * 512 * 1024**2),
        ("7 B", 7),
        ("2t", 2 * 1024**4),
    ],
)
def test_a_size_is_read_in_every_spelling(written: str | int, meant: int) -> None:
    assert units.parse_size(written) == meant


@pytest.mark.parametrize("written", ["", "much", "-1", -1, "5%", "1.2.3M", "iB", "4 i", True])
def test_what_is_no_size_is_refused(written: str | int) -> None:
    with pytest.raises(RefusedError, match="which is no size"):
        units.parse_size(written)


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (4109, "4.0 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (3 * 1024**5, "3.0 PiB"),
        (5000 * 1024**5, "5000.0 PiB"),
    ],
)
def test_a_size_is_shown_in_one_way(number: int, shown: str) -> None:
    assert units.format_size(number) == shown
    assert abs(units.parse_size(shown) - number) <= max(1, number // 20)


def test_a_time_needs_a_zone_and_is_shown_in_utc() -> None:
    assert units.parse_time("2026-11-21T15:05:00+01:00") == NOW
    assert units.format_time(units.parse_time("2026-11-21T15:05:00+01:00")) == "2026-11-21 14:05:00 UTC"
    for text, meant in (("2026-11-21T15:05:00", "2026-11-21T15:05:00Z"), ("2026-11-21", "2026-11-21T00:00:00Z")):
        with pytest.raises(RefusedError, match="has no time zone") as refused:
            units.parse_time(text)
        assert refused.value.hint == f"add one, such as {meant} for UTC"
        units.parse_time(meant)
    with pytest.raises(RefusedError, match="is not a time in ISO 8601"):
        units.parse_time("yesterday")


@pytest.mark.parametrize(
    ("time", "shown"),
    [
        ("2026-11-21T15:05:00.123456+01:00", "2026-11-21 14:05:00 UTC"),
        (NOW, "2026-11-21 14:05:00 UTC"),
        ("2026-11-21T15:05:00", "2026-11-21T15:05:00"),
        ("forged", "forged"),
        (None, "time not known"),
    ],
)
def test_a_time_of_a_document_is_shown_as_all_are_and_what_is_none_as_it_is(time: object, shown: str) -> None:
    assert units.shown_time(time) == shown


@pytest.mark.parametrize(
    ("passed", "shown"),
    [
        (timedelta(seconds=-5), "in the future"),
        (timedelta(0), "just now"),
        (timedelta(seconds=59), "59 s ago"),
        (timedelta(minutes=119), "119 min ago"),
        (timedelta(hours=3), "3 h ago"),
        (timedelta(days=2), "2 d ago"),
    ],
)
def test_how_long_ago_is_shown_in_the_largest_unit(passed: timedelta, shown: str) -> None:
    assert units.format_ago(NOW - passed, NOW) == shown


#: What only units.py may do: format and parse sizes, durations and times.
OFFENCES = {
    "formats a time": r"%Y-%m-%d %H:%M",
    "formats a size": r'"[KMGT]i?B"|rich\.filesize|\}\s[KMG]i?B\b|\}\skB"|(bytes|size):,\}',
    "formats a duration": r"/ ?(3600|60|86_?400):",
    "parses a duration": r"P\(\?|\[dhms\]|\\d\+\)\s*\(\[smhd",
    "parses a size": r"\[BKMGT\]|\[KMGT\]",
}
#: Modules that mean something else by it, or that cannot import this one.
MEANING_SOMETHING_ELSE = {
    "jobs": "applications that are one file each and run where this package is not",
    "units.py": "the module itself",
    "backup/retention.py": "spans of the calendar, as restic has them: m is a month",
}


def test_nobody_else_formats_or_parses_them() -> None:
    root = Path(units.__file__).parent
    found = []
    for file in sorted(root.rglob("*.py")):
        name = str(file.relative_to(root))
        if name in MEANING_SOMETHING_ELSE or name.partition("/")[0] in MEANING_SOMETHING_ELSE:
            continue
        for number, line in enumerate(file.read_text().splitlines(), 1):
            code = line.partition("#")[0]
            found += [
                f"{name}:{number} {what}: {line.strip()}" for what, how in OFFENCES.items() if re.search(how, code)
            ]
    assert found == []
