"""closure: the smallest set of files to continue from, over all parts of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.closure import Closure
from airflow_ckpt_provider.checkpoint.commits import parse_commit
from airflow_ckpt_provider.checkpoint.operators import JOIN_STORES
from airflow_ckpt_provider.checkpoint.state_files import StateVersion
from airflow_ckpt_provider.errors import MissingFileError, RefusedError, UnreadableLogError
from airflow_ckpt_provider.storage.location import Location
from tests.support.checkpoints import (
    ROCKSDB,
    Files,
    batch_metadata,
    changelog,
    commit_log,
    file_source_log,
    hdfs_aggregation,
    logs,
    metadata,
    offsets_log,
    operator_metadata,
    plant,
    rocksdb_aggregation,
    schema_file,
)
from tests.support.counted_listings import ListingCounter
from tests.support.watched_stores import watched

LOGS_4 = ["commits/4", "metadata", "offsets/3", "offsets/4", *(f"sources/0/{i}" for i in range(5))]
ABOUT_0 = ["state/0/0/_metadata/schema", "state/0/_metadata/metadata"]


def closure_of(place: Location, files: Files, batch_id: int) -> Closure:
    return Checkpoint.at(plant(place, files)).closure(batch_id)


def paths(closure: Closure) -> list[str]:
    return sorted(file.path for file in closure.files)


def test_a_stateless_stream(place: Location) -> None:
    closure = closure_of(place, logs(range(7)), 4)
    assert paths(closure) == sorted(LOGS_4)
    assert closure.stores == ()
    assert (closure.batch_id, closure.entry.batch_id, closure.commit.batch_id) == (4, 4, 4)


def test_an_aggregation_in_every_partition(place: Location) -> None:
    closure = closure_of(place, hdfs_aggregation(6, snapshots=[3]), 4)
    state = [f"state/0/{p}/{name}" for p in (0, 1) for name in ("3.snapshot", "4.delta", "5.delta")]
    assert paths(closure) == sorted([*LOGS_4, *ABOUT_0, *state])
    assert [(s.operator, s.partition, s.store, s.version) for s in closure.stores] == [
        (0, 0, "default", StateVersion(5)),
        (0, 1, "default", StateVersion(5)),
    ]
    assert [file.path for s in closure.stores for file in s.files] == state
    assert closure.bytes == sum(file.size for file in closure.files)


def test_it_goes_on_by_itself(place: Location) -> None:
    """The closure copied elsewhere is its own closure, and the resume point follows the batch."""
    whole = rocksdb_aggregation(6)
    closure = closure_of(place / "a", whole, 4)
    alone = plant(place / "b", {path: whole[path] for path in paths(closure)})
    assert paths(Checkpoint.at(alone).closure(4)) == paths(closure)
    resume = Checkpoint.at(alone).resume_point()
    assert (resume.batch_id, resume.replay, resume.verdict, resume.reasons) == (5, False, "SAFE", ())


def test_each_of_its_files_is_needed(place: Location) -> None:
    """Taken away one by one: each is named, but the three that Spark writes again by itself."""
    whole = rocksdb_aggregation(4)
    closure = closure_of(place / "whole", whole, 4)
    rewritten = {*ABOUT_0}
    for path in paths(closure):
        files = {p: whole[p] for p in paths(closure) if p != path}
        if path in rewritten:
            closure_of(place / path, files, 4)
        elif path in ("offsets/4", "commits/4"):
            with pytest.raises(RefusedError, match=f"^batch 4 cannot be resumed from: {path} does not exist"):
                closure_of(place / path, files, 4)
        else:
            with pytest.raises(MissingFileError) as error:
                closure_of(place / path, files, 4)
            # Without the zip the chain has to begin at 1.
            assert error.value.path == (path if not path.endswith(".zip") else path.replace("3.zip", "1.changelog"))


def test_partitions_by_the_log_not_by_the_directories(place: Location) -> None:
    """A directory left by a repartition is not taken; a partition that a torn copy lacks is missed."""
    files = hdfs_aggregation(4, partitions=3)
    two = {p: d for p, d in hdfs_aggregation(4, partitions=2).items() if p.startswith("offsets/")}
    assert {s.partition for s in closure_of(place / "a", files | two, 4).stores} == {0, 1}
    torn = {p: d for p, d in files.items() if not p.startswith("state/0/2/")}
    with pytest.raises(MissingFileError) as error:
        closure_of(place / "b", torn, 4)
    assert error.value.message == "state/0/2/1.delta is missing, state version 5 needs it"


def test_the_partitions_of_the_batch_itself(place: Location) -> None:
    """A repartition between batches: each batch has those that its own log entry names."""
    files = hdfs_aggregation(4, partitions=3)
    for batch in (0, 1, 2, 3):
        files[f"offsets/{batch}"] = offsets_log(
            f'{{"logOffset":{batch}}}', metadata=batch_metadata(batch, partitions=2)
        )
    assert len(closure_of(place / "a", files, 3).stores) == 2
    assert len(closure_of(place / "b", files, 4).stores) == 3


def test_a_keyless_aggregation_has_one_partition(place: Location) -> None:
    files = hdfs_aggregation(4, partitions=1) | logs(range(5), partitions=200)
    files["state/0/0/_metadata/schema"] = schema_file([])
    closure = closure_of(place, files, 4)
    assert [s.partition for s in closure.stores] == [0]


def test_a_column_called_session_start_time_has_all_partitions(place: Location) -> None:
    """``groupBy("sessionStartTime")``: Spark's own session windows without keys have one partition, this has all."""
    files = hdfs_aggregation(4, partitions=4)
    files["state/0/0/_metadata/schema"] = schema_file([("sessionStartTime", "timestamp")])
    assert [s.partition for s in closure_of(place / "a", files, 4).stores] == [0, 1, 2, 3]
    del files["state/0/_metadata/metadata"]
    assert [s.partition for s in closure_of(place / "b", files, 4).stores] == [0, 1, 2, 3]
    torn = {p: d for p, d in files.items() if not p.startswith("state/0/2/")}
    with pytest.raises(MissingFileError) as error:
        closure_of(place / "c", torn, 4)
    assert error.value.message == "state/0/2/1.delta is missing, state version 5 needs it"


