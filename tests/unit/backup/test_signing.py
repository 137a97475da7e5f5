"""Signed documents: what somebody without the key has written is not used, on every way to read it."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar

import pytest

from airflow_ckpt_provider.backup.claims import claimed
from airflow_ckpt_provider.backup.copy import copy_backups
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.damaged import learn_damaged, read_damaged
from airflow_ckpt_provider.backup.drills import last_drill, record_drill
from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import plan_expire
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.notes import Verified, hold, holds, note_verification, release, verifications
from airflow_ckpt_provider.backup.prune import apply_prune, plan_prune
from airflow_ckpt_provider.backup.prune_marks import read_marks
from airflow_ckpt_provider.backup.reads import named
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_check import check_repository
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.backup.trust import check_trust, sign_all
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import DamagedBackupError, RefusedError, RepositoryError, UntrustedError
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.storage.signatures import Signing, key_id, public_key, signed_text
from tests.support.backups import stream
from tests.support.checkpoints import contents, plant
from tests.support.signed import OTHER, SECRET, backed_up, forge, opened, signatures, signing, trusted
from tests.support.watched_stores import WRITES, watched

GOLDEN = Path(__file__).parents[2] / "golden" / "stored" / "signatures"


@pytest.fixture
def made(place: Location) -> list[Manifest]:
    return [backed_up(place, newest) for newest in (4, 6)]


class TestManifests:
    def test_a_signed_backup_is_like_any_other(self, place: Location, made: list[Manifest]) -> None:
        repository = opened(place)
        assert repository.manifest() == made[1]
        assert len(signatures(place, made[1].path)) == 1
        assert check_repository(repository).ok
        assert Repository.open(place / "backups").manifest() == made[1], "without keys nothing is checked"

    def test_one_that_is_forged_is_passed_over(
        self, place: Location, made: list[Manifest], caplog: pytest.LogCaptureFixture
    ) -> None:
        forged = forge(place, made[1])
        repository = opened(place)
        assert repository.manifest() == made[1]
        assert "is not signed by a trusted key" in caplog.text
        with pytest.raises(DamagedBackupError, match=r"manifest backups/.* is not signed by a trusted key"):
            repository.manifest(forged.backup_id)
        assert not check_repository(repository).ok
        with pytest.raises(DamagedBackupError):
            plan_restore(repository, repository.manifest(forged.backup_id), place / "target")

    def test_expire_gives_a_forged_one_no_place(self, place: Location, made: list[Manifest]) -> None:
        forge(place, made[1])
        plan = plan_expire(opened(place), Policy(last=1))
        assert [d.backup.backup_id for d in plan.kept] == [made[1].backup_id]
        assert "is not signed by a trusted key; it stays" in plan.findings[0]

    def test_an_older_one_over_the_newest(self, place: Location, made: list[Manifest]) -> None:
        over = replace(made[1], files=made[0].files, batch_id=made[0].batch_id, restorable=made[0].restorable)
        (place / "backups").replace(made[1].path, over.to_document())
        assert opened(place).manifest() == made[0]

    def test_a_signature_is_of_one_place_in_one_repository(self, place: Location, made: list[Manifest]) -> None:
        """Neither its document nor its signature can be used under another path, or in another repository."""
        signature = contents(place / "backups")[signatures(place, made[1].path)[0]]
        for changed in (made[1].path.replace("orders", "payments"), made[1].path.replace("b000006", "b000007")):
            path = signatures(place, made[1].path)[0].replace(made[1].path, changed)
            (place / "backups").create(path, signature)
            (place / "backups").create(changed, made[1].to_document())
            assert not opened(place).location.is_trusted(changed)
        marker = (place / "backups").read("repository.json")
        mine = opened(place).repository_id
        (place / "backups").replace("repository.json", marker.replace(mine.encode(), b"0" * 36))
        assert not opened(place).location.is_trusted(made[1].path)

    @pytest.mark.parametrize("bad", ["", " ", "a\nb", None, 0, False, [], {}, ["x"]])
    def test_a_repository_without_an_id_is_refused(self, place: Location, made: list[Manifest], bad: object) -> None:
        """An id that is none would be bound to no signature, and nothing would be checked."""
        forge(place, made[1])
        marker = json.loads((place / "backups").read("repository.json"))
        (place / "backups").replace("repository.json", json.dumps({**marker, "id": bad}).encode())
        for opening in (Repository.open, Repository.open_or_create, Repository.open_if_there):
            for location in (signing(place), place / "backups"):
                with pytest.raises(RepositoryError, match=r"repository\.json cannot be read"):
                    opening(location)

    def test_trusted_keys_check_whatever_the_id(self, place: Location, made: list[Manifest]) -> None:
        """Also of a place that is not opened as a repository."""
        forged = forge(place, made[1])
        not_opened = signing(place)
        assert not_opened.signing is not None
        assert not_opened.signing.repository_id == ""
        assert not not_opened.is_trusted(forged.path)
        with pytest.raises(UntrustedError):
            not_opened.read(forged.path)
        with pytest.raises(RefusedError, match="no key to sign new ones with"):
            signing(place, secret=None).create("holds/orders/a/000001.json", b"{}")

    @pytest.mark.parametrize("damage", [b"", b"{}", b"[]", b'{"signature": 5}', b'{"signature": "AAAA"}', b"\xff"])
    def test_a_damaged_signature_is_none(self, place: Location, made: list[Manifest], damage: bytes) -> None:
        (place / "backups").replace(signatures(place, made[1].path)[0], damage)
        assert opened(place).manifest() == made[0]

    def test_the_signature_comes_first(self, place: Location) -> None:
        plant(place / "orders", stream())
        opened(place)
        seen, store = watched(place / "backups")
        location = replace(seen, signing=Signing.of(SECRET, trusted(SECRET)))
        create_backup(Checkpoint.at(place / "orders"), Repository.open(location))
        written = [path.partition("/backups/")[2] for path in store.paths(*WRITES)]
        (manifest,) = (n for n, path in enumerate(written) if path.startswith("backups/"))
        assert written[manifest - 1].startswith("signatures/backups/")
        assert sum(path.startswith("signatures/") for path in written) == 1, "one more write, and no other"

    def test_one_of_several_keys_is_enough(self, place: Location, made: list[Manifest]) -> None:
        both = replace(place / "backups", signing=Signing.of(OTHER, trusted(OTHER, SECRET)))
        assert Repository.open(both).manifest() == made[1]
        only = Repository.open(signing(place, secret=OTHER, trust=OTHER))
        with pytest.raises(DamagedBackupError, match="all 2 backups of orders are damaged"):
            only.manifest()

    def test_a_copy_is_signed_for_its_place(self, place: Location, made: list[Manifest]) -> None:
        second = replace(place / "second", signing=Signing.of(SECRET, trusted(SECRET)))
        copy_backups(opened(place), Repository.open_or_create(second), made)
        assert Repository.open(second).manifest().backup_id == made[1].backup_id

    def test_what_is_known_of_the_signed_text(self) -> None:
        assert signed_text("r", "backups/a/b.json", "ff") == b"airflow-ckpt-signature v1\nr\nbackups/a/b.json\nff"


def test_stored_signatures(place: Location) -> None:
    """What was ever signed is trusted for ever, and signed again byte for byte."""
    golden = open_location(str(GOLDEN))
    stored = {path: golden.read(path) for path in golden.walk()}
    (path,) = (each for each in stored if each.startswith("backups/"))
    made = Signing(SECRET, (public_key(SECRET),), "7b0c1a52-3f0e-4c55-9d2e-0a4f5f1c2d3e")
    assert made.checked(golden, path, stored[path]) == stored[path]
    replace(place, signing=made).create(path, stored[path])
    assert contents(place) == stored


class TestKeys:
    def test_without_a_signing_key_nothing_is_begun(self, place: Location, made: list[Manifest]) -> None:
        """Nobody would trust what is written then; what only reads works."""
        reader = Repository.open(signing(place, secret=None))
        assert reader.manifest() == made[1]
        before = contents(place / "backups")
        with pytest.raises(RefusedError, match="no key to sign new ones with") as error:
            create_backup(Checkpoint.at(place / "orders"), reader)
        assert "--signing-key-file" in str(error.value.hint)
        with pytest.raises(RefusedError, match="no key to sign"):
            apply_expire(reader, plan_expire(reader, Policy(last=1)))
        with pytest.raises(RefusedError, match="no key to sign"):
            apply_prune(reader, plan_prune(reader))
        with pytest.raises(RefusedError, match="no key to sign"):
            hold(reader, made[0], reason="x")
        assert contents(place / "backups") == before
        assert not note_verification(reader, verify_backup(reader, made[1], read_data=ReadData()))

    def test_a_signing_key_that_is_not_trusted_is_refused(self) -> None:
        with pytest.raises(RefusedError, match=f"signing key {key_id(public_key(OTHER))} is none of the trusted keys"):
            Signing.of(OTHER, trusted(SECRET))

    def test_a_trusted_key_that_is_none_is_refused(self) -> None:
        with pytest.raises(RepositoryError, match="is no key"):
            Signing.of(None, ["AAAA"])

    def test_the_private_key_is_never_shown(self, place: Location) -> None:
        made = Signing.of(SECRET, trusted(SECRET))
        for shown in (repr(made), repr(replace(place, signing=made))):
            assert repr(SECRET)[2:-1] not in shown


class TestNotes:
    def test_a_forged_release_releases_nothing(
        self, place: Location, made: list[Manifest], caplog: pytest.LogCaptureFixture
    ) -> None:
        repository = opened(place)
        hold(repository, made[0], reason="incident")
        released = {"event": "released", "reason": "", "made_by": "", "at": ""}
        path = f"holds/orders/{made[0].backup_id}/000002.json"
        (place / "backups").create(path, json.dumps(released).encode())
        assert holds(repository, "orders")[made[0].backup_id].is_held
        assert f"{path} is not signed by a trusted key: it releases nothing" in caplog.text
        (place / "backups").replace(path, b"rubbish")
        assert holds(repository, "orders")[made[0].backup_id].is_held
        assert len(plan_expire(repository, Policy(last=1)).kept) == 2
        release(repository, made[0], reason="over")
        assert not holds(repository, "orders")[made[0].backup_id].is_held

    @pytest.mark.parametrize("name", ["x", "1", "999999999"])
    def test_a_forged_release_under_a_strange_name(self, place: Location, made: list[Manifest], name: str) -> None:
        repository = opened(place)
        hold(repository, made[0], reason="incident")
        released = {"event": "released", "reason": "", "made_by": "", "at": ""}
        (place / "backups").create(f"holds/orders/{made[0].backup_id}/{name}.json", json.dumps(released).encode())
        assert len(plan_expire(repository, Policy(last=1)).kept) == 2
        release(repository, made[0], reason="over")
        assert len(plan_expire(repository, Policy(last=1)).kept) == 1

    def test_an_unsigned_hold_keeps_a_backup(self, place: Location, made: list[Manifest]) -> None:
        """Somebody without the key may keep one: what is kept is not lost."""
        hold(Repository.open(place / "backups"), made[0], reason="incident")
        assert len(plan_expire(opened(place), Policy(last=1)).kept) == 2

    def test_a_released_backup_whose_notes_are_all_forged_can_expire(
        self, place: Location, made: list[Manifest]
    ) -> None:
        (place / "backups").create(f"holds/orders/{made[0].backup_id}/000001.json", b"rubbish")
        repository = opened(place)
        apply_expire(repository, plan_expire(repository, Policy(last=1)))
        assert repository.backup_ids("orders") == (made[1].backup_id,)

    def test_a_forged_word_that_a_backup_is_good(self, place: Location, made: list[Manifest]) -> None:
        repository = opened(place)
        (place / "backups").create(f"verified/orders/{made[0].backup_id}/000001-contents.json", b"{}")
        assert verifications(repository, "orders") == {}
        note_verification(repository, verify_backup(repository, made[0], read_data=ReadData()))
        assert verifications(repository, "orders") == {made[0].backup_id: Verified.CONTENTS}

    def test_a_forged_word_that_an_object_was_read(self, place: Location, made: list[Manifest]) -> None:
        """Verifies in turns would never read the one that is damaged, and the last would note that all contents were."""
        newest = made[1]
        damaged = max({e.object for e in newest.files} - {e.object for e in made[0].files})
        content = (place / "backups").read(damaged)
        (place / "backups").replace(damaged, content[:-1] + bytes([content[-1] ^ 1]))
        now = datetime.now(UTC)
        forged = [
            {
                "at": (now - timedelta(days=2 if entry.object != damaged else 0)).isoformat(),
                "objects": base64.b64encode(named(entry.object)).decode(),
            }
            for entry in newest.files
        ]
        document = json.dumps({"format": "airflow-ckpt-objects-read", "version": 1, "reads": forged}).encode()
        (place / "backups").create("read/orders/000777.json", document)
        unchecked = verify_backup(Repository.open(place / "backups"), newest, read_data=ReadData.parse("1/30"))
        assert unchecked.ok, "the control: nobody checks signatures"
        assert unchecked.contents_read
        found = verify_backup(opened(place), newest, read_data=ReadData.parse("1/30"))
        assert not found.contents_read
        assert "read/orders/000777.json is not signed by a trusted key" in check_trust(opened(place)).findings

    def test_what_a_verify_has_read_is_signed(self, place: Location, made: list[Manifest]) -> None:
        repository, newest = opened(place), made[1]
        for _ in range(3):
            verified = verify_backup(repository, newest, read_data=ReadData.parse("1/3"))
            note_verification(repository, verified)
        assert verified.contents_read
        assert check_trust(opened(place)).findings == ()

    def test_a_forged_word_that_nothing_is_damaged(self, place: Location, made: list[Manifest]) -> None:
        """What is signed stays damaged; what somebody else has found is damaged too, until somebody with the key reads it."""
        repository, plain = opened(place), place / "backups"
        first, second = (entry.object for entry in made[1].files[:2])
        learn_damaged(repository.location, "orders", damaged={first: "content"}, whole=(), since=0)
        learn_damaged(plain, "orders", damaged={}, whole=[first], since=9)
        assert read_damaged(plain, "orders").objects == {}
        assert read_damaged(repository.location, "orders").objects.keys() == {first}
        learn_damaged(plain, "orders", damaged={second: "size"}, whole=(), since=9)
        assert read_damaged(repository.location, "orders").objects.keys() == {first, second}
        learn_damaged(repository.location, "orders", damaged={}, whole=[first, second], since=9)
        assert read_damaged(repository.location, "orders").objects == {}

    @pytest.mark.parametrize("name", ["000099", "1", "01", "0000001", "\u0661", "-1", "9" * 30])
    def test_an_unsigned_record_takes_the_place_of_no_signed_one(
        self, place: Location, made: list[Manifest], name: str
    ) -> None:
        """Whatever it is called, and also after a prune, which deletes records that newer ones have taken the place of."""
        repository, plain = opened(place), place / "backups"
        (bad,) = (e for e in made[1].files if e.path == "offsets/6")
        learn_damaged(repository.location, "orders", damaged={bad.object: "size"}, whole=(), since=0)
        learn_damaged(repository.location, "orders", damaged={bad.object: "content"}, whole=(), since=0)
        nothing = b'{"format":"airflow-ckpt-damaged-objects","version":1,"objects":{}}\n'
        plain.create(f"damaged/orders/{name}.json", nothing)
        for _ in range(2):
            assert read_damaged(repository.location, "orders").objects.keys() == {bad.object}
            assert repository.manifest() == made[0]
            apply_prune(repository, plan_prune(repository))
        assert "damaged/orders/000001.json" not in contents(plain), "the second one has taken its place"
        (other,) = (e for e in made[1].files if e.path == "commits/6")
        learn_damaged(repository.location, "orders", damaged={other.object: "content"}, whole=(), since=0)
        assert read_damaged(repository.location, "orders").objects.keys() == {bad.object, other.object}

    def test_a_forged_audit_record_is_left_out(self, place: Location, made: list[Manifest]) -> None:
        repository = opened(place)
        repository.record("a", {"kind": "test", "made_by": "me"})
        Repository.open(place / "backups").record("b", {"kind": "test", "made_by": "me"})
        assert [record["plan_id"] for record in repository.records()] == ["a"]


def drill(manifest: Manifest, **more: object) -> dict[str, object]:
    return {"name": "orders", "backup_id": manifest.backup_id, "starts": True, **more}


class TestDrills:
    """Proofs that backups were restored and run on."""

    def test_a_forged_one_proves_nothing(
        self, place: Location, made: list[Manifest], caplog: pytest.LogCaptureFixture
    ) -> None:
        repository, plain = opened(place), Repository.open(place / "backups")
        record_drill(plain, drill(made[0]))
        assert last_drill(repository, "orders") is None
        assert "is not signed by a trusted key" in caplog.text
        assert plan_expire(repository, Policy(last=1)).kept[-1].backup.backup_id == made[1].backup_id
        mine = record_drill(repository, drill(made[1], seconds=1.5))
        (path,) = (p for p in contents(place / "backups") if p.startswith(f"drills/orders/{made[1].backup_id}/"))
        later = path.rpartition("/")[0] + "/29991231T000000Z.json"
        (place / "backups").create(later, (place / "backups").read(path))
        assert last_drill(repository, "orders") == mine
        (place / "backups").replace(later, b"rubbish")
        assert last_drill(repository, "orders") == mine
        assert f"{later} is not signed by a trusted key" in check_trust(repository).findings

    def test_one_from_before_counts_once_it_is_signed(self, place: Location, made: list[Manifest]) -> None:
        """Without keys it counts in any case."""
        before = record_drill(Repository.open(place / "backups"), drill(made[0]))
        assert last_drill(Repository.open(place / "backups"), "orders") == before
        assert last_drill(opened(place), "orders") is None
        (signed,) = sign_all(opened(place))
        assert signed.startswith("drills/")
        assert last_drill(opened(place), "orders") == before


class TestMarks:
    def test_a_forged_mark_neither_deletes_nor_condemns(self, place: Location, made: list[Manifest]) -> None:
        repository = opened(place)
        document = {"id": "x", "at": "", "made_by": "", "objects": [entry.object for entry in made[1].files]}
        (place / "backups").create("prune/orders/000001.json", json.dumps(document).encode())
        assert read_marks(repository.location, "orders", for_prune=True).condemned == frozenset()
        with pytest.raises(RepositoryError, match=r"000001\.json is cut off or not signed by a trusted key"):
            create_backup(Checkpoint.at(place / "orders"), repository)
        apply_prune(repository, plan_prune(repository))
        assert check_repository(repository).ok
        assert create_backup(Checkpoint.at(place / "orders"), repository).copied_files == 0

    def test_signatures_of_documents_that_are_gone_go(self, place: Location, made: list[Manifest]) -> None:
        repository = opened(place)
        note_verification(repository, verify_backup(repository, made[0], read_data=ReadData()))
        hold(repository, made[0], reason="x")
        release(repository, made[0], reason="x")
        apply_expire(repository, plan_expire(repository, Policy(last=1)))
        apply_prune(repository, plan_prune(repository))
        there = contents(place / "backups")
        signed = {
            path.removeprefix("signatures/").rpartition("/")[0] for path in there if path.startswith("signatures/")
        }
        assert signed <= there.keys()
        assert made[1].path in signed
        assert not check_trust(repository).findings


def test_claims_need_no_signature(place: Location, made: list[Manifest]) -> None:
    with claimed(opened(place).location, "orders", what="restore", made_by="me"):
        pass
    assert not [path for path in contents(place / "backups") if path.startswith("signatures/claims")]


def test_encrypted_and_signed(place: Location) -> None:
    location = replace(signing(place), key=b"k" * 32)
    plant(place / "orders", stream())
    repository = Repository.open_or_create(location)
    manifest = create_backup(Checkpoint.at(place / "orders"), repository).manifest
    assert Repository.open(location).manifest() == manifest
    assert not check_trust(Repository.open(location)).findings


class LocksNoted(LocalStore):
    """Notes what is locked."""

    locked: ClassVar[list[str]] = []

    def why_no_locks(self, path: str) -> None:
        return None

    def lock(self, path: str, until: datetime) -> None:
        self.locked.append(path)

    def locked_until(self, path: str) -> None:
        return None


def test_whoever_locks_needs_no_keys_to_lock_the_signatures(tmp_path: Path) -> None:
    """A backup whose manifest is locked and whose signatures are deleted could be read by nobody who checks them."""
    LocksNoted.locked.clear()
    there = open_location(str(tmp_path))
    place = replace(there, store=LocksNoted())
    made = backed_up(there, 4)
    result = create_backup(
        Checkpoint.at(place / "orders"),
        Repository.open(place / "backups"),
        skip_if_unchanged=True,
        immutable_for=timedelta(days=1),
    )
    assert result.manifest.backup_id == made.backup_id, "the one that is there is locked"
    (signature,) = signatures(there, made.path)
    locked = {path.partition("/backups/")[2] for path in LocksNoted.locked}
    assert {made.path, signature} <= locked
