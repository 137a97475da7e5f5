"""Checkpoints that Spark 3.5 to 4.3 left, every kind: what is read of them, against a table written by hand.

The table says which files a start after the newest batch needs, as the format prescribes. Names that differ from one
sample to the next (uuids, table files, when maintenance ran) are worked out here from the sample, by other means than the
code under test has.
"""

from __future__ import annotations

import io
import json
import re
import uuid
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass

import fsspec
import pytest

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.sources import is_read
from airflow_ckpt_provider.errors import CkptError, MissingFileError
from airflow_ckpt_provider.verdict import Verdict
from tests.samples.archives import VERSIONS, Sample, kinds_of, offset_lines, sample
from tests.samples.kinds import KINDS
from tests.support.every_run import each_sample
from tests.support.watched_stores import forget_all

#: 2024-01-01T00:05:04, the newest event of the sixth file.
SIXTH_FILE = 1_704_067_504_000
MINUTE = 60_000


@dataclass(frozen=True)
class Expected:
    """What a start after the newest batch of a sample needs.

    :param newest: its newest committed batch; ``None`` where the clock decides.
    :param sources: directory of ``sources/`` -> names of files.
    :param state: store directory -> names of files, without uuids, table files and checksum files.
    :param watermark: at the next batch.
    :param first_is_zip: a column family was created in the first batch, so a snapshot was taken at once.
    :param maintained: the maintenance thread took snapshots, at moments that the clock decides.
    """

    newest: int | None
    sources: dict[str, list[str]]
    state: tuple[str, ...] = ()
    suffix: str = ""
    operators: int = 1
    stores: tuple[str, ...] = ("",)
    partitions: tuple[int, ...] = (0, 1)
    first_is_zip: bool = False
    only_newest_zip: bool = False
    maintained: bool = False
    schema_files: bool = False
    watermark: int = 0


def numbers(first: int, last: int) -> list[str]:
    return [str(n) for n in range(first, last + 1)]


ONE_FILE_A_BATCH = {"0": numbers(0, 5)}
BOTH = {"0": numbers(0, 5), "1": numbers(0, 5)}
ENDS_EARLIER = {"0": numbers(0, 5), "1": numbers(0, 2)}
#: Compacted at every 10th by default. Of the older compacted file Spark takes the number alone.
TWENTY_THREE = {"0": ["9.compact", "19.compact", "20", "21", "22"]}
JOIN = ("left-keyToNumValues", "left-keyWithIndexToValue", "right-keyToNumValues", "right-keyWithIndexToValue")
STATELESS = Expected(5, ONE_FILE_A_BATCH)

EXPECTED = {
    "file_to_file": STATELESS,
    "file_to_file_compact": Expected(7, {"0": ["2.compact", "5.compact", "6", "7"]}),
    "file_to_noop": STATELESS,
    "file_to_foreachbatch": STATELESS,
    "rate_to_console": Expected(None, {"0": ["0"]}),
    "rate_micro_batch": Expected(None, {}),
    "rate_continuous": Expected(None, {}),
    "rate_async_progress": Expected(None, {"0": ["0"]}),
    "two_sources_union": Expected(5, ENDS_EARLIER),
    "offset_log_v2": Expected(5, ENDS_EARLIER),
    "named_sources": Expected(5, {"orders": numbers(0, 5), "returns": numbers(0, 2)}),
    "hdfs_agg": Expected(5, ONE_FILE_A_BATCH, suffix="delta"),
    "hdfs_agg_maint": Expected(22, TWENTY_THREE, suffix="delta", maintained=True),
    "rocks_agg": Expected(5, ONE_FILE_A_BATCH, suffix="zip", only_newest_zip=True),
    "rocks_changelog_agg": Expected(5, ONE_FILE_A_BATCH, suffix="changelog"),
    "rocks_changelog_maint": Expected(22, TWENTY_THREE, suffix="changelog", maintained=True),
    "rocks_ckptv2_agg": Expected(5, ONE_FILE_A_BATCH, suffix="changelog"),
    "rocks_ckptv2_maint": Expected(22, TWENTY_THREE, suffix="changelog", maintained=True),
    "no_checksum_files": Expected(5, ONE_FILE_A_BATCH, suffix="changelog"),
    "commit_log_v3": Expected(5, ONE_FILE_A_BATCH, suffix="changelog"),
    "rocks_rowchecksum": Expected(5, ONE_FILE_A_BATCH, suffix="changelog"),
    # A batch without data follows, since the watermark moved.
    "hdfs_dedup": Expected(6, ONE_FILE_A_BATCH, suffix="delta", watermark=SIXTH_FILE - MINUTE),
    "rocks_dedup": Expected(6, ONE_FILE_A_BATCH, suffix="changelog", watermark=SIXTH_FILE - MINUTE),
    "rocks_dedup_within_watermark": Expected(6, ONE_FILE_A_BATCH, suffix="changelog", watermark=SIXTH_FILE - MINUTE),
    "hdfs_ssjoin": Expected(6, BOTH, suffix="delta", stores=JOIN, watermark=SIXTH_FILE - 2 * MINUTE),
    "rocks_ssjoin_v2": Expected(6, BOTH, suffix="changelog", stores=JOIN, watermark=SIXTH_FILE - 2 * MINUTE),
    "rocks_ssjoin_v3": Expected(
        6, BOTH, suffix="changelog", first_is_zip=True, schema_files=True, watermark=SIXTH_FILE - 2 * MINUTE
    ),
    "rocks_ssjoin_v4": Expected(
        6, BOTH, suffix="changelog", first_is_zip=True, schema_files=True, watermark=SIXTH_FILE - 2 * MINUTE
    ),
    "rocks_ckptv2_ssjoin": Expected(6, BOTH, suffix="changelog", stores=JOIN, watermark=SIXTH_FILE - 2 * MINUTE),
    "hdfs_session_window": Expected(6, ONE_FILE_A_BATCH, suffix="delta", watermark=SIXTH_FILE - MINUTE),
    "hdfs_two_operators": Expected(6, ONE_FILE_A_BATCH, suffix="delta", operators=2, watermark=SIXTH_FILE - MINUTE),
    "hdfs_global_limit": Expected(5, ONE_FILE_A_BATCH, suffix="delta", partitions=(0,)),
    "pandas_state": Expected(5, ONE_FILE_A_BATCH, suffix="delta"),
    "tws_rocks": Expected(None, ONE_FILE_A_BATCH, suffix="zip", only_newest_zip=True, schema_files=True),
    "tws_rocks_ckptv2": Expected(None, ONE_FILE_A_BATCH, suffix="changelog", first_is_zip=True, schema_files=True),
}