def test_two_operators(place: Location) -> None:
    files = hdfs_aggregation(4)
    second = {p.replace("state/0/", "state/1/"): d for p, d in files.items() if p.startswith("state/")}
    closure = closure_of(place, files | second, 4)
    assert [(s.operator, s.partition) for s in closure.stores] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert {"state/1/_metadata/metadata", "state/1/0/_metadata/schema"} <= set(paths(closure))


def join(ids: bool) -> Files:
    """A join with four stores in each partition; in format 2 with ids in the order that Spark writes them."""
    unique = {
        (p, s, v): f"{v:08x}-{p:04x}-{n:04x}-0000-000000000000"
        for p in (0, 1)
        for n, s in enumerate(JOIN_STORES)
        for v in (1, 2)
    }
    by_batch = {b: {"0": [[unique[p, s, b + 1] for s in JOIN_STORES] for p in (0, 1)]} for b in (0, 1)}
    files = logs(range(2), provider=ROCKSDB, ids=by_batch if ids else None)
    for (p, s, v), unique_id in unique.items():
        before = [(1, unique[p, s, 1])] if v == 2 else []
        name = f"{v}_{unique_id}.changelog" if ids else f"{v}.changelog"
        files[f"state/0/{p}/{s}/{name}"] = changelog(before)
    for store in JOIN_STORES:
        files[f"state/0/0/{store}/_metadata/schema"] = schema_file([("key", "string")])
    return files


@pytest.mark.parametrize("ids", [False, True], ids=["format 1", "format 2"])
def test_a_join_has_four_stores(place: Location, ids: bool) -> None:
    closure = closure_of(place, join(ids), 1)
    assert [(s.partition, s.store) for s in closure.stores] == [(p, s) for p in (0, 1) for s in JOIN_STORES]
    assert all(len(s.files) == 2 for s in closure.stores)
    schemas = {f"state/0/0/{store}/_metadata/schema" for store in JOIN_STORES}
    assert schemas <= set(paths(closure))
    if ids:
        for store in closure.stores:
            assert store.version.unique_id in list(store.files)[-1].path


def test_a_join_that_lost_a_store_in_one_partition(place: Location) -> None:
    files = {p: d for p, d in join(False).items() if "state/0/1/right-keyToNumValues/" not in p}
    with pytest.raises(MissingFileError) as error:
        closure_of(place, files, 1)
    assert error.value.path == "state/0/1/right-keyToNumValues/1.changelog"


