"""Starting positions: the numbers of every kind of source, the choice of the batch, and what is left of a broken checkpoint."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.file_source_log import SEEDED
from airflow_ckpt_provider.errors import NotACheckpointError, RefusedError, UnreadableLogError
from airflow_ckpt_provider.guards.delta_start import NO_TABLE
from airflow_ckpt_provider.guards.kafka_verdicts import NO_BROKER
from airflow_ckpt_provider.recovery.positions.asking import Question, ask, partitions_of
from airflow_ckpt_provider.recovery.positions.delta import ALLOW_NEXT_VERSION
from airflow_ckpt_provider.recovery.positions.logs import logs_of_backup, logs_of_checkpoint
from airflow_ckpt_provider.recovery.positions.positions import StartingPositions, put_seeds
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import file_of
from airflow_ckpt_provider.verdict import Verdict
from tests.support.backups import entry_of
from tests.support.checkpoints import (
    BEGAN,
    QUERY_ID,
    Files,
    batch_metadata,
    commit_log,
    compact,
    contents,
    file_source_log,
    hdfs_aggregation,
    metadata,
    offsets_log,
    plant,
)
from tests.support.watched_stores import forget_all, in_memory

TABLE_ID = "0e1c6d0a-2f6b-4a8e-9d53-0ecda9ed2eb7"


def kafka(*ends: int, topic: str = "orders") -> str:
    return compact({topic: {str(p): end for p, end in enumerate(ends)}})


def delta(version: int, index: int = -1, *, initial: bool = False) -> str:
    value = {"sourceVersion": 1, "reservoirId": TABLE_ID, "reservoirVersion": version, "index": index}
    return compact({**value, "isStartingVersion": initial})


def stream(*batches: tuple[str, ...], committed: int | None = None) -> Files:
    """Logs of a stream with the given end offsets; all but the newest ``batches - committed`` are committed."""
    files = {"metadata": metadata()}
    for batch, ends in enumerate(batches):
        files[f"offsets/{batch}"] = offsets_log(*ends, metadata=batch_metadata(batch))
        if committed is None or batch < committed:
            files[f"commits/{batch}"] = commit_log()
    return files


def of(place: Location, files: Files, question: Question | None = None, **more: Any) -> StartingPositions:
    plant(place, files)
    return ask(logs_of_checkpoint(place), question or Question(), **more)


def at(batch: float) -> str:
    return datetime.fromtimestamp((BEGAN + 1000 * batch) / 1000, UTC).isoformat()


# Kafka


def test_kafka_starts_at_the_offsets_of_the_newest_committed_batch(place: Location) -> None:
    found = of(place, stream((kafka(3, 4),), (kafka(5, 9),), (kafka(6, 9),), committed=2))
    (source,) = found.sources
    assert found.batch_id == 1
    assert json.loads(source.options["startingOffsets"]) == {"orders": {"0": 5, "1": 9}}
    assert json.loads(source.until["endingOffsets"]) == {"orders": {"0": 5, "1": 9}}
    assert (source.verdict, source.repeats) == (Verdict.UNKNOWN, {})
    assert source.reasons[-1] == NO_BROKER
    (by_time,) = source.alternatives
    assert json.loads(by_time.options["startingOffsetsByTimestamp"]) == {
        "orders": {"0": BEGAN + 1000, "1": BEGAN + 1000}
    }
    assert source.reasons[-2].endswith("say how many there are now: --partitions TOPIC=N (kafka_partitions)")
    # Spark takes startingOffsetsByTimestamp before startingOffsets: the two are never given together.
    assert not {"startingOffsetsByTimestamp", "startingTimestamp"} & source.options.keys()
    (later,) = [w for w in found.warnings if w.code == "LATER-BATCHES"]
    assert "batch 2 after the start (source 0: 1 offsets)" in later.message


def test_added_partitions_are_read_from_their_earliest_offset(place: Location) -> None:
    found = of(place, stream((kafka(3, 4),)), kafka_partitions={"orders": 4})
    (source,) = found.sources
    assert json.loads(source.options["startingOffsets"]) == {"orders": {"0": 3, "1": 4, "2": -2, "3": -2}}
    assert source.reasons == ("partitions added since, read from their earliest offset: orders-2, orders-3", NO_BROKER)


def test_event_hubs_writes_the_same_offsets_and_nothing_is_safe_that_no_broker_has_confirmed(place: Location) -> None:
    """Its native connector knows no ``startingOffsets``: a new query would begin at its default."""
    files = stream(('{"myhub":{"0":120,"1":7}}',), ('{"myhub":{"0":140,"1":9}}',))
    for question in (Question(), Question(to_datetime=at(-1))):
        found = of(place, files, question)
        assert found.verdict is found.sources[0].verdict is Verdict.UNKNOWN
        assert found.sources[0].reasons[-1] == NO_BROKER


def test_partitions_of_a_topic_that_nobody_reads_are_refused(place: Location) -> None:
    with pytest.raises(RefusedError, match="reads no topic 'order'\nHINT: its topics: orders"):
        of(place, stream((kafka(3),)), kafka_partitions={"order": 4})


@pytest.mark.parametrize("count", ["0", "-1", "many", "1.5", "", "²", "9" * 5000])
def test_numbers_of_partitions_are_checked(count: str) -> None:
    with pytest.raises(RefusedError, match="is no number of partitions for 'orders'"):
        partitions_of({"orders": count})


def test_kafka_that_had_no_offset_yet_starts_where_the_query_did(place: Location) -> None:
    files = stream((kafka(3), "-"), ("-", kafka(7, topic="b")))
    files["offsets/0"] = offsets_log(kafka(3), "-", metadata=batch_metadata(0))
    files["sources/1/0"] = b"\x00v1\n" + kafka(2, topic="b").encode()
    found = of(place, files, Question(batch=0))
    assert json.loads(found.options["1"]["startingOffsets"]) == {"b": {"0": 2}}


# Delta


@pytest.mark.parametrize("index", [-1, -20, -19])
def test_delta_before_all_files_of_a_version(place: Location, index: int) -> None:
    """End of version 4 is written as (5, -1): 5 is the first version to read. Neither 4 nor 6."""
    (source,) = of(place, stream((delta(5, index),))).sources
    assert source.options == {"startingVersion": "5"}
    assert source.conf == {ALLOW_NEXT_VERSION: "true"}
    assert (source.verdict, source.repeats) == (Verdict.UNKNOWN, {})
    assert NO_TABLE in source.reasons


def test_delta_within_a_version(place: Location) -> None:
    (source,) = of(place, stream((delta(5, 2),))).sources
    assert source.options == {"startingVersion": "5"}
    assert (source.verdict, source.repeats) == (Verdict.WILL_DUPLICATE, {"files": 3})
    assert "the batch ended within version 5" in source.reasons[0]
    assert source.reasons[-1] == NO_TABLE


def test_delta_within_the_first_snapshot(place: Location) -> None:
    (source,) = of(place, stream((delta(5, 7, initial=True),))).sources
    assert source.options == {}  # with a startingVersion the rest of the snapshot would never be read
    assert (source.verdict, source.repeats) == (Verdict.WILL_DUPLICATE, {"files": 8})
    plant(place, stream((delta(5, -1, initial=True),)))
    assert ask(logs_of_checkpoint(place), Question()).verdict is Verdict.UNKNOWN


# Files


def files_stream(newest: int, *, committed: int | None = None) -> Files:
    files = stream(*[(compact({"logOffset": b}),) for b in range(newest + 1)], committed=committed)
    return files | {f"sources/0/{i}": file_source_log(i) for i in range(newest + 1)}


def test_the_log_of_a_source_that_spark_4_2_names(place: Location) -> None:
    """Its directory bears the name, its offsets the position: the files that it read are read by nobody again."""
    files = {path.replace("sources/0/", "sources/orders/"): content for path, content in files_stream(3).items()}
    found = of(place / "old", files)
    (source,) = found.sources
    assert (source.verdict, source.repeats) == (Verdict.WILL_DUPLICATE, {"files": 4})
    assert [seed.path for seed in found.seeds] == ["sources/orders/0"]
    assert found.unread == ()
    assert put_seeds(found, place / "new").verdict is Verdict.SAFE


def test_logs_of_several_named_sources_are_not_told_apart(place: Location) -> None:
    """Spark 4.2 does not record whose log is whose."""
    files = stream(*[(compact({"logOffset": b}), compact({"logOffset": b})) for b in range(2)])
    files |= {f"sources/{name}/{i}": file_source_log(i) for name in ("orders", "returns") for i in range(2)}
    found = of(place, files)
    assert (found.verdict, found.seeds) == (Verdict.WILL_DUPLICATE, ())
    assert [source.repeats for source in found.sources] == [None, None]
    assert "which directory is that of source 1 was not recorded" in found.sources[1].reasons[0]


def test_files_are_seeded_one_by_one(place: Location) -> None:
    found = of(place / "old", files_stream(3, committed=3))
    (source,) = found.sources
    assert found.batch_id == 2
    assert (source.verdict, source.repeats, source.options) == (Verdict.WILL_DUPLICATE, {"files": 3}, {})
    before = contents(place / "old")
    seeded = put_seeds(found, place / "new")
    assert (seeded.sources[0].verdict, seeded.sources[0].repeats) == (Verdict.SAFE, {})
    lines = contents(place / "new")["sources/0/0"].decode().split("\n")
    assert lines[0] == "v1"
    assert [json.loads(line) for line in lines[1:]] == [
        {"path": f"file:///in/f{i:04}.json", "timestamp": 1704067200000 + 1000 * i, "batchId": SEEDED} for i in range(3)
    ]
    assert put_seeds(found, place / "new") == seeded  # a second time is fine
    assert contents(place / "old") == before


def test_seeds_only_go_into_an_empty_place(place: Location) -> None:
    found = of(place / "old", files_stream(3))
    for there in ({"offsets/0": b"v1"}, {"sources/0/0": b"v1"}):
        with pytest.raises(RefusedError, match="is not empty: it holds"):
            put_seeds(found, plant(place / f"new-{len(contents(place))}", there))


def test_modified_after_reads_the_newest_millisecond_again(place: Location) -> None:
    """The tie rule: a file of the newest read file's own millisecond may be unread, so both are read."""
    files = files_stream(3)
    tie = compact({"path": "file:///in/tie.json", "timestamp": 1704067203000, "batchId": 3}).encode()
    files["sources/0/3"] += b"\n" + tie
    (source,) = of(place, files).sources
    (alternative,) = source.alternatives
    assert alternative.options == {"modifiedAfter": "2024-01-01T00:00:02.999Z"}
    assert (alternative.verdict, alternative.repeats) == (Verdict.WILL_DUPLICATE, {"files": 2})


