"""The repair: the minimal cut as a plan, and the plan carried out, stopped after every write and continued with.

That Spark continues row-exact after each is shown in ``tests/integration/test_doctor_against_spark.py``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_ckpt_provider.backup.beside import repair_place
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.sealing import seal, unseal
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.findings import Severity
from airflow_ckpt_provider.errors import NotACheckpointError, RefusedError, SealedError, StorageError
from airflow_ckpt_provider.recovery.repair.apply import apply_repair
from airflow_ckpt_provider.recovery.repair.planning import plan_repair
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.samples.archives import sample
from tests.support.damaged_samples import (
    DAMAGES,
    Damage,
    Files,
    Placed,
    cut_off_newest_commit,
    delta_missing,
    hole,
    newest_commits_deleted,
    newest_offsets_deleted,
    no_metadata,
    paths_of_another_checkpoint,
    placed,
    snapshot_cut_off,
    snapshot_missing,
    source_log_missing,
)
from tests.support.one_by_one import one_by_one
from tests.support.spoiled import spoil
from tests.support.stopped import ACCEPTED, STOPPED
from tests.support.watched_stores import Killed, Life, forget_all, in_memory, watched

each_damage = pytest.mark.parametrize("damage", [pytest.param(d, id=d.name) for d in DAMAGES])
QUERY_ID = "0a6ab8f5-4b0f-4a51-93f4-0b6b8a3f0f0e"


def opened(place: Placed) -> Checkpoint:
    return Checkpoint.at(open_location(str(place.checkpoint)))


def repository(tmp_path: Path) -> Repository:
    return Repository.open_or_create(open_location(str(tmp_path / "repository")))


def contents(location: Location) -> dict[str, bytes]:
    return {path: location.read(path) for path in location.walk()}


def written(files: Files) -> Location:
    """Files at a place in memory."""
    place = in_memory()
    for path, content in files.items():
        place.create(path, content)
    return place


@each_damage
def test_the_minimal_cut(damage: Damage, tmp_path: Path) -> None:
    checkpoint = opened(placed(damage.version, damage.kind, tmp_path, damage=damage.inflict))
    before = contents(checkpoint.location)
    plan = plan_repair(checkpoint, query_id=QUERY_ID if damage.query_id else None)
    assert (plan.batch_id, plan.replayed) == (damage.repaired_to, damage.replays)
    assert contents(checkpoint.location) == before
    assert list(tmp_path.iterdir()) == [tmp_path / "ck"]
    assert json.loads(json.dumps(plan.to_json())) == plan.to_json()
    assert damage.code in plan.to_markdown()
    assert plan.repairable is (damage.repaired_to is not None)
    if damage.repaired_to is None:
        assert plan.verdict is Verdict.WILL_FAIL
        assert not plan.steps
        assert any("restore" in reason.lower() for reason in plan.reasons) or damage.code == "FORMAT-UNKNOWN"
        with pytest.raises(RefusedError, match="cannot be repaired"):
            apply_repair(plan, checkpoint, rest=STOPPED, accept=ACCEPTED)
        assert contents(checkpoint.location) == before


@pytest.mark.parametrize(
    "damage", [pytest.param(d, id=d.name) for d in DAMAGES if d.repaired_to is not None and d.code != "OFFSETS-HOLE"]
)
def test_after_a_repair_nothing_is_found_and_nothing_is_left_to_do(damage: Damage, tmp_path: Path) -> None:
    checkpoint = opened(placed(damage.version, damage.kind, tmp_path, damage=damage.inflict))
    before = contents(checkpoint.location)
    query_id = QUERY_ID if damage.query_id else None
    plan = plan_repair(checkpoint, query_id=query_id)
    outcome = apply_repair(plan, checkpoint, rest=STOPPED, accept=ACCEPTED, made_by="me", reason="why")
    assert checkpoint.diagnose() == ()
    assert (outcome.batch_id, outcome.deleted, outcome.already_done) == (plan.batch_id, len(plan.deletes), False)
    # What went, and what was replaced, is kept beside it, byte for byte; the rest was not touched.
    kept = Repository.open(repair_place(checkpoint.location))
    aside = contents(kept.location / f"set-aside/ck/{plan.plan_id}/checkpoint/files")
    touched = {*plan.deletes, *plan.rewrites} & set(before)
    assert aside == {path: before[path] for path in touched}
    after = contents(checkpoint.location)
    untouched = before.keys() - touched
    assert {path: after[path] for path in untouched} == {path: before[path] for path in untouched}
    assert set(after) - set(before) == set(plan.rewrites) - set(before)
    (record,) = kept.records()
    assert (record["kind"], record["made_by"], record["reason"]) == ("repair", "me", "why")
    # Again: there is nothing to do, and nothing is done.
    again = plan_repair(checkpoint, query_id=query_id)
    assert again.already_done
    assert apply_repair(again, checkpoint).already_done
    assert contents(checkpoint.location) == after
    assert len(list(kept.records())) == 1


def test_verdicts(tmp_path: Path) -> None:
    def verdict(kind: str, damage: Callable[[Files], None], **options: str) -> Verdict:
        place = placed("4.0.0", kind, tmp_path / f"{kind}-{damage.__name__}", damage=damage)
        return plan_repair(opened(place), **options).verdict  # type: ignore[arg-type]

    def offsets_torn_before_the_batch_ran(files: Files) -> None:
        files["offsets/6"] = b""
        files["sources/0/6"] = files["sources/0/5"]

    # Nothing is run again that can have reached the sink.
    assert verdict("rocks_changelog_maint", snapshot_cut_off) is Verdict.SAFE
    assert verdict("file_to_foreachbatch", no_metadata, query_id=QUERY_ID) is Verdict.SAFE
    assert verdict("hdfs_agg", offsets_torn_before_the_batch_ran) is Verdict.SAFE
    # A stateless query leaves no trace of whether it ran.
    assert verdict("file_to_foreachbatch", offsets_torn_before_the_batch_ran) is Verdict.UNKNOWN
    # The sink is not read.
    assert verdict("hdfs_agg", newest_commits_deleted) is Verdict.UNKNOWN
    assert verdict("hdfs_agg", delta_missing) is Verdict.UNKNOWN


def test_why_not(tmp_path: Path) -> None:
    def reasons(kind: str, damage: Callable[[Files], None], given: Repository | None = None) -> str:
        place = placed("4.0.0", kind, tmp_path / f"{kind}-{damage.__name__}", damage=damage)
        return "\n".join(plan_repair(opened(place), repository=given).reasons)

    alone = reasons("file_to_foreachbatch", no_metadata)
    assert "exactly-once sinks take the query for another" in alone
    assert "--query-id" in alone
    assert "give its repository" in alone
    told = reasons("hdfs_agg_maint", snapshot_missing)
    assert "No batch from 19 to 22 can be continued after: state/0/0/1.delta is missing" in told
    assert "only a restore of an older backup is left, or a reset" in told
    assert "has no backup of this history" in reasons("hdfs_agg", source_log_missing, repository(tmp_path))


def test_a_query_id_has_to_be_one(tmp_path: Path) -> None:
    place = placed("4.0.0", "file_to_foreachbatch", tmp_path, damage=no_metadata)
    with pytest.raises(RefusedError, match="'orders' is no UUID"):
        plan_repair(opened(place), query_id="orders")
    apply_repair(plan_repair(opened(place), query_id=QUERY_ID.upper()), opened(place), rest=STOPPED, accept=ACCEPTED)
    assert json.loads((place.checkpoint / "metadata").read_text()) == {"id": QUERY_ID}


def test_a_query_id_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    place = placed("4.0.0", "file_to_foreachbatch", tmp_path)
    assert plan_repair(opened(place), query_id=QUERY_ID).already_done


def test_nothing_is_wrong(tmp_path: Path) -> None:
    plan = plan_repair(opened(placed("4.0.0", "hdfs_agg", tmp_path)))
    assert (plan.already_done, plan.verdict, plan.reasons) == (True, Verdict.SAFE, ("nothing is wrong with it",))


def test_before_the_first_commit(tmp_path: Path) -> None:
    def first_batch_torn(files: Files) -> None:
        for path in [
            p for p in files if p.startswith(("commits/", "state/")) or p in {f"offsets/{n}" for n in range(1, 6)}
        ]:
            del files[path]
        files["offsets/0"] = b""

    checkpoint = opened(placed("4.0.0", "hdfs_agg", tmp_path, damage=first_batch_torn))
    plan = plan_repair(checkpoint)
    assert (plan.batch_id, plan.deletes) == (-1, ("offsets/0",))
    apply_repair(plan, checkpoint, rest=STOPPED, accept=ACCEPTED)
    assert plan_repair(checkpoint).already_done


# ---- with a repository ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        ("hdfs_agg", delta_missing),
        ("hdfs_agg", source_log_missing),
        ("hdfs_agg", hole),
        ("hdfs_agg_maint", snapshot_missing),
        ("rocks_ckptv2_agg", cut_off_newest_commit),
        ("file_to_foreachbatch", no_metadata),
        ("tws_rocks", paths_of_another_checkpoint),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_what_a_backup_has_comes_back(kind: str, damage: Callable[[Files], None], tmp_path: Path) -> None:
    place = placed("4.0.0", kind, tmp_path)
    whole = contents(opened(place).location)
    held = repository(tmp_path)
    # Batch 2 is needed by no start: it is there because the backup can restore that batch too.
    backup = create_backup(opened(place), held, name="orders", restorable_batches=4)
    files = place.files()
    damage(files)
    for path in set(whole) - set(files):
        (place.checkpoint / path).unlink()
    for path, content in files.items():
        if content != whole[path]:
            (place.checkpoint / path).write_bytes(content)
    plan = plan_repair(opened(place), repository=held, name="orders")
    newest = place.sample.rows and max(map(int, place.sample.rows["sample"]))
    # A reset may have given the query another id since: this repository does not know of one.
    verdict = Verdict.UNKNOWN if damage is no_metadata else Verdict.SAFE
    assert (plan.batch_id, plan.replayed, plan.deletes, plan.verdict) == (newest, 0, (), verdict)
    assert {backup_id for _, backup_id in plan.fetches} <= {backup.backup_id}
    apply_repair(plan, opened(place), repository=held, rest=STOPPED, accept=ACCEPTED)
    assert contents(opened(place).location) == whole
    assert not repair_place(opened(place).location).walk()
    assert next(iter(held.records()))["kind"] == "repair"


def test_a_backup_of_another_history_is_not_believed(tmp_path: Path) -> None:
    """The same query, the same batch numbers: but the log entries differ, so another state belongs to them."""
    place = placed("4.0.0", "hdfs_agg", tmp_path)
    held = repository(tmp_path)
    create_backup(opened(place), held)
    for batch in (4, 5):
        file = place.checkpoint / "offsets" / str(batch)
        file.write_bytes(file.read_bytes().replace(b'"batchTimestampMs":1', b'"batchTimestampMs":2'))
    (place.checkpoint / "state/0/0/5.delta").unlink()
    plan = plan_repair(opened(place), repository=held)
    assert (plan.batch_id, plan.fetches) == (3, ())


def test_a_backup_of_another_query_is_not_believed(tmp_path: Path) -> None:
    held = repository(tmp_path)
    place = placed("4.0.0", "hdfs_agg", tmp_path)
    create_backup(opened(place), held)
    (place.checkpoint / "metadata").write_text(json.dumps({"id": QUERY_ID}))
    (place.checkpoint / "state/0/0/5.delta").unlink()
    assert plan_repair(opened(place), repository=held).fetches == ()


def test_batches_that_were_taken_back_stay_so(tmp_path: Path) -> None:
    """What a backup has beyond the checkpoint was undone on purpose, for all that is known."""
    held = repository(tmp_path)
    place = placed("4.0.0", "hdfs_agg", tmp_path)
    create_backup(opened(place), held, restorable_batches=6)
    for path in ("offsets/4", "offsets/5", "commits/4", "commits/5", "sources/0/4", "sources/0/5"):
        (place.checkpoint / path).unlink()
    for version in (4, 5, 6):
        for partition in (0, 1):
            (place.checkpoint / f"state/0/{partition}/{version}.delta").unlink()
    plan = plan_repair(opened(place), repository=held)
    assert (plan.batch_id, {entry.path for entry, _ in plan.fetches}) == (
        3,
        {"state/0/0/4.delta", "state/0/1/4.delta"},
    )


def test_lost_offsets_come_back_under_a_seal_above_them(tmp_path: Path) -> None:
    held = repository(tmp_path)
    place = placed("4.0.0", "hdfs_agg", tmp_path)
    create_backup(opened(place), held)
    whole = contents(opened(place).location)
    for batch in (4, 5):
        (place.checkpoint / "offsets" / str(batch)).unlink()
    plan = plan_repair(opened(place), repository=held)
    assert {entry.path for entry, _ in plan.fetches} == {"offsets/4", "offsets/5"}
    seals = []

    def note(operation: str, path: str) -> None:
        if operation == "create" and path.endswith(("offsets/4", "offsets/5")):
            mark = inspect_target(opened(place).location).seal
            seals.append(mark.batch_id if mark else None)

    here, _ = watched(opened(place).location, note)
    apply_repair(plan, Checkpoint.at(here), repository=held, rest=STOPPED, accept=ACCEPTED)
    assert seals == [None, 6, 6]  # offsets/4 is the seal itself at first
    assert contents(opened(place).location) == whole


def test_a_backup_that_is_damaged_itself_changes_nothing(tmp_path: Path) -> None:
    held = repository(tmp_path)
    place = placed("4.0.0", "hdfs_agg", tmp_path)
    create_backup(opened(place), held)
    (place.checkpoint / "state/0/0/5.delta").unlink()
    entry = next(e for e in held.manifest().files if e.path == "state/0/0/5.delta")
    spoil(held.location, entry)
    before = contents(opened(place).location)
    with pytest.raises(StorageError, match="has another content than was backed up"):
        plan_repair(opened(place), repository=held)
    assert contents(opened(place).location) == before


# ---- refused ----------------------------------------------------------------------------------------


def test_refused_while_somebody_else_has_sealed_it(tmp_path: Path) -> None:
    checkpoint = opened(placed("4.0.0", "hdfs_agg", tmp_path, damage=delta_missing))
    plan = plan_repair(checkpoint)
    mark = seal(checkpoint, reason="a restore", plan_id="other")
    with pytest.raises(SealedError, match="sealed by plan other"):
        plan_repair(checkpoint)
    with pytest.raises(SealedError, match="in the meantime"):
        apply_repair(plan, checkpoint, rest=STOPPED, accept=ACCEPTED)
    left = inspect_target(checkpoint.location).seal
    assert left is not None
    assert (left.plan_id, left.batch_id) == (mark.plan_id, mark.batch_id)


def test_refused_where_the_checkpoint_went_on(tmp_path: Path) -> None:
    place = placed("4.0.0", "hdfs_agg", tmp_path, damage=delta_missing)
    plan = plan_repair(opened(place))
    (place.checkpoint / "offsets/6").write_bytes((place.checkpoint / "offsets/5").read_bytes())
    before = contents(opened(place).location)
    with pytest.raises(RefusedError, match="not any more what plan"):
        apply_repair(plan, opened(place), rest=STOPPED, accept=ACCEPTED)
    assert contents(opened(place).location) == before


def test_refused_while_somebody_writes(place: Location) -> None:
    files = dict(sample("4.0.0", "hdfs_agg").files)
    delta_missing(files)
    for path, content in files.items():
        place.create(path, content)
    looks = []

    def write(operation: str, path: str) -> None:
        looks.extend([path] if operation == "walk" else [])
        if operation == "walk" and len(looks) == 2:
            place.create("state/0/0/7.delta", b"x")

    plan = plan_repair(Checkpoint.at(place))
    here, _ = watched(place, write)
    with pytest.raises(RefusedError, match="is in use"):
        apply_repair(plan, Checkpoint.at(here), rest=STOPPED, accept=ACCEPTED)
    assert inspect_target(place).seal is None


def test_a_whole_bucket_needs_a_repository(place: Location) -> None:
    with pytest.raises(RefusedError, match="no place beside"):
        repair_place(Location(place.store, "bucket"))


def test_not_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(NotACheckpointError):
        plan_repair(Checkpoint.at(open_location(str(tmp_path))))


# ---- killed -----------------------------------------------------------------------------------------

KILLED = {
    "a cut": ("hdfs_agg", delta_missing, False),
    "offsets lost": ("hdfs_agg", newest_offsets_deleted, False),
    "fetched": ("hdfs_agg", newest_offsets_deleted, True),
    "a cut with a repository": ("file_to_foreachbatch", newest_commits_deleted, True),
}


@pytest.mark.parametrize("case", KILLED)
def test_killed_at_every_write(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every moment as before, sealed, or repaired; and the same command ends it as if it had never been stopped."""
    # One after the other, so that a number of writes is always the same ones.
    one_by_one(monkeypatch)
    kind, damage, with_backup = KILLED[case]
    # Without Hadoop's hidden checksums: a seal on their path takes one with it.
    of = {path: content for path, content in sample("4.0.0", kind).files.items() if "/." not in path}
    damaged = dict(of)
    damage(damaged)
    ended = None
    for writes in range(200):
        place = written(damaged)
        beside = in_memory("repository")
        if with_backup:
            held = Repository.open_or_create(beside)
            create_backup(Checkpoint.at(written(of)), held, name="orders")
        before = contents(place)
        life = Life(writes)
        here, _ = watched(place, life.before)
        there, _ = watched(beside, life.before)
        given = Repository(there, held.repository_id) if with_backup else None
        try:
            apply_repair(
                plan_repair(Checkpoint.at(here), repository=given, name="orders"),
                Checkpoint.at(here),
                repository=given,
                rest=STOPPED,
                accept=ACCEPTED,
            )
        except Killed:
            mark = inspect_target(place).seal
            assert mark is not None or contents(place) == before or not _harmful(place)
        repo = held if with_backup else None
        again = plan_repair(Checkpoint.at(place), repository=repo, name="orders")
        apply_repair(again, Checkpoint.at(place), repository=repo, rest=STOPPED, accept=ACCEPTED)
        assert inspect_target(place).seal is None
        assert not _harmful(place)
        result = contents(place)
        ended = ended or result
        assert result == ended
        forget_all()
        if not life.dead:
            assert writes > 5
            return
    pytest.fail("it never came to its end")


