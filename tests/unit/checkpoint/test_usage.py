"""Where the bytes are, on real samples: compared with a count of the files themselves."""

from __future__ import annotations

import io
import json
import re
import zipfile

import pytest

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.rocksdb import key_count
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.checkpoint.usage import Spread, directory_usage, partition_usage
from airflow_ckpt_provider.errors import UnreadableLogError
from airflow_ckpt_provider.storage.location import Location
from tests.samples.archives import sample
from tests.support import checkpoints as builders
from tests.support.every_run import each_sample


@each_sample
def test_every_byte_is_counted_once(version: str, kind: str, place: Location):
    files = sample(version, kind).files
    tree = Tree.of(builders.plant(place, files))
    visible = {path: len(data) for path, data in files.items() if not any(p.startswith(".") for p in path.split("/"))}
    usages = directory_usage(tree)
    assert sum(usage.bytes for usage in usages) == sum(visible.values())
    assert sum(usage.files for usage in usages) == len(visible)
    for usage in usages:
        below = {
            p: s for p, s in visible.items() if p.startswith(f"{usage.path}/") or ("/" not in p and usage.path == ".")
        }
        assert (usage.files, usage.bytes) == (len(below), sum(below.values()))
        if usage.path in ("offsets", "commits"):
            batches = sorted(int(p.rpartition("/")[2]) for p in below)
            assert (usage.oldest_batch, usage.newest_batch) == (batches[0], batches[-1])
    state = {p: s for p, s in visible.items() if re.fullmatch(r"state/\d+/\d+/.*", p) and "/_metadata/" not in p}
    assert sum(usage.bytes for usage in partition_usage(tree, None)) == sum(state.values())


def test_keys_are_those_of_the_newest_snapshot(place: Location):
    files = sample("4.0.0", "rocks_changelog_maint").files
    checkpoint = Checkpoint.at(builders.plant(place, files))
    found = checkpoint.inspect().partitions
    assert [(usage.operator, usage.partition, usage.store) for usage in found] == [(0, 0, "default"), (0, 1, "default")]
    # Five keys in all, of which Spark keeps count in its snapshots.
    assert sum(usage.keys or 0 for usage in found) == 5
    for usage in found:
        newest = max(int(m[1]) for p in files if (m := re.fullmatch(rf"state/0/{usage.partition}/(\d+)\.zip", p)))
        assert usage.keys_at_version == newest
        assert usage.needed_bytes <= usage.bytes


def test_keys_of_hdfs_backed_state_are_not_known(place: Location):
    builders.plant(place, sample("4.0.0", "hdfs_agg").files)
    assert {(u.keys, u.keys_at_version) for u in Checkpoint.at(place).inspect().partitions} == {(None, None)}


def test_nothing_more_is_read_than_the_closure_needs(place: Location):
    builders.plant(place, sample("4.0.0", "rocks_agg").files)
    tree = Tree.of(place)
    from airflow_ckpt_provider.checkpoint.closure import resolve_closure

    closure = resolve_closure(tree, 5)
    for path in place.walk():
        place.delete(path)
    assert sum(usage.keys or 0 for usage in partition_usage(tree, closure)) == 5


@pytest.mark.parametrize(("number", "keys"), [(0, 0), (7, 7), (-1, None)])
def test_a_count_of_keys(number: int, keys: int | None):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("metadata", f"v1\n{json.dumps({'sstFiles': [], 'numKeys': number})}")
    assert key_count(out.getvalue(), path="x") == keys


def test_a_damaged_snapshot_names_itself():
    with pytest.raises(UnreadableLogError, match=r"^state/0/0/3\.zip: not a readable RocksDB snapshot"):
        key_count(b"PK", path="state/0/0/3.zip")


def test_a_spread():
    spread = Spread.of({0: 10, 1: 0, 2: 50})
    assert (spread.total, spread.smallest, spread.median, spread.largest, spread.largest_partition) == (
        60,
        0,
        10,
        50,
        2,
    )
    assert spread.skew == 2.5
    assert Spread.of({0: 0, 1: 0}).skew == 1.0