def test_modified_after_of_an_older_batch_goes_before_the_oldest_unread_file(place: Location) -> None:
    files = files_stream(3)
    files["sources/0/3"] = (
        b"v1\n" + compact({"path": "file:///in/late", "timestamp": 1704067201000, "batchId": 3}).encode()
    )
    (source,) = of(place, files, Question(batch=2)).sources
    (alternative,) = source.alternatives
    assert alternative.options == {"modifiedAfter": "2024-01-01T00:00:00.999Z"}
    assert alternative.repeats == {"files": 2}


def test_modified_after_is_unknown_where_files_came_in_another_order(place: Location) -> None:
    files = files_stream(3)
    files["sources/0/1"], files["sources/0/2"] = file_source_log(2), file_source_log(1)
    (source,) = of(place, files).sources
    assert source.alternatives[0].verdict is Verdict.UNKNOWN
    assert source.seed  # the list of names does not care


def test_a_damaged_log_of_files_is_told(place: Location) -> None:
    files = files_stream(3)
    files["sources/0/1"] = b""
    found = of(place / "old", files)
    assert [u.path for u in found.unread] == ["sources/0/1"]
    seeded = put_seeds(found, place / "new")
    assert (seeded.sources[0].verdict, seeded.sources[0].repeats) == (Verdict.WILL_DUPLICATE, None)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(0, 29))
