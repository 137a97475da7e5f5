"""Time to loss of many streams at once, by one configuration and a real broker."""

from __future__ import annotations

import json
import time

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.fleet.discovery import discover
from airflow_ckpt_provider.fleet.fleet import inspect_fleet
from airflow_ckpt_provider.fleet.stream import Limits
from airflow_ckpt_provider.fleet.tables import time_left
from airflow_ckpt_provider.guards.registry import GuardSettings, installed_guards
from tests.support.checkpoints import batch_metadata, commit_log, metadata, offsets_log, plant
from tests.support.kafka_broker import KafkaBroker
from tests.support.watched_stores import in_memory


def test_each_by_its_topic(kafka_broker: KafkaBroker) -> None:
    place = in_memory("lake")
    topics = {
        "long": kafka_broker.create(retention_ms=7 * 86_400_000),
        "short": kafka_broker.create(retention_ms=3_600_000),
        "by_size": kafka_broker.create(retention_ms=-1, retention_bytes=1 << 30),
        "forever": kafka_broker.create(retention_ms=-1),
        "deleted": "a-topic-that-is-gone",
    }
    for kind, topic in topics.items():
        if kind != "deleted":
            kafka_broker.put(topic, [20], start_ms=int(time.time() * 1000))
        for n in range(4):
            offset = offsets_log(json.dumps({topic: {"0": 5 + n}}), metadata=batch_metadata())
            plant(place / f"ck/{kind}{n}", {"metadata": metadata(), "offsets/0": offset, "commits/0": commit_log()})
    settings = GuardSettings(options={"kafka": {"config": kafka_broker.config}})
    fleet = inspect_fleet(
        discover([place / "ck"]),
        Repository.open_or_create(place / "backups"),
        limits=Limits(min_time_to_loss=86_400),
        guards=installed_guards,
        settings=settings,
    )
    shown = {s.name: time_left(s) for s in fleet.streams}
    wrong = {s.name: s.problems(fleet.limits) for s in fleet.streams}
    for n in range(4):
        assert shown[f"long{n}"].startswith("6 d 23 h")
        assert shown[f"short{n}"].startswith("59 min")
        assert (shown[f"by_size{n}"], shown[f"forever{n}"]) == ("UNKNOWN", "no limit")
        assert (wrong[f"long{n}"], wrong[f"forever{n}"]) == ((), ())
        assert wrong[f"short{n}"][0].endswith("less than 1 d")
        assert wrong[f"by_size{n}"] == (
            "time to loss UNKNOWN: source 0 (kafka): how long it will be there is not known",
        )
        assert wrong[f"deleted{n}"][0].startswith("next start WILL_FAIL: ")
        assert shown[f"deleted{n}"] == "0.0 s"
