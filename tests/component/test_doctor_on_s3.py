"""Diagnosis and repair of a checkpoint on S3: few requests, a seal that is exclusive, copies made by the store."""

from __future__ import annotations

from airflow_ckpt_provider.backup.beside import repair_place
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.recovery.repair.apply import apply_repair
from airflow_ckpt_provider.recovery.repair.planning import plan_repair
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.samples.archives import sample
from tests.support.damaged_samples import Files, delta_missing, source_log_short
from tests.support.s3_server import S3Server
from tests.support.stopped import ACCEPTED, STOPPED
from tests.support.watched_stores import watched


def uploaded(server: S3Server, name: str, files: Files) -> Location:
    place = open_location(f"s3://{server.make_bucket()}/{name}", storage_options=server.options())
    for path, content in files.items():
        if "/." not in path:
            place.create(path, content)
    return place


def test_one_listing_and_each_file_once(s3_server: S3Server) -> None:
    files = sample("4.0.0", "hdfs_agg").files
    here, store = watched(uploaded(s3_server, "whole", files))
    assert Checkpoint.at(here).diagnose() == ()
    assert store.count("walk", "list") == 1
    reads = store.paths("read")
    assert len(reads) == len(set(reads))


def test_found_and_repaired(s3_server: S3Server) -> None:
    files = dict(sample("4.0.0", "hdfs_agg").files)
    delta_missing(files)
    source_log_short(files)
    place = uploaded(s3_server, "damaged", files)
    checkpoint = Checkpoint.at(place)
    assert {f.kind.code for f in checkpoint.diagnose()} == {"STATE-INCOMPLETE", "SOURCE-LOG-INCOMPLETE"}
    before = {path: place.read(path) for path in place.walk()}
    plan = plan_repair(checkpoint)
    assert (plan.batch_id, plan.replayed) == (3, 2)
    apply_repair(plan, checkpoint, rest=STOPPED, accept=ACCEPTED)
    assert checkpoint.diagnose() == ()
    kept = repair_place(place) / f"set-aside/{place.name}/{plan.plan_id}/checkpoint/files"
    assert {path: kept.read(path) for path in kept.walk()} == {path: before[path] for path in plan.deletes}