def test_modified_after_loses_nothing(times: list[int], cut: int) -> None:
    """Whatever the ties: each unread file is after the time, and the count of repeated files is right."""
    place = in_memory()
    try:
        ordered = sorted(times)
        cut = min(cut, len(ordered) - 1)
        files = stream((compact({"logOffset": cut}),))
        for i, t in enumerate(ordered):
            line = compact({"path": f"file:///in/{i}", "timestamp": 1000 + t, "batchId": i})
            files[f"sources/0/{i}"] = f"v1\n{line}".encode()
        (source,) = of(place, files).sources
        text = source.alternatives[0].options["modifiedAfter"]
        after = round(datetime.fromisoformat(text).timestamp() * 1000)
        taken = [i for i, t in enumerate(ordered) if 1000 + t > after]
        assert set(range(cut + 1, len(ordered))) <= set(taken)
        assert source.alternatives[0].repeats == {"files": sum(i <= cut for i in taken)}
    finally:
        forget_all()


# Other sources


@pytest.mark.parametrize("line", ["5", '{"offset":10,"timestamp":2000}', '{"snapshot_id":1}', "shard-7"])
def test_other_sources_are_unknown(place: Location, line: str) -> None:
    (source,) = of(place, stream((line,))).sources
    assert (source.verdict, source.options, source.repeats) == (Verdict.UNKNOWN, {}, None)


