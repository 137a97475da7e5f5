"""What of a declaration is not as the world is: its sources, its applications, and how long its rules keep backups."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import yaml

from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.fleet import declared_sources
from airflow_ckpt_provider.fleet.declared import check_application, check_declared, kept_for
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.streams.loading import parse_streams
from airflow_ckpt_provider.streams.stream import Stream
from tests.support.checkpoints import batch_metadata, commit_log, file_source_log, metadata, offsets_log, plant

DAY = timedelta(days=1)
FILE, KAFKA, OTHER = '{"logOffset":0}', '{"orders":{"0":23}}', '{"shard":"0001"}'
DELTA = '{"sourceVersion":1,"reservoirId":"1f0c","reservoirVersion":4,"index":-1,"isStartingVersion":false}'
ICEBERG = '{"version":1,"snapshot_id":7,"position":0,"scan_all_files":false}'
Said = Callable[..., list[str]]


@pytest.fixture
def said(tmp_path: Path) -> Said:
    """What the check says of a stream whose query has these sources."""

    def check(*offsets: str, **fields: object) -> list[str]:
        checkpoint = open_location(str(tmp_path / "checkpoint"))
        log = offsets_log(*offsets, metadata=batch_metadata(0))
        files = {"metadata": metadata(), "offsets/0": log, "commits/0": commit_log(), "sources/0/0": file_source_log(0)}
        plant(checkpoint, files)
        backups = {"repository": f"{tmp_path}/backups", "backup": {"create": True}}
        declared = {"checkpoint": checkpoint.uri, **backups, **fields}
        return [str(each) for each in check_declared(_stream(declared), _open)]

    return check


def _stream(fields: dict[str, object]) -> Stream:
    return parse_streams(yaml.safe_dump({"streams": {"orders": fields}}))["orders"]


def _open(uri: str, *, conn_id: str | None, role: str) -> Location:
    return open_location(uri)


def test_a_kind_of_source_that_the_query_does_not_read_is_found(said: Said) -> None:
    assert said(FILE, sources={"kafka": {"conn_id": "k"}, "file": {}}) == [
        "orders.sources.kafka: the query reads no kafka, but 0 (file) (declare what it reads)"
    ]


def test_a_kind_of_source_without_a_guard_is_found_with_the_nearest(said: Said) -> None:
    assert said(FILE, sources={"kafak": {"conn_id": "k"}, "file": {}}) == [
        "orders.sources.kafak: no guard for sources of this kind is installed (did you mean 'kafka'?)"
    ]


@pytest.mark.parametrize(
    ("fields", "reads", "kind"),
    [
        ({"sources": {"file": {}}}, KAFKA, "kafka"),
        ({"sources": {"file": {}}, "watch": {"min_time_to_loss": "1h"}}, DELTA, "delta"),
        ({"max_downtime": "1h"}, ICEBERG, "iceberg"),
        ({"watch": {"min_time_to_loss": "1h"}}, KAFKA, "kafka"),
    ],
)
def test_a_source_that_is_not_declared_is_found(said: Said, fields: dict[str, object], reads: str, kind: str) -> None:
    assert said(FILE, reads, **fields) == [
        f"orders.sources: the query reads {kind}, which is not declared: its guard can only say UNKNOWN "
        f"(declare sources.{kind})"
    ]


@pytest.mark.parametrize(
    ("offsets", "fields"),
    [
        ((FILE, KAFKA), {"sources": {"file": {}, "kafka": {"conn_id": "k"}}}),
        ((KAFKA,), {"max_downtime": "1h", "kafka_conn_id": "k"}),
        ((FILE, "7"), {"sources": {"file": {}, "rate": {}}}),
        ((FILE,), {"max_downtime": "1h"}),
        # Whoever declares nothing of the sources wants no guard.
        ((KAFKA, DELTA), {}),
        # The source that is not known may be the one.
        ((FILE, OTHER), {"sources": {"file": {}, "kafka": {"conn_id": "k"}}}),
        ((FILE, "-"), {"sources": {"file": {}, "kafka": {"conn_id": "k"}}}),
    ],
)
def test_sources_as_declared_are_no_finding(said: Said, offsets: tuple[str, ...], fields: dict[str, object]) -> None:
    assert said(*offsets, **fields) == []


def test_a_guard_of_another_package_has_a_kind(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("kinesis", "my_package.kinesis_guard:KinesisGuard", "airflow_ckpt_provider.guards")
    monkeypatch.setattr(declared_sources, "entry_points_of", lambda group: (entry,) if group == entry.group else ())
    assert said(OTHER, sources={"kinesis": {}}) == []
    assert said(OTHER, sources={"kinesi": {}}) == [
        "orders.sources.kinesi: no guard for sources of this kind is installed (did you mean 'kinesis'?)"
    ]


@pytest.mark.parametrize(
    ("schedule", "rules", "kept"),
    [
        (timedelta(hours=6), {"last": 8}, 2 * DAY),
        ("@weekly", {"last": 4}, 28 * DAY),
        ("0 * * * *", {"last": 24}, DAY),
        ("*/15 8-19 * * *", {"last": 48}, DAY),
        ("30 2 * * *", {"last": 7}, 7 * DAY),
        ("30 2 * * MON", {"last": 4}, 28 * DAY),
        ("30 2 * * 1-5", {"last": 5}, 7 * DAY),
        ("30 2 * * SUN,0,7", {"last": 2}, 14 * DAY),
        ("30 2 1 * *", {"last": 3}, 90 * DAY),
        ("30 2 1,15 * *", {"last": 2}, 30 * DAY),
        ("30 2 * * MON#2", {"last": 2}, 60 * DAY),
        ("0 0 1 1 *", {"last": 1}, 360 * DAY),
        ("0 * * * *", {"daily": 7}, 7 * DAY),
        ("0 * * * *", {"hourly": "unlimited"}, None),
    ],
)
def test_kept_for(schedule: str | timedelta, rules: dict[str, int | str], kept: timedelta | None) -> None:
    assert kept_for(Policy.parse(rules), schedule) == kept


SAME = "stop: ./stop.sh, start: ./start.sh, deploy: ./deploy.sh, roll_back: ./back.sh"


@pytest.mark.parametrize(
    ("shared", "of_b", "found"),
    [
        (SAME, "", []),
        (SAME, ", repository: /other", []),
        # Nobody wants an upgrade.
        ("stop: './stop.sh {stream}', start: ./start.sh", "", []),
        ("stop: './stop.sh {stream}', start: ./start.sh, deploy: ./deploy.sh", "", []),
        (
            SAME.replace("./stop.sh", "'./stop.sh {stream}'"),
            "",
            [
                "a.stop: 'b' declares another one: no DAG upgrades the application 'sales' "
                "(give all its streams the same stop, which is run once for all of them)"
            ],
        ),
        (
            SAME,
            ", repository: , deploy: ./other.sh, start: ",
            [
                "a.repository: 'b' declares none: no DAG upgrades the application 'sales' "
                "(declare repository for all its streams)",
                "a.start: 'b' declares none: no DAG upgrades the application 'sales' "
                "(give all its streams the same start, which is run once for all of them)",
                "a.deploy: 'b' declares another one: no DAG upgrades the application 'sales' "
                "(give all its streams the same deploy, which is run once for all of them)",
            ],
        ),
    ],
)
def test_what_keeps_an_application_from_being_upgraded_is_found(shared: str, of_b: str, found: list[str]) -> None:
    streams = parse_streams(
        f"defaults: {{repository: /r, application: sales, {shared}}}\n"
        f"streams:\n  a: {{checkpoint: /a}}\n  b: {{checkpoint: /b{of_b}}}\n  c: {{checkpoint: /c}}"
    )
    application = streams.of_application("sales")
    assert [str(each) for each in check_application(streams["a"], application)] == found
    # Asked about the other one, the same fields.
    fields = [each.field for each in check_application(streams["b"], application)]
    assert fields == [each.partition(":")[0].removeprefix("a.") for each in found]