@pytest.mark.parametrize("ids", [False, True], ids=["format 1", "format 2"])
def test_a_join_that_lost_a_store_in_all_partitions(place: Location, ids: bool) -> None:
    """The operator's metadata names the stores, as do the ids of the commit."""
    files = {p: d for p, d in join(ids).items() if "/right-keyToNumValues/" not in p}
    files["state/0/_metadata/metadata"] = operator_metadata(name="symmetricHashJoin", stores=JOIN_STORES)
    with pytest.raises(MissingFileError, match=r"^state/0/0/right-keyToNumValues/"):
        closure_of(place, files, 1)


def test_lineage_with_several_ids_per_version(place: Location) -> None:
    """Batch 1 ran twice: both attempts left their files, only those that commits/1 names are taken."""
    a, b, lost = (
        "aaaaaaaa-0000-0000-0000-000000000001",
        "bbbbbbbb-0000-0000-0000-000000000002",
        "cccccccc-0000-0000-0000-000000000003",
    )
    files = logs(range(2), provider=ROCKSDB, partitions=1, ids={0: {"0": [[a]]}, 1: {"0": [[b]]}})
    files |= {
        f"state/0/0/1_{a}.changelog": changelog([]),
        f"state/0/0/1_{lost}.changelog": changelog([]),
        f"state/0/0/2_{b}.changelog": changelog([(1, a)]),
        f"state/0/0/2_{lost}.changelog": changelog([(1, lost)]),
    }
    closure = closure_of(place, files, 1)
    assert [f.path for s in closure.stores for f in s.files] == [
        f"state/0/0/1_{a}.changelog",
        f"state/0/0/2_{b}.changelog",
    ]
    assert not any(lost in path for path in paths(closure))


def tws(schema: str = "0_f2e361a0") -> Files:
    uri = f"file:/somewhere/else/ck/state/0/_stateSchema/default/{schema}"
    files = rocksdb_aggregation(4)
    del files["state/0/_metadata/metadata"], files["state/0/0/_metadata/schema"]
    return files | {
        "state/0/_metadata/v2/0": operator_metadata(schema_files=[uri]),
        "state/0/_metadata/v2/3": operator_metadata(schema_files=[uri, uri + "b"]),
        "state/0/_metadata/v2/9": operator_metadata(schema_files=[uri + "never"]),
        f"state/0/_stateSchema/default/{schema}": b"s",
        f"state/0/_stateSchema/default/{schema}b": b"t",
        "state/0/_stateSchema/default/stray": b"u",
    }


@pytest.mark.parametrize("gone", ["state/0", "state/1", "state"])
def test_an_operator_that_lost_its_state(place: Location, gone: str) -> None:
    """It was a closure without the operator, though the commit names the ids of its state."""
    one = join(True)
    commits = {
        path: commit_log(ids={operator: parse_commit(data, batch_id=0).state_ids[0] for operator in ("0", "1")})
        for path, data in one.items()
        if path.startswith("commits/")
    }
    two = one | commits | {p.replace("state/0/", "state/1/"): d for p, d in one.items() if p.startswith("state/")}
    assert {store.operator for store in closure_of(place, two, 1).stores} == {0, 1}
    with pytest.raises(MissingFileError) as error:
        closure_of(place / "torn", {p: d for p, d in two.items() if not p.startswith(f"{gone}/")}, 1)
    first = "state/1" if gone == "state/1" else "state/0"
    assert error.value.message == f"{first} is missing: operator {first[-1]} has no state at all"


def test_an_operator_between_others_that_lost_its_state(place: Location) -> None:
    files = hdfs_aggregation(4)
    moved = {p.replace("state/0/", "state/1/"): d for p, d in files.items()}
    with pytest.raises(MissingFileError) as error:
        closure_of(place, moved, 4)
    assert error.value.message == "state/0 is missing: operator 0 has no state at all"