def test_auto_loader_is_a_guess_and_says_so(place: Location) -> None:
    (source,) = of(place, stream(('{"seqNum":12,"sourceVersion":1,"lastBackfillStartTimeMs":0}',))).sources
    assert source.kind == "auto-loader"
    assert source.verdict is Verdict.UNKNOWN
    assert datetime.fromisoformat(source.options["modifiedAfter"]) == datetime.fromisoformat(at(0)) - timedelta(
        milliseconds=1
    )


def test_all_sources_of_a_join_at_once(place: Location) -> None:
    found = of(place, stream((kafka(1), delta(2), '{"logOffset":0}')) | {"sources/2/0": file_source_log(0)})
    assert [s.kind for s in found.sources] == ["kafka", "delta", "file"]
    assert list(found.options) == ["0", "1", "2"]
    assert found.of("1").options == {"startingVersion": "2"}
    assert found.verdict is Verdict.WILL_DUPLICATE
    with pytest.raises(RefusedError, match=r"has no source '3'\nHINT: it has: 0 \(kafka\), 1 \(delta\), 2 \(file\)"):
        found.of("3")
    assert json.loads(json.dumps(found.to_json())) == found.to_json()


# The choice of the batch

THREE = stream((kafka(1),), (kafka(2),), (kafka(3),), (kafka(4),), committed=3)


def test_a_batch_by_number(place: Location) -> None:
    found = of(place, THREE, Question(batch=0))
    assert (found.batch_id, found.options["0"]["startingOffsets"]) == (0, kafka(1))


@pytest.mark.parametrize(
    ("batch", "why"), [(3, "batch 3 is planned but not committed"), (7, "batch 7 is not in the log")]
)
def test_a_batch_out_of_range_is_refused_with_the_range(place: Location, batch: int, why: str) -> None:
    with pytest.raises(RefusedError) as e:
        of(place, THREE, Question(batch=batch))
    assert f"{why}; committed and still in the log: batches 0 to 2" in str(e.value)


