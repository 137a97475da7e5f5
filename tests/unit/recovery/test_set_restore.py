"""Restoring a set of backups: every stream of it or none, killed at any write, resumed and taken back."""

from __future__ import annotations

import dataclasses
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.sets import SET
from airflow_ckpt_provider.change.rest import RestRule
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import (
    ChangeRunningError,
    DamagedBackupError,
    NoSuchBackupError,
    QueryNotStoppedError,
    RefusedError,
    SealedError,
    StorageError,
)
from airflow_ckpt_provider.recovery.chains.apply import apply_chain
from airflow_ckpt_provider.recovery.chains.planning import plan_chain
from airflow_ckpt_provider.recovery.chains.set_plan import SetRestorePlan
from airflow_ckpt_provider.recovery.chains.set_restore import plan_set_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.recovery.status import status_by, status_of
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.storage.location import Location
from tests.support.checkpoints import metadata
from tests.support.damaged_sets import damaged_object
from tests.support.several_sinks import IDS, NEWEST, Application
from tests.support.spoiled import spoil
from tests.support.stopped import STOPPED
from tests.support.watched_stores import Killed, forget_all, in_memory, lives


@pytest.fixture
def application() -> Application:
    return Application.planted(in_memory("application"))


def backed_up_and_gone_on(application: Application) -> tuple[Any, Any, Any]:
    """The set, what the checkpoints held then, and what they hold now."""
    then = application.content()
    made = application.backed_up()
    application.go_on()
    return made, then, application.content()


