"""A report as CSV, Markdown, OpenMetrics and gauges of Airflow."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace

import pytest

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.fleet.fleet import Fleet
from airflow_ckpt_provider.fleet.metrics import gauges, to_openmetrics
from airflow_ckpt_provider.fleet.stream import Limits
from airflow_ckpt_provider.fleet.tables import to_csv, to_markdown
from airflow_ckpt_provider.storage.location import Location
from tests.support.checkpoints import logs, plant
from tests.support.two_streams import back_up, look, row, telling
from tests.support.two_streams import repository as repository
from tests.support.two_streams import streams as streams

_SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)')


_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\\n]|\\.)*)"')


def parsed(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Read the text format as its specification has it: every line is a comment or a sample."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    unescape = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
    for line in text.splitlines():
        if line.startswith("# "):
            continue
        match = _SAMPLE.fullmatch(line)
        assert match, line
        labels = tuple((k, re.sub(r"\\.", lambda m: unescape[m[0]], v)) for k, v in _LABEL.findall(match[2] or ""))
        assert labels not in found.setdefault(match[1], {}), "the same sample twice"
        found[match[1]][labels] = float(match[3])
    return found


class TestShown:
    @pytest.fixture
    def fleet(self, streams: Location, repository: Repository) -> Fleet:
        back_up(repository, streams / "orders")
        plant(streams / 'we"ird\\, |x', logs(range(1)))
        return look(streams, repository, Limits(max_age=3600, min_time_to_loss=1), guards=telling(None), sizes=True)

    def test_csv(self, fleet: Fleet, streams: Location) -> None:
        rows = {r["checkpoint"]: r for r in csv.DictReader(io.StringIO(to_csv(fleet)))}
        assert len(rows) == 3
        orders = rows[(streams / "orders").uri]
        size = sum(f.size for f in (streams / "orders").walk().values())
        assert (orders["stream"], orders["latest_committed"], orders["size"]) == ("orders", "4", str(size))
        assert (orders["time_to_loss_known"], orders["time_to_loss_seconds"]) == ("false", "")
        assert rows[(streams / "payments").uri]["problems"].startswith("no backup; time to loss UNKNOWN")

    @pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r", "\n", "\uff1d"])
    def test_no_cell_of_csv_is_a_formula(self, begin: str, fleet: Fleet) -> None:
        said = f"{begin}cmd|'/c calc'!A1\r=1+1"
        of = row(fleet)
        found = replace(of.found, name=said, progress=replace(of.found.progress, query_id=said))
        text = to_csv(replace(fleet, streams=(replace(of, found=found, backup=None, unknown={said: ""}),)))
        (cells,) = csv.DictReader(io.StringIO(text, newline=""))
        shown = "'" + said.replace("\r", "\n")
        assert (cells["stream"], cells["query_id"], cells["problems"][:2]) == (shown, shown, shown[:2])
        assert (cells["latest_committed"], cells["state"]) == ("4", "whole")

    def test_markdown_has_a_cell_for_each_column(self, fleet: Fleet) -> None:
        rows = [line for line in to_markdown(fleet).splitlines() if line.startswith("|")]
        assert len({len(re.split(r"(?<!\\)\|", line)) for line in rows}) == 1
        assert len(rows) == 2 + 3

    def test_openmetrics(self, fleet: Fleet, streams: Location) -> None:
        text = to_openmetrics(fleet)
        found = parsed(text)
        of = {"stream": "orders", "checkpoint": (streams / "orders").uri}
        backup = row(fleet).backup
        assert backup is not None
        at = found["ckpt_stream_last_good_backup_timestamp_seconds"]
        assert at == {tuple(of.items()): pytest.approx(backup.as_of.timestamp(), abs=0.001)}
        assert "ckpt_stream_backup_age_seconds" not in found, "a file can be old"
        has_one = {dict(key)["stream"]: value for key, value in found["ckpt_stream_has_good_backup"].items()}
        assert has_one == {"orders": 1, "payments": 0, "we_ird____x": 0}, "no backup is not the same as not known"
        assert found["ckpt_stream_unknown"][(*of.items(), ("part", "time_to_loss"))] == 1
        assert "ckpt_stream_time_to_loss_seconds" not in found
        assert found["ckpt_fleet_streams"] == {(): 3}
        labels = {dict(key)["checkpoint"] for key in found["ckpt_stream_problems"]}
        assert labels == {s.found.place.uri for s in fleet.streams}, "quotes and backslashes come through"
        names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
        assert len(names) == len(set(names))
        assert text.endswith("\n# EOF\n")

    def test_openmetrics_of_a_name_that_is_no_utf8(self, repository: Repository, place: Location) -> None:
        plant(place / "odd" / "or\udcffders", logs(range(1)))
        text = to_openmetrics(look(place / "odd", repository))
        assert "or\\\\udcffders" in text.encode().decode()

    def test_gauges_of_airflow_have_ages(self, fleet: Fleet) -> None:
        (age,) = (g.value for g in gauges(fleet) if g.name == "backup_age_seconds")
        assert 0 <= age < 60
