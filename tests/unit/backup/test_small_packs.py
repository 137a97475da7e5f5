"""Merging small packs: each backup leaves one, and a restore needs a request for each pack that it reads."""

from __future__ import annotations

import math
import random
from contextlib import suppress

import pytest

from airflow_ckpt_provider.backup import pack_use, prune
from airflow_ckpt_provider.backup.claims import in_use
from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import plan_expire
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.pack_use import MERGED_FROM, PackUse
from airflow_ckpt_provider.backup.packing import CONTENTS, PACK_SIZE
from airflow_ckpt_provider.backup.prune import MaxUnused, apply_prune, plan_prune
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.backup.verify_repository import verify_repository
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import file_of, read_moved
from airflow_ckpt_provider.units import format_size
from tests.support.backups import back_up, files_in, stream
from tests.support.checkpoints import Files, contents
from tests.support.every_run import of_these
from tests.support.packs import packed_repository, packs_of
from tests.support.watched_stores import Killed, Life, forget_all, in_memory, watched

ALL = ReadData()


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three small packs are merged, of whatever size."""
    monkeypatch.setattr(pack_use, "MERGED_FROM", 3)
    monkeypatch.setattr(PackUse, "_tier", lambda self, pack: 0)


def many_backups(place: Location, count: int = 3) -> tuple[Repository, list[Manifest], list[Files]]:
    """A repository of backups of which each has left a pack, and the files of each."""
    repository = packed_repository(place)
    made = [back_up(place, stream(4 + n)).manifest for n in range(count)]
    assert len(packs_of(repository)) == count
    return repository, made, [files_in(each, place) for each in made]


class TestPrune:
    def test_the_newest_backup_lies_in_few_packs(self, place: Location) -> None:
        repository, made, right = many_backups(place, MERGED_FROM)
        assert len({file_of(e.object) for e in made[-1].files}) > MERGED_FROM / 2
        plan = plan_prune(repository)
        shown = plan.streams[0].to_json()
        assert (shown["merged_packs"], shown["merged_into"]) == (MERGED_FROM, 1)
        assert "repacked_packs" not in shown
        assert plan.steps[0] == (
            f"merge 16 small packs, {format_size(shown['merged_bytes'])}, into about 1, with about "
            f"{shown['merge_requests']} requests; these packs are deleted with the objects"
        )
        outcome = apply_prune(repository, plan)
        assert outcome.objects == MERGED_FROM
        assert len(packs_of(repository)) == 1
        for manifest, files in zip(made, right, strict=True):
            assert files_in(manifest, place) == files
            assert verify_backup(repository, manifest, read_data=ALL).ok
        assert verify_repository(repository, read_data=ALL).ok
        assert plan_prune(repository).steps == ()
        after = back_up(place, stream(4 + MERGED_FROM))
        assert len({file_of(e.object) for e in after.manifest.files}) == 2
        assert after.copied_files < len(after.manifest.files) / 2

    def test_it_is_repacked_by_one_claim_with_what_is_mostly_garbage(self, place: Location) -> None:
        repository, made, _ = many_backups(place, MERGED_FROM + 4)
        apply_expire(repository, plan_expire(repository, Policy(last=1)))
        plan = plan_prune(repository, max_unused=MaxUnused(0))
        assert plan.streams[0].repacked
        assert plan.streams[0].repacked.keys().isdisjoint(plan.streams[0].merged)
        apply_prune(repository, plan)
        assert len(read_moved(repository.location, "orders").records) == 1
        assert verify_backup(repository, made[-1], read_data=ALL).ok

    def test_fewer_stay(self, place: Location) -> None:
        repository, _, _ = many_backups(place, MERGED_FROM - 1)
        assert plan_prune(repository).steps == ()

    @pytest.mark.usefixtures("three")
    def test_a_restore_that_reads_one_is_waited_for(self, place: Location) -> None:
        repository, made, right = many_backups(place)
        before = packs_of(repository)
        with in_use(repository, made[0], what="restore", made_by="somebody"):
            outcome = apply_prune(repository, plan_prune(repository))
            assert outcome.objects == 0
            assert "restore by somebody" in outcome.waits_for["orders"][0]
            assert set(before) < set(packs_of(repository))
            assert files_in(made[0], place) == right[0]
        apply_prune(repository, plan_prune(repository))
        assert set(before).isdisjoint(packs_of(repository))
        assert files_in(made[0], place) == right[0]

    @pytest.mark.usefixtures("three")
    def test_a_restore_that_was_planned_before_continues(self, place: Location) -> None:
        repository, made, right = many_backups(place)
        plan = plan_restore(repository, made[1], place / "target")
        apply_prune(repository, plan_prune(repository))
        apply_restore(plan)
        assert contents(place / "target") == right[1]

    @pytest.mark.usefixtures("three")
    def test_it_is_merged_again_with_what_came_later(self, place: Location) -> None:
        repository, made, right = many_backups(place)
        apply_prune(repository, plan_prune(repository))
        made += [back_up(place, stream(20 + n)).manifest for n in range(2)]
        right += [files_in(each, place) for each in made[3:]]
        apply_prune(repository, plan_prune(repository))
        assert len(packs_of(repository)) == 1
        assert len(read_moved(repository.location, "orders").records) == 2
        assert [files_in(each, place) for each in made] == right
        apply_expire(repository, plan_expire(repository, Policy(last=1)))
        apply_prune(repository, plan_prune(repository, max_unused=MaxUnused(0)))
        assert files_in(made[-1], place) == right[-1]
        assert verify_backup(repository, made[-1], read_data=ALL).ok

    @pytest.mark.usefixtures("three")
    def test_if_a_prune_has_deleted_what_was_merged_the_old_packs_stay(
        self, place: Location, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It took this prune for dead, which then reads back what it has written."""
        repository, made, right = many_backups(place)
        before = packs_of(repository)

        def delete(operation: str, path: str) -> None:
            new = [pack for pack in packs_of(repository) if pack not in before]
            if operation.startswith("read") and new and path.endswith(new[0]):
                repository.location.delete(new[0])

        seen = repository.at(watched(place / "backups", delete)[0])
        assert apply_prune(seen, plan_prune(seen)).objects == 0
        assert "was written, and is missing now" in caplog.text
        assert packs_of(repository) == before
        assert [files_in(each, place) for each in made] == right

    @pytest.mark.usefixtures("three")
    def test_packs_that_are_locked_are_not_counted(self, place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
        repository, _, _ = many_backups(place)
        locked = packs_of(repository)[0]
        until = prune.datetime(9999, 1, 1, tzinfo=prune.UTC)
        monkeypatch.setattr(prune, "locks_on", lambda place, paths, now: ({locked: until}, None))
        assert plan_prune(repository).streams[0].merged == {}
        monkeypatch.setattr(prune, "locks_on", lambda place, paths, now: ({}, "not known"))
        assert plan_prune(repository).streams[0].merged == {}

    @pytest.mark.usefixtures("three")
    def test_killed_before_each_write_nothing_is_lost_and_the_next_one_finishes(self) -> None:
        killed = 0
        while True:
            place = in_memory()
            repository, made, right = many_backups(place)
            life = Life(killed)
            seen = Repository.open(watched(place / "backups", life.before)[0])
            with suppress(Killed):
                apply_prune(seen, plan_prune(seen))
            assert [files_in(each, place) for each in made] == right
            assert all(verify_backup(repository, each, read_data=ALL).ok for each in made)
            for _ in range(2):
                apply_prune(repository, plan_prune(repository), abandoned_after=prune.timedelta(0))
            assert plan_prune(repository).steps == ()
            assert len(packs_of(repository)) == 1
            assert [files_in(each, place) for each in made] == right
            forget_all()
            if not life.dead:
                break
            killed += 1
        assert killed > 8


def simulated(
    days: int, *, each: int, per_prune: int, kept: int | None = None, contents: int = 50
) -> tuple[float, int]:
    """Hourly backups, and prunes: how often a byte is written again on average, and the most packs after a prune.

    :param each: bytes that each backup adds on average.
    :param per_prune: backups between two prunes.
    :param kept: backups that are kept: what one adds is needed by so many; ``None``: all.
    :param contents: contents that each backup adds.
    """
    chance = random.Random(f"{each} {per_prune}")
    #: Pack -> the backups that need what they have added of it, by number; and its needed bytes.
    packs: dict[str, set[int]] = {}
    live: dict[str, int] = {}
    sizes: list[int] = []
    where: dict[int, str] = {}
    made = written = most = 0

    def write(held: set[int]) -> None:
        nonlocal made
        made += 1
        needed = sum(sizes[n] for n in held) + 36 * contents * len(held)
        pack = f"objects/orders/aa/{made:064x}-{needed + 52}.pack"
        packs[pack], live[pack] = held, needed
        where.update(dict.fromkeys(held, pack))

    def take(pack: str) -> set[int]:
        del live[pack]
        return packs.pop(pack)

    for hour in range(24 * days):
        sizes.append(chance.randint(each // 2, each * 3 // 2))
        write({hour})
        if kept is not None and hour >= kept:
            pack = where[hour - kept]
            packs[pack].remove(hour - kept)
            live[pack] -= sizes[hour - kept] + 36 * contents
            if not packs[pack]:
                take(pack)
        if hour % per_prune:
            continue
        use = PackUse(live, {pack: contents * len(held) for pack, held in packs.items()})
        garbage = use.mostly_garbage() if kept is not None else []
        now: set[int] = set()
        for number in [n for pack in [*garbage, *use.to_merge(without=garbage)] for n in take(pack)]:
            written += sizes[number]
            now.add(number)
            if sum(sizes[n] for n in now) >= PACK_SIZE or contents * len(now) >= CONTENTS:
                write(now)
                now = set()
        if now:
            write(now)
        most = max(most, len(packs))
    return written / sum(sizes), most


class TestBound:
    @pytest.mark.parametrize(
        ("each", "tiers", "per_prune"),
        of_these(
            [(540_000, 2, 1), (540_000, 2, 24), (540_000, 2, 168), (40_000, 2, 24), (5_000, 3, 24), (5_000_000, 1, 24)],
            (540_000, 2, 24),
            (5_000, 3, 24),
        ),
    )
    def test_a_year_of_hourly_backups_writes_each_byte_again_a_few_times(
        self, each: int, tiers: int, per_prune: int
    ) -> None:
        again, most = simulated(365, each=each, per_prune=per_prune)
        total = 365 * 24 * each
        print(f"each {each:,} B, prune every {per_prune} h: written again {again:.2f} times, {most} packs at most")
        assert again <= tiers + 1
        assert most <= 2 * math.ceil(total / PACK_SIZE) + 2 * math.ceil(365 * 24 * 50 / CONTENTS) + 15 * tiers + 1

    @pytest.mark.parametrize("per_prune", [1, 24])
    def test_where_backups_of_a_month_are_kept(self, per_prune: int) -> None:
        again, most = simulated(365, each=540_000, per_prune=per_prune, kept=720)
        print(f"a month kept, prune every {per_prune} h: written again {again:.2f} times, {most} packs at most")
        assert again < 3
        assert most <= 2 * math.ceil(720 * 540_000 / PACK_SIZE) + 30 + 1

    def test_full_packs_are_left_alone(self) -> None:
        def pack(number: int, size: int) -> str:
            return f"objects/orders/aa/{number:064x}-{size}.pack"

        big = [pack(n, PACK_SIZE // 2) for n in range(40)]
        many = [pack(100 + n, 100_000) for n in range(40)]
        use = PackUse(
            dict.fromkeys(big, PACK_SIZE // 2) | dict.fromkeys(many, 100_000),
            dict.fromkeys(big, 10) | dict.fromkeys(many, CONTENTS // 2),
        )
        assert use.to_merge() == []
        assert sorted(PackUse(dict.fromkeys(many, 90_000)).to_merge()) == sorted(many)
        assert PackUse(dict.fromkeys(many, 90_000), stuck=frozenset(many[:25])).to_merge() == []