class TestTogether:
    def test_there_and_back(self, application: Application) -> None:
        made, then, now = backed_up_and_gone_on(application)
        plan, outcome = application.restored()
        assert (plan.set_id, [part.batch_id for part in plan.parts]) == (made.set_id, list(NEWEST.values()))
        assert [stream["name"] for stream in outcome.streams] == ["orders", "returns"]
        after = application.content()
        for name, newest in NEWEST.items():
            assert after[name].items() <= then[name].items()
            assert Checkpoint.at(application.root / name).resume_point().batch_id == newest + 1
        assert application.sealed() == []
        assert f"| orders | `{made.backups['orders'].backup_id}` | 4 |" in plan.to_markdown()
        found = status_by(Checkpoint.at(application.root / "orders"), application.repository)
        assert found.kind == "changed"
        assert "with the other streams of its chain" in found.message
        assert found.commands[0].startswith("airflow-ckpt chain undo ")  # a part of it alone is refused

        back = application.taken_back()
        assert [stream["name"] for stream in back.streams] == ["returns", "orders"]
        assert application.content() == now
        assert application.taken_back(plan_id=plan.plan_id).already_done

    def test_into_empty_places(self, application: Application) -> None:
        """The checkpoints are lost: nothing has to be replaced, and the undo leaves nothing."""
        made, then, _ = backed_up_and_gone_on(application)
        for name in IDS:
            for path in list((application.root / name).walk()):
                (application.root / name).delete(path)
        plan, _ = application.restored(replace_there=False)
        assert plan.set_id == made.set_id
        assert all(application.content()[name].items() <= then[name].items() for name in IDS)
        application.taken_back()
        assert application.content() == {name: {} for name in IDS}

    def test_the_undo_in_a_directory_of_somebody_else(
        self, application: Application, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The emptied directories of the checkpoints can then not be removed, and need not be."""
        backed_up_and_gone_on(application)
        for name in IDS:
            for path in list((application.root / name).walk()):
                (application.root / name).delete(path)
        application.restored(replace_there=False)

        def forbidden(place: Location) -> None:
            raise StorageError(f"could not remove directory {place}") from PermissionError()

        monkeypatch.setattr(Location, "remove_empty_directories", forbidden)
        application.taken_back()
        assert application.content() == {name: {} for name in IDS}
        assert application.sealed() == []

    def test_one_is_lost_and_one_is_there(self, application: Application) -> None:
        backed_up_and_gone_on(application)
        for path in list((application.root / "orders").walk()):
            (application.root / "orders").delete(path)
        with pytest.raises(RefusedError, match=r"returns: .* is not empty"):
            application.restored(replace_there=False)
        assert application.content()["orders"] == {}
        application.restored(stop_running=True, rest=lambda _: STOPPED)
        assert [Checkpoint.at(application.root / n).progress().latest_committed for n in IDS] == list(NEWEST.values())

    def test_somewhere_else(self, application: Application) -> None:
        _, then, now = backed_up_and_gone_on(application)
        application.restored(application.streams(below="elsewhere"), replace_there=False)
        assert all(application.content("elsewhere")[name].items() <= then[name].items() for name in IDS)
        assert application.content() == now

    def test_nothing_to_do(self, application: Application) -> None:
        backed_up_and_gone_on(application)
        application.restored()
        plan, outcome = application.restored()
        assert (plan.already_done, outcome.already_done, outcome.streams) == (True, True, ())
        assert application.sealed() == []

    def test_only_one_of_them_has_moved(self, application: Application) -> None:
        """The other is sealed all the same: they are of one application."""
        backed_up_and_gone_on(application)
        application.restored()
        before = application.content()
        place = application.root / "orders"
        place.create("offsets/5", place.read("offsets/4"))
        moved = application.content()
        plan, outcome = application.restored()
        assert [(each["name"], each["already_done"]) for each in outcome.streams] == [
            ("orders", False),
            ("returns", True),
        ]
        assert application.content() == before
        application.taken_back(plan_id=plan.plan_id)
        assert application.content() == moved

    def test_stored_ones_stay_readable(self) -> None:
        stored = json.loads((Path(__file__).parents[2] / "golden/stored/chains/set_restore.json").read_text())
        plan = SetRestorePlan.of_document(stored)
        assert (plan.set_id, plan.replace, plan.continued) == ("5e7a11ce", True, True)
        assert [(p.name, p.plan_id, p.batch_id, p.target) for p in plan.parts] == [
            ("orders", "c4a1b2d3-s1", 4, "/lake/orders"),
            ("returns", "c4a1b2d3-s2", 6, "/lake/returns"),
        ]
        assert plan.document().keys() == stored.keys()

    def test_the_plan_is_read_back(self, application: Application) -> None:
        backed_up_and_gone_on(application)
        plan = plan_set_restore(application.streams(), application.repository, replace_there=True)
        again = SetRestorePlan.of_document(json.loads(json.dumps(plan.document())))
        assert again == plan
        assert (again.continued, again.undo_command) == (True, plan.undo_command)

    def test_the_fingerprint(self, application: Application) -> None:
        backed_up_and_gone_on(application)
        shown = plan_set_restore(application.streams(), application.repository, replace_there=True).plan_fingerprint
        place = application.root / "returns"
        place.create("offsets/9", place.read("offsets/8"))
        with pytest.raises(RefusedError, match="is not the one that would be carried out now"):
            application.restored(fingerprint=shown)
        assert application.sealed() == []

    def test_a_newer_set_meanwhile(self, application: Application) -> None:
        """The one that was planned is restored."""
        made, _, _ = backed_up_and_gone_on(application)
        seen = []

        def rest(_: Any) -> RestRule:
            if not seen:
                seen.append(application.backed_up())
            return STOPPED

        plan, _ = application.restored(rest=rest)
        assert plan.set_id == made.set_id != seen[0].set_id


class TestAllOrNone:
    def test_one_that_is_damaged(self, application: Application) -> None:
        """Nobody has verified it yet: it is found under the seals, and before the first checkpoint is changed."""
        made, _, now = backed_up_and_gone_on(application)
        manifest = made.backups["returns"]
        entry = next(e for e in manifest.files if e.path == "state/0/0/7.changelog")
        spoil(application.repository.location, entry)
        with pytest.raises(DamagedBackupError, match=r"7\.changelog") as refused:
            application.restored()
        assert "the backup of returns in set" in str(refused.value.hint)
        assert application.content() == now
        assert application.sealed() == []

    def test_one_that_is_known_to_be_damaged(self, application: Application) -> None:
        made, _, now = backed_up_and_gone_on(application)
        damaged_object(application, "returns", made.backups["returns"].backup_id)
        with pytest.raises(RefusedError, match="has no whole set"):
            application.restored()
        with pytest.raises(DamagedBackupError, match="the backup of returns is damaged"):
            application.restored(set_id=made.set_id)
        assert application.content() == now

    def test_one_that_runs(self, application: Application) -> None:
        """Its query is not known to be stopped: the seal of the other one is lifted again."""
        _, _, now = backed_up_and_gone_on(application)
        place = (application.root / "returns").uri
        rules = {place: RestRule(wait_at_most=0.0)}
        with pytest.raises(QueryNotStoppedError):
            application.restored(rest=lambda checkpoint: rules.get(checkpoint.uri, STOPPED))
        assert application.sealed() == []
        assert application.content() == now

    def test_one_that_runs_and_one_that_a_killed_attempt_has_sealed(
        self, application: Application, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If nobody continues it, the message names the streams that do not start."""
        from airflow_ckpt_provider.recovery.chains import sealed

        backed_up_and_gone_on(application)
        real, set_before = sealed.seal_for_plan, []

        def dies(place: Location, **how: Any) -> Any:
            if set_before:
                raise Killed("the second seal")
            set_before.append(place)
            return real(place, **how)

        with monkeypatch.context() as patched:
            patched.setattr(sealed, "seal_for_plan", dies)
            with pytest.raises(Killed):
                application.restored()
        assert application.sealed() == ["orders"]
        with pytest.raises(QueryNotStoppedError) as refused:
            application.restored(rest=lambda _: RestRule(wait_at_most=0.0))
        assert f"the seals stay on {(application.root / 'orders').uri}: " in str(refused.value.hint)
        assert application.sealed() == ["orders"]

    def test_a_seal_of_somebody_else_is_not_offered_to_be_lifted(self, application: Application) -> None:
        """It was set after this command had looked for seals."""
        from airflow_ckpt_provider.change.sealing import seal
        from airflow_ckpt_provider.recovery.chains.sealed import part_ids, seal_all
        from airflow_ckpt_provider.recovery.chains.together import alone

        backed_up_and_gone_on(application)
        streams = [dataclasses.replace(s, repository=application.repository.location) for s in application.streams()]
        seal(Checkpoint.at(application.root / "returns"), reason="mine", plan_id="mine")
        rules = {"rest": lambda _: RestRule(wait_at_most=0.0), "stop_running": False, "what": "x", "made_by": "me"}
        with alone(streams, made_by="me", what="x") as fence, pytest.raises(QueryNotStoppedError) as refused:
            seal_all(streams, part_ids("beef", streams), fence=fence, **rules)
        assert "the seals stay" not in str(refused.value.hint)
        assert application.sealed() == ["returns"]

    def test_queries_that_were_stopped_for_what_is_refused(self, application: Application) -> None:
        """By a plan that is another one under the seals; a risk is known before any query is stopped."""
        backed_up_and_gone_on(application)
        with pytest.raises(RefusedError, match="is not the one that would be carried out now") as refused:
            application.restored(stop_running=True, fingerprint="0badc0de")
        assert "the queries of orders, returns were stopped, and nothing was changed: start them" in str(
            refused.value.hint
        )
        assert application.sealed() == []
        (application.root / "returns").replace("metadata", metadata("99999999-0000-4000-8000-000000000009"))
        with pytest.raises(RefusedError, match="other_query") as early:
            application.restored(stop_running=True)
        assert "were stopped" not in str(early.value.hint)

    def test_one_that_is_sealed_by_somebody(self, application: Application) -> None:
        from airflow_ckpt_provider.change.sealing import seal

        backed_up_and_gone_on(application)
        seal(Checkpoint.at(application.root / "returns"), reason="mine", plan_id="mine")
        with pytest.raises(SealedError, match="sealed by plan mine"):
            application.restored()
        assert application.sealed() == ["returns"]

    def test_a_target_inside_the_repository(self, application: Application) -> None:
        backed_up_and_gone_on(application)
        orders, returns = application.streams(below="elsewhere")
        inside = dataclasses.replace(returns, checkpoint=application.root / "backups" / "x")
        with pytest.raises(RefusedError, match=r"returns: .* lie one inside the other"):
            application.restored([orders, inside], replace_there=False)
        assert application.content("elsewhere")["orders"] == {}

    def test_another_query_has_to_be_accepted(self, application: Application) -> None:
        backed_up_and_gone_on(application)
        (application.root / "returns").replace("metadata", metadata("99999999-0000-4000-8000-000000000009"))
        with pytest.raises(RefusedError, match=r"other_query .returns: the target belongs to query 99999999"):
            application.restored()
        assert application.sealed() == []
        application.restored(accept=["other_query"])

    def test_somebody_writes_while_the_second_is_restored(
        self, application: Application, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All stay sealed; the same command again finishes, or the undo takes all back."""
        from airflow_ckpt_provider.recovery.chains import set_restore

        _, _, now = backed_up_and_gone_on(application)
        real = set_restore.apply_restore

        def stop(plan: Any, **how: Any) -> Any:
            if plan.name == "returns":
                raise RefusedError("somebody writes")
            return real(plan, **how)

        with monkeypatch.context() as patched:
            patched.setattr(set_restore, "apply_restore", stop)
            with pytest.raises(RefusedError, match="somebody writes") as refused:
                application.restored()
        assert "orders, returns stay sealed" in str(refused.value.hint)
        assert application.sealed() == ["orders", "returns"]
        application.taken_back()
        assert application.content() == now


class TestHalfWay:
    @pytest.fixture
    def half_way(self, application: Application, monkeypatch: pytest.MonkeyPatch) -> Application:
        """Orders is restored, returns not yet."""
        from airflow_ckpt_provider.recovery.chains import set_restore

        backed_up_and_gone_on(application)
        real = set_restore.apply_restore

        def stop(plan: Any, **how: Any) -> Any:
            if plan.name == "returns":
                raise Killed("returns")
            return real(plan, **how)

        with monkeypatch.context() as patched:
            patched.setattr(set_restore, "apply_restore", stop)
            with pytest.raises(Killed):
                application.restored()
        return application

    def test_a_part_alone(self, half_way: Application) -> None:
        repository, place = half_way.repository, half_way.root / "orders"
        status = status_of(Checkpoint.at(place), repository)
        assert status.commands[0].startswith("airflow-ckpt chain restore --stream orders=")
        assert re.search(r" --set \S+ --replace --apply$", status.commands[0])
        assert status.commands[1].startswith("airflow-ckpt chain undo --stream orders=")
        assert f"--repository {repository.location.uri}" in status.commands[1]
        manifest = repository.manifest(name="orders")
        with pytest.raises(SealedError, match="its part of chain") as refused:
            plan_restore(repository, manifest, place, replace=True)
        assert "airflow-ckpt chain undo" in str(refused.value.hint)
        with pytest.raises(RefusedError, match=r"restore .* is a part of chain"):
            undo(place, repository, rest=STOPPED)

    def test_another_verb(self, half_way: Application) -> None:
        """A rewind of the same streams finds the restore, and names its commands."""
        streams = [dataclasses.replace(s, repository=half_way.repository.location) for s in half_way.streams()]

        def plan(chain_id: str | None) -> Any:
            return plan_chain(streams, Specifier("shift_by", "-1"), guards=(), chain_id=chain_id)

        with pytest.raises(SealedError, match=r"a restore of set .* that was not ended") as refused:
            apply_chain(streams, plan, rest=lambda _: STOPPED)
        assert "airflow-ckpt chain restore" in str(refused.value.hint)

    @pytest.mark.parametrize("asked", [{"set_id": "5e7"}, {"replace_there": False}, {"fingerprint": "0badc0de"}])
    def test_something_else_is_asked(self, half_way: Application, asked: dict[str, Any]) -> None:
        with pytest.raises(SealedError, match="that was not ended"):
            half_way.restored(**asked)

    def test_the_plan_that_was_approved(self, half_way: Application) -> None:
        """It is that of all streams, and only one of them is left."""
        mark = inspect_target(half_way.root / "orders").seal
        approved = half_way.repository.kept_plan(mark.plan_id.partition("-")[0]) if mark else None
        assert approved is not None
        half_way.restored(fingerprint=approved["fingerprint"])
        assert half_way.sealed() == []

    def test_other_streams(self, half_way: Application) -> None:
        orders, _ = half_way.streams()
        with pytest.raises(SealedError, match="some of these streams are sealed"):
            half_way.restored([orders])

    def test_its_backup_is_gone(self, half_way: Application) -> None:
        """Expired meanwhile: it cannot be resumed, and is taken back."""
        for path in list(half_way.repository.location.walk("backups/returns")):
            half_way.repository.location.delete(path)
        with pytest.raises(NoSuchBackupError, match="holds no backup") as refused:
            half_way.restored()
        assert "orders, returns stay sealed; undo it: `airflow-ckpt chain undo " in str(refused.value.hint)
        half_way.taken_back()
        newest = {name: newest + 2 for name, newest in NEWEST.items()}
        assert {n: Checkpoint.at(half_way.root / n).progress().latest_committed for n in IDS} == newest

    def test_the_set_has_got_another_backup_since(self, half_way: Application) -> None:
        """A set that is resumed backs up what is sealed: that is what was to be replaced."""
        repository, plan_id = half_way.repository, self.chain_of(half_way)
        wanted = {part["name"]: part["backup_id"] for part in (repository.kept_plan(plan_id) or {})["parts"]}
        repository.location.delete(f"backups/returns/{wanted['returns']}.json")
        set_id = repository.manifest(wanted["orders"], name="orders").tags[SET]
        assert half_way.backed_up(set_id=set_id).backups["returns"].backup_id != wanted["returns"]
        before = half_way.content()
        with pytest.raises(NoSuchBackupError, match=wanted["returns"]):
            half_way.restored(set_id=set_id)
        assert half_way.content() == before

    def test_the_backup_of_one_that_is_restored_is_gone(self, half_way: Application) -> None:
        """The others do not need it."""
        for path in list(half_way.repository.location.walk("backups/orders")):
            half_way.repository.location.delete(path)
        half_way.restored()
        assert {n: Checkpoint.at(half_way.root / n).progress().latest_committed for n in IDS} == NEWEST

    def chain_of(self, half_way: Application) -> str:
        mark = inspect_target(half_way.root / "orders").seal
        assert mark is not None
        return mark.plan_id.partition("-")[0]

    def test_a_seal_that_somebody_has_lifted(self, half_way: Application) -> None:
        from airflow_ckpt_provider.change.sealing import unseal

        unseal(Checkpoint.at(half_way.root / "returns"), force=True)
        with pytest.raises(RefusedError):
            half_way.restored()
        half_way.taken_back()
        assert half_way.sealed() == []


class TestStoppedAnywhere:
    """After every single write, to a checkpoint or to the repository."""

    @pytest.mark.parametrize("step", [29, pytest.param(1, marks=pytest.mark.slow)])
    def test_it_is_resumed_or_taken_back(self, step: int) -> None:
        half_way = 0
        for life in lives(range(0, 600, step), least=60):
            forget_all()
            application = Application.planted(in_memory("application"))
            _, then, now = backed_up_and_gone_on(application)
            with suppress(Killed):
                application.restored(
                    application.streams(before=life.before), application.watched_repository(life.before)
                )
            if not life.dead:
                continue
            there = application.content()
            changed = [name for name in IDS if there[name] != now[name]]
            half_way += len(changed) == 1
            done = all(n in changed and there[n].items() <= then[n].items() for n in IDS)
            assert not changed or done or application.sealed() == list(IDS), f"after write {life.writes}"
            if life.writes % 2 and changed:
                application.taken_back()
                assert application.content() == now, f"after write {life.writes}"
            else:
                application.restored()
                assert all(application.content()[name].items() <= then[name].items() for name in IDS)
                assert [Checkpoint.at(application.root / n).progress().latest_committed for n in IDS] == [4, 6]
            assert application.sealed() == []
        assert half_way or step > 1

    @pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.slow)])
    def test_an_undo_is_resumed(self, step: int) -> None:
        for life in lives(range(0, 600, step), least=20):
            forget_all()
            application = Application.planted(in_memory("application"))
            _, _, now = backed_up_and_gone_on(application)
            application.restored()
            with suppress(Killed):
                application.taken_back(application.streams(before=life.before))
            if not life.dead:
                continue
            application.taken_back()
            assert application.content() == now, f"after write {life.writes}"
            assert application.sealed() == []

    def test_a_second_run_meanwhile(self, application: Application) -> None:
        _, then, _ = backed_up_and_gone_on(application)

        def rest(_: Any) -> RestRule:
            with pytest.raises(ChangeRunningError):
                application.restored()
            with pytest.raises(ChangeRunningError):
                application.taken_back()
            return STOPPED

        application.restored(rest=rest)
        assert all(application.content()[name].items() <= then[name].items() for name in IDS)