@pytest.mark.parametrize(("time", "batch"), [(0, 0), (0.999, 0), (1, 1), (1.5, 1), (2, 2), (99, 2)])
def test_a_time_takes_the_batch_at_or_before_it(place: Location, time: float, batch: int) -> None:
    plant(place, THREE)
    now = datetime.fromtimestamp(BEGAN / 1000 + 1000, UTC)
    choice = Question(to_datetime=at(time)).choose(logs_of_checkpoint(place), now=now)
    assert (choice.entry.batch_id, choice.by_clock) == (batch, None)
    ago = f"PT{1000 - time:.3f}S" if time != int(time) else f"PT{1000 - int(time)}S"
    if time == int(time):
        assert Question(by_duration=ago).choose(logs_of_checkpoint(place), now=now).entry.batch_id == batch


def test_a_clock_that_was_put_back_takes_the_older_batch(place: Location) -> None:
    files = dict(THREE)
    files["offsets/1"] = offsets_log(kafka(2), metadata={**batch_metadata(1), "batchTimestampMs": BEGAN + 60_000})
    assert of(place, files, Question(to_datetime=at(30))).batch_id == 0


def test_a_time_older_than_the_log_goes_by_the_sources_clocks(place: Location) -> None:
    files = stream((kafka(1), delta(3), '{"logOffset":0}')) | {"sources/2/0": file_source_log(0)}
    found = of(place, files, Question(to_datetime=at(-3600)))
    assert found.batch_id is None
    ms = BEGAN - 3_600_000
    assert json.loads(found.options["0"]["startingOffsetsByTimestamp"]) == {"orders": {"0": ms}}
    assert "startingOffsets" not in found.options["0"]
    assert datetime.fromisoformat(found.options["1"]["startingTimestamp"]) == datetime.fromisoformat(at(-3600))
    assert datetime.fromisoformat(found.options["2"]["modifiedAfter"]).timestamp() * 1000 == pytest.approx(ms - 1)
    assert "is older than the log, whose oldest committed batch 0" in found.notes[0]


@pytest.mark.parametrize(
    ("question", "words"),
    [
        (Question(to_datetime="yesterday"), "'yesterday' is not a time"),
        (Question(to_datetime="2026-11-21T08:30:00"), "has no time zone"),
        (Question(to_datetime="2999-01-01T00:00:00Z"), "lies in the future"),
        (Question(to_datetime="0001-01-01T00:00:00+23:59"), "beyond the times there are"),
        (Question(by_duration="2 hours"), "the duration is '2 hours', which is no duration"),
        (Question(by_duration="PT"), "the duration is 'PT', which is no duration"),
        (Question(by_duration="P999999999D"), "before the year 1970"),
        (Question(batch=1, by_duration="PT1H"), "exclude each other"),
    ],
)
def test_bad_questions_are_refused(place: Location, question: Question, words: str) -> None:
    with pytest.raises(RefusedError, match=words):
        of(place, THREE, question)


def test_continuous_mode_has_no_times(place: Location) -> None:
    files = {
        "metadata": metadata(),
        "commits/0": commit_log(),
        "offsets/0": offsets_log('{"0":{"value":1,"runTimeMs":2}}'),
    }
    with pytest.raises(RefusedError, match="its offset log has no times"):
        of(place, files, Question(to_datetime=at(0)))


# Broken checkpoints


def test_the_newest_readable_batch_counts(place: Location) -> None:
    files = {**THREE, "offsets/2": b"", "offsets/3": b"v1\n{", "metadata": b""}
    found = of(place, files)
    assert found.batch_id == 1
    assert found.query_id is None
    assert found.notes == ("the offsets of batch 2 cannot be read: their rows are read again",)
    assert {u.path for u in found.unread} >= {"offsets/2", "metadata"}
    with pytest.raises(UnreadableLogError, match="offsets/2: the file is empty"):
        of(place, {}, Question(batch=2))


