"""The numbers of FleetReportOperator reach a StatsD server as Airflow's task runner sets up its client."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.configuration import conf
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics import stats_utils

from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.operators.fleet import FleetReportOperator
from airflow_ckpt_provider.streams.stream import Objectives, Stream

Run = Callable[..., dict[str, Any]]
_END = b"all of them"


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A StatsD server's socket."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.settimeout(60)
        yield listening


def received(server: socket.socket) -> dict[str, float]:
    """All gauges that have arrived: datagrams of one machine arrive in order."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(_END, server.getsockname())
    found = {}
    while (datagram := server.recv(65_536)) != _END:
        name, value = re.fullmatch(r"(\S+):(-?[\d.]+)\|g", datagram.decode()).groups()  # type: ignore[union-attr]
        found[name] = float(value)
    return found


@pytest.fixture(params=[False, True], ids=["names", "tags"])
def with_tags(request: pytest.FixtureRequest, server: socket.socket, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Airflow's metrics go to the server, with tags in InfluxDB's way or without; as the task runner sets them up."""
    host, port = server.getsockname()
    for name, value in {"ON": True, "HOST": host, "PORT": port, "INFLUXDB_ENABLED": request.param}.items():
        monkeypatch.setenv(f"AIRFLOW__METRICS__STATSD_{name}", str(value))
    legacy = conf.getboolean("metrics", "legacy_names_on", fallback=True)
    stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=legacy)
    yield request.param
    monkeypatch.undo()
    stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=legacy)


def test_the_numbers_arrive(
    checkpoint: Path, repository: Path, run: Run, server: socket.socket, with_tags: bool
) -> None:
    declared = Stream(
        "orders",
        checkpoint=str(checkpoint),
        repository=str(repository),
        objectives=Objectives(rpo=timedelta(hours=1), rto=timedelta(minutes=15)),
    )
    CheckpointBackupOperator(task_id="b", checkpoint=str(checkpoint), repository=str(repository)).execute(run())
    received(server)
    FleetReportOperator(task_id="r", streams=[declared]).execute(run())
    found = received(server)

    def number(name: str) -> float | None:
        by_tag = f"airflow.ckpt.stream.{name}" + (",stream=orders" if with_tags else "")
        assert found.get(by_tag) == found.get(f"airflow.ckpt.stream.orders.{name}")
        return found.get(by_tag)

    assert number("has_good_backup") == 1
    assert 0 <= (number("backup_age_seconds") or 0) < 600
    assert [number(f"rpo_{each}") for each in ("met", "seconds", "objective_seconds")] == [1, 0, 3600]
    assert [number(f"rto_{each}") for each in ("met", "seconds", "objective_seconds")] == [None, None, 900]
    assert not [name for name in found if "unknown" in name], "it is of no use without its label"
