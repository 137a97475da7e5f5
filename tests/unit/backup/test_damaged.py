"""The index of damaged objects: what is added and taken out of it, by whom, and what earlier versions have noted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.damaged import (
    Damage,
    Damaged,
    DamagedObjects,
    forget_damaged,
    learn_damaged,
    read_damaged,
    streams_with_damage_known,
)
from airflow_ckpt_provider.backup.notes import note_damage, record_verification, verifications
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.errors import RepositoryError, StorageError
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.storage.packs import file_of
from tests.support.backups import back_up, entry_of, repository, stream
from tests.support.checkpoints import contents, plant
from tests.support.spoiled import is_read, spoil
from tests.support.watched_stores import watched

GOLDEN = Path(__file__).parents[2] / "golden" / "stored" / "damage"
X, Y = "objects/orders/aa/x", "objects/orders/bb/y"


def learn(place: Location, *damaged: str, whole: tuple[str, ...] = (), since: int = 0) -> DamagedObjects:
    return learn_damaged(place, "orders", damaged=dict.fromkeys(damaged, "content"), whole=whole, since=since)


def known(place: Location) -> set[str]:
    return set(read_damaged(place, "orders").objects)


def test_nothing_is_known_at_first(place: Location) -> None:
    assert read_damaged(place, "orders") == DamagedObjects()
    assert streams_with_damage_known(place) == set()


def test_what_is_found_is_added_to_what_is_known(place: Location) -> None:
    learn(place, X)
    assert learn(place, Y).number == 2
    assert known(place) == {X, Y}
    assert streams_with_damage_known(place) == {"orders"}
    assert known(place / "elsewhere") == set()


def test_the_day_of_the_first_find_is_kept(place: Location) -> None:
    first = learn(place, X).objects[X]
    place.replace(
        "damaged/orders/000001.json", place.read("damaged/orders/000001.json").replace(first.found.encode(), b"2020")
    )
    again = learn(place, X).objects[X]
    assert (again.found, first.number, again.number) == ("2020", 1, 2)


def test_nothing_new_is_no_record(place: Location) -> None:
    assert learn(place).number == 1, "the first is written in any case: from now on no notes are read"
    assert learn(place).number == 1
    learn(place, X)
    assert learn(place).number == 2
    assert learn(place, whole=(Y,), since=2).number == 2
    assert sorted(contents(place)) == ["damaged/orders/000001.json", "damaged/orders/000002.json"]


@pytest.mark.parametrize("name", ["1", "01", "0000001", "\u0661"])
def test_each_number_has_one_name(place: Location, name: str) -> None:
    learn(place, X)
    place.create(f"damaged/orders/{name}.json", b'{"format":"airflow-ckpt-damaged-objects","version":1,"objects":{}}\n')
    assert known(place) == {X}
    forget_damaged(place, "orders", read_damaged(place, "orders"), listed={X})
    assert known(place) == {X}


def test_the_record_after_the_last_of_six_digits(place: Location) -> None:
    learn(place, X)
    place.create("damaged/orders/999999.json", place.read("damaged/orders/000001.json"))
    assert learn(place, Y).number == 1_000_000
    assert learn(place, whole=(X, Y), since=1_000_000).number == 1_000_001
    assert known(place) == set()


def test_read_whole_it_is_taken_out(place: Location) -> None:
    learn(place, X, Y)
    assert set(learn(place, whole=(X,), since=1).objects) == {Y}
    assert known(place) == {Y}
    learn(place, whole=(Y,), since=2)
    assert known(place) == set()


def test_damage_found_since_the_reading_began_stays(place: Location) -> None:
    """One verify reads an object; then it rots, another verify finds that; then the first one notes what it has read."""
    learn(place, X)
    since = read_damaged(place, "orders").number
    learn(place, X)
    learn(place, whole=(X,), since=since)
    assert known(place) == {X}
    learn(place, whole=(X,), since=read_damaged(place, "orders").number)
    assert known(place) == set()


def test_both_found_and_read_whole_is_damaged(place: Location) -> None:
    learn(place, X)
    learn(place, X, whole=(X,), since=9)
    assert known(place) == {X}


def test_two_at_the_same_moment_both_add_theirs(place: Location) -> None:
    other = []

    def be_faster(operation: str, path: str) -> None:
        if operation == "create" and not other:
            other.append(path)
            learn(place, Y)

    seen, _ = watched(place, be_faster)
    learn(seen, X)
    assert known(place) == {X, Y}
    assert len(contents(place)) == 2


@pytest.mark.parametrize("damaged", [(), (X,)])
def test_what_it_costs(place: Location, damaged: tuple[str, ...]) -> None:
    learn(place, *damaged)
    seen, asked = watched(place)
    read_damaged(seen, "orders")
    # The second list: whether the damaged object was moved, and has another name too.
    assert [operation for operation, _ in asked.requests] == ["list", *(["read", "list"] if damaged else [])]


def test_a_newer_record_takes_the_place_while_it_is_read(place: Location) -> None:
    learn(place, X)

    def tidy(operation: str, path: str) -> None:
        if operation == "read" and path.endswith("000001.json"):
            learn(place, Y)
            forget_damaged(place, "orders", DamagedObjects(), listed=())

    seen, _ = watched(place, tidy)
    assert set(read_damaged(seen, "orders").objects) == {X, Y}
    assert list(contents(place)) == ["damaged/orders/000002.json"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"format":"airflow-ckpt-damaged-objects","version":1,"objects":7}',
        b'{"format":"airflow-ckpt-damaged-objects","version":1,"objects":{"%s":{"problem":"size","found":"","number":1e999}}}'
        % X.encode(),
    ],
)
def test_a_record_that_cannot_be_read_is_named(place: Location, data: bytes) -> None:
    learn(place, X)
    place.replace("damaged/orders/000001.json", data)
    with pytest.raises(RepositoryError, match=r"^damaged/orders/000001.json cannot be read") as error:
        read_damaged(place, "orders")
    assert "`airflow-ckpt verify REPOSITORY all --name NAME --read-data`" in str(error.value.hint)


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "objects/orders/../../x",
        "objects/payments/aa/x",
        "/etc/passwd",
        "repository.json",
        "backups/payments/x.json",
    ],
)
def test_a_record_names_only_what_is_of_its_stream(place: Location, path: str) -> None:
    learn(place, path)
    with pytest.raises(RepositoryError, match=r"^damaged/orders/000001.json cannot be read"):
        read_damaged(place, "orders")


def test_a_record_of_a_later_version_is_refused(place: Location) -> None:
    learn(place, X)
    path = "damaged/orders/000001.json"
    place.replace(path, place.read(path).replace(b'"version": 1', b'"version": 2'))
    with pytest.raises(RepositoryError, match="version 2, known here: airflow-ckpt-damaged-objects version 1"):
        read_damaged(place, "orders")


@pytest.mark.parametrize("name", [".000009.json.2b.tmp", "000009.json.tmp", "about.json", "x"])
def test_other_files_are_none(place: Location, name: str) -> None:
    learn(place, X)
    place.create(f"damaged/orders/{name}", b"{")
    assert known(place) == {X}


def test_only_what_is_deleted_and_unlisted_is_forgotten(place: Location) -> None:
    learn(place, X, Y, "objects/orders/cc/z")
    place.create(Y, b"not deleted yet")
    before = read_damaged(place, "orders")
    learn(place, "objects/orders/dd/new")
    forget_damaged(place, "orders", before, listed=("objects/orders/cc/z",))
    assert known(place) == {Y, "objects/orders/cc/z", "objects/orders/dd/new"}
    assert len(place.walk("damaged")) == 1, "older records have nothing left to say"


def test_the_golden_record() -> None:
    """As version 1 of the format wrote it; it stays readable."""
    found = read_damaged(open_location(str(GOLDEN)), "orders")
    assert found == DamagedObjects(
        7,
        {
            X: Damaged("content", "2026-11-21T08:30:00+00:00", 7),
            Y: Damaged("missing", "2026-11-20T08:30:00+00:00", 3),
        },
    )
    assert read_damaged(open_location(str(GOLDEN)), "payments") == DamagedObjects(2)


def test_what_is_written_is_the_golden_record(place: Location) -> None:
    golden = json.loads((GOLDEN / "damaged/orders/000007.json").read_text())
    learn(place, X)
    written = json.loads(place.read("damaged/orders/000001.json"))
    assert written.keys() == golden.keys()
    assert written["objects"][X].keys() == golden["objects"][X].keys()
    learn(place, whole=(X,), since=1)
    assert place.read("damaged/orders/000002.json") == (GOLDEN / "damaged/payments/000002.json").read_bytes()


class TestNotesOfEarlierVersions:
    """They wrote ``verified/<name>/<backup id>/<nnnnnn>-<outcome>.json`` and nothing else."""

    def test_the_golden_notes(self) -> None:
        found = read_damaged(open_location(str(GOLDEN / "0.1.0")), "orders")
        assert found == DamagedObjects(
            0,
            {
                "objects/orders/aa/rotten": Damaged("content", "2026-10-01T08:30:00+00:00", 0),
                "objects/orders/bb/lost": Damaged("missing", "2026-10-01T08:30:00+00:00", 0),
                "objects/orders/dd/undecrypted": Damaged("content", "2026-10-03T08:30:00+00:00", 0),
                "backups/orders/20261004T083000Z-b000009.json": Damaged("content", "an unknown day", 0),
                "backups/orders/20261005T083000Z-b000010.json": Damaged("missing", "2026-10-05T08:30:00+00:00", 0),
            },
        )

    def test_the_first_record_takes_them_over(self, place: Location) -> None:
        plant(place, contents(open_location(str(GOLDEN / "0.1.0"))))
        before = known(place)
        learn(place, X, whole=("objects/orders/bb/lost",), since=0)
        assert known(place) == before - {"objects/orders/bb/lost"} | {X}
        seen, asked = watched(place)
        read_damaged(seen, "orders")
        assert asked.count("walk") == 0

    def test_a_backup_goes_by_them(self, place: Location) -> None:
        made = back_up(place, stream()).manifest
        entry = entry_of(made, "offsets/4")
        spoil(place / "backups", entry)
        self._note(place, made.backup_id, 1, "damaged", [{"object": entry.object, "problem": "content"}])
        self._note(place, made.backup_id, 2, "structure", [])
        again = back_up(place).manifest
        assert entry_of(again, "offsets/4").object != entry.object
        # A pack in which it takes up other contents is damaged as such; none of what it lists is.
        findings = verify_backup(repository(place), again, read_data=ReadData()).findings
        assert {f.object for f in findings} <= {file_of(entry.object)} - {entry.object}
        assert repository(place).manifest().backup_id == again.backup_id

    def test_read_as_a_whole_since(self, place: Location) -> None:
        made = back_up(place, stream()).manifest
        self._note(place, made.backup_id, 1, "damaged", [{"object": X, "problem": "content"}])
        self._note(place, made.backup_id, 2, "contents", [])
        assert known(place / "backups") == set()

    def test_a_backup_of_which_no_more_is_known_has_to_be_read_as_a_whole(self, place: Location) -> None:
        made = back_up(place, stream()).manifest
        (place / "backups").create(f"verified/orders/{made.backup_id}/000001-damaged.json", b"torn")
        repo = repository(place)
        for read_data in (None, ReadData(percent=50)):
            report = verify_backup(repo, made, read_data=read_data)
            record_verification(repo, report)
            (finding,) = report.findings
            assert finding.message.startswith(f"backup {made.backup_id} was found damaged on an unknown day (content)")
        assert not verify_backup(repo, made, read_data=ReadData()).findings
        record_verification(repo, verify_backup(repo, made, read_data=ReadData()))
        assert verify_backup(repo, made).ok

    def _note(self, place: Location, backup_id: str, number: int, outcome: str, findings: list[dict[str, str]]) -> None:
        document = {"at": "2026-10-01T08:30:00+00:00", "findings": findings}
        path = f"verified/orders/{backup_id}/{number:06d}-{outcome}.json"
        (place / "backups").create(path, json.dumps(document).encode())


class TestNotes:
    def test_what_could_not_be_read_is_neither_good_nor_damaged(self, place: Location) -> None:
        made = back_up(place, stream()).manifest
        repo = repository(place)
        record_verification(repo, verify_backup(repo, made))
        entry = entry_of(made, "offsets/4")

        def time_out(operation: str, path: str) -> None:
            if is_read(operation, path, entry.object):
                raise StorageError("could not read it: timed out")

        seen, _ = watched(place / "backups", time_out)
        report = verify_backup(type(repo)(seen, "r"), made, read_data=ReadData())
        assert (report.ok, report.damaged) == (False, False)
        record_verification(repo, report)
        assert known(place / "backups") == set()
        assert verifications(repo, "orders")[made.backup_id].value == "structure", "as before"
        assert repo.manifest().backup_id == made.backup_id
        assert back_up(place).copied_files == 0

    def test_known_damage_that_cannot_be_read_stays(self, place: Location) -> None:
        made = back_up(place, stream()).manifest
        entry = entry_of(made, "offsets/4")
        note_damage(repository(place), made, [Damage("offsets/4", entry.object, "content", "found by a restore")])

        def time_out(operation: str, path: str) -> None:
            if is_read(operation, path, entry.object):
                raise StorageError("could not read it: timed out")

        seen, _ = watched(place / "backups", time_out)
        report = verify_backup(type(repository(place))(seen, "r"), made, read_data=ReadData())
        assert {f.problem for f in report.findings if f.is_damage} == {"content"}
        record_verification(repository(place), report)
        assert known(place / "backups") == {entry.object}

    def test_what_is_not_damage_is_not_noted(self, place: Location) -> None:
        made = back_up(place, stream()).manifest
        note_damage(
            repository(place),
            made,
            [Damage("offsets/4", X, "unreadable", ""), Damage("commits/4", "", "missing", "")],
        )
        assert not (place / "backups").walk("damaged")

    def test_without_the_right_to_write_it_is_said(self, place: Location, caplog: pytest.LogCaptureFixture) -> None:
        made = back_up(place, stream()).manifest

        def forbid(operation: str, path: str) -> None:
            if operation == "create":
                raise StorageError("could not create it: Access Denied.")

        seen, _ = watched(place / "backups", forbid)
        note_damage(type(repository(place))(seen, "r"), made, [Damage("offsets/4", X, "content", "")])
        assert "that objects of orders are damaged is not noted: could not create it" in caplog.text


class TestAnEtagThatIsNoHash:
    """Of several parts, or of a key service: the content can be read, and compared with nothing."""

    @pytest.mark.parametrize("checksum", ["etag:0123456789abcdef0123456789abcdef-2", "etag:opaque", "crc32c:1234"])
    def test_it_is_not_verified_contents(self, place: Location, checksum: str) -> None:
        from dataclasses import replace

        made = back_up(place, stream()).manifest
        files = tuple(e._replace(sha256=None, checksum=checksum) if e.path == "offsets/4" else e for e in made.files)
        # The store in memory has another checksum; what is read here is what reading shows.
        weak = replace(made, files=files)
        repo = repository(place)
        (place / "backups").replace(weak.path, weak.to_document())
        listed = (place / "backups").walk("objects/orders")

        class Listed(type(place)):  # type: ignore[misc]
            def walk(self, path: str = "") -> object:
                found = {p: f._replace(checksum=checksum) if p == files_object else f for p, f in listed.items()}
                return found if path == "objects/orders" else super().walk(path)

        files_object = entry_of(weak, "offsets/4").object
        seen = Listed((place / "backups").store, (place / "backups").root)
        report = verify_backup(type(repo)(seen, "r"), weak, read_data=ReadData())
        assert report.ok
        assert (report.read_files, report.uncompared_files) == (report.files - 1, 1)
        assert not report.contents_read
        record_verification(repo, report)
        assert verifications(repo, "orders") == {weak.backup_id: "structure"}