def test_without_commits_the_batches_before_the_newest_count(place: Location) -> None:
    files = {path: data for path, data in THREE.items() if not path.startswith("commits/")}
    found = of(place, files)
    assert found.batch_id == 2
    assert "there are no commits" in found.notes[0]


def test_a_seal_is_no_batch(place: Location) -> None:
    seal = b"airflow-ckpt: sealed by plan p (why, me, 2026-11-21T08:31:07Z); Spark must not start"
    found = of(place, stream((kafka(1),), (kafka(2),)) | {"offsets/2": seal})
    assert (found.batch_id, [w.code for w in found.warnings]) == (1, ["NEW-QUERY-ID", "BATCH-NUMBERS"])


@pytest.mark.parametrize(
    "files",
    [
        {"metadata": metadata(), "commits/3": commit_log()},
        {"offsets/3": b"", "commits/3": commit_log()},
        {"sources/0/0": file_source_log(0)},
    ],
)
def test_no_offsets_at_all_is_refused(place: Location, files: Files) -> None:
    with pytest.raises(RefusedError, match="so nobody knows how far the query got"):
        of(place, files)


def test_nothing_committed_yet(place: Location) -> None:
    with pytest.raises(RefusedError, match="no batch is committed yet"):
        of(place, stream((kafka(1),), committed=0))


def test_an_empty_place_is_no_checkpoint(place: Location) -> None:
    with pytest.raises(NotACheckpointError):
        logs_of_checkpoint(place)


def test_state_is_lost(place: Location) -> None:
    codes = [w.code for w in of(place, hdfs_aggregation(3)).warnings]
    assert codes == ["NEW-QUERY-ID", "BATCH-NUMBERS", "STATE-LOST"]


# Backups


def test_a_backup_gives_the_same_positions(place: Location) -> None:
    checkpoint = plant(place / "orders", hdfs_aggregation(4))
    repository = Repository.open_or_create(place / "backups")
    manifest = create_backup(Checkpoint.at(checkpoint), repository, restorable_batches=2).manifest
    of_checkpoint = ask(logs_of_checkpoint(checkpoint), Question())
    found = ask(logs_of_backup(repository, manifest), Question())
    assert found.origin == f"backup {manifest.backup_id} of {checkpoint}"
    assert found.query_id == QUERY_ID
    assert (found.batch_id, found.sources, found.conf) == (4, of_checkpoint.sources, of_checkpoint.conf)
    assert found.warnings == of_checkpoint.warnings
    assert ask(logs_of_backup(repository, manifest), Question(batch=3)).batch_id == 3
    with pytest.raises(RefusedError, match="committed and still in the log: batches 3 to 4"):
        ask(logs_of_backup(repository, manifest), Question(batch=1))


def test_a_log_entry_that_rots_in_a_backup_gives_no_wrong_position(place: Location) -> None:
    """One digit of an offset is another one: it can be read, and is not what was backed up."""
    checkpoint = plant(place / "orders", hdfs_aggregation(4))
    repository = Repository.open_or_create(place / "backups")
    manifest = create_backup(Checkpoint.at(checkpoint), repository, restorable_batches=2).manifest
    right = ask(logs_of_backup(repository, manifest), Question(batch=3)).sources
    path = entry_of(manifest, "offsets/4").object
    content, file = repository.location.read(path), repository.location.read(file_of(path))
    wrong = content.replace(b'{"logOffset":4}', b'{"logOffset":1}')
    assert wrong != content
    repository.location.replace(file_of(path), file.replace(content, wrong))
    found = ask(logs_of_backup(repository, manifest), Question())
    assert (found.batch_id, found.sources) == (3, right)
    (unread,) = [u for u in found.unread if u.path == "offsets/4"]
    assert unread.reason == f"its object {path} has another content than was backed up"
