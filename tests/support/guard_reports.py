"""Reports of source guards, as another task hands them over."""

from __future__ import annotations

from typing import Any

from airflow_ckpt_provider.guards.report import GuardReport, PartReport, SourceReport
from airflow_ckpt_provider.verdict import Verdict


def kafka_report(topic: str, *, partitions: int = 1, earliest: int = 0, latest: int = 1_000_000) -> dict[str, Any]:
    """What a guard says that has asked the brokers for a topic, all of whose partitions have these offsets."""
    parts = (
        PartReport(
            f"{topic}-{number}",
            Verdict.SAFE,
            {"topic": topic, "partition": number, "earliest": earliest, "latest": latest},
        )
        for number in range(partitions)
    )
    return GuardReport(f"a checkpoint of {topic}", (SourceReport("0", "kafka", parts=tuple(parts)),)).to_json()


def delta_report(table: str, *, start_version: int = 0, latest_version: int = 1000) -> dict[str, Any]:
    """What a guard says that has read a Delta table, from the version on that a checkpoint has read up to."""
    facts = {"table": table, "start_version": start_version, "latest_version": latest_version}
    return GuardReport(f"a checkpoint of {table}", (SourceReport("0", "delta", facts=facts),)).to_json()
