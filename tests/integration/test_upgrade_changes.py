"""The table of changes on real Spark: each is described, compared and rehearsed, and what comes of it is what the table says."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.upgrade.compatibility.compatibility import compare
from airflow_ckpt_provider.upgrade.compatibility.description import QueryDescription, parse_description
from airflow_ckpt_provider.verdict import Verdict
from tests.support.streams.data import put_files
from tests.support.upgrades.changes import CHANGES, Written
from tests.support.upgrades.spark_worker import HDFS, QUERIES, ROCKSDB, SparkWorker

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

#: Of the changes in settings, none that is ignored is counted where something else was changed.
_QUIET = {"allowed", "ignored"}


@dataclass(frozen=True)
class Production:
    """A query in production: its checkpoint, backed up, with input that is not read yet; and its description."""

    place: Path
    checkpoint: Path
    conf: dict[str, str]
    described: QueryDescription


@pytest.fixture(scope="module")
def production(spark_worker: SparkWorker, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Written], Production]:
    """Each old query once."""
    made: dict[tuple[str, bool], Production] = {}

    def make(change: Written) -> Production:
        key = (change.old, change.rocksdb)
        if key not in made:
            place = tmp_path_factory.mktemp(change.old)
            conf = {"tests.input": str(place / "in"), **(ROCKSDB if change.rocksdb else HDFS)}
            put_files(place / "in", 3)
            checkpoint = place / "ck"
            spark_worker.run(change.old, checkpoint=checkpoint, conf=conf, mode=change.mode)
            repository = Repository.open_or_create(open_location(str(place / "backups")))
            create_backup(Checkpoint.at(open_location(str(checkpoint))), repository, name="orders")
            told = spark_worker.describe(change.old, scratch=place / "old", conf=conf, mode=change.mode)
            put_files(place / "in", 3, start=3)
            made[key] = Production(place, checkpoint, conf, parse_description(json.dumps(told), path="old"))
        return made[key]

    return make


@pytest.mark.parametrize(
    "change", [pytest.param(c, id=c.words.replace(" ", "_")) for part in CHANGES.values() for c in part]
)
def test_change(
    change: Written, production: Callable[[Written], Production], spark_worker: SparkWorker, tmp_path: Path
):
    old = production(change)
    mode, conf = change.new_mode or change.mode, {**old.conf, **change.conf}
    told = spark_worker.describe(change.new, scratch=tmp_path / "new", conf=conf, mode=mode)
    new = parse_description(json.dumps(told), path="new")
    checkpoint = Checkpoint.at(open_location(str(old.checkpoint)))
    alone, with_old = compare(checkpoint, new), compare(checkpoint, new, before=old.described)
    found = {c.kind.code for c in alone.changes} - {"PLAN-UNKNOWN"}
    by_plan = {c.kind.code for c in with_old.changes} - found
    assert "PLAN-UNKNOWN" not in by_plan
    # Old state may be used by new rules, which a checkpoint alone does not show: never SAFE.
    with_state = old.described.shape.operators and new.shape.operators
    assert alone.verdict is not Verdict.SAFE or not with_state, change.words
    report = spark_worker.ask(
        do="rehearse",
        repository=str(old.place / "backups"),
        scratch=str(tmp_path / "scratch"),
        build=QUERIES + change.new,
        old_build=QUERIES + change.old if change.differs is not None and not change.new_mode else "",
        conf=conf,
        output_mode=mode,
        checkpoint=str(old.checkpoint),
        batches=change.batches,
        timeout=120,
    )
    failure = report["failure"]
    seen = {
        "static": sorted(found),
        "fails": failure["code"] if failure else "",
        "differs": None if report["difference"] is None else not report["difference"]["equal"],
        "by_plan": bool(by_plan & {"PLAN-CHANGED", "OUTPUT-MODE"}),
    }
    wanted = {
        "static": sorted(change.static),
        "fails": change.fails,
        "differs": None if change.new_mode or change.fails else change.differs,
        "by_plan": change.by_plan or seen["by_plan"],
    }
    assert seen == wanted, (failure or {}).get("message", "")[:1500]
    # What Spark refuses was known before: a comparison that calls it safe would be worse than none.
    if change.fails:
        assert {c.effect.value for c in alone.changes} - _QUIET, change.words
    assert all(place["unchanged"] for place in report["production"])
