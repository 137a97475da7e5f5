"""A repair from backups of which some hold the damage themselves: it was there, unnoticed, when they were taken."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError, StorageError
from airflow_ckpt_provider.recovery.repair.apply import apply_repair
from airflow_ckpt_provider.recovery.repair.planning import plan_repair
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict
from tests.samples.archives import sample
from tests.support.stopped import ACCEPTED, STOPPED
from tests.support.watched_stores import in_memory, watched

DELTA = "state/0/1/5.delta"


def one_bit_flipped(content: bytes) -> bytes:
    return content[:30] + bytes([content[30] ^ 1]) + content[31:]


def cut_off(content: bytes) -> bytes:
    return content[:-30]


#: kind of the sample, path of the file, what happens to it.
DAMAGES = [
    ("hdfs_agg", DELTA, one_bit_flipped),
    ("hdfs_agg", DELTA, cut_off),
    ("hdfs_agg", "sources/0/1", cut_off),
    ("hdfs_agg_maint", "state/0/0/{}.snapshot", one_bit_flipped),
]
each_damage = pytest.mark.parametrize(
    ("kind", "path", "damage"), [pytest.param(*d, id=f"{d[0]}-{d[1]}-{d[2].__name__}") for d in DAMAGES]
)


class Stream:
    """A sample in memory, and backups of it."""

    def __init__(self, kind: str) -> None:
        self.place = in_memory()
        for path, content in sample("4.0.0", kind).files.items():
            if not path.rpartition("/")[2].startswith("."):
                self.place.create(path, content)
        self.checkpoint = Checkpoint.at(self.place)
        self.repository = Repository.open_or_create(in_memory("repository"))

    def backup(self) -> str:
        return create_backup(self.checkpoint, self.repository, name="orders").backup_id

    def damage(self, path: str, damage: Callable[[bytes], bytes]) -> str:
        """Damage a file; of one of unknown version the newest. Returns its path."""
        before, _, after = path.partition("{}")
        if after:
            named = (p for p in self.place.walk() if p.startswith(before) and p.endswith(after))
            path = max(named, key=lambda p: int(p.removeprefix(before).removesuffix(after)))
        self.place.replace(path, damage(self.place.read(path)))
        return path

    def contents(self) -> dict[str, bytes]:
        return {path: self.place.read(path) for path in self.place.walk()}


@each_damage
def test_the_whole_file_of_an_older_backup_is_fetched(kind: str, path: str, damage: Callable[[bytes], bytes]) -> None:
    stream = Stream(kind)
    whole = stream.contents()
    first = stream.backup()
    path = stream.damage(path, damage)
    stream.backup()
    plan = plan_repair(stream.checkpoint, repository=stream.repository, name="orders")
    assert [(entry.path, backup_id) for entry, backup_id in plan.fetches] == [(path, first)]
    assert (plan.verdict, plan.replayed, plan.deletes) == (Verdict.SAFE, 0, ())
    apply_repair(plan, stream.checkpoint, repository=stream.repository, rest=STOPPED, accept=ACCEPTED)
    assert stream.contents() == whole


@each_damage
def test_a_damaged_file_of_a_backup_is_never_fetched(kind: str, path: str, damage: Callable[[bytes], bytes]) -> None:
    stream = Stream(kind)
    path = stream.damage(path, damage)
    stream.backup()
    plan = plan_repair(stream.checkpoint, repository=stream.repository, name="orders")
    assert not plan.fetches
    alone = plan_repair(stream.checkpoint)
    assert (plan.batch_id, plan.verdict, plan.deletes) == (alone.batch_id, alone.verdict, alone.deletes)


def test_without_a_whole_copy_the_plan_fails_and_nothing_is_touched() -> None:
    stream = Stream("hdfs_agg")
    path = stream.damage("state/0/1/2.delta", one_bit_flipped)
    for batch in (0, 1):  # the newest batch with whole state is not restartable either
        stream.place.delete(f"commits/{batch}")
    stream.backup()
    before = stream.contents()
    plan = plan_repair(stream.checkpoint, repository=stream.repository, name="orders")
    assert (plan.verdict, plan.fetches, plan.repairable) == (Verdict.WILL_FAIL, (), False)
    assert any(f"{path} of backup" in reason and "is damaged too" in reason for reason in plan.reasons), plan.reasons
    with pytest.raises(RefusedError, match="cannot be repaired"):
        apply_repair(plan, stream.checkpoint, repository=stream.repository, rest=STOPPED, accept=ACCEPTED)
    assert stream.contents() == before


def test_a_damaged_copy_is_not_fetched_although_state_is_not_read() -> None:
    """``contents=False`` spares the checkpoint's files; what is fetched is read all the same."""
    stream = Stream("hdfs_agg")
    first = stream.backup()
    stream.damage(DELTA, one_bit_flipped)
    stream.backup()
    stream.place.delete(DELTA)
    plan = plan_repair(stream.checkpoint, repository=stream.repository, name="orders", contents=False)
    assert [(entry.path, backup_id) for entry, backup_id in plan.fetches] == [(DELTA, first)]


