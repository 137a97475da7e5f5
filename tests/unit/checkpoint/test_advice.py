"""Advice: each kind on a checkpoint that calls for it, with its figures; none on healthy ones."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.checkpoint.advice import advise
from airflow_ckpt_provider.checkpoint.advice_kinds import ADVICE
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.findings import Finding, Severity
from airflow_ckpt_provider.checkpoint.progress import read_progress
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.storage import mounts
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.mounts import file_system_of, is_shared
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.storage.store import StoredFile
from tests.samples.archives import sample
from tests.support import checkpoints as builders
from tests.support.every_run import each_sample
from tests.support.watched_stores import in_memory

MIB = 1024 * 1024


def advised(
    location: Location, change: Callable[[StoredFile], StoredFile] | None = None, **known: Any
) -> dict[str, Finding]:
    """Advice by code, on files that may be made out to be other than they are."""
    tree = Tree.of(location)
    if change:
        files = [change(file) for file in tree.below("")]
        tree = Tree(location)
        tree._index(files)
    found = advise(tree, read_progress(location), **known)
    by_code = {finding.kind.code: finding for finding in found}
    for finding in found:
        assert finding.figures, "an advice without figures"
        assert finding.to_json()["severity"] == Severity.ADVICE.value
    return by_code


def with_sizes(**sizes: int) -> Callable[[StoredFile], StoredFile]:
    """Make out that files whose path matches have another size."""

    def change(file: StoredFile) -> StoredFile:
        for pattern, size in sizes.items():
            if re.fullmatch(pattern, file.path):
                return file._replace(size=size)
        return file

    return change


@each_sample
def test_no_advice_on_a_healthy_sample(version: str, kind: str, place: Location):
    builders.plant(place, sample(version, kind).files)
    assert advised(place, target=f"main.sales.{place.name}", trigger_seconds=3600) == {}


def test_every_kind_has_a_test():
    ours = Path(__file__).read_text()
    assert [kind.code for kind in ADVICE if f'"{kind.code}"' not in ours] == []


# ---- where it lies ----


def test_a_disk_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    builders.plant(open_location(str(tmp_path / "ck")), builders.hdfs_aggregation(2))
    mounted = tmp_path / "mounts"
    mounted.write_text(f"/dev/sda1 / ext4 rw 0 0\nserver:/x {tmp_path}/other nfs4 rw 0 0\n")
    monkeypatch.setattr(mounts, "_MOUNTS", mounted)
    found = advised(open_location(str(tmp_path / "ck")))
    assert found["EPHEMERAL-STORAGE"].figures == {"storage": "local disk", "file_system": "ext4"}
    mounted.write_text(f"/dev/sda1 / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\n")
    assert "EPHEMERAL-STORAGE" not in advised(open_location(str(tmp_path / "ck")))


def test_what_a_mount_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mounted = tmp_path / "mounts"
    mounted.write_text("/dev/sda1 / ext4 rw 0 0\ns3fs /mnt/lake\\040one fuse.s3fs rw 0 0\ngarbage\n")
    monkeypatch.setattr(mounts, "_MOUNTS", mounted)
    assert file_system_of("/mnt/lake one/ck") == "fuse.s3fs"
    assert file_system_of("/mnt/lake") == "ext4"
    monkeypatch.setattr(mounts, "_MOUNTS", tmp_path / "none")
    assert file_system_of("/mnt/lake") is None
    assert [is_shared(kind) for kind in ("fuse.s3fs", "nfs4", "ceph", "ext4", "tmpfs", None)] == [True] * 3 + [
        False
    ] * 3


@pytest.mark.parametrize(
    ("root", "protocol", "ephemeral"),
    [
        ("/checkpoints/orders", "dbfs", True),
        ("/mnt/lake/checkpoints/orders", "dbfs", False),
        ("/Volumes/main/s/v/orders", "dbfs", False),
        ("/dbfs/checkpoints/orders", "file", True),
        ("/dbfs/mnt/lake/orders", "file", False),
        ("/Volumes/main/s/v/orders", "file", False),
        ("lake/checkpoints/orders", "s3", False),
    ],
)
def test_the_root_of_dbfs(root: str, protocol: str, ephemeral: bool, place: Location, monkeypatch: pytest.MonkeyPatch):
    builders.plant(place, builders.hdfs_aggregation(2))
    tree = Tree.of(place)
    progress = read_progress(place)
    monkeypatch.setattr(type(place.store), "protocol", protocol)
    tree.location = Location(place.store, root)
    codes = {finding.kind.code for finding in advise(tree, progress)}
    assert ("EPHEMERAL-STORAGE" in codes) is ephemeral


@pytest.mark.parametrize(
    ("root", "target", "tied"),
    [
        ("lake/checkpoints/orders", "main.sales.orders", True),
        ("lake/checkpoints/sales-orders_v2", "orders", True),
        ("lake/checkpoints/ORDERS", "`main`.`sales`.`orders`", True),
        ("lake/tables/orders/_checkpoints/q1", "memory://lake/tables/orders", True),
        ("lake/checkpoints/q1", "s3://lake/tables/orders.delta", False),
        ("lake/checkpoints/q1", "main.sales.orders", False),
    ],
)
def test_a_path_that_is_tied_to_its_target(root: str, target: str, tied: bool):
    location = Location(in_memory().store, f"/{root}")
    builders.plant(location, builders.hdfs_aggregation(2))
    found = advised(location, target=target)
    assert ("PATH-NOT-TIED" not in found) is tied
    if not tied:
        assert found["PATH-NOT-TIED"].figures == {"target": target, "looked_for": "orders"}


def test_a_checkpoint_inside_another(place: Location):
    builders.plant(place, builders.hdfs_aggregation(2))
    builders.plant(place / "returns/ck", builders.hdfs_aggregation(2))
    assert advised(place)["SHARED-PREFIX"].figures == {"inner": "returns/ck"}
    assert advised(place / "returns/ck")["SHARED-PREFIX"].figures == {"outer": place.uri}


def test_a_file_of_the_same_name_above_is_no_checkpoint(place: Location):
    builders.plant(place, {"metadata": b"of something else", "ck2/x/y": b""})
    builders.plant(place / "ck", builders.hdfs_aggregation(2))
    assert "SHARED-PREFIX" not in advised(place / "ck")


# ---- what does not go away ----


def test_logs_that_are_not_purged(place: Location):
    builders.plant(place, builders.logs(range(320)))
    found = advised(place)["LOGS-NOT-PURGED"]
    assert found.figures == {"batches": 320, "oldest_batch": 0, "newest_batch": 319}
    assert "320 batches, 0 to 319; by default Spark keeps 101" in found.message


def test_state_that_is_not_maintained(place: Location):
    files = builders.hdfs_aggregation(300)
    kept = {
        path: data
        for path, data in files.items()
        if not re.fullmatch(r"(offsets|commits)/([0-9]|[0-9]{2}|[12].{2})", path)
    }
    builders.plant(place, {**kept, "offsets/299": files["offsets/299"]})
    figures = advised(place)["STATE-NOT-MAINTAINED"].figures
    assert (figures["oldest_batch"], figures["oldest_logged"]) == (0, 299)
    # As far back as the logs, and 30 % more as RocksDB leaves it, is as it should be.
    assert "STATE-NOT-MAINTAINED" not in advised(builders.plant(in_memory(), files))


def test_state_that_is_mostly_history(place: Location):
    builders.plant(place, builders.hdfs_aggregation(20, snapshots=(21,)))
    figures = advised(place, with_sizes(**{r"state/.*\.delta": 40 * MIB}))["STATE-HISTORY-LARGE"].figures
    assert figures["bytes"] > 40 * 40 * MIB
    assert figures["needed_bytes"] < 1000


def test_a_log_of_files_that_has_become_large(place: Location):
    builders.plant(place, {**builders.logs(range(12)), "sources/0/9.compact": builders.file_source_log(*range(10))})
    found = advised(place, with_sizes(**{r"sources/0/9\.compact": 70 * MIB}))["SOURCE-LOG-LARGE"]
    assert found.figures == {"bytes": 70 * MIB}
    assert found.path == "sources/0/9.compact"


# ---- state ----


def growing(location: Location, *, keys: dict[int, int], watermarks: tuple[int, int] = (0, 0)) -> Location:
    """A RocksDB aggregation whose snapshots have so many keys, with the watermark of the first and the last batch."""
    files = builders.rocksdb_aggregation(8, zips=tuple(keys))
    for path in files:
        if match := re.fullmatch(r"state/0/\d/(\d+)\.zip", path):
            tables = {
                p.rpartition("/")[2]: len(d)
                for p, d in files.items()
                if p.startswith(path.rpartition("/")[0] + "/SSTs")
            }
            version = int(match[1])
            own = {name: size for name, size in tables.items() if name.startswith(f"{version:06}")}
            files[path] = counted(builders.snapshot_zip(own), keys[version])
    for batch in range(9):
        mark = watermarks[0] if batch < 8 else watermarks[1]
        about = builders.batch_metadata(batch, provider=builders.ROCKSDB, watermark=mark)
        files[f"offsets/{batch}"] = builders.offsets_log(builders.compact({"logOffset": batch}), metadata=about)
        files[f"commits/{batch}"] = builders.commit_log(watermark=mark)
    return builders.plant(location, files)


def counted(archive: bytes, keys: int) -> bytes:
    """A snapshot with another number of keys."""
    import io
    import zipfile

    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            data = old.read(info).replace(b'"numKeys":3', f'"numKeys":{keys}'.encode())
            new.writestr(info, data)
    return out.getvalue()


def test_state_that_grows_without_a_watermark(place: Location):
    found = advised(growing(place, keys={3: 10_000, 9: 60_000}))["STATE-GROWS"]
    # Two partitions, each of them so large.
    assert {k: found.figures[k] for k in ("unit", "before", "after", "from_version", "to_version", "watermark_ms")} == {
        "unit": "keys",
        "before": 20_000,
        "after": 120_000,
        "from_version": 3,
        "to_version": 9,
        "watermark_ms": 0,
    }
    assert "there is no watermark" in found.message


def test_state_that_grows_while_the_watermark_stands(place: Location):
    found = advised(growing(place, keys={3: 10_000, 9: 60_000}, watermarks=(5000, 5000)))["STATE-GROWS"]
    assert found.figures["watermark_ms"] == 5000


@pytest.mark.parametrize(
    ("keys", "watermarks"),
    [
        ({3: 10_000, 9: 60_000}, (5000, 6000)),  # the watermark moves on
        ({3: 100_000, 9: 104_000}, (0, 0)),  # less than a tenth
        ({3: 10, 9: 900}, (0, 0)),  # a small state
        ({3: 60_000, 9: 10_000}, (0, 0)),  # it shrinks
        ({9: 60_000}, (0, 0)),  # one snapshot shows nothing
        ({3: -1, 9: -1}, (0, 0)),  # Spark did not count, and the tables are alike
    ],
)
def test_state_of_which_nothing_is_said(keys: dict[int, int], watermarks: tuple[int, int], place: Location):
    assert "STATE-GROWS" not in advised(growing(place, keys=keys, watermarks=watermarks))


def test_hdfs_backed_state_that_grows_is_seen_by_its_snapshots(place: Location):
    builders.plant(place, builders.hdfs_aggregation(8, snapshots=(3, 9)))
    sizes = with_sizes(**{r"state/0/./3\.snapshot": 10 * MIB, r"state/0/./9\.snapshot": 90 * MIB})
    found = advised(place, sizes)["STATE-GROWS"]
    assert (found.figures["unit"], found.figures["before"], found.figures["after"]) == ("bytes", 20 * MIB, 180 * MIB)


def test_a_heavy_partition(place: Location):
    builders.plant(place, builders.hdfs_aggregation(3, partitions=4, snapshots=(4,)))
    sizes = with_sizes(**{r"state/0/2/4\.snapshot": 100 * MIB, r"state/0/./4\.snapshot": 5 * MIB})
    figures = advised(place, sizes)["PARTITION-IMBALANCE"].figures
    assert (figures["unit"], figures["largest_partition"], figures["largest"], figures["partitions"]) == (
        "bytes",
        2,
        100 * MIB,
        4,
    )
    even = with_sizes(**{r"state/0/./4\.snapshot": 100 * MIB})
    assert "PARTITION-IMBALANCE" not in advised(place, even)


def test_a_heavy_partition_by_its_keys(place: Location):
    files = builders.rocksdb_aggregation(8, partitions=3, zips=(9,))
    path = "state/0/1/9.zip"
    files[path] = counted(files[path], 500_000)
    figures = advised(builders.plant(place, files))["PARTITION-IMBALANCE"].figures
    assert (figures["unit"], figures["largest_partition"], figures["largest"]) == ("keys", 1, 500_000)


def test_hdfs_backed_state_that_calls_for_rocksdb(place: Location):
    builders.plant(place, builders.hdfs_aggregation(3, snapshots=(4,)))
    figures = advised(place, with_sizes(**{r"state/0/./4\.snapshot": 300 * MIB}))["HDFS-STATE-LARGE"].figures
    assert figures == {"bytes": 600 * MIB, "largest_store_bytes": 300 * MIB}
    assert "HDFS-STATE-LARGE" not in advised(place, with_sizes(**{r"state/0/./4\.snapshot": 50 * MIB}))


# ---- speed ----


def took(seconds: float) -> Callable[[StoredFile], StoredFile]:
    """Make out that each batch was committed so long after it was planned."""

    def change(file: StoredFile) -> StoredFile:
        if not file.path.startswith("commits/"):
            return file
        began = builders.BEGAN / 1000 + EVERY * int(file.path.rpartition("/")[2])
        return file._replace(modified=datetime.fromtimestamp(began + seconds, UTC))

    return change


#: Seconds between the beginnings of two batches.
EVERY = 12


@pytest.fixture
def timed(place: Location) -> Location:
    """A query that starts a batch every so many seconds."""
    files = builders.logs(range(10))
    for batch in range(10):
        about = builders.batch_metadata(batch) | {"batchTimestampMs": builders.BEGAN + 1000 * EVERY * batch}
        files[f"offsets/{batch}"] = builders.offsets_log(json.dumps({"logOffset": batch}), metadata=about)
    return builders.plant(place, files)


def test_batches_that_are_slower_than_the_trigger(timed: Location):
    found = advised(timed, took(11.5), trigger_seconds=10)["SLOWER-THAN-TRIGGER"]
    assert found.figures == {"trigger_seconds": 10, "median_seconds": 11.5, "batches": 9, "slower": 9}


@pytest.mark.parametrize(
    ("seconds", "trigger"),
    [
        (11.5, None),  # the trigger is not known
        (11.5, 60),  # it is longer
        (2.0, 10),  # quick batches, with pauses between them
        (30.0, 10),  # ended after the next one began: the files' times are those of a copy
        (-20.0, 10),  # clocks that do not fit each other
    ],
)
def test_batches_of_which_nothing_is_said(seconds: float, trigger: float | None, timed: Location):
    assert "SLOWER-THAN-TRIGGER" not in advised(timed, took(seconds), trigger_seconds=trigger)


def test_a_checkpoint_that_cannot_be_resolved_gets_the_advice_that_needs_no_state(place: Location):
    files = builders.hdfs_aggregation(3)
    del files["state/0/0/2.delta"]
    builders.plant(place, files)
    assert advised(place, target="elsewhere").keys() == {"PATH-NOT-TIED"}


def test_a_checkpoint_answers_for_itself(place: Location):
    builders.plant(place, builders.hdfs_aggregation(3))
    assert [f.kind.code for f in Checkpoint.at(place).advise(target="elsewhere")] == ["PATH-NOT-TIED"]
