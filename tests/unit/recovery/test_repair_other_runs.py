"""What a backup holds may be of a run that was rewound, or of an id that was replaced: a repair says so."""

from __future__ import annotations

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.recovery.repair.apply import apply_repair
from airflow_ckpt_provider.recovery.repair.planning import plan_repair
from airflow_ckpt_provider.recovery.reset.apply import apply_reset
from airflow_ckpt_provider.recovery.reset.planning import plan_reset
from airflow_ckpt_provider.recovery.reset.way import ResetWay
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.verdict import Verdict
from tests.samples.archives import sample
from tests.support.stopped import ACCEPTED, STOPPED
from tests.support.watched_stores import in_memory


class Orders:
    """An aggregation whose newest batch was backed up, rewound, and run again by corrected code."""

    def __init__(self) -> None:
        self.place = in_memory()
        for path, content in sample("4.0.0", "hdfs_agg").files.items():
            if not path.rpartition("/")[2].startswith("."):
                self.place.create(path, content)
        self.checkpoint = Checkpoint.at(self.place)
        self.repository = Repository.open_or_create(in_memory("repository"))
        newest = self.checkpoint.progress().latest_committed
        assert newest is not None
        self.newest = newest
        create_backup(self.checkpoint, self.repository, name="orders")
        self.faulty = {p: self.place.read(p) for p in self.place.walk() if p.endswith(f"/{newest + 1}.delta")}

    def run_again(self) -> dict[str, bytes]:
        """Rewind by a batch and run it again with the same offsets; returns the state that it writes."""
        commit, offsets = (self.place.read(f"{log}/{self.newest}") for log in ("commits", "offsets"))
        plan = plan_rewind(
            self.checkpoint,
            Specifier("to_batch", str(self.newest - 1)),
            sink=Sink(kind="foreachBatch"),
            sink_exit=SinkPolicy.ACCEPT,
            repository=self.repository.location,
            name="orders",
            guards=(),
        )
        sink = Sink(kind="foreachBatch")
        apply_rewind(plan, self.checkpoint, self.repository, sink=sink, rest=STOPPED, accept=ACCEPTED)
        assert self.place.read(f"offsets/{self.newest}") == offsets
        return self.replayed(commit)

    def replayed(self, commit: bytes) -> dict[str, bytes]:
        """Write what a run of the newest batch by corrected code writes."""
        made = {}
        for path in self.faulty:
            # The deltas of the batch before stand for what corrected code writes.
            made[path] = self.place.read(path.replace(f"/{self.newest + 1}.delta", f"/{self.newest}.delta"))
            self.place.create(path, made[path])
        self.place.create(f"commits/{self.newest}", commit)
        return made


def test_state_of_a_run_that_was_rewound_is_not_safe() -> None:
    """The logs are the same, byte for byte. It was SAFE, and one partition had the state of the faulty code afterwards."""
    orders = Orders()
    made = orders.run_again()
    lost = next(path for path in sorted(made) if made[path] != orders.faulty[path])
    orders.place.delete(lost)
    plan = plan_repair(orders.checkpoint, repository=orders.repository, name="orders")
    assert [entry.path for entry, _ in plan.fetches] == [lost]
    assert plan.verdict is Verdict.UNKNOWN
    assert [risk.word for risk in plan.risks] == ["sink_unknown"]
    assert "of the run that the checkpoint continues is not known" in plan.risks[0].why
    with pytest.raises(RefusedError, match="sink_unknown"):
        apply_repair(plan, orders.checkpoint, repository=orders.repository, rest=STOPPED)
    assert orders.place.find(lost) is None


def test_a_backup_of_the_run_that_continues_is_taken_first() -> None:
    orders = Orders()
    made = orders.run_again()
    second = create_backup(orders.checkpoint, orders.repository, name="orders").manifest.backup_id
    lost = next(path for path in sorted(made) if made[path] != orders.faulty[path])
    orders.place.delete(lost)
    plan = plan_repair(orders.checkpoint, repository=orders.repository, name="orders")
    assert ([(e.path, b) for e, b in plan.fetches], plan.verdict, plan.risks) == ([(lost, second)], Verdict.SAFE, ())
    apply_repair(plan, orders.checkpoint, repository=orders.repository, rest=STOPPED)
    assert orders.place.read(lost) == made[lost]


