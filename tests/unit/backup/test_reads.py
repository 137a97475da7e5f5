"""What was read when, and what a verify that goes by it reads next."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_ckpt_provider.backup import reads, verify
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.notes import Verified, record_verification, verifications
from airflow_ckpt_provider.backup.prune import apply_prune, plan_prune
from airflow_ckpt_provider.backup.reads import Reads, note_reads, read_reads, tidy_reads
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import Coverage, ReadData, VerifyReport, verify_backup
from airflow_ckpt_provider.backup.verify_repository import VerifiedStream, verify_repository
from airflow_ckpt_provider.errors import NoSuchBackupError, StorageError
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.storage.packs import file_of
from tests.support.backups import back_up, entry_of, repository, stream
from tests.support.checkpoints import contents, plant
from tests.support.packs import packed_repository
from tests.support.spoiled import is_read, lose, lying_with, overwrite, spoil
from tests.support.watched_stores import watched

GOLDEN = Path(__file__).parents[2] / "golden" / "stored" / "damage"
DAY = datetime(2026, 3, 10, 12, tzinfo=UTC)
FOUR = tuple(f"objects/orders/aa/{n}" for n in range(4))


def note(place: Location, *objects: str, at: datetime = DAY, there: tuple[str, ...] = FOUR) -> None:
    note_reads(place, "orders", read_reads(place, "orders"), objects, at=at, there=there)


def times(place: Location) -> list[int | None]:
    """Days after :data:`DAY` on which each of the four was read."""
    known = read_reads(place, "orders")
    found = [known.last(path) for path in FOUR]
    return [None if f is None else round((f - DAY.timestamp()) / 86400) for f in found]


class TestRecords:
    def test_none(self, place: Location) -> None:
        assert read_reads(place, "orders") == Reads()
        note(place)
        assert contents(place) == {}, "nothing was read"

    def test_the_last_time_is_the_one(self, place: Location) -> None:
        note(place, *FOUR[:2])
        note(place, *FOUR[1:3], at=DAY + timedelta(days=2))
        note(place, FOUR[2], at=DAY + timedelta(days=1))
        assert times(place) == [0, 2, 2, None]
        assert sorted(contents(place)) == [f"read/orders/00000{n}.json" for n in (1, 2, 3)]

    def test_many_are_written_anew_as_one(self, place: Location) -> None:
        for day in range(40):
            note(place, FOUR[day % 3], at=DAY + timedelta(days=day))
        names = sorted(path.rpartition("/")[2] for path in contents(place))
        assert "000032-all.json" in names
        assert times(place) == [39, 37, 38, None]
        _, asked = (seen := watched(place))
        read_reads(seen[0], "orders")
        assert asked.count("list") == 1
        assert asked.count("read") == 1 + 8
        tidy_reads(place, "orders")
        assert len(contents(place)) == 1 + 8
        assert times(place) == [39, 37, 38, None]

    def test_what_is_gone_is_left_out_of_it(self, place: Location) -> None:
        for _ in range(33):
            note(place, *FOUR, there=FOUR[:1])
        tidy_reads(place, "orders")
        place.delete("read/orders/000033.json")
        assert times(place) == [0, None, None, None]

    def test_two_at_once_both_count(self, place: Location) -> None:
        before = read_reads(place, "orders")
        note(place, FOUR[0])
        note_reads(place, "orders", before, [FOUR[1]], at=DAY, there=FOUR)
        assert times(place) == [0, 0, None, None]

    @pytest.mark.parametrize("data", [b"", b"[]", b'{"format":"airflow-ckpt-objects-read","version":2,"reads":[]}'])
    def test_one_that_cannot_be_read_says_nothing(
        self, place: Location, data: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        note(place, FOUR[0])
        note(place, FOUR[1])
        place.replace("read/orders/000001.json", data)
        assert times(place) == [None, 0, None, None]
        assert "read/orders/000001.json cannot be read" in caplog.text

    def test_a_time_to_come_is_somebodys_wrong_clock(self, place: Location) -> None:
        note(place, FOUR[0], at=datetime.now(UTC) + timedelta(days=9))
        assert times(place) == [None] * 4

    def test_the_golden_records(self) -> None:
        """As version 1 of the format wrote them; they stay readable."""
        golden = open_location(str(GOLDEN))
        assert times(golden) == [3, 2, 4, None]
        known = read_reads(golden, "orders")
        assert (known.number, known.records) == (34, 2)

    def test_what_is_written_is_the_golden_record(self, place: Location) -> None:
        note(place, FOUR[0], at=DAY + timedelta(days=3))
        assert place.read("read/orders/000001.json") == (GOLDEN / "read/orders/000033.json").read_bytes()


def entries(count: int) -> list[FileEntry]:
    return [FileEntry(f"state/0/{i}", 1, f"objects/orders/{i}", sha256="x") for i in range(count)]


@given(st.integers(1, 60), st.integers(2, 12), st.integers(0, 200))
def test_the_oldest_in_turn_are_everything(count: int, parts: int, new: int) -> None:
    """Also where others are added meanwhile: after t runs all that was there at first has been read."""
    first = {entry.object for entry in entries(count)}
    read: dict[str, float] = {}
    for run in range(parts):
        there = entries(count + new * run // parts)
        times = {e.object: read.get(e.object, -1.0 if e.object in first else 0.0) for e in there}
        chosen = list(ReadData(1, parts).oldest(there, times.__getitem__))
        read |= {entry.object: 1.0 + run for entry in chosen}
        assert len(chosen) == -(-len(there) // parts)
    assert first <= read.keys()


def test_of_what_was_read_at_once_the_part_of_the_same_number_comes_first() -> None:
    """So that parts which run at the same moment, every day, read all of it every day."""
    all_of_them = entries(40)
    oldest = {entry.object for entry in ReadData(1, 4).oldest(all_of_them, lambda path: 7.0)}
    part = {entry.object for entry in ReadData(1, 4).choose(all_of_them)}
    assert part <= oldest or oldest <= part


class TestOneBackup:
    def verify(self, repo: Repository, manifest: Manifest, text: str) -> VerifyReport:
        report = verify_backup(repo, manifest, read_data=ReadData.parse(text))
        record_verification(repo, report)
        return report

    def test_as_many_runs_as_there_are_parts_read_all(self, place: Location) -> None:
        made, repo = back_up(place, stream()).manifest, repository(place)
        objects = {entry.object for entry in made.files}
        read: set[str] = set()
        for _ in range(6):  # the first part may be a little smaller than a fifth
            report = self.verify(repo, made, "1/5")
            assert report.ok
            assert report.learned
            read |= {entry.object for entry in report.learned.contents.read()}
            assert report.contents_read == (read == objects)
            assert report.coverage
            assert report.coverage.objects == len(objects)
            assert report.coverage.read == len(read)
            assert report.coverage.never_read == len(objects) - len(read)
        assert read == objects
        assert verifications(repo, "orders")[made.backup_id] is Verified.CONTENTS

    def test_where_one_run_reads_all_it_says_so(self, place: Location) -> None:
        """All contents of a pack are in one part."""
        repo = packed_repository(place)
        made = back_up(place, stream(), workers=1).manifest
        parts = next(n for n in range(2, 100) if list(ReadData(1, n).choose(made.files)))
        report = self.verify(repo, made, f"1/{parts}")
        objects = len({entry.object for entry in made.files})
        assert report.coverage
        assert (report.coverage.objects, report.coverage.read, report.coverage.days) == (objects, objects, parts)

    def test_a_stream_of_few_files_gets_along_too(self, place: Location) -> None:
        made, repo = back_up(place, stream()).manifest, repository(place)
        seen = [self.verify(repo, made, "1/100") for _ in range(len(made.files))]
        assert all(report.read_files >= 1 for report in seen)
        assert seen[-1].contents_read

    def test_where_nothing_can_be_noted_it_is_always_the_same_part(self, place: Location) -> None:
        made, repo = back_up(place, stream()).manifest, repository(place)
        reports = [verify_backup(repo, made, read_data=ReadData(1, 3)) for _ in range(2)]
        part = {entry.object for entry in ReadData(1, 3).choose(made.files)}
        for report in reports:
            assert report.learned
            assert {entry.object for entry in report.learned.contents.read()} == part

    def test_other_ways_are_as_they_were(self, place: Location) -> None:
        made, repo = back_up(place, stream()).manifest, repository(place)
        self.verify(repo, made, "1/3")
        for text, count in (
            ("2/3", len(list(ReadData(2, 3).choose(made.files)))),
            ("10%", 2),
            ("all", len(made.files)),
        ):
            report = self.verify(repo, made, text)
            assert (report.read_files, report.coverage) == (count, None)

    def test_coverage_in_words(self) -> None:
        none = Coverage(30, 9, 0, 0, 9, None)
        assert str(none) == "0 of 9 objects read within 30 days; none was ever read"
        some = Coverage(30, 9, 4, 2, 3, DAY)
        assert str(some) == (
            "4 of 9 objects read within 30 days, 2 others were written since; oldest read 2026-03-10 12:00:00 UTC; 3 never read"
        )
        assert (
            str(Coverage(7, 9, 9, 0, 0, DAY))
            == "9 of 9 objects read within 7 days; oldest read 2026-03-10 12:00:00 UTC"
        )

    def test_coverage_goes_by_the_days(self, place: Location) -> None:
        made, repo = back_up(place, stream()).manifest, repository(place)
        objects = sorted({entry.object for entry in made.files})
        now = datetime.now(UTC)
        for path, age in zip(objects[:3], (timedelta(days=1), timedelta(days=9), timedelta(days=40)), strict=True):
            note_reads(
                repo.location, "orders", read_reads(repo.location, "orders"), [path], at=now - age, there=objects
            )
        report = verify_backup(repo, made, read_data=ReadData(1, 10_000))
        assert report.coverage
        # What was read 40 days ago was read again now; all others are new.
        assert (report.coverage.read, report.coverage.new, report.coverage.never_read) == (
            3,
            len(objects) - 3,
            len(objects) - 3,
        )
        assert report.coverage.oldest_read
        assert (now - report.coverage.oldest_read).days == 9


class TestAllBackups:
    def stream(self, repo: Repository, text: str | None = None) -> VerifiedStream:
        (found,) = verify_repository(repo, read_data=ReadData.parse(text) if text else None).streams
        assert found.noted
        return found

    def test_each_object_is_read_once(self, place: Location) -> None:
        made = [back_up(place, stream(newest)).manifest for newest in (4, 5, 6)]
        objects = {entry.object for manifest in made for entry in manifest.files}
        seen, asked = watched(place / "backups")
        found = self.stream(Repository(seen, "r"), "all")
        assert (found.backups, found.objects, found.read_objects, found.ok) == (3, len(objects), len(objects), True)
        read = [path for path in asked.paths("read") if "/objects/" in path]
        assert len(read) == len(set(read)) == len({file_of(path) for path in objects})
        assert set(verifications(repository(place), "orders").values()) == {Verified.CONTENTS}

    def test_within_so_many_runs_everything_is_read(self, place: Location) -> None:
        made = [back_up(place, stream(newest)).manifest for newest in (4, 5, 6)]
        repo = repository(place)
        for run in range(1, 7):
            found = self.stream(repo, "1/6")
            assert found.coverage
            assert found.coverage.days == 6
            assert found.coverage.read == min(run * -(-found.objects // 6), found.objects)
        assert verifications(repo, "orders") == {m.backup_id: Verified.CONTENTS for m in made}

    def test_every_backup_that_lists_a_damaged_object_is_named(self, place: Location) -> None:
        made = [back_up(place, stream(newest)).manifest for newest in (4, 5, 6)]
        shared, own = entry_of(made[0], "metadata"), entry_of(made[2], "offsets/6")
        gone = lying_with(made[2].files, own.object)
        spoil(place / "backups", shared)
        lose(place / "backups", own.object)
        found = self.stream(repository(place), "all")
        assert [d.backup_id for d in found.damaged] == [m.backup_id for m in made]
        of_files = [[p for p in d.problems if ": its object " in p] for d in found.damaged]
        assert [len(problems) for problems in of_files] == [1, 1, 1 + len(gone)]
        assert set(verifications(repository(place), "orders").values()) == {Verified.DAMAGED}
        again = self.stream(repository(place))
        assert [d.backup_id for d in again.damaged] == [m.backup_id for m in made], "nobody has read them since"

    def test_right_again(self, place: Location) -> None:
        made = back_up(place, stream()).manifest
        entry = entry_of(made, "metadata")
        content = (place / "backups").read(entry.object)
        spoil(place / "backups", entry)
        assert not self.stream(repository(place), "all").ok
        overwrite(place / "backups", entry.object, content)
        assert not self.stream(repository(place)).ok
        assert self.stream(repository(place), "1/1000").ok
        assert repository(place).manifest().backup_id == made.backup_id

    def test_what_could_not_be_read(self, place: Location) -> None:
        made = back_up(place, stream()).manifest
        entry = entry_of(made, "offsets/4")

        def time_out(operation: str, path: str) -> None:
            if is_read(operation, path, entry.object):
                raise StorageError("could not read it: timed out")

        seen, _ = watched(place / "backups", time_out)
        found = self.stream(Repository(seen, "r"), "all")
        assert (found.ok, found.damaged) == (False, ())
        assert set(found.unread) == {
            f"{e.path}: its object {e.object} could not be read: could not read it: timed out"
            for e in lying_with(made.files, entry.object)
        }
        assert verifications(repository(place), "orders") == {}
        for _ in found.unread:
            assert self.stream(repository(place), "1/1000").read_objects == 1, "it is the oldest now, and is read first"
        assert verifications(repository(place), "orders") == {made.backup_id: Verified.CONTENTS}

    def test_a_manifest_that_is_damaged_and_one_that_could_not_be_read(self, place: Location) -> None:
        made = [back_up(place, stream(newest)).manifest for newest in (4, 5, 6)]
        plant(place / "backups", {made[0].path: b"{}"})

        def time_out(operation: str, path: str) -> None:
            if operation == "read" and path.endswith(made[1].path):
                raise StorageError("could not read it: timed out")

        seen, _ = watched(place / "backups", time_out)
        found = self.stream(Repository(seen, "r"))
        assert [d.backup_id for d in found.damaged] == [made[0].backup_id]
        assert found.unread == ("could not read it: timed out",)

    def test_only_news_is_noted_of_a_backup(self, place: Location) -> None:
        back_up(place, stream())
        for text in (None, None, "all", "all", None):
            self.stream(repository(place), text)
        notes = sorted(path.rpartition("/")[2] for path in (place / "backups").walk("verified"))
        assert notes == ["000001-structure.json", "000002-contents.json"]

    def test_without_the_right_to_write_it_is_said(self, place: Location, caplog: pytest.LogCaptureFixture) -> None:
        back_up(place, stream())

        def forbid(operation: str, path: str) -> None:
            if operation == "create":
                raise StorageError("could not create it: Access Denied.")

        seen, _ = watched(place / "backups", forbid)
        (found,) = verify_repository(Repository(seen, "r"), read_data=ReadData()).streams
        assert (found.ok, found.noted) == (True, False)
        assert "that the backups of orders were verified is not noted: could not create it" in caplog.text

    def test_names(self, place: Location) -> None:
        back_up(place, stream())
        back_up(place, name="payments")
        assert [s.name for s in verify_repository(repository(place)).streams] == ["orders", "payments"]
        assert [s.name for s in verify_repository(repository(place), name="payments").streams] == ["payments"]
        with pytest.raises(NoSuchBackupError, match="holds no backup of nobody"):
            verify_repository(repository(place), name="nobody")

    def test_a_prune_tidies_up(self, place: Location) -> None:
        back_up(place, stream())
        for _ in range(reads._MERGE_FROM + 2):
            self.stream(repository(place), "1/3")
        apply_prune(repository(place), plan_prune(repository(place)))
        left = sorted(path.rpartition("/")[2] for path in (place / "backups").walk("read"))
        assert left == ["000032-all.json", "000033.json", "000034.json"]
        assert verify.read_reads(place / "backups", "orders").times
