"""resume: the restart table of Spark's ``populateStartOffsets``, line by line. L = newest offsets, K = newest commit."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.offsets import SourceOffset
from airflow_ckpt_provider.checkpoint.resume import ResumePoint
from airflow_ckpt_provider.errors import UnreadableLogError
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.checkpoints import Files, batch_metadata, commit_log, metadata, offsets_log, plant
from tests.support.continuous_streams import continuous
from tests.support.seals import seal_at
from tests.support.watched_stores import watched

NO_METADATA = (
    "metadata is missing: Spark 4.2 and later refuse to start; older ones make a new query id, so exactly-once sinks "
    "take replayed batches for new ones"
)


def checkpoint(logged: list[int], committed: list[int], *, query_id: bool = True, operators: int = 0) -> Files:
    """Batch N reads up to N * 10, at watermark N * 1000, and leaves watermark N * 1000 + 500."""
    files: Files = {"metadata": metadata()} if query_id else {}
    files |= {f"offsets/{b}": offsets_log(str(10 * b), metadata=batch_metadata(b, watermark=1000 * b)) for b in logged}
    files |= {f"commits/{b}": commit_log(watermark=1000 * b + 500) for b in committed}
    return files | {f"state/{o}/0/1.delta": b"x" for o in range(operators)}


def resume(place: Location, files: Files) -> ResumePoint:
    return Checkpoint.at(plant(place, files)).resume_point()


def seconds(sources: tuple[SourceOffset, ...]) -> list[str]:
    return [source.offset.text for source in sources if source.offset]


@dataclass(frozen=True)
class Row:
    """A line of the table: what is on disk, and what follows."""

    name: str
    logged: list[int]
    committed: list[int]
    batch_id: int
    replay: bool
    start: list[str]
    end: list[str]
    watermark: int
    verdict: Verdict = Verdict.SAFE
    reasons: tuple[str, ...] = ()
    query_id: bool = True
    more: Files = field(default_factory=dict)


TABLE = [
    Row("no offsets, no commits", [], [], 0, False, [], [], 0),
    Row("L == K, first batch", [0], [0], 1, False, ["0"], [], 500),
    Row("L == K", [0, 1, 2, 3], [0, 1, 2, 3], 4, False, ["30"], [], 3500),
    Row("L == K, the least there may be", [2, 3], [3], 4, False, ["30"], [], 3500),
    Row(
        "L == K, offsets/L-1 is missing", [3], [3], 4, False, ["30"], [], 3500, Verdict.WILL_FAIL,
        ("offsets/2 is missing, Spark reads it at its start and fails with `batch 2 doesn't exist`",),
    ),
    Row("L == K+1", [0, 1, 2, 3], [0, 1, 2], 3, True, ["20"], ["30"], 3000),
    Row("L == K+1, first batch done", [0, 1], [0], 1, True, ["0"], ["10"], 1000),
    Row(
        "L == K+1, offsets/L-1 is missing", [3], [2], 3, True, [], ["30"], 3000, Verdict.WILL_FAIL,
        ("offsets/2 is missing, Spark reads it at its start and fails with `batch 2 doesn't exist`",),
    ),
    Row("first batch logged, not committed", [0], [], 0, True, [], ["0"], 0),
    Row(
        "K missing", [0, 1, 2], [], 2, True, ["10"], ["20"], 2000, Verdict.UNKNOWN,
        (
            "no commits while offsets/ reaches batch 2: Spark runs batch 2 and none before it; whether those were carried "
            "out cannot be known",
        ),
    ),
    Row(
        "K < L-1", [0, 1, 2, 3, 4, 5], [0, 1, 2], 5, True, ["40"], ["50"], 5000, Verdict.WILL_SKIP,
        (
            "batch 2 is the newest commit, 5 the newest logged: Spark runs 5 again and never 3, 4; it only logs a warning",
        ),
    ),
    Row(
        "K == L-2", [0, 1, 2, 3], [0, 1], 3, True, ["20"], ["30"], 3000, Verdict.WILL_SKIP,
        ("batch 1 is the newest commit, 3 the newest logged: Spark runs 3 again and never 2; it only logs a warning",),
    ),
    Row(
        "K > L", [0, 1, 2], [0, 1, 2, 3, 4], 2, True, ["10"], ["20"], 2000, Verdict.WILL_DUPLICATE,
        (
            "commits/ reaches batch 4 but offsets/ only 2: Spark runs batch 2 again, sink included, then fails because its "
            "commit exists",
        ),
    ),
    Row(
        "no offsets at all, but commits", [], [0, 1], 0, False, [], [], 0, Verdict.WILL_DUPLICATE,
        (
            "offsets/ is empty while commits/ reaches batch 1: Spark 4.1 and later refuse to start; older ones begin again "
            "with batch 0 and fail at the first commit that exists",
        ),
    ),
    Row(
        "async gaps, all committed", [0, 3, 6], [0, 3, 6], 7, False, ["60"], [], 6500, Verdict.UNKNOWN,
        (
            "offsets/5 is missing, Spark reads it at its start: legal with async progress tracking, which continues from "
            "offsets/3; any other query fails with `batch 5 doesn't exist`",
        ),
    ),
    Row(
        "async gaps, newest not committed", [0, 3, 6], [0, 3], 6, True, ["30"], ["60"], 6000, Verdict.UNKNOWN,
        (
            "offsets/5 is missing, Spark reads it at its start: legal with async progress tracking, which continues from "
            "offsets/3; any other query fails with `batch 5 doesn't exist`",
        ),
    ),
    Row(
        "metadata missing, L == K", [0, 1], [0, 1], 2, False, ["10"], [], 1500, Verdict.WILL_DUPLICATE,
        (NO_METADATA,), query_id=False,
    ),
    Row(
        "metadata missing, L == K+1", [0, 1], [0], 1, True, ["0"], ["10"], 1000, Verdict.WILL_DUPLICATE,
        (NO_METADATA,), query_id=False,
    ),
    Row(
        "metadata missing and a hole: nothing starts", [3], [3], 4, False, ["30"], [], 3500, Verdict.WILL_FAIL,
        (NO_METADATA, "offsets/2 is missing, Spark reads it at its start and fails with `batch 2 doesn't exist`"),
        query_id=False,
    ),
    Row(
        "sealed, L == K", [0, 1], [0, 1], 2, False, ["10"], [], 1500, Verdict.WILL_FAIL,
        ("sealed by plan 7f3a (an upgrade): no Spark can start from it",), more=seal_at(2),
    ),
    Row(
        "sealed in the middle of a batch", [0, 1, 2], [0, 1], 2, True, ["10"], ["20"], 2000, Verdict.WILL_FAIL,
        ("sealed by plan 7f3a (an upgrade): no Spark can start from it",), more=seal_at(3),
    ),
    Row(
        "sealed and worse: nothing starts, so nothing is skipped", [0, 1, 2, 3], [0], 3, True, ["20"], ["30"], 3000,
        Verdict.WILL_FAIL,
        (
            "sealed by plan 7f3a (an upgrade): no Spark can start from it",
            "batch 0 is the newest commit, 3 the newest logged: Spark runs 3 again and never 1, 2; it only logs a warning",
        ),
        more=seal_at(4),
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_restart_table(place: Location, row: Row) -> None:
    found = resume(place, checkpoint(row.logged, row.committed, query_id=row.query_id) | row.more)
    assert (found.batch_id, found.replay) == (row.batch_id, row.replay)
    assert (seconds(found.start_offsets), seconds(found.end_offsets)) == (row.start, row.end)
    assert found.watermark_ms == row.watermark
    assert found.reasons == row.reasons
    assert found.verdict is row.verdict
    assert found.state_versions == {}


def test_no_commits_and_no_entry_before(place: Location) -> None:
    """Spark reads ``offsets/<L-1>`` whether or not there is a commit."""
    found = resume(place, checkpoint([5], []))
    assert (found.batch_id, found.replay) == (5, True)
    assert found.verdict is Verdict.WILL_FAIL
    assert "offsets/4 is missing, Spark reads it at its start and fails with `batch 4 doesn't exist`" in found.reasons


def test_commits_beyond_and_no_entry_before(place: Location) -> None:
    """It fails for ``offsets/<L-1>`` before anything is run, so nothing is doubled."""
    found = resume(place, checkpoint([3], [3, 4]))
    assert found.verdict is Verdict.WILL_FAIL
    assert "offsets/2 is missing, Spark reads it at its start and fails with `batch 2 doesn't exist`" in found.reasons


def test_a_first_batch_over_left_state(place: Location) -> None:
    """Logs deleted, state left: Spark 4.1+ refuses to start, older ones use the state. Never safe."""
    found = resume(place, checkpoint([], [], operators=1))
    assert (found.batch_id, found.replay) == (0, False)
    assert found.verdict is not Verdict.SAFE
    assert found.reasons


def test_a_first_batch_that_was_not_logged(place: Location) -> None:
    """A file source writes its own log before ``offsets/0``: a stop in between is nothing to worry about."""
    found = resume(place, checkpoint([], []) | {"sources/0/0": b"v1"})
    assert (found.batch_id, found.verdict, found.reasons) == (0, Verdict.SAFE, ())


def test_watermark_of_the_commit_counts_only_where_it_is_later(place: Location) -> None:
    files = checkpoint([0, 1], [0, 1]) | {"commits/1": commit_log(watermark=7)}
    assert resume(place, files).watermark_ms == 1000


@pytest.mark.parametrize(("committed", "version"), [([0, 1, 2, 3], 4), ([0, 1, 2], 3)])
def test_state_versions(place: Location, committed: list[int], version: int) -> None:
    """Batch N reads state version N."""
    assert resume(place, checkpoint([0, 1, 2, 3], committed, operators=3)).state_versions == {
        0: version,
        1: version,
        2: version,
    }


class TestContinuous:
    """``ContinuousExecution`` starts from the newest committed epoch; what was logged beyond is not replayed."""

    def test_all_committed(self, place: Location) -> None:
        found = resume(place, continuous([0, 1, 2], [0, 1, 2]))
        assert (found.batch_id, found.replay, found.end_offsets) == (3, False, ())
        assert seconds(found.start_offsets) == ['{"0":{"value":2,"runTimeMs":2}}']
        assert (found.verdict, found.reasons, found.watermark_ms) == (Verdict.SAFE, (), 0)

    def test_an_epoch_logged_and_not_committed(self, place: Location) -> None:
        found = resume(place, continuous([0, 1, 2], [0, 1]))
        assert (found.batch_id, found.replay, found.end_offsets) == (2, False, ())
        assert seconds(found.start_offsets) == ['{"0":{"value":1,"runTimeMs":2}}']

    def test_nothing_committed(self, place: Location) -> None:
        found = resume(place, continuous([0], []))
        assert (found.batch_id, found.replay, found.start_offsets, found.end_offsets) == (0, False, (), ())

    def test_committed_and_not_logged(self, place: Location) -> None:
        """Spark fails: ``Batch 2 was committed without end epoch offsets!``."""
        found = resume(place, continuous([0, 1], [0, 1, 2]))
        assert found.verdict is Verdict.WILL_FAIL
        assert any("offsets/2" in reason for reason in found.reasons)


@pytest.mark.parametrize("content", [b"", b'v1\n{"batchWater'], ids=["empty", "cut off"])
@pytest.mark.parametrize(
    ("logged", "committed", "path"),
    [
        ([0, 1, 2, 3], [0, 1, 2, 3], "offsets/3"),
        ([0, 1, 2, 3], [0, 1, 2, 3], "offsets/2"),
        ([0, 1, 2, 3], [0, 1, 2, 3], "commits/3"),
        ([0, 1, 2, 3], [0, 1, 2], "offsets/3"),
        ([0, 1, 2, 3], [0, 1, 2], "offsets/2"),
        ([0, 1, 2, 3], [0, 1, 2], "commits/2"),
        ([0, 1, 2], [0, 1, 2, 3], "commits/3"),
        ([0, 3, 6], [0, 3, 6], "offsets/3"),
        ([0, 3, 6], [0, 3], "commits/3"),
    ],
)
def test_an_entry_that_every_start_reads_is_unreadable(
    place: Location, logged: list[int], committed: list[int], path: str, content: bytes
) -> None:
    with pytest.raises(UnreadableLogError) as error:
        resume(place, checkpoint(logged, committed) | {path: content})
    assert (error.value.path, error.value.batch_id) == (path, int(path[-1]))


@pytest.mark.parametrize(
    ("logged", "committed", "path"),
    [
        ([0, 1, 2, 3], [0, 1, 2, 3], "offsets/1"),
        ([0, 1, 2, 3], [0, 1, 2, 3], "commits/2"),
        ([], [0, 1], "commits/1"),
    ],
)
def test_an_entry_that_no_start_reads_is_not_read(
    place: Location, logged: list[int], committed: list[int], path: str
) -> None:
    files = checkpoint(logged, committed)
    assert resume(place / "torn", files | {path: b""}) == resume(place / "whole", files)


@pytest.mark.parametrize("path", ["offsets/1", "commits/1"])
def test_continuous_mode_reads_the_newest_commit_and_its_offsets(place: Location, path: str) -> None:
    with pytest.raises(UnreadableLogError) as error:
        resume(place, continuous([0, 1, 2], [0, 1]) | {path: b""})
    assert error.value.path == path


def test_to_json(place: Location) -> None:
    assert resume(place, checkpoint([0, 1], [0], operators=1)).to_json() == {
        "batch_id": 1,
        "replay": True,
        "start_offsets": [{"index": 0, "kind": "rate", "offset": 0}],
        "end_offsets": [{"index": 0, "kind": "rate", "offset": 10}],
        "watermark_ms": 1000,
        "state_versions": {"0": 1},
        "verdict": "SAFE",
        "reasons": [],
    }
    assert resume(place, checkpoint([0, 1], [0, 1])).to_json()["end_offsets"] is None


def test_cost(place: Location) -> None:
    """On top of the progress: one listing and at most two small reads, however many batches there are."""
    for committed in ([*range(300)], [*range(299)]):
        location, store = watched(plant(place / str(len(committed)), checkpoint([*range(300)], committed, operators=1)))
        Checkpoint.at(location).resume_point()
        assert store.count("list") == 3
        assert store.count("read") == 4
        assert len(store.requests) == 7