@pytest.fixture
def checkpoint(version: str, kind: str) -> Iterator[Checkpoint]:
    """The sample in memory."""
    if kind not in kinds_of(version):
        pytest.skip("not in this version")
    yield in_memory(f"/samples/{uuid.uuid4()}", sample(version, kind).files)
    forget_all()


def in_memory(root: str, files: dict[str, bytes]) -> Checkpoint:
    fs = fsspec.filesystem("memory")
    for path, content in files.items():
        fs.pipe_file(f"{root}/{path}", content)
    return Checkpoint(fs, root)


def newest(of: Sample, log: str) -> int:
    return max(int(path.partition("/")[2]) for path in of.files if re.fullmatch(rf"{log}/\d+", path))


def state_of(of: Sample, expected: Expected, batch: int) -> set[str]:
    """State files that a start after ``batch`` needs."""
    needed: set[str] = set()
    for operator in range(expected.operators if expected.suffix else 0):
        for partition in expected.partitions:
            for store in expected.stores:
                directory = "/".join(filter(None, ("state", str(operator), str(partition), store)))
                needed |= store_of(of, expected, directory, batch + 1)
    return needed


def store_of(of: Sample, expected: Expected, directory: str, version: int) -> set[str]:
    base = 0
    needed = []
    if expected.maintained:
        full = [p for p in of.files if re.fullmatch(rf"{directory}/\d+[^/]*\.(snapshot|zip)", p)]
        base = max(int(p.rpartition("/")[2].partition(".")[0].partition("_")[0]) for p in full)
        needed = [f"{base}.snapshot" if expected.suffix == "delta" else f"{base}.zip"]
    if expected.first_is_zip:
        base, needed = 1, ["1.zip"]
    if expected.only_newest_zip:
        base, needed = version - 1, []
    needed += [f"{n}.{expected.suffix}" for n in range(base + 1, version + 1)]
    found: set[str] = set()
    for name in needed:
        number, _, suffix = name.partition(".")
        # No batch of the samples was run twice, so a version has one id.
        (path,) = (p for p in of.files if re.fullmatch(rf"{directory}/{number}(_[0-9a-f-]+)?\.{suffix}", p))
        found.add(path)
        if suffix == "zip":
            found |= {f"{directory}/SSTs/{table}" for table in table_files(of.files[path])}
    return found | {f"{path}.crc" for path in found if f"{path}.crc" in of.files}


def table_files(content: bytes) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        metadata = json.loads(archive.read("metadata").split(b"\n")[1])
    return [table["dfsSstFileName"] for table in metadata["sstFiles"]]


def logs_of(of: Sample, batch: int) -> set[str]:
    before = max(
        int(p.split("/")[1]) for p in of.files if re.fullmatch(r"offsets/\d+", p) and int(p.split("/")[1]) < batch
    )
    return {"metadata", f"offsets/{before}", f"offsets/{batch}", f"commits/{batch}"}