def _harmful(place: Location) -> list[str]:
    found = Checkpoint.at(place).diagnose()
    return [f.message for f in found if f.severity in (Severity.SILENT, Severity.ERROR)]


def test_gone_on_with_only_with_the_same_repository(tmp_path: Path) -> None:
    place = placed("4.0.0", "hdfs_agg", tmp_path, damage=delta_missing)
    life = Life(3)
    here, _ = watched(opened(place).location, life.before)
    with pytest.raises(Killed):
        apply_repair(
            plan_repair(opened(place)),
            Checkpoint.at(here),
            repository=repository(tmp_path),
            rest=STOPPED,
            accept=ACCEPTED,
        )
    with pytest.raises(RefusedError, match="begun with another repository"):
        plan_repair(opened(place))
    plan = plan_repair(opened(place), repository=repository(tmp_path))
    assert plan.continued
    apply_repair(plan, opened(place), repository=repository(tmp_path), rest=STOPPED, accept=ACCEPTED)
    assert opened(place).diagnose() == ()


def test_a_repair_that_was_begun_can_be_given_up(tmp_path: Path) -> None:
    place = placed("4.0.0", "hdfs_agg", tmp_path, damage=delta_missing)
    plan = plan_repair(opened(place))
    life = Life(1)  # the seal
    here, _ = watched(opened(place).location, life.before)
    with pytest.raises(Killed):
        apply_repair(plan, Checkpoint.at(here), repository=repository(tmp_path), rest=STOPPED, accept=ACCEPTED)
    unseal(opened(place), plan_id=plan.plan_id)
    assert plan_repair(opened(place)).batch_id == 3