def test_an_operator_that_was_removed_from_the_code(place: Location) -> None:
    """Or one that lost its newer state: this is not known, and a person can say it. Spark up to 3.5 does not check."""
    removed = {path.replace("state/0/", "state/1/"): data for path, data in hdfs_aggregation(2).items()}
    files = hdfs_aggregation(6) | {path: data for path, data in removed.items() if path.startswith("state/1/")}
    with pytest.raises(MissingFileError, match=r"state/1/0/4\.delta is missing") as error:
        closure_of(place, files, 6)
    assert (error.value.hint or "").endswith(
        "if the code has had no operator 1 since version 3 (Spark up to 3.5 leaves the state of one that was removed where it "
        "is), move state/1 out of the checkpoint while the query is stopped"
    )


def test_transform_with_state_has_schemas_of_its_own(place: Location) -> None:
    """By the metadata that holds for the batch, wherever the absolute paths in it point."""
    files = tws()
    about = {p for p in paths(closure_of(place, files, 4)) if "_metadata" in p or "_stateSchema" in p}
    assert about == {
        "state/0/_metadata/v2/3",
        "state/0/_stateSchema/default/0_f2e361a0",
        "state/0/_stateSchema/default/0_f2e361a0b",
    }
    about = {p for p in paths(Checkpoint.at(place).closure(2)) if "_metadata" in p or "_stateSchema" in p}
    assert about == {"state/0/_metadata/v2/0", "state/0/_stateSchema/default/0_f2e361a0"}


def test_a_missing_schema_is_named(place: Location) -> None:
    files = tws()
    del files["state/0/_stateSchema/default/0_f2e361a0b"]
    with pytest.raises(MissingFileError) as error:
        closure_of(place, files, 4)
    assert error.value.message == (
        "state/0/_stateSchema/default/0_f2e361a0b is missing: state/0/_metadata/v2/3 names it"
    )
    assert error.value.path == "state/0/_stateSchema/default/0_f2e361a0b"


def test_other_directories_are_carried(place: Location) -> None:
    """Delta's schema log, and whatever a connector keeps there."""
    other = {"_schema_log_5f6c/0": b"v1", "_schema_log_5f6c/1": b"v1", "shards/a/b": b"x", "shards/a/.b.crc": b"h"}
    found = set(paths(closure_of(place, logs(range(5)) | other, 4)))
    assert found == {*LOGS_4, "_schema_log_5f6c/0", "_schema_log_5f6c/1", "shards/a/b"}


def test_the_first_batch_has_none_before(place: Location) -> None:
    closure = closure_of(place, logs(range(3)), 0)
    assert paths(closure) == ["commits/0", "metadata", "offsets/0", "sources/0/0"]


def test_async_progress_takes_the_entry_before_on_disk(place: Location) -> None:
    files = {p: d for p, d in logs(range(7)).items() if p.rpartition("/")[2] in ("0", "3", "6", "metadata")}
    files |= {f"sources/0/{i}": b"v1" for i in range(7)}
    assert [p for p in paths(closure_of(place, files, 6)) if p.startswith("offsets/")] == ["offsets/3", "offsets/6"]


def test_continuous_mode(place: Location) -> None:
    files = {"metadata": metadata()}
    for epoch in (0, 1, 2):
        files[f"offsets/{epoch}"] = offsets_log('{"0":{"value":0,"runTimeMs":2}}')
        files[f"commits/{epoch}"] = commit_log()
    closure = closure_of(place, files, 2)
    assert {"commits/2", "metadata", "offsets/2"} <= set(paths(closure))


def test_the_entry_before_is_gone(place: Location) -> None:
    files = {p: d for p, d in logs(range(5)).items() if p not in {f"offsets/{i}" for i in range(4)}}
    with pytest.raises(MissingFileError) as error:
        closure_of(place, files, 4)
    assert error.value.message == "offsets/3 is missing: Spark reads it when it starts after batch 4"
    assert (error.value.path, error.value.hint) == ("offsets/3", "choose a later batch, or restore a backup")


def test_the_query_id_is_gone(place: Location) -> None:
    files = logs(range(5))
    del files["metadata"]
    with pytest.raises(MissingFileError) as error:
        closure_of(place, files, 4)
    assert error.value.message == (
        "metadata is missing: Spark 4.2 and later refuse to start, older ones take the query for a new one"
    )
    assert error.value.hint == "put it back from a backup of the same query"