def test_the_backup_that_was_restored_is_of_this_run() -> None:
    """The files were written anew by the restore; it was UNKNOWN."""
    orders = Orders()
    manifest = orders.repository.manifest(name="orders")
    plan = plan_restore(orders.repository, manifest, orders.place, replace=True)
    apply_restore(plan, rest=STOPPED, accept=ACCEPTED)
    lost = sorted(orders.faulty)[0]
    orders.place.delete(lost)
    found = plan_repair(orders.checkpoint, repository=orders.repository, name="orders")
    assert ([e.path for e, _ in found.fetches], found.verdict) == ([lost], Verdict.SAFE)


def test_the_backup_that_was_restored_and_then_rewound_elsewhere_is_not() -> None:
    """The repository knows of the restore, and not of the rewind after it: the commit tells that it was written again."""
    orders = Orders()
    manifest = orders.repository.manifest(name="orders")
    plan = plan_restore(orders.repository, manifest, orders.place, replace=True)
    apply_restore(plan, rest=STOPPED, accept=ACCEPTED)
    # As a rewind does that is kept in another repository.
    commit = orders.place.read(f"commits/{orders.newest}")
    for path in (f"commits/{orders.newest}", *orders.faulty):
        orders.place.delete(path)
    made = orders.replayed(commit)
    lost = next(path for path in sorted(made) if made[path] != orders.faulty[path])
    orders.place.delete(lost)
    found = plan_repair(orders.checkpoint, repository=orders.repository, name="orders")
    assert ([e.path for e, _ in found.fetches], found.verdict) == ([lost], Verdict.UNKNOWN)


class TestTheQueryId:
    def lost_after_a_reset(self, *, known: bool) -> tuple[Checkpoint, Repository, str]:
        """A checkpoint whose query got another id after its backup, and which has lost its metadata.

        :param known: whether the repository of the backups knows of the reset.
        """
        orders = Orders()
        place, checkpoint, repository = orders.place, orders.checkpoint, orders.repository
        before = checkpoint.progress().query_id
        keeps = repository if known else Repository.open_or_create(in_memory("other"))
        plan = plan_reset(place, ResetWay.NEW_QUERY_ID, repository=keeps.location, name="orders")
        apply_reset(plan, place, keeps, rest=STOPPED, accept=ACCEPTED)
        query_id = checkpoint.progress().query_id
        assert query_id not in (None, before)
        place.delete("metadata")
        return checkpoint, repository, str(query_id)

    def test_that_of_a_known_reset_is_written(self) -> None:
        """It was that of the backup, SAFE, and the sink skipped the batches that it remembers of the old id."""
        checkpoint, repository, query_id = self.lost_after_a_reset(known=True)
        plan = plan_repair(checkpoint, repository=repository, name="orders")
        assert (plan.verdict, plan.fetches, set(plan.rewrites)) == (Verdict.SAFE, (), {"metadata"})
        assert any("is the one that reset" in reason for reason in plan.reasons)
        apply_repair(plan, checkpoint, repository=repository, rest=STOPPED)
        assert checkpoint.progress().query_id == query_id

    def test_after_a_restore_it_is_not_known_which_came_last(self) -> None:
        """The restore put the old id back. That of the reset before it was written again, SAFE."""
        checkpoint, repository, _ = self.lost_after_a_reset(known=True)
        manifest = repository.manifest(name="orders")
        apply_restore(
            plan_restore(repository, manifest, checkpoint.location, replace=True), rest=STOPPED, accept=ACCEPTED
        )
        assert checkpoint.progress().query_id == manifest.query_id
        checkpoint.location.delete("metadata")
        plan = plan_repair(checkpoint, repository=repository, name="orders")
        assert (plan.verdict, [entry.path for entry, _ in plan.fetches]) == (Verdict.UNKNOWN, ["metadata"])
        assert "give it (query_id / --query-id)" in plan.risks[0].why

    def test_of_what_is_recorded_elsewhere_nobody_knows(self) -> None:
        checkpoint, repository, query_id = self.lost_after_a_reset(known=False)
        plan = plan_repair(checkpoint, repository=repository, name="orders")
        assert plan.verdict is Verdict.UNKNOWN
        assert "give it (query_id / --query-id)" in plan.risks[0].why
        given = plan_repair(checkpoint, repository=repository, name="orders", query_id=query_id)
        assert (given.verdict, given.fetches, set(given.rewrites)) == (Verdict.SAFE, (), {"metadata"})