# ---- whatever happens -------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(
        ["hdfs_agg", "hdfs_agg_maint", "rocks_changelog_maint", "rocks_ckptv2_maint", "two_sources_union"]
    ),
)
@example(
    seed=1025, kind="hdfs_agg_maint"
)  # the last commit is missing: Spark runs that batch again, and nothing is wrong
def test_whatever_is_done_to_files_it_is_repaired_or_refused(seed: int, kind: str) -> None:
    """Up to three files cut off, emptied or deleted: after a repair nothing harmful is left."""
    chance = random.Random(seed)
    files = dict(sample("4.0.0", kind).files)
    for path in chance.sample(sorted(files), chance.randint(1, 3)):
        harm = chance.randrange(3)
        if harm == 0:
            del files[path]
        else:
            files[path] = files[path][: chance.randrange(len(files[path]))] if harm == 1 else b""
    place = written(files)
    checkpoint = Checkpoint.at(place)
    plan = plan_repair(checkpoint)
    if plan.repairable:
        apply_repair(plan, checkpoint, rest=STOPPED, accept=ACCEPTED)
        assert not _harmful(place)
        resume = checkpoint.resume_point()
        assert resume.batch_id == (plan.batch_id or 0) + 1
        assert resume.replay is plan.exact_replay
        assert resume.verdict in (Verdict.SAFE, Verdict.UNKNOWN)
    forget_all()