def descriptions_of(of: Sample, expected: Expected) -> set[str]:
    """Operator metadata and schemas: all of them, there is one of each in a sample that ran once."""
    return {
        p for p in of.files if re.search(r"/(_metadata/(metadata|schema|v2/\d+)|_stateSchema/.*)$", p) and "/." not in p
    }


@each_sample
def test_progress(checkpoint: Checkpoint, version: str, kind: str) -> None:
    of, expected = sample(version, kind), EXPECTED[kind]
    progress = checkpoint.progress()
    assert progress.latest_committed == newest(of, "commits")
    assert progress.latest_logged == newest(of, "offsets")
    if expected.newest is not None:
        assert (progress.latest_logged, progress.latest_committed) == (expected.newest, expected.newest)
        assert progress.gap == 0
    assert progress.query_id == json.loads(of.files["metadata"])["id"]
    assert progress.seal is None


@each_sample
def test_resume_point(checkpoint: Checkpoint, version: str, kind: str) -> None:
    of, expected = sample(version, kind), EXPECTED[kind]
    logged, committed = newest(of, "offsets"), newest(of, "commits")
    resume = checkpoint.resume_point()
    if expected.newest is not None:
        assert (resume.batch_id, resume.replay, resume.verdict, resume.reasons) == (
            expected.newest + 1,
            False,
            Verdict.SAFE,
            (),
        )
        assert resume.watermark_ms == expected.watermark
        assert resume.state_versions == dict.fromkeys(
            range(expected.operators if expected.suffix else 0), expected.newest + 1
        )
    elif kind == "rate_continuous":
        assert (resume.batch_id, resume.replay) == (committed + 1, False)
    else:
        assert (resume.batch_id, resume.replay) == ((logged + 1, False) if logged == committed else (logged, True))


@each_sample
def test_closure_of_the_newest_batch(checkpoint: Checkpoint, version: str, kind: str) -> None:
    of, expected = sample(version, kind), EXPECTED[kind]
    batch = newest(of, "commits")
    closure = checkpoint.closure(batch)
    sources = {f"sources/{name}/{file}" for name, files in expected.sources.items() for file in files}
    if kind == "rate_continuous":  # one partition log entry of the start time, if Spark wrote one
        sources = {path for path in of.files if path.startswith("sources/") and "/." not in path}
    needed = logs_of(of, batch) | sources | descriptions_of(of, expected) | state_of(of, expected, batch)
    assert {file.path for file in closure.files} == needed
    assert closure.bytes == sum(len(of.files[path]) for path in needed)
    assert {(c.operator, c.partition, c.store) for c in closure.stores} == {
        (operator, partition, store or "default")
        for operator in range(expected.operators if expected.suffix else 0)
        for partition in expected.partitions
        for store in expected.stores
    }
    assert {c.version.number for c in closure.stores} <= {batch + 1}


@each_sample
def test_a_closure_alone_is_read_as_the_whole(checkpoint: Checkpoint, version: str, kind: str) -> None:
    of = sample(version, kind)
    batch = newest(of, "commits")
    closure = checkpoint.closure(batch)
    alone = in_memory(f"{checkpoint.location.root}-alone", {f.path: of.files[f.path] for f in closure.files})
    again = alone.closure(batch)
    assert [file.path for file in again.files] == [file.path for file in closure.files]
    progress = alone.progress()
    assert (progress.latest_logged, progress.latest_committed) == (batch, batch)
    assert [s.offset.to_json() for s in progress.sources if s.offset] == [
        s.offset.to_json() for s in closure.entry.sources if s.offset
    ]
    resume = alone.resume_point()
    assert (resume.batch_id, resume.replay) == (batch + 1, False)
    if newest(of, "offsets") == batch:
        assert resume == checkpoint.resume_point()


#: Spark does without, and so do we: checksums, and what it writes again (a schema shows us the partitions, though).
OPTIONAL = re.compile(r".*\.crc|.*/_metadata/(metadata|schema)")
#: Of these sources nothing but their log itself shows that they keep one, and continuous mode reads one offsets file.
UNTOLD = {"rate_to_console": "sources/0/0", "rate_async_progress": "sources/0/0", "rate_continuous": "offsets/.*"}


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        pytest.param(v, k, id=f"{v}-{k}", marks=marks)
        for v, marks in (("4.0.0", pytest.mark.slow), ("4.3.0", ()))
        for k in kinds_of(v)
    ],
)
def test_each_file_of_a_closure_is_missed(checkpoint: Checkpoint, version: str, kind: str) -> None:
    of = sample(version, kind)
    batch = newest(of, "commits")
    fs = fsspec.filesystem("memory")
    files = {f.path: of.files[f.path] for f in checkpoint.closure(batch).files}
    alone = in_memory(f"{checkpoint.location.root}-alone", files)
    noticed: list[tuple[str, str]] = []
    unnoticed = []
    for path, content in files.items():
        if not OPTIONAL.fullmatch(path) and not re.fullmatch(UNTOLD.get(kind, "-"), path) and is_read(path, files):
            fs.rm_file(f"{alone.location.root}/{path}")
            try:
                alone.closure(batch)
                unnoticed.append(path)
            except CkptError as e:
                noticed.append((path, e.message))
            fs.pipe_file(f"{alone.location.root}/{path}", content)
    assert unnoticed == []
    # Without its base, a chain is taken for one from the beginning: the message then names its first link.
    assert [(p, m) for p, m in noticed if p.rpartition("/")[0].removesuffix("/SSTs") not in m] == []


