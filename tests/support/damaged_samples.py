"""Sample checkpoints at a place of their own, where they were never made, whole and then damaged in every way the doctor knows.

Used by the unit tests (is the damage found?), and by the tests against real Spark (what does Spark do about it, and
does it continue row-exact after the repair?): one table, so that no pattern is found that Spark was not shown.
"""

from __future__ import annotations

import io
import json
import os
import re
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from airflow_ckpt_provider.recovery.restore.relocate import holds_absolute_paths, relocated
from tests.samples.archives import HOME, Sample, offset_lines, sample, write_files
from tests.samples.kinds import KINDS, batches, write_input

Files = dict[str, bytes]


@dataclass(frozen=True)
class Damage:
    """One way for a checkpoint to be broken.

    :param pattern: number of the pattern in the list of the doctor's.
    :param code: code of the finding that it must give.
    :param kind: kind of the sample.
    :param inflict: does it, to the files of the sample.
    :param error: what Spark says at its start, as a regular expression; ``None``: it starts.
    :param repaired_to: the batch after which Spark continues when it is repaired; ``None``: it cannot be repaired by a cut.
    :param replays: how many batches are run again after the repair that Spark had committed or begun.
    :param first: the first batch that Spark runs where it starts all the same; by default the one after the newest commit.
    :param version: Spark version of the sample.
    :param query_id: give the repair the query id.
    :param quick: among those that Spark is shown in every test run.
    """

    pattern: int
    code: str
    kind: str
    inflict: Callable[[Files], None]
    error: str | None = None
    repaired_to: int | None = None
    replays: int = 0
    first: int | None = None
    version: str = "4.0.0"
    query_id: bool = False
    quick: bool = False

    @property
    def name(self) -> str:
        return (
            f"{self.pattern:02d}-{self.code}-{self.kind}-{getattr(self.inflict, '__name__', 'damage')}-{self.version}"
        )


class Placed:
    """A sample written to a place, its absolute paths rewritten as a restore does.

    :param place: a directory; ``ck`` in it is the checkpoint, ``input`` the query's input.
    """

    def __init__(self, of: Sample, place: Path, *, damage: Callable[[Files], None] | None = None) -> None:
        self.sample = of
        self.checkpoint = place / "ck"
        self.input = place / "input"
        files = self.files()
        if damage:
            damage(files)
        write_files(self.checkpoint, files)
        for file in self.checkpoint.rglob(".*.tmp"):
            os.utime(file, (1_700_000_000, 1_700_000_000))  # as old as what a writer left that is gone

    def files(self) -> Files:
        """The files of the whole checkpoint, here."""
        files = {}
        for path, content in self.sample.files.items():
            if holds_absolute_paths(path):
                content = relocated(content, path=path, target=f"file:{self.checkpoint}")
            elif path.startswith("sources/"):
                # Spark insists that the newest files lie where it reads ("Wrong basePath").
                content = content.replace(f"{HOME}/{self.sample.kind}".encode(), str(self.input).encode())
            if not path.rpartition("/")[2].startswith("."):
                files[path] = content
        return _as_if_made_now(files) if KINDS[self.sample.kind].on_the_clock else files

    def add_input(self) -> None:
        """Put all input in place: what the query has read, and more."""
        kind = KINDS[self.sample.kind]
        first, second = (of + further for of, further in zip(kind.files, kind.further_files, strict=True))
        write_input(self.input, self.sample.kind, first=(0, 0), count=(first, second))

    def newest(self, log: str) -> int:
        """Newest batch in ``offsets`` or ``commits``."""
        return max(batches(self.checkpoint, log))


def _as_if_made_now(files: Files) -> Files:
    """Set the start of a rate source so that it has not to catch up with the time since the sample was made."""
    now = int(time.time() * 1000)
    moved = {p: re.sub(rb'"runTimeMs":\d+', b'"runTimeMs":%d' % now, c) for p, c in files.items()}
    newest = max(int(p.partition("/")[2]) for p in files if p.startswith("offsets/"))
    if "sources/0/0" in moved:
        end = offset_lines(files, newest)[0]
        moved["sources/0/0"] = b"v1\n%d" % (now - (end * 1000 if isinstance(end, int) else 0))
    return moved


