"""sealing: set only where nothing is, lifted only by whom it belongs to."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.records import new_plan_id
from airflow_ckpt_provider.change.plan_seal import seal_for_plan
from airflow_ckpt_provider.change.sealing import put_seal, remove_seal, seal, sealed_by_another, unseal
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.logs import HIGHEST
from airflow_ckpt_provider.checkpoint.seal import Seal, parse_seal
from airflow_ckpt_provider.errors import NotACheckpointError, RefusedError, SealedError, StorageError
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.units import format_time
from tests.support.checkpoints import Files, commit_log, contents, logs, metadata, plant
from tests.support.continuous_streams import continuous
from tests.support.seals import seal_at
from tests.support.watched_stores import watched


def at(place: Location, files: Files) -> Checkpoint:
    return Checkpoint.at(plant(place, files))


def test_sealed_after_the_newest_batch(place: Location) -> None:
    checkpoint = at(place, logs(range(5)))
    before = contents(place)
    mark = seal(checkpoint, reason="an upgrade", made_by="me", plan_id="7f3a")
    assert mark.path == "offsets/5"
    assert (datetime.now(UTC) - (mark.since or datetime.min.replace(tzinfo=UTC))).total_seconds() < 60
    assert checkpoint.progress().seal == mark
    assert unseal(checkpoint, plan_id="7f3a") == mark
    assert contents(place) == before


def test_commands_are_quoted() -> None:
    """A place with a blank, and a seal whose id somebody has made up."""
    own = Seal(3, "a;b", "maintenance", "me", datetime.now(UTC))
    for mark, command in [
        (own, "airflow-ckpt unseal '/data/my orders#1' --plan 'a;b'"),
        (replace(own, attempt=2), "airflow-ckpt status '/data/my orders#1' --repository REPOSITORY"),
        (replace(own, plan_id="7f3a-undo"), "airflow-ckpt undo '/data/my orders#1' --plan 7f3a"),
    ]:
        assert f"`{command}`" in str(sealed_by_another("/data/my orders#1", mark).hint)


def test_no_seal_above_the_highest_number(place: Location) -> None:
    """Spark would take it for no batch, and start."""
    files = {**logs(range(3)), f"offsets/{HIGHEST}": logs(range(3))["offsets/2"]}
    with pytest.raises(RefusedError, match=f"offsets/{HIGHEST}, the highest number") as error:
        seal(at(place, files), reason="maintenance")
    assert f"move offsets/{HIGHEST} away" in str(error.value.hint)
    assert contents(place) == files


@pytest.mark.parametrize(
    ("files", "number"), [({"metadata": metadata()}, 0), (logs(range(1)), 1), (logs(range(7, 10)), 10)]
)
def test_the_number(place: Location, files: Files, number: int) -> None:
    assert seal(at(place, files), reason="r").batch_id == number


def test_a_batch_in_the_middle(place: Location) -> None:
    """Logged and not committed: the stream finishes it and stops at the seal after it."""
    files = logs(range(5))
    del files["commits/4"]
    assert seal(at(place, files), reason="r").batch_id == 5


def test_continuous_mode_is_refused(place: Location) -> None:
    """Its query passes a seal and starts under it: see docs/seal-limits.md."""
    checkpoint = at(place, continuous([0, 1, 2], [0, 1, 2]))
    before = contents(place)
    with pytest.raises(RefusedError, match=r"continuous mode.*offsets/2"):
        seal(checkpoint, reason="an upgrade")
    assert contents(place) == before


def test_no_checkpoint(place: Location) -> None:
    with pytest.raises(NotACheckpointError):
        seal(Checkpoint.at(place), reason="r")
    with pytest.raises(NotACheckpointError):
        unseal(Checkpoint.at(place))
    assert contents(place) == {}


def test_again_with_the_same_plan_finds_it(place: Location) -> None:
    checkpoint = at(place, logs(range(5)))
    first = seal(checkpoint, reason="r", plan_id="7f3a")
    again = seal(checkpoint, reason="r", plan_id="7f3a")
    assert (again.batch_id, again.plan_id, again.since) == (first.batch_id, first.plan_id, first.since)
    assert [p for p in contents(place) if p == "offsets/6"] == []


def test_another_plan_is_refused(place: Location) -> None:
    checkpoint = at(place, logs(range(5)) | seal_at(5))
    before = contents(place)
    message = f"{place} is sealed by plan 7f3a (an upgrade, me, 2026-11-21 08:31:07 UTC): offsets/5"
    hint = f"let that plan finish, or lift its seal: `airflow-ckpt unseal {place} --plan 7f3a`"
    for attempt in (
        lambda: seal(checkpoint, reason="r", plan_id="beef"),
        lambda: seal(checkpoint, reason="r"),
        lambda: unseal(checkpoint),
        lambda: unseal(checkpoint, plan_id="beef"),
    ):
        with pytest.raises(SealedError) as error:
            attempt()
        assert (error.value.message, error.value.hint) == (message, hint)
    assert contents(place) == before


def test_lifted_by_force(place: Location) -> None:
    checkpoint = at(place, logs(range(5)) | seal_at(5))
    lifted = unseal(checkpoint, force=True)
    assert lifted is not None
    assert lifted.plan_id == "7f3a"
    assert checkpoint.progress().seal is None


def test_a_seal_cut_off_is_lifted_by_force_only(place: Location) -> None:
    checkpoint = at(place, logs(range(5)) | {"offsets/5": b"airflow-ckpt: sealed by pl"})
    with pytest.raises(SealedError, match="is sealed by plan unknown"):
        unseal(checkpoint, plan_id="7f3a")
    assert unseal(checkpoint, force=True) is not None
    assert "offsets/5" not in contents(place)


def test_nothing_to_lift(place: Location) -> None:
    checkpoint = at(place, logs(range(5)))
    assert unseal(checkpoint) is None
    assert unseal(checkpoint, plan_id="7f3a", force=True) is None


def test_hadoop_s_checksum_of_the_seal_goes_too(place: Location) -> None:
    checkpoint = at(place, logs(range(5)) | seal_at(5) | {"offsets/.5.crc": b"x", "offsets/.4.crc": b"x"})
    unseal(checkpoint, plan_id="7f3a")
    assert [p for p in contents(place) if "crc" in p] == ["offsets/.4.crc"]


def test_both_of_two_seals_are_lifted(place: Location) -> None:
    """Left by a restore that was killed while it raised its seal; one left behind would still stop every Spark."""
    checkpoint = at(place, logs(range(5)) | seal_at(5) | seal_at(9))
    assert unseal(checkpoint, plan_id="7f3a") is not None
    assert checkpoint.progress().seal is None
    assert contents(place) == dict(sorted(logs(range(5)).items()))


@pytest.mark.parametrize("batches", [1, 10, 49])
def test_a_stream_that_is_faster(place: Location, batches: int) -> None:
    """It logs a batch each time we look: the seal takes the next number, and overwrites none of them."""
    plant(place, logs(range(1)))
    logged = []

    def log_a_batch(operation: str, path: str) -> None:
        if operation == "create" and len(logged) < batches:
            number = int(path.rpartition("/")[2])
            plant(
                place,
                {p: d for p, d in logs(range(number, number + 1)).items() if p.startswith(("offsets", "commits"))},
            )
            logged.append(number)

    location, _ = watched(place, log_a_batch)
    mark = seal(Checkpoint.at(location), reason="r")
    assert logged == list(range(1, batches + 1))
    assert mark.batch_id == batches + 1
    assert Checkpoint.at(place).progress().logged == tuple(range(batches + 1))


def test_a_stream_that_is_always_faster(place: Location) -> None:
    plant(place, logs(range(1)))

    def log_a_batch(operation: str, path: str) -> None:
        if operation == "create":
            number = int(path.rpartition("/")[2])
            plant(
                place,
                {p: d for p, d in logs(range(number, number + 1)).items() if p.startswith(("offsets", "commits"))},
            )

    location, _ = watched(place, log_a_batch)
    with pytest.raises(RefusedError) as error:
        seal(Checkpoint.at(location), reason="r")
    assert error.value.message == f"{place} could not be sealed: the stream logged a new batch each of 50 times"
    assert error.value.hint == "stop the stream first"
    assert Checkpoint.at(place).progress().seal is None


def test_of_many_at_once_exactly_one_succeeds(tmp_path: Path) -> None:
    location = plant(Location(LocalStore(), str(tmp_path)), logs(range(3)))

    def attempt(plan_id: str) -> bool:
        try:
            seal(Checkpoint.at(location), reason="r", plan_id=plan_id)
        except SealedError:
            return False
        return True

    plans = [new_plan_id() for _ in range(16)]
    won = in_parallel(attempt, plans, workers=16)
    assert won.count(True) == 1
    mark = Checkpoint.at(location).progress().seal
    assert mark is not None
    assert mark.plan_id == plans[won.index(True)]


@pytest.mark.parametrize("force", [False, True])
def test_a_commit_beyond_the_seal(place: Location, force: bool) -> None:
    """Async progress tracking commits before it logs: lifting the seal would leave commits without offsets."""
    checkpoint = at(place, logs(range(5)) | seal_at(5) | {"commits/5": commit_log(), "commits/6": commit_log()})
    before = contents(place)
    with pytest.raises(RefusedError) as error:
        unseal(checkpoint, plan_id="7f3a", force=force)
    assert error.value.message == (
        f"{place} has commits/5, commits/6 at or beyond its seal offsets/5: the stream was stopped in async progress tracking "
        "with offsets not yet logged"
    )
    assert error.value.hint == (
        "delete commits/5, commits/6, then lift the seal: those batches run again, at-least-once as that mode is anyway"
    )
    assert contents(place) == before
    for path in ("commits/5", "commits/6"):
        place.delete(path)
    assert unseal(checkpoint, plan_id="7f3a") is not None


def test_a_store_that_cannot_create_if_absent_says_so(place: Location, caplog: pytest.LogCaptureFixture) -> None:
    location, _ = watched(plant(place, logs(range(3))), creates_if_absent=False)
    seal(Checkpoint.at(location), reason="r")
    assert "memory cannot create a file only if absent: looking before and after instead" in caplog.text


def test_there_somebody_else_may_write_at_the_same_moment(place: Location) -> None:
    def overwrite(operation: str, path: str) -> None:
        if operation == "read" and path.endswith("/offsets/3"):
            place.replace("offsets/3", b"v1\n{}\n1")

    location, _ = watched(place, overwrite, creates_if_absent=False)
    with pytest.raises(StorageError) as error:
        put_seal(location, 3, plan_id="7f3a", reason="r", made_by="")
    assert error.value.message == f"{place}/offsets/3 was written by somebody else at the same moment"
    assert error.value.hint == "stop the stream, then run the same command again"


def test_what_is_not_a_seal_any_more_stays(place: Location) -> None:
    mark = put_seal(plant(place, logs(range(3))), 3, plan_id="7f3a", reason="r", made_by="")
    place.replace("offsets/3", b"v1\n{}\n1")
    with pytest.raises(RefusedError) as error:
        remove_seal(place, mark)
    assert error.value.message == f"{place}/offsets/3 is not a seal any more"
    assert error.value.hint == "somebody else changes this checkpoint: inspect it first"
    assert place.read("offsets/3") == b"v1\n{}\n1"
    place.delete("offsets/3")
    remove_seal(place, mark)


@pytest.mark.parametrize("attempt", [1, 2])
def test_that_of_an_attempt_is_not_taken_over_by_a_plan_that_does_not_know_of_it(place: Location, attempt: int) -> None:
    """Two attempts that use two repositories may have the same number."""
    plant(place, logs(range(3)))
    put_seal(place, 3, plan_id="7f3a", reason="rewind to batch 1", made_by="me", attempt=1)
    before = contents(place)
    with pytest.raises(RefusedError, match="attempt 1 of me has begun plan 7f3a"):
        seal_for_plan(place, plan_id="7f3a", reason="reset, ", made_by="you", fingerprint=None, attempt=attempt)
    assert contents(place) == before


def test_one_that_a_plan_takes_over_comes_back_where_it_is_refused(place: Location) -> None:
    """It was there before: somebody counts on it."""
    plant(place, logs(range(3)))
    mark = put_seal(place, 3, plan_id="7f3a", reason="a maintenance", made_by="me")
    with pytest.raises(RefusedError, match="is not any more what plan 7f3a was made for"):
        seal_for_plan(place, plan_id="7f3a", reason="reset, ", made_by="you", fingerprint="another", attempt=4)
    now = inspect_target(place).seal
    assert now is not None
    assert replace(now, batch_id=3, since=mark.since) == mark


def test_one_that_was_lifted_just_before_it_is_taken_over_does_not_count(place: Location) -> None:
    """The stream was started in between, and is running its next batch."""
    plant(place, logs(range(3)))
    put_seal(place, 3, plan_id="7f3a", reason="stopping the query for a reset", made_by="me")
    running = logs(range(4))

    def start(operation: str, path: str) -> None:
        if operation == "create" and path.endswith("/offsets/4"):
            place.delete("offsets/3")
            plant(place, {"offsets/3": running["offsets/3"]})

    here, _ = watched(place, start)
    with pytest.raises(RefusedError, match=r"the seal of plan 7f3a on .* was lifted in the meantime"):
        seal_for_plan(here, plan_id="7f3a", reason="reset, ", made_by="you", fingerprint=None, attempt=1)
    assert contents(place) == logs(range(3)) | {"offsets/3": running["offsets/3"]}


def test_put_seal_overwrites_nothing(place: Location) -> None:
    plant(place, logs(range(3)))
    with pytest.raises(FileExistsError):
        put_seal(place, 2, plan_id="7f3a", reason="r", made_by="")
    assert contents(place) == dict(sorted(logs(range(3)).items()))


@pytest.mark.parametrize("words", ["a, b (c)", "line\nbreak", "Größe 国", "", "x); Spark must not start"])
def test_any_reason_is_lifted_by_its_plan(place: Location, words: str) -> None:
    checkpoint = at(place, logs(range(3)))
    mark = seal(checkpoint, reason=words, made_by=words, plan_id="7f3a")
    assert parse_seal(place.read(mark.path), batch_id=3) is not None
    assert unseal(checkpoint, plan_id="7f3a") is not None


@pytest.mark.parametrize("plan_id", ["run 7", "manual__2026-11-21T08:00:00+00:00", "é"])
def test_any_plan_id_lifts_its_seal(place: Location, plan_id: str) -> None:
    """Operators let people choose it. What cannot be read back must be refused before anything is sealed."""
    checkpoint = at(place, logs(range(3)))
    try:
        seal(checkpoint, reason="r", plan_id=plan_id)
    except RefusedError:
        assert checkpoint.progress().seal is None
        return
    assert seal(checkpoint, reason="r", plan_id=plan_id).plan_id == plan_id
    assert unseal(checkpoint, plan_id=plan_id) is not None


def test_plan_ids() -> None:
    ids = {new_plan_id() for _ in range(100)}
    assert len(ids) == 100
    assert {len(i) for i in ids} == {8}


@pytest.mark.parametrize(
    ("reason", "attempt", "half_changed"),
    [
        ("an upgrade", None, False),
        ("stopping the query for a restore", None, False),
        ("restore of 20261125T000000Z-b000004 batch 4 into an empty place", None, True),
        ("what a later version does", 1, True),
    ],
)
def test_whose_seal_it_is(reason: str, attempt: int | None, half_changed: bool) -> None:
    """Files below the seal of a change may be half-changed, so no hint says to lift it."""
    since = datetime(2026, 11, 25, tzinfo=UTC)
    error = sealed_by_another("memory:///orders", Seal(1, "7f3a", reason, "me", since, attempt))
    assert isinstance(error, SealedError)
    assert error.message == f"memory:///orders is sealed by plan 7f3a ({reason}, me, {format_time(since)}): offsets/1"
    hint = str(error.hint)
    assert ("airflow-ckpt unseal memory:///orders --plan 7f3a" in hint) is not half_changed
    assert ("airflow-ckpt status memory:///orders --repository REPOSITORY" in hint) is half_changed


def test_a_seal_that_cannot_be_read_in_full_may_be_of_a_change() -> None:
    error = sealed_by_another("memory:///orders", Seal(1, "7f3a", "an upgr", "me", None))
    assert "unseal" not in str(error.hint)