@pytest.mark.parametrize("version", ["4.0.0", "4.2.1", "4.3.0"])
@pytest.mark.parametrize("kind", ["file_to_noop", "two_sources_union", "named_sources"])
def test_the_log_of_a_file_source_is_missed(checkpoint: Checkpoint, version: str, kind: str) -> None:
    """Without it Spark fails, see ``test_closure_continues.py``."""
    fsspec.filesystem("memory").rm(f"{checkpoint.location.root}/sources", recursive=True)
    with pytest.raises(MissingFileError):
        checkpoint.closure(5)


LEFTOVERS = {
    "hdfs_agg": ["7.snapshot", "8.delta"],
    "rocks_changelog_agg": ["7.zip", "7.changelog"],
    "rocks_ckptv2_agg": ["6_{id}.zip", "6_{id}.changelog", "3_{id}.zip", "7_{id}.changelog"],
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", LEFTOVERS)
def test_leftovers_of_other_timelines_and_debris_are_left_out(checkpoint: Checkpoint, version: str, kind: str) -> None:
    fs = fsspec.filesystem("memory")
    before = checkpoint.closure(5)
    root = checkpoint.location.root
    for name in LEFTOVERS[kind]:
        fs.pipe_file(f"{root}/state/0/1/{name.format(id=uuid.uuid4())}", b"of another run")
    for path in ("state/0/1/.6.delta.crc", "state/0/1/.7.delta.4f.TID9.tmp", "commits/.6.5a.tmp", "offsets/.5.crc"):
        fs.pipe_file(f"{root}/{path}", b"debris")
    fs.pipe_file(f"{root}/sources/0/6", b"v1")
    assert checkpoint.closure(5).by_path == before.by_path


@each_sample
def test_inspection(checkpoint: Checkpoint, version: str, kind: str) -> None:
    of, expected = sample(version, kind), EXPECTED[kind]
    found = checkpoint.inspect().to_json()
    assert found["files"] == sum(not any(part.startswith(".") for part in path.split("/")) for path in of.files)
    assert [o["id"] for o in found["state"]["operators"]] == list(range(expected.operators if expected.suffix else 0))
    for operator in found["state"]["operators"]:
        assert operator["partitions"] == len(expected.partitions)
        assert operator["stores"] == [store or "default" for store in expected.stores]
        assert (
            ("RocksDB" in operator["provider"]) == ("HDFS" not in operator["provider"]) == (expected.suffix != "delta")
        )
        assert (operator["name"] is None) == (version == "3.5.9")
    if expected.newest is not None:
        assert found["findings"] == []


def test_hidden_checksums_are_in_a_sample() -> None:
    """Otherwise nothing here would show that they are ignored."""
    assert "offsets/.5.crc" in sample("4.0.0", "hdfs_agg").files


def test_offsets_of_sources() -> None:
    """What is typed of each kind of source."""
    kinds = {}
    for kind in ("file_to_file", "rate_to_console", "rate_micro_batch", "rate_continuous"):
        of = sample("4.0.0", kind)
        (source,) = in_memory(f"/samples/{uuid.uuid4()}", of.files).progress().sources
        assert source.offset
        assert source.offset.to_json() == offset_lines(of.files, newest(of, "offsets"))[0]
        kinds[kind] = source.kind
    assert kinds == {
        "file_to_file": "file",
        "rate_to_console": "rate",
        "rate_micro_batch": "rate-micro-batch",
        "rate_continuous": "unknown",
    }


def test_no_path_of_a_machine_is_in_a_sample() -> None:
    for version in VERSIONS:
        for kind in kinds_of(version):
            for path, content in sample(version, kind).files.items():
                places = set(re.findall(rb"file:/++(?!srv/streams/)[^\"]*", content))
                assert not places, f"{version} {kind} {path}: {places}"


def test_every_kind_is_in_every_version_that_has_it() -> None:
    for version in VERSIONS:
        assert {k for k in KINDS if sample_exists(version, k)} == set(kinds_of(version))


def sample_exists(version: str, kind: str) -> bool:
    try:
        return bool(sample(version, kind).files)
    except KeyError:
        return False