def placed(version: str, kind: str, place: Path, *, damage: Callable[[Files], None] | None = None) -> Placed:
    """Write a sample to a place."""
    return Placed(sample(version, kind), place, damage=damage)


# ---- ways to break it ------------------------------------------------------------------------------


def _remove(files: Files, pattern: str) -> list[str]:
    found = [path for path in files if re.fullmatch(pattern, path)]
    assert found, f"nothing matches {pattern}"
    for path in found:
        del files[path]
    return found


def empty_newest_offsets(files: Files) -> None:
    del files["commits/5"]
    files["offsets/5"] = b""


def cut_off_newest_offsets(files: Files) -> None:
    del files["commits/5"]
    files["offsets/5"] = files["offsets/5"][:100]


def empty_newest_commit(files: Files) -> None:
    files["commits/5"] = b""


def cut_off_newest_commit(files: Files) -> None:
    files["commits/5"] = files["commits/5"][:20]


def cut_off_committed_offsets(files: Files) -> None:
    files["offsets/5"] = files["offsets/5"][:200]


def hole(files: Files) -> None:
    del files["offsets/2"]


def no_previous(files: Files) -> None:
    del files["offsets/4"]


def newest_offsets_deleted(files: Files) -> None:
    _remove(files, r"offsets/[45]")


def newest_commits_deleted(files: Files) -> None:
    _remove(files, r"commits/[345]")


def no_metadata(files: Files) -> None:
    del files["metadata"]


def empty_metadata(files: Files) -> None:
    files["metadata"] = b""


def temporary_files(files: Files) -> None:
    files["offsets/.6.0b4f6d6f-5a0e-4a51-93f4-0b6b8a3f0f0e.tmp"] = b"v1\n{"
    if any(path.startswith("state/") for path in files):
        files["state/0/0/.7.delta.5b4f6d6f-5a0e-4a51-93f4-0b6b8a3f0f0e.TID812.tmp"] = b"LZ4Blo"


def delta_missing(files: Files) -> None:
    del files["state/0/0/5.delta"]


def oldest_delta_missing(files: Files) -> None:
    del files["state/0/1/1.delta"]


def join_delta_missing(files: Files) -> None:
    del files["state/0/1/right-keyToNumValues/5.delta"]


def delta_cut_off(files: Files) -> None:
    files["state/0/0/6.delta"] = files["state/0/0/6.delta"][:-30]


def schema_cut_off(files: Files) -> None:
    files["state/0/0/_metadata/schema"] = files["state/0/0/_metadata/schema"][:40]


def operator_metadata_empty(files: Files) -> None:
    files["state/0/_metadata/metadata"] = b""


def changelog_missing(files: Files) -> None:
    _remove(files, r"state/0/0/5(_[^.]*)?\.changelog(\.crc)?")


def changelog_byte_changed(files: Files) -> None:
    (path,) = (p for p in files if re.fullmatch(r"state/0/0/6(_[^.]*)?\.changelog", p))
    content = bytearray(files[path])
    content[60] ^= 0x10
    files[path] = bytes(content)


def zip_missing(files: Files) -> None:
    del files["state/0/0/6.zip"]


def table_file_missing(files: Files) -> None:
    _remove_table_file(files, "state/0/0/6.zip")


def _remove_table_file(files: Files, snapshot: str) -> None:
    """Remove a table file that this snapshot alone needs."""
    directory = snapshot.rpartition("/")[0]
    shared = {
        t
        for p in files
        if p.startswith(f"{directory}/") and p.endswith(".zip") and p != snapshot
        for t in _tables(files[p])
    }
    del files[f"{directory}/SSTs/{next(table for table in _tables(files[snapshot]) if table not in shared)}"]


def _tables(snapshot: bytes) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(snapshot)) as archive:
        return [table["dfsSstFileName"] for table in json.loads(archive.read("metadata").split(b"\n")[1])["sstFiles"]]