def test_a_table_file_of_another_size_is_fetched() -> None:
    stream = Stream("rocks_changelog_maint")
    whole = stream.contents()
    first = stream.backup()
    named = [path for path in whole if path.endswith(".sst")]
    used = {entry.path for entry in stream.repository.manifest("latest", name="orders").files}
    path = next(path for path in named if path in used)
    stream.damage(path, lambda content: content[:-1])
    plan = plan_repair(stream.checkpoint, repository=stream.repository, name="orders")
    assert [(entry.path, backup_id) for entry, backup_id in plan.fetches] == [(path, first)]
    apply_repair(plan, stream.checkpoint, repository=stream.repository, rest=STOPPED, accept=ACCEPTED)
    assert stream.contents() == whole


def test_an_older_log_entry_is_taken_from_the_backup_that_can_be_read() -> None:
    """One that no start reads: a hole that is filled loses nothing, unless by a file that cannot be read."""
    stream = Stream("hdfs_agg")
    first = create_backup(stream.checkpoint, stream.repository, name="orders", restorable_batches=4).backup_id
    whole = stream.contents()
    stream.damage("offsets/2", cut_off)
    create_backup(stream.checkpoint, stream.repository, name="orders", restorable_batches=3)
    plan = plan_repair(stream.checkpoint, repository=stream.repository, name="orders")
    assert [(entry.path, backup_id) for entry, backup_id in plan.fetches] == [("offsets/2", first)]
    apply_repair(plan, stream.checkpoint, repository=stream.repository, rest=STOPPED, accept=ACCEPTED)
    assert stream.contents() == whole


def test_a_repair_that_ends_not_whole_says_that_it_stays_sealed_and_how_to_undo_it() -> None:
    stream = Stream("hdfs_agg")
    stream.backup()
    whole = stream.contents()
    stream.place.delete(DELTA)
    before = stream.contents()
    plan = plan_repair(stream.checkpoint, repository=stream.repository, name="orders")

    def damage_another(operation: str, path: str) -> None:
        if operation == "create" and path.endswith(DELTA):
            stream.damage("state/0/0/5.delta", cut_off)

    here, _ = watched(stream.place, damage_another)
    with pytest.raises(StorageError, match="is not whole after the repair") as failed:
        apply_repair(plan, Checkpoint.at(here), repository=stream.repository, rest=STOPPED, accept=ACCEPTED)
    assert f"{stream.place} stays sealed" in str(failed.value.hint)
    assert f"undo it: `{plan.command_to_undo(stream.repository)}`" in str(failed.value.hint)
    assert sealed(stream.place)
    # And it can be undone, but for what somebody else has done meanwhile.
    stream.place.replace("state/0/0/5.delta", whole["state/0/0/5.delta"])
    undo(stream.place, stream.repository, plan_id=plan.plan_id, rest=STOPPED)
    assert not sealed(stream.place)
    assert stream.contents() == before


def sealed(place: Location) -> bool:
    return inspect_target(place).seal is not None