@pytest.mark.parametrize(("batch_id", "path"), [(5, "offsets/5"), (9, "offsets/9")])
def test_a_batch_that_is_not_there(place: Location, batch_id: int, path: str) -> None:
    with pytest.raises(RefusedError) as error:
        closure_of(place, logs(range(2, 5)), batch_id)
    assert error.value.message == f"batch {batch_id} cannot be resumed from: {path} does not exist"
    assert error.value.hint == "committed batches: 2 to 4"


def test_a_batch_that_is_logged_and_not_committed(place: Location) -> None:
    files = logs(range(5))
    del files["commits/4"]
    with pytest.raises(RefusedError, match=r"^batch 4 cannot be resumed from: commits/4 does not exist"):
        closure_of(place, files, 4)


def test_an_unreadable_entry_is_named(place: Location) -> None:
    with pytest.raises(UnreadableLogError) as error:
        closure_of(place, logs(range(5)) | {"commits/4": b""}, 4)
    assert (error.value.path, error.value.batch_id) == ("commits/4", 4)


@pytest.mark.parametrize("content", [b"", b'v1\n{"batchWater'], ids=["empty", "cut off"])
def test_the_entry_before_is_unreadable(place: Location, content: bytes) -> None:
    """A start after batch 4 reads it too, and fails."""
    files = logs(range(7)) | {"offsets/3": content}
    with pytest.raises(UnreadableLogError, match="offsets/3"):
        closure_of(place, files, 4)
    assert "offsets/3" not in paths(Checkpoint.at(place).closure(6))


def test_async_progress_reads_the_entry_before_on_disk(place: Location) -> None:
    files = {p: d for p, d in logs(range(7)).items() if p.rpartition("/")[2] in ("0", "3", "6", "metadata")}
    files |= {f"sources/0/{i}": b"v1" for i in range(7)} | {"offsets/3": b""}
    with pytest.raises(UnreadableLogError, match="offsets/3"):
        closure_of(place, files, 6)


@pytest.mark.parametrize("path", ["state/0/1/3.delta", "sources/0/2"])
def test_an_empty_file_is_not_whole(path: str, place: Location) -> None:
    """Backups of it were taken, and called whole: a listing shows that nothing is in it."""
    files = {**hdfs_aggregation(4), "offsets/4": offsets_log('{"logOffset":3}', metadata=batch_metadata(4))}
    files |= {f"sources/0/{i}": file_source_log(i) for i in range(4)}
    assert path in paths(closure_of(place / "whole", files, 4))
    with pytest.raises(UnreadableLogError, match=rf"^{path}: the file is empty \(0 bytes\)") as error:
        closure_of(place / "torn", files | {path: b""}, 4)
    assert error.value.path == path
    with pytest.raises(UnreadableLogError, match="is empty"):
        create_backup(Checkpoint.at(place / "torn"), Repository.open_or_create(place / "backups"), name="orders")
    assert path in {finding.path for finding in Checkpoint.at(place / "torn").diagnose(contents=False)}


def test_an_unknown_provider_is_refused(place: Location) -> None:
    files = hdfs_aggregation(4) | logs(range(5), provider="com.example.MyProvider")
    with pytest.raises(RefusedError, match=r"^state/0/0: the state store provider com.example.MyProvider is not known"):
        closure_of(place, files, 4)


def test_each_directory_is_listed_once(tmp_path: Path) -> None:
    store = ListingCounter()
    location = plant(Location(store, str(tmp_path)), rocksdb_aggregation(30, zips=(3, 13, 23)))
    Checkpoint.at(location).closure(30)
    directories = {"."} | {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_dir()}
    assert sorted(str(Path(p).relative_to(tmp_path)) for p in store.listed) == sorted(directories)


@pytest.mark.parametrize("build", [rocksdb_aggregation, hdfs_aggregation, lambda n: join(ids=True), lambda n: tws()])
def test_no_file_is_read_twice(place: Location, build: object) -> None:
    location, store = watched(plant(place, build(4)))  # type: ignore[operator]
    newest = 1 if build(4).keys() & {"state/0/0/left-keyToNumValues/_metadata/schema"} else 4  # type: ignore[operator]
    Checkpoint.at(location).closure(newest)
    reads = store.paths("read")
    assert len(reads) == len(set(reads))
    assert store.count("list", "walk") == 1
    assert store.count("create", "replace", "delete", "copy") == 0