def snapshot_without_table_file(files: Files) -> None:
    for path in _newest_snapshots(files):
        _remove_table_file(files, path)


def snapshot_missing(files: Files) -> None:
    for path in _newest_snapshots(files):
        del files[path]


def snapshot_cut_off(files: Files) -> None:
    for path in _newest_snapshots(files):
        files[path] = files[path][: len(files[path]) // 2]


def snapshot_byte_changed(files: Files) -> None:
    for path in _newest_snapshots(files):
        content = bytearray(files[path])
        content[len(content) // 2] ^= 0x04
        files[path] = bytes(content)


def _newest_snapshots(files: Files) -> list[str]:
    """The newest snapshot of each partition."""
    newest: dict[str, tuple[int, str]] = {}
    for path in files:
        if match := re.fullmatch(r"(state/\d+/\d+)/(\d+)(_[^.]*)?\.(snapshot|zip)", path):
            newest[match[1]] = max(newest.get(match[1], (0, "")), (int(match[2]), path))
    assert newest
    return [path for _, path in newest.values()]


def naively_rewound(files: Files) -> None:
    """Logs undone to batch 19 by hand, state left as it was."""
    _remove(files, r"(offsets|commits)/2[0-9]")
    _remove(files, r"sources/0/2[0-9]")
    files["offsets/18"] = files["offsets/19"].replace(b'{"logOffset":19}', b'{"logOffset":18}')


def logs_of_newest_deleted(files: Files) -> None:
    """The last two batches undone by hand, with their log of sources; state left as it was."""
    _remove(files, r"(offsets|commits)/2[12]")
    _remove(files, r"sources/0/2[12]")


def checksum_wrong(files: Files) -> None:
    path = sorted(p for p in files if re.fullmatch(r"state/0/0/6_[^.]*\.changelog\.crc", p))[-1]
    content = json.loads(files[path])
    files[path] = json.dumps({**content, "value": content["value"] ^ 1}).encode()


def source_log_missing(files: Files) -> None:
    _remove(files, r"sources/0/.*")


def source_log_short(files: Files) -> None:
    _remove(files, r"sources/0/[45]")


def logs_deleted(files: Files) -> None:
    _remove(files, r"(offsets|commits)/\d+")


def partition_missing(files: Files) -> None:
    _remove(files, r"state/0/1/.*")


def store_missing(files: Files) -> None:
    _remove(files, r"state/0/1/right-keyWithIndexToValue/.*")


def repartition_begun(files: Files) -> None:
    """What ``StreamingCheckpointManager.repartition`` leaves when it is killed after it logged its batch (4.2 and later)."""
    entry = files["offsets/5"].replace(b'"spark.sql.shuffle.partitions":"2"', b'"spark.sql.shuffle.partitions":"3"')
    assert entry != files["offsets/5"]
    files["offsets/6"] = entry


def paths_of_another_checkpoint(files: Files) -> None:
    for path in files:
        if holds_absolute_paths(path):
            files[path] = relocated(files[path], path=path, target="file:/srv/elsewhere/ck")


def two_writers(files: Files) -> None:
    """The logs of another run of the query copied over the newest ones: it was made an hour earlier."""
    for batch in (4, 5):
        path = f"offsets/{batch}"
        files[path] = re.sub(
            rb'"batchTimestampMs":(\d+)', lambda m: b'"batchTimestampMs":%d' % (int(m[1]) - 3_600_000), files[path]
        )


def state_of_another_query(files: Files) -> None:
    """A query on RocksDB, started by mistake in the directory of one on HDFS-backed state."""
    for partition in (0, 1):
        for version in (1, 2):
            files[f"state/0/{partition}/{version}.changelog"] = files[f"state/0/{partition}/{version}.delta"]


def newer_log_version(files: Files) -> None:
    files["offsets/5"] = b"v7" + files["offsets/5"][2:]


def newer_commit_version(files: Files) -> None:
    files["commits/5"] = b"v7" + files["commits/5"][2:]


_LOAD = r"\[CANNOT_LOAD_STATE_STORE\."
_NO_DELTA = _LOAD + r"CANNOT_READ_DELTA_FILE_NOT_EXISTS\]"
_NO_FILE = _LOAD + r"CANNOT_READ_STREAMING_STATE_FILE\]"
_BROKEN = _LOAD + r"UNCATEGORIZED\]"

DAMAGES = (
    Damage(
        1,
        "LOG-FILE-TORN",
        "file_to_foreachbatch",
        empty_newest_offsets,
        r"offsets/5\. Incomplete log file",
        4,
        1,
    ),
    Damage(1, "LOG-FILE-TORN", "hdfs_agg", cut_off_newest_offsets, r"Unexpected end-of-input", 4, 1),
    Damage(1, "LOG-FILE-TORN", "rocks_agg", empty_newest_commit, r"commits/5\. Incomplete log file", 4, 1),
    Damage(1, "LOG-FILE-TORN", "rocks_ckptv2_agg", cut_off_newest_commit, r"Unexpected end-of-input", 4, 1),
    Damage(1, "LOG-FILE-TORN", "hdfs_agg", cut_off_committed_offsets, r"Unexpected end-of-input", 4, 1),
    Damage(2, "OFFSETS-HOLE", "hdfs_agg", hole, None, 5),
    Damage(3, "OFFSETS-NO-PREVIOUS", "rocks_changelog_agg", no_previous, r"batch 4 doesn't exist", 3, 2),
    Damage(
        4,
        "COMMITS-BEYOND-OFFSETS",
        "hdfs_agg",
        newest_offsets_deleted,
        r"CONCURRENT_STREAM_LOG_UPDATE",
        3,
        2,
    ),
    Damage(
        4,
        "COMMITS-BEYOND-OFFSETS",
        "file_to_foreachbatch",
        newest_offsets_deleted,
        r"CONCURRENT_STREAM_LOG_UPDATE",
        3,
        2,
    ),
    Damage(5, "BATCHES-SKIPPED", "hdfs_agg", newest_commits_deleted, None, 2, 3, first=5, quick=True),
    # Of the batches between no commit shows the ids of their state: loud here.
    Damage(5, "BATCHES-SKIPPED", "rocks_ckptv2_agg", newest_commits_deleted, _NO_FILE, 2, 3),
    Damage(6, "QUERY-ID-MISSING", "file_to_foreachbatch", no_metadata, None, 5, query_id=True),
    Damage(
        6, "QUERY-ID-MISSING", "hdfs_agg", empty_metadata, r"No content to map due to end-of-input", 5, query_id=True
    ),
    Damage(7, "TEMPORARY-FILES", "hdfs_agg", temporary_files, None, 5),
    Damage(8, "STATE-INCOMPLETE", "hdfs_agg", delta_missing, _NO_DELTA, 3, 2),
    Damage(8, "STATE-INCOMPLETE", "hdfs_agg", delta_cut_off, _BROKEN, 4, 1),
    Damage(8, "STATE-INCOMPLETE", "hdfs_agg", oldest_delta_missing, _NO_DELTA, None),
    Damage(8, "STATE-INCOMPLETE", "hdfs_two_operators", delta_missing, _NO_DELTA, 3, 3),
    Damage(8, "STATE-INCOMPLETE", "hdfs_ssjoin", join_delta_missing, _NO_DELTA, 3, 3),
    Damage(8, "STATE-INCOMPLETE", "hdfs_agg", schema_cut_off, r"terminated with exception", 5),
    Damage(8, "STATE-INCOMPLETE", "hdfs_agg", operator_metadata_empty, None, 5),
    Damage(8, "STATE-INCOMPLETE", "hdfs_agg_maint", snapshot_missing, _NO_DELTA, None),
    Damage(8, "STATE-INCOMPLETE", "rocks_changelog_agg", changelog_missing, _NO_FILE, 3, 2),
    Damage(8, "STATE-INCOMPLETE", "rocks_agg", zip_missing, _NO_FILE, 4, 1),
    Damage(8, "STATE-INCOMPLETE", "rocks_agg", table_file_missing, _BROKEN, 4, 1),
    Damage(8, "STATE-INCOMPLETE", "rocks_ckptv2_agg", changelog_missing, _NO_FILE, 3, 2),
    Damage(8, "STATE-INCOMPLETE", "rocks_ckptv2_agg", changelog_byte_changed, _BROKEN, 4, 1),
    Damage(9, "STATE-STALE-VERSIONS", "rocks_changelog_maint", naively_rewound, None, 19),
    Damage(9, "STATE-STALE-VERSIONS", "hdfs_agg_maint", logs_of_newest_deleted, None, 20),
    Damage(10, "SNAPSHOT-DAMAGED", "rocks_changelog_maint", snapshot_cut_off, _BROKEN, 22, quick=True),
    Damage(10, "SNAPSHOT-DAMAGED", "rocks_changelog_maint", snapshot_byte_changed, _BROKEN, 22),
    Damage(10, "SNAPSHOT-DAMAGED", "rocks_changelog_maint", snapshot_without_table_file, _BROKEN, 22),
    # The lineage of a changelog cuts back to the newest snapshot only: without it the state of two batches is gone.
    Damage(8, "STATE-INCOMPLETE", "rocks_ckptv2_maint", snapshot_cut_off, _BROKEN, 20, 2),
    Damage(12, "SOURCE-LOG-INCOMPLETE", "file_to_foreachbatch", source_log_missing, r"batch 5 doesn't exist", None),
    Damage(12, "SOURCE-LOG-INCOMPLETE", "hdfs_agg", source_log_short, r"batch 5 doesn't exist", 3, 2),
    Damage(13, "STATE-WITHOUT-LOGS", "hdfs_agg", logs_deleted, None, None, first=0),
    Damage(14, "STATE-PARTITION-MISSING", "hdfs_agg", partition_missing, _NO_DELTA, None),
    Damage(14, "STATE-PARTITION-MISSING", "hdfs_ssjoin", store_missing, _NO_DELTA, None),
    Damage(14, "STATE-PARTITION-MISSING", "rocks_changelog_agg", partition_missing, _NO_FILE, None),
    Damage(
        16, "STATE-FOREIGN-PATHS", "tws_rocks", paths_of_another_checkpoint, r"/srv/elsewhere/ck/.* does not exist", 5
    ),
    Damage(17, "TWO-WRITERS", "hdfs_agg", two_writers, None, None),
    Damage(17, "TWO-WRITERS", "hdfs_agg", state_of_another_query, None, None),
    Damage(18, "FORMAT-UNKNOWN", "hdfs_agg", newer_log_version, r"\[INVALID_LOG_VERSION\.", None),
    Damage(18, "FORMAT-UNKNOWN", "hdfs_agg", newer_commit_version, r"\[INVALID_LOG_VERSION\.", None),
    # What only newer Sparks have, or do otherwise.
    Damage(
        6,
        "QUERY-ID-MISSING",
        "file_to_foreachbatch",
        no_metadata,
        r"MISSING_METADATA_FILE",
        5,
        version="4.3.0",
        query_id=True,
    ),
    Damage(8, "STATE-INCOMPLETE", "hdfs_agg", operator_metadata_empty, None, 5, version="4.3.0"),
    Damage(10, "SNAPSHOT-DAMAGED", "rocks_changelog_maint", snapshot_cut_off, None, 22, version="4.3.0"),
    Damage(
        11,
        "CHECKSUM-MISMATCH",
        "rocks_ckptv2_agg",
        checksum_wrong,
        r"CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED",
        5,
        version="4.3.0",
    ),
    Damage(13, "STATE-WITHOUT-LOGS", "hdfs_agg", logs_deleted, r"CHECKPOINT_LOCATION_NOT_EMPTY", None, version="4.3.0"),
    Damage(
        15,
        "REPARTITION-UNFINISHED",
        "hdfs_agg",
        repartition_begun,
        r"UNFINISHED_REPARTITION_DETECTED",
        5,
        version="4.3.0",
    ),
)
