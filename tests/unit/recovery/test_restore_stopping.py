"""restore: the query that writes to the target is stopped by the seal."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.stopping import stop_plan_and_apply
from airflow_ckpt_provider.errors import QueryNotStoppedError, RefusedError
from airflow_ckpt_provider.recovery.restore.apply import RestoreOutcome, apply_restore
from airflow_ckpt_provider.recovery.restore.plan import RestorePlan
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.storage.location import Location
from tests.support.backups import bury, repository, stream, visible
from tests.support.checkpoints import contents, logs, plant
from tests.support.restores import loud_seal, wanted
from tests.support.stopped import STOPPED
from tests.support.watched_stores import Killed, Life, forget_all, watched


class TestStoppingTheQuery:
    """A query that writes to the target is stopped by the seal; what it does until then is kept too."""

    def run(self, place: Location, manifest: Manifest, target: Location, **rest: Any) -> RestoreOutcome:
        def plan(seal_id: str | None) -> RestorePlan:
            return plan_restore(repository(place), manifest, target, replace=True, seal_id=seal_id)

        rule = replace(STOPPED, **rest)
        return stop_plan_and_apply(
            target, repository(place), plan, apply_restore, change="restore", stop_running=True, rest=rule
        )[1]

    def running(self, place: Location, manifest: Manifest, write: Callable[[int], None], **rest: Any) -> RestoreOutcome:
        """Restore over a stream that writes; ``write`` is called before each listing of all files from the seal on."""
        plant(place / "target", stream(6))
        walks = itertools.count(1)

        def act(operation: str, path: str) -> None:
            if operation == "walk" and loud_seal(place / "target"):
                write(next(walks))

        target, _ = watched(place / "target", act)
        return self.run(place, manifest, target, **rest)

    def test_it_finishes_its_batch_first(self, place: Location, manifest: Manifest) -> None:
        late = "state/0/0/8.changelog"

        def write(walk: int) -> None:
            if walk == 2:  # sealed at 7, batch 6 is done and its last file comes only now
                plant(place / "target", {late: b"late"})

        outcome = self.running(place, manifest, write)
        assert contents(place / "target") == wanted(place, manifest)
        assert outcome.kept is not None
        assert place.read(f"backups/{outcome.kept}/files/{late}") == b"late"
        undo(place / "target", repository(place), rest=STOPPED)
        assert contents(place / "target") == dict(sorted((stream(6) | {late: b"late"}).items()))

    def test_it_logs_a_batch_just_before_the_seal(self, place: Location, manifest: Manifest) -> None:
        plant(place / "target", stream(6))
        once = itertools.count()
        logged = logs(range(7, 8))["offsets/7"]

        def write(operation: str, path: str) -> None:
            if operation == "create" and path.endswith("/offsets/7") and next(once) == 0:
                plant(place / "target", {"offsets/7": logged})

        target, store = watched(place / "target", write)
        outcome = self.run(place, manifest, target)
        assert [p.rpartition("/")[2] for p in store.paths("create")][:2] == ["7", "8"]
        assert contents(place / "target") == wanted(place, manifest)
        assert place.read(f"backups/{outcome.kept}/files/offsets/7") == logged

    def test_it_does_not_stop(self, place: Location, manifest: Manifest) -> None:
        def write(walk: int) -> None:
            plant(place / "target", {f"state/0/0/{walk + 10}.changelog": b"more"})

        with pytest.raises(QueryNotStoppedError) as error:
            self.running(place, manifest, write, wait_at_most=0.0)
        assert error.value.message.startswith(
            f"{place / 'target'} is sealed, and it is still not known that its query is stopped: state/0/0/12.changelog changed"
        )
        assert "airflow-ckpt unseal" in str(error.value.hint)
        assert visible(place / "target").items() >= stream(6).items()
        assert loud_seal(place / "target")
        # When it is stopped by other means, the same command continues.
        outcome = self.run(place, manifest, place / "target")
        assert contents(place / "target") == wanted(place, manifest)
        assert outcome.kept is not None

    def test_a_refusal_lifts_the_seal(self, place: Location, manifest: Manifest) -> None:
        plant(place / "target", stream(6))
        with pytest.raises(RefusedError, match="is not empty"):
            stop_plan_and_apply(
                place / "target",
                repository(place),
                lambda seal_id: plan_restore(repository(place), manifest, place / "target", seal_id=seal_id),
                apply_restore,
                change="restore",
                stop_running=True,
                rest=STOPPED,
            )
        assert contents(place / "target") == dict(sorted(stream(6).items()))

    def test_killed_at_every_write(self, place: Location, manifest: Manifest) -> None:
        """Wherever it is stopped, also between the seal that stops the query and the seal of the restore."""
        backups, after = contents(place / "backups"), wanted(place, manifest)
        for writes in itertools.count():
            here = place / f"run{writes}"
            plant(here / "backups", backups)
            plant(here / "target", stream(2))
            life = Life(writes)
            target, _ = watched(here / "target", life.before)
            held, _ = watched(here / "backups", life.before)

            def plan(seal_id: str | None, at: Location = target, to: Location = held) -> RestorePlan:
                return plan_restore(Repository.open(to), manifest, at, replace=True, seal_id=seal_id)

            try:
                stop_plan_and_apply(
                    target,
                    Repository.open(held),
                    plan,
                    apply_restore,
                    change="restore",
                    stop_running=True,
                    rest=STOPPED,
                )
                assert writes > 30
                break
            except Killed:
                bury(here)
            self.run(here, manifest, here / "target")
            assert contents(here / "target") == after
            undo(here / "target", repository(here), rest=STOPPED)
            assert contents(here / "target") == dict(sorted(stream(2).items()))
            forget_all()
