"""Signed repositories: whose signatures count, a pinned repository, and what is about to be removed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import plan_expire
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.notes import hold, holds, release
from airflow_ckpt_provider.backup.prune import apply_prune, plan_prune
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.backup.trust import check_trust, sign_all
from airflow_ckpt_provider.errors import DamagedBackupError, RefusedError, StorageError
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.signatures import Signing, key_id, public_key
from tests.support.backups import back_up, stream
from tests.support.every_run import of_these
from tests.support.signed import SECRET, backed_up, forge, opened, trusted
from tests.support.watched_stores import Killed, Life, watched


@pytest.fixture
def made(place: Location) -> list[Manifest]:
    return [backed_up(place, newest) for newest in (4, 6)]


class TestTrust:
    def test_what_is_signed_by_whom(self, place: Location, made: list[Manifest]) -> None:
        key = key_id(public_key(SECRET))
        report = check_trust(opened(place))
        assert report.signed == {key: tuple(sorted(m.path for m in made))}
        assert (report.unsigned, report.findings, report.notes) == ((), (), ())
        assert json.loads(json.dumps(report.to_json())) == report.to_json()
        without = check_trust(Repository.open(place / "backups"))
        assert without.signed == report.signed, "what the signatures say"
        forged = forge(place, made[1])
        assert check_trust(opened(place)).findings == (f"{forged.path} is not signed by a trusted key",)

    def test_a_repository_from_before(self, place: Location) -> None:
        old = back_up(place, stream()).manifest
        with pytest.raises(DamagedBackupError):
            opened(place).manifest()
        assert sign_all(opened(place)) == (old.path,)
        assert opened(place).manifest() == old
        assert sign_all(opened(place)) == ()
        with pytest.raises(RefusedError, match="no key to sign with"):
            sign_all(Repository.open(place / "backups"))

    def test_the_chain_of_audit_records(self, place: Location, made: list[Manifest]) -> None:
        repository = opened(place)
        for plan_id in "abc":
            repository.record(plan_id, {"kind": "test"})
        assert not check_trust(repository).findings
        records = {record["plan_id"]: record for record in repository.records()}
        (second,) = (p for p in repository.whole_files("audit") if p.endswith("-b.json"))
        (third,) = (p for p in repository.whole_files("audit") if p.endswith("-c.json"))
        kept = (place / "backups").read(second)
        (place / "backups").replace(second, json.dumps({**records["b"], "kind": "other"}).encode())
        follows = f"{third} follows an audit record that is missing or was changed"
        assert set(check_trust(repository).findings) == {f"{second} is not signed by a trusted key", follows}
        assert check_trust(Repository.open(place / "backups")).findings == (follows,)
        (place / "backups").delete(second)
        assert check_trust(repository).findings == (follows,)
        (place / "backups").create(second, kept)
        assert not check_trust(repository).findings

    def test_records_that_were_written_at_once_are_a_note(self, place: Location, made: list[Manifest]) -> None:
        repository = opened(place)
        repository.record("a", {"kind": "test"})
        same = {**next(repository.records()), "plan_id": "b"}
        repository.location.create("audit/20260101T000000Z-b.json", json.dumps(same).encode())
        report = check_trust(repository)
        assert not report.findings
        assert "follow the same audit record" in report.notes[0]

    def test_gaps(self, place: Location, made: list[Manifest]) -> None:
        repository = opened(place)
        third = backed_up(place, 8)
        (place / "backups").delete(made[1].path)
        gap = "backup number 2 of orders: missing, and no audit record of an expire explains it"
        assert check_trust(repository).findings == (gap,)
        fourth = backed_up(place, 9)
        apply_expire(repository, plan_expire(repository, Policy(last=1)))
        assert repository.backup_ids("orders") == (fourth.backup_id,)
        assert check_trust(repository).findings == (gap,), "1 and 3 were removed by the expire"
        assert third.sequence == 3

    def test_backups_with_the_same_number_are_a_note(self, place: Location, made: list[Manifest]) -> None:
        """That one of them is missing shows in no gap."""
        same = replace(made[1], backup_id="20300101T000000Z-b000006")
        repository = opened(place)
        repository.location.create(same.path, same.to_document())
        report = check_trust(repository)
        assert report.findings == ()
        assert report.notes == (
            f"backups {made[1].backup_id} and {same.backup_id} of orders have the same number, 2: that one of them is missing "
            "would not be noticed by its number",
        )

    @pytest.mark.parametrize(
        "wrong",
        [
            {"sequences": {"orders": 5}},
            {"sequences": {"orders": ["2"]}},
            {"sequences": {"orders": [True]}},
            {"sequences": [2]},
            {"sequences": None},
            {"removed": 5},
            {"removed": [{"name": "orders"}]},
            {"removed": [5]},
            {"removed": {"name": "orders", "backup_id": "x"}},
        ],
    )
    def test_a_record_of_an_expire_that_makes_no_sense_is_named(
        self, place: Location, made: list[Manifest], wrong: dict[str, object]
    ) -> None:
        repository = opened(place)
        backed_up(place, 8)
        (place / "backups").delete(made[1].path)
        record = {"at": "", "plan_id": "x", "kind": "expire", "sequences": {"orders": [2]}, "removed": [], **wrong}
        repository.location.create("audit/20260101T000000Z-x.json", json.dumps(record).encode())
        findings = check_trust(repository).findings
        assert "audit/20260101T000000Z-x.json does not say properly what its expire has removed" in findings[0]
        assert findings[1:] == ("backup number 2 of orders: missing, and no audit record of an expire explains it",)

    @pytest.mark.parametrize("writes", of_these(range(30), *range(0, 30, 3)))
    def test_a_killed_expire_explains_what_it_has_removed(self, place: Location, writes: int) -> None:
        made = [backed_up(place, newest) for newest in (4, 5, 6, 7)]
        pin = check_trust(opened(place)).pin
        life = Life(writes)
        seen, _ = watched(place / "backups", life.before)
        dying = Repository.open(replace(seen, signing=Signing.of(SECRET, trusted(SECRET))))
        plan = plan_expire(opened(place), Policy(last=2))
        try:
            apply_expire(dying, plan)
        except Killed:
            pass
        else:
            assert writes > 15
        for _ in range(2):
            report = check_trust(opened(place), pin=pin)
            assert report.findings == ()
            apply_expire(opened(place), plan_expire(opened(place), Policy(last=2)))
            apply_prune(opened(place), plan_prune(opened(place)))
        assert opened(place).backup_ids("orders") == (made[2].backup_id, made[3].backup_id)
        (place / "backups").delete(made[2].path)
        assert len(check_trust(opened(place), pin=pin).findings) == 1

    def test_a_forged_expire_explains_nothing(self, place: Location, made: list[Manifest]) -> None:
        backed_up(place, 8)
        (place / "backups").delete(made[1].path)
        forged = {"at": "", "plan_id": "x", "kind": "expire", "sequences": {"orders": [2]}}
        (place / "backups").create("audit/20260101T000000Z-x.json", json.dumps(forged).encode())
        assert len(check_trust(opened(place)).findings) == 2


class TestPin:
    def test_the_newest_backup_is_gone(self, place: Location, made: list[Manifest]) -> None:
        repository = opened(place)
        pin = check_trust(repository).pin
        assert pin["streams"] == {"orders": {"sequence": 2, "backup_id": made[1].backup_id}}
        assert check_trust(repository, pin=json.loads(json.dumps(pin))).pin == pin
        (place / "backups").delete(made[1].path)
        for _ in range(2):  # until somebody has seen to it
            report = check_trust(repository, pin=pin)
            assert f"backup {made[1].backup_id} of orders (number 2) is pinned" in report.findings[0]
            assert report.pin == pin
        new = backed_up(place, 8)
        assert new.sequence == 2, "the number is used again, and the id is not"
        assert check_trust(repository, pin=pin).findings
        (place / "backups").delete(made[0].path)
        (place / "backups").delete(new.path)
        assert "there is none" in check_trust(repository, pin=pin).findings[0]

    def test_what_an_expire_has_removed_is_no_finding(self, place: Location, made: list[Manifest]) -> None:
        repository = opened(place)
        pin = check_trust(repository).pin
        newest = backed_up(place, 8)
        apply_expire(repository, plan_expire(repository, Policy(last=1)))
        report = check_trust(repository, pin=pin)
        assert not report.findings
        assert report.notes == (), "its second record follows the first"
        assert report.pin["streams"] == {"orders": {"sequence": 3, "backup_id": newest.backup_id}}

    def test_a_number_that_is_used_again_explains_nothing(self, place: Location, made: list[Manifest]) -> None:
        """The newest backup is deleted by somebody, the next one gets its number, and an expire removes that one."""
        repository = opened(place)
        pin = check_trust(repository).pin
        (place / "backups").delete(made[1].path)
        again = backed_up(place, 7)
        newest = backed_up(place, 8)
        assert (again.sequence, newest.sequence) == (2, 3)
        apply_expire(repository, plan_expire(repository, Policy(last=1)))
        for _ in range(2):
            report = check_trust(repository, pin=pin)
            assert f"backup {made[1].backup_id} of orders (number 2) is pinned" in report.findings[0]
            assert report.pin == pin

    @pytest.mark.parametrize("pin", ["x", {}, {"streams": []}, {"repository_id": "r", "streams": {"a": {}}}])
    def test_what_is_no_pin_is_refused(self, place: Location, made: list[Manifest], pin: object) -> None:
        with pytest.raises(RefusedError, match="the pin cannot be read"):
            check_trust(opened(place), pin=pin)

    def test_of_another_repository(self, place: Location, made: list[Manifest]) -> None:
        with pytest.raises(RefusedError, match="the pin is of repository other"):
            check_trust(opened(place), pin={"repository_id": "other", "streams": {}})


class TestAboutToBeRemoved:
    """What an expire was about to remove and has not, it explains no longer once a check with a pin has seen it."""

    @pytest.fixture
    def made(self, place: Location) -> list[Manifest]:
        return [backed_up(place, newest) for newest in (4, 5, 6)]

    def killed(self, place: Location, *, at: str = "claims/orders", planned: Policy | None = None) -> None:
        """An expire that is killed before it asks for a path, once it has said what it is about to remove."""

        def die(operation: str, path: str) -> None:
            inside = path.partition("/backups/")[2]
            if inside == at and any((place / "backups").walk("audit")):
                raise Killed

        seen, _ = watched(place / "backups", die)
        dying = Repository.open(replace(seen, signing=Signing.of(SECRET, trusted(SECRET))))
        with pytest.raises(Killed):
            apply_expire(dying, plan_expire(opened(place), planned or Policy(last=1)))

    def test_what_is_still_there_is_a_note_and_its_deletion_a_finding(
        self, place: Location, made: list[Manifest]
    ) -> None:
        self.killed(place)
        report = check_trust(opened(place))
        assert report.findings == ()
        assert len(report.notes) == 2
        assert f"backup {made[0].backup_id} of orders was about to be removed" in report.notes[0]
        assert "is still there" in report.notes[0]
        (place / "backups").delete(made[1].path)
        assert check_trust(opened(place)).findings == (), "the control: without a pin the record explains it"
        pin = json.loads(json.dumps(report.pin))
        for _ in range(2):  # until somebody has seen to it
            (finding,) = (later := check_trust(opened(place), pin=pin)).findings
            assert f"backup {made[1].backup_id} of orders was there at an earlier check" in finding
            pin = later.pin
        expire = plan_expire(opened(place), Policy(last=1))
        apply_expire(opened(place), expire)
        assert len(check_trust(opened(place), pin=pin).findings) == 1, "another expire explains what it has removed"

    def test_the_pinned_newest_is_explained_no_more_either(self, place: Location, made: list[Manifest]) -> None:
        hold(opened(place), made[0], reason="the only one that stays")
        forced = plan_expire(opened(place), Policy(last=1))
        plan = replace(
            forced, decisions=tuple(replace(d, keep=d.backup.backup_id == made[0].backup_id) for d in forced.decisions)
        )

        def die(operation: str, path: str) -> None:
            if path.endswith("/claims/orders"):
                raise Killed

        seen, _ = watched(place / "backups", die)
        with pytest.raises(Killed):
            apply_expire(Repository.open(replace(seen, signing=Signing.of(SECRET, trusted(SECRET)))), plan)
        pin = check_trust(opened(place)).pin
        (place / "backups").delete(made[2].path)
        (finding,) = check_trust(opened(place), pin=pin).findings
        assert f"backup {made[2].backup_id} of orders (number 3) is pinned" in finding

    def test_the_expire_that_is_run_again_explains_it(self, place: Location, made: list[Manifest]) -> None:
        self.killed(place, at=made[1].path)
        assert opened(place).backup_ids("orders") == (made[1].backup_id, made[2].backup_id)
        report = check_trust(opened(place))
        assert (report.findings, len(report.notes)) == ((), 1)
        apply_expire(opened(place), plan_expire(opened(place), Policy(last=1)))
        after = check_trust(opened(place), pin=report.pin)
        assert (after.findings, after.notes, after.pin["removing"]) == ((), (), [])

    def test_an_expire_that_ended_explains_what_it_says_it_has_removed(
        self, place: Location, made: list[Manifest]
    ) -> None:
        """Also without a pin."""
        done: list[str] = []

        def meddle(operation: str, path: str) -> None:
            if path.endswith("/claims/orders") and not done:
                done.append(path)
                dead = holds(opened(place), "orders")[made[1].backup_id].expires
                release(opened(place), made[1], reason="it stays", dead_expires=dead)
                hold(opened(place), made[1], reason="legal")

        seen, _ = watched(place / "backups", meddle)
        signer = Repository.open(replace(seen, signing=Signing.of(SECRET, trusted(SECRET))))
        apply_expire(signer, plan_expire(opened(place), Policy(last=1)))
        report = check_trust(opened(place))
        assert (report.findings, report.notes, report.pin["removing"]) == ((), (), [])
        (place / "backups").delete(made[1].path)
        assert "backups number 1 to 2" not in str(check_trust(opened(place)).findings)
        assert check_trust(opened(place)).findings == (
            "backup number 2 of orders: missing, and no audit record of an expire explains it",
        )

    def test_a_deletion_whose_answer_was_lost_is_explained(self, place: Location, made: list[Manifest]) -> None:
        """The store has removed the manifest, and the expire does not know it."""

        def lose(operation: str, path: str) -> None:
            if operation == "delete" and path.endswith(made[0].path):
                (place / "backups").delete(made[0].path)
                raise StorageError("no answer")

        seen, _ = watched(place / "backups", lose)
        signer = Repository.open(replace(seen, signing=Signing.of(SECRET, trusted(SECRET))))
        with pytest.raises(StorageError, match="no answer"):
            apply_expire(signer, plan_expire(opened(place), Policy(last=1)))
        report = check_trust(opened(place))
        assert report.findings == ()
        assert [each["backup_id"] for each in report.pin["removing"]] == [made[1].backup_id]

    @pytest.mark.parametrize("removing", [5, [5], [{}], [{"name": "a", "backup_id": "b", "record": 5}], {"a": "b"}])
    def test_a_pin_that_makes_no_sense(self, place: Location, made: list[Manifest], removing: object) -> None:
        pin = {**check_trust(opened(place)).pin, "removing": removing}
        with pytest.raises(RefusedError, match="the pin cannot be read"):
            check_trust(opened(place), pin=pin)

    def test_a_pin_of_an_earlier_version(self, place: Location, made: list[Manifest]) -> None:
        pin = dict(check_trust(opened(place)).pin)
        del pin["removing"]
        assert check_trust(opened(place), pin=pin).findings == ()
