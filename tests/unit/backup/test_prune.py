"""prune: only what no backup lists goes, whoever else is at work, and it may be stopped anywhere.

Any order of any number of actors: ``test_prune_model.py``. Here are the cases by name.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_ckpt_provider.backup import claims, deletion
from airflow_ckpt_provider.backup.claims import claimed, open_claims, tidy_claims
from airflow_ckpt_provider.backup.contents import objects_there
from airflow_ckpt_provider.backup.copy import copy_backups
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import plan_expire
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.prune import MaxUnused, PruneOutcome, apply_prune, plan_prune
from airflow_ckpt_provider.backup.prune_marks import read_marks, write_mark
from airflow_ckpt_provider.backup.repository import GIVEN_UP, Repository
from airflow_ckpt_provider.backup.repository_check import check_repository
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import BackupRunningError, NoSuchBackupError, RefusedError, StorageError
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.units import format_size
from tests.support.backups import back_up, bury, stream
from tests.support.checkpoints import contents, plant
from tests.support.repository_histories import opened
from tests.support.stopped import STOPPED
from tests.support.watched_stores import Killed, Life, in_memory, watched

#: In packs a content is no file, and what a prune of so few leaves is decided by its share of a pack. The same with packs:
#: test_prune_model.py, test_small_packs.py, test_packs_pruned.py.
pytestmark = pytest.mark.format_1("an object is a file")

AT_ONCE = timedelta(0)


def objects(place: Location) -> set[str]:
    return set(objects_there(opened(place), "orders"))


def two(place: Location) -> tuple[Manifest, Manifest]:
    """Two backups; the older one has contents that the newer has not."""
    older = back_up(place, stream(3)).manifest
    newer = back_up(place, stream(9)).manifest
    assert {e.object for e in older.files} - {e.object for e in newer.files}
    return older, newer


def remove(place: Location, manifest: Manifest) -> None:
    """As an expire does it."""
    tidy_claims(opened(place), "orders", finished={manifest.claim})
    (place / "backups").delete(manifest.path)


def run(place: Location, **options: Any) -> PruneOutcome:
    return apply_prune(opened(place), plan_prune(opened(place)), **options)


def whole(place: Location) -> None:
    for manifest in opened(place).backups():
        assert verify_backup(opened(place), manifest, read_data=ReadData()).findings == ()


def test_what_only_an_expired_backup_listed_goes(place: Location) -> None:
    older, newer = two(place)
    assert plan_prune(opened(place)).objects == 0
    remove(place, older)
    before = contents(place / "backups")
    planned = plan_prune(opened(place))
    assert contents(place / "backups") == before, "a plan changes nothing"
    alone = {e.object for e in older.files} - {e.object for e in newer.files}
    assert planned.objects == len(alone)
    assert planned.bytes == sum({e.object: e.size for e in older.files if e.object in alone}.values())
    assert json.loads(json.dumps(planned.to_json())) == planned.to_json()
    text = planned.to_markdown()
    assert f"objects to delete: {len(alone)}, {format_size(planned.bytes)}" in text
    (row,) = (line for line in text.splitlines() if line.startswith("| orders |"))
    assert f"| {format_size(planned.bytes)} | " in row
    outcome = apply_prune(opened(place), planned, made_by="me")
    assert (outcome.objects, outcome.bytes, outcome.waits_for) == (planned.objects, planned.bytes, {})
    assert objects(place) == {e.object for e in newer.files}
    assert next(opened(place).records())["kind"] == "prune"
    whole(place)
    assert run(place).objects == 0


def test_the_plan_of_an_expire_knows_what_will_be_free(place: Location) -> None:
    older, _ = two(place)
    planned = plan_prune(opened(place), without={"orders": [older.backup_id]})
    remove(place, older)
    assert planned.fingerprint == plan_prune(opened(place)).fingerprint


def test_nothing_is_left_but_one_note(place: Location) -> None:
    older, _ = two(place)
    remove(place, older)
    run(place)
    left = {path.partition("/")[0] for path in contents(place / "backups")}
    assert left == {"repository.json", "backups", "objects", "running", "prune", "audit"}
    assert list((place / "backups").walk("prune")) == ["prune/orders/000001.done.json"]
    back_up(place, stream(10))
    assert len((place / "backups").walk("claims")) == 2
    run(place)
    assert not (place / "backups").walk("claims")


def test_names_of_a_new_generation_come_after_a_prune(place: Location) -> None:
    older, _ = two(place)
    remove(place, older)
    run(place)
    result = back_up(place, stream(12))
    new = {e.object for e in result.manifest.files} - {e.object for e in older.files}
    assert any(path.endswith("-g1") for path in new)
    assert back_up(place).copied_files == 0
    whole(place)


@pytest.mark.parametrize(
    ("text", "total", "may_stay"),
    [("0", 1000, 0), ("200", 1000, 200), ("2K", 1000, 2048), ("1.5m", 0, 1.5 * 2**20), ("5%", 1000, 50),
     ("unlimited", 5, float("inf"))],
)  # fmt: skip
def test_how_much_may_stay(text: str, total: int, may_stay: float) -> None:
    assert MaxUnused.parse(text).of(total) == may_stay


@pytest.mark.parametrize("text", ["", "-1", "5 %", "100%", "many", "5X"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(RefusedError, match="max-unused is"):
        MaxUnused.parse(text)


def test_the_biggest_go_until_little_enough_is_left(place: Location) -> None:
    older, newer = two(place)
    remove(place, older)
    unused = {e.object: e.size for e in older.files if e.object not in {n.object for n in newer.files}}
    limit = sum(unused.values()) - max(unused.values())
    (planned,) = plan_prune(opened(place), max_unused=MaxUnused(limit)).streams
    assert list(planned.objects.values()) == [max(unused.values())]
    assert plan_prune(opened(place), max_unused=MaxUnused(sum(unused.values()))).objects == 0
    assert plan_prune(opened(place), max_unused=MaxUnused.parse("unlimited")).objects == 0


class TestABackupThatRuns:
    def test_it_is_waited_for(self, place: Location) -> None:
        """A backup takes up what an expired one has left; a prune begins before it has written its manifest."""
        older, _ = two(place)
        plant(place / "orders", stream(3))
        for path in set(contents(place / "orders")) - set(stream(3)):
            (place / "orders").delete(path)
        outcomes: list[PruneOutcome] = []

        def meddle(operation: str, path: str) -> None:
            if operation == "create" and "/backups/orders/" in path and not outcomes:
                remove(place, older)
                outcomes.append(run(place))

        seen, _ = watched(place / "backups", meddle)
        made = create_backup(Checkpoint.at(place / "orders"), Repository(seen, "r"), made_by="night").manifest
        (who,) = outcomes[0].waits_for["orders"]
        assert who.startswith("backup by night since ")
        assert outcomes[0].objects == 0
        assert read_marks(place / "backups", "orders").unfinished == (1,)
        whole(place)
        assert run(place).waits_for == {}
        assert {e.object for e in made.files} <= objects(place)
        whole(place)

    def test_begun_after_the_mark_it_leaves_alone_what_that_names(self, place: Location) -> None:
        older, newer = two(place)
        write_mark(place / "backups", "orders", read_marks(place / "backups", "orders"), objects(place), made_by="p")
        made = back_up(place).manifest
        named = read_marks(place / "backups", "orders").condemned
        assert not named & {e.object for e in made.files}
        whole(place)
        remove(place, older)
        remove(place, newer)
        run(place)
        whole(place)
        assert objects(place) == {e.object for e in made.files}

    def test_killed_it_is_given_up_after_a_day_by_the_stores_clock(
        self, place: Location, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        two(place)
        life = Life(4)
        seen, _ = watched(place / "backups", life.before)
        with pytest.raises(Killed):
            create_backup(Checkpoint.at(plant(place / "orders", stream(12))), Repository(seen, "r"))
        bury(place)
        plan = plan_prune(opened(place))
        assert plan.objects > 0
        # Our own clock is years ahead, or behind: that is nobody's question.
        for years in (-9, 9):
            monkeypatch.setattr(claims, "datetime", _clock(years))
            assert apply_prune(opened(place), plan).waits_for.keys() == {"orders"}
        (claim,) = open_claims(opened(place), "orders")
        assert claim.since is not None
        later = claim.since + timedelta(hours=24)
        monkeypatch.setattr(deletion, "written_at", lambda *_: later - timedelta(seconds=1))
        assert apply_prune(opened(place), plan).waits_for.keys() == {"orders"}
        monkeypatch.setattr(deletion, "written_at", lambda *_: later)
        assert apply_prune(opened(place), plan).objects == plan.objects
        whole(place)

    def test_a_store_that_tells_no_time_gives_nobody_up(self, place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
        older, _ = two(place)
        remove(place, older)
        with claimed(place / "backups", "orders", what="backup", made_by=""):
            monkeypatch.setattr(deletion, "written_at", lambda *_: None)
            assert run(place, abandoned_after=timedelta(seconds=1)).waits_for.keys() == {"orders"}
            assert run(place, abandoned_after=AT_ONCE).waits_for == {}

    @pytest.mark.parametrize("when", ["/claims/", "/backups/orders/"])
    def test_given_up_it_wakes_up_and_fails(self, place: Location, when: str) -> None:
        """Before it has said which manifest it will write, and between that and the manifest."""
        older, _ = two(place)
        stood_still: list[str] = []

        def meddle(operation: str, path: str) -> None:
            ends = path.endswith(".end.json") or when != "/claims/"
            if operation == "create" and when in path and ends and not stood_still:
                stood_still.append(path)
                remove(place, older)
                run(place, abandoned_after=AT_ONCE)

        seen, _ = watched(place / "backups", meddle)
        ids = opened(place).backup_ids("orders")
        with pytest.raises(BackupRunningError, match="a prune has given this backup up"):
            create_backup(Checkpoint.at(plant(place / "orders", stream(12))), Repository(seen, "r"))
        assert set(opened(place).backup_ids("orders")) == set(ids) - {older.backup_id}
        whole(place)
        run(place)
        again = back_up(place)
        assert again.backup_id in opened(place).backup_ids("orders")
        whole(place)

    def test_one_that_had_just_finished_counts(self, place: Location) -> None:
        """Given up at the moment when its manifest is there."""
        made = back_up(place, stream(3)).manifest
        claims.give_up(opened(place), claims.OpenClaim(made.claim, "orders", datetime.now(UTC)))
        assert opened(place).backup_ids("orders") == (made.backup_id,)
        whole(place)

    def test_a_manifest_that_was_cut_off_is_no_sign_of_that(self, place: Location) -> None:
        """Nothing, or as many bytes: what it needs stays."""
        made = back_up(place, stream(3)).manifest
        back_up(place, stream(9))
        for data in (b"", b"x" * len(GIVEN_UP)):
            (place / "backups").replace(made.path, data)
            assert made.backup_id in opened(place).backup_ids("orders")
            assert "what its backups need is not known" in plan_prune(opened(place)).findings[0]

    def test_a_backup_that_fails_says_so(self, place: Location) -> None:
        two(place)
        with pytest.raises(RuntimeError), claimed(place / "backups", "orders", what="backup", made_by=""):
            raise RuntimeError
        assert open_claims(opened(place), "orders") == []


class TestARestoreThatRuns:
    def test_it_is_waited_for(self, place: Location) -> None:
        older, _ = two(place)
        outcomes: list[PruneOutcome] = []

        def meddle(operation: str, path: str) -> None:
            if operation == "create" and path.endswith("/target/offsets/4"):  # its seal
                remove(place, older)
                outcomes.append(run(place))

        seen, _ = watched(place / "target", meddle)
        outcome = apply_restore(plan_restore(opened(place), older, seen))
        assert outcome.files == len(older.files)
        assert outcomes[0].waits_for["orders"][0].startswith("restore")
        assert run(place).objects > 0

    def test_of_a_backup_that_is_gone_by_then_it_begins_nothing(self, place: Location) -> None:
        older, _ = two(place)
        planned = plan_restore(opened(place), older, place / "target")
        remove(place, older)
        with pytest.raises(NoSuchBackupError):
            apply_restore(planned, rest=STOPPED)
        assert contents(place / "target") == {}
        assert run(place).objects > 0


class TestTwoPrunes:
    def test_at_the_same_moment(self, place: Location) -> None:
        older, newer = two(place)
        remove(place, older)
        other: list[PruneOutcome] = []

        def meddle(operation: str, path: str) -> None:
            if operation == "delete" and "/objects/" in path and not other:
                other.append(run(place))

        seen, _ = watched(place / "backups", meddle)
        plan = plan_prune(opened(place))
        assert apply_prune(Repository(seen, "r"), plan, workers=1).objects == plan.objects
        assert other[0].objects == plan.objects
        assert objects(place) == {e.object for e in newer.files}
        assert read_marks(place / "backups", "orders").unfinished == ()

    def test_one_that_stood_still_finds_its_work_done(self, place: Location) -> None:
        """The mark is gone, so new backups do not see it any more: what it named is not this prune's any more."""
        older, _ = two(place)
        remove(place, older)
        woken: list[PruneOutcome] = []

        def meddle(operation: str, path: str) -> None:
            if operation == "list" and path.endswith("/claims/orders") and not woken:
                woken.append(run(place))
                plant(place / "orders", stream(3))
                back_up(place)

        seen, _ = watched(place / "backups", meddle)
        assert apply_prune(Repository(seen, "r"), plan_prune(opened(place))).objects == 0
        whole(place)

    def test_what_the_first_named_goes_with_the_second_whatever_may_stay(self, place: Location) -> None:
        older, _ = two(place)
        remove(place, older)
        named = plan_prune(opened(place)).streams[0].objects
        write_mark(place / "backups", "orders", read_marks(place / "backups", "orders"), list(named)[:2], made_by="p")
        plan = plan_prune(opened(place), max_unused=MaxUnused.parse("unlimited"))
        assert set(plan.streams[0].objects) == set(list(named)[:2])


def test_without_a_backup_nothing_is_judged(place: Location) -> None:
    """A repository of which only the objects were copied, or the first backup of a stream."""
    older, newer = two(place)
    for manifest in (older, newer):
        remove(place, manifest)
    plan = plan_prune(opened(place))
    assert plan.objects == 0
    assert plan.findings == (
        "orders: it has objects and no backup: its first one runs or was stopped, or this repository was copied in part",
    )
    before = objects(place)
    run(place)
    assert objects(place) == before


def test_a_manifest_that_cannot_be_read_needs_who_knows_what(place: Location) -> None:
    older, newer = two(place)
    remove(place, older)
    plant(place / "backups", {newer.path: b"{"})
    back_up(place, stream(10))
    plan = plan_prune(opened(place))
    assert plan.objects == 0
    assert "what its backups need is not known" in plan.findings[0]


@pytest.mark.parametrize("writes", range(9))
def test_stopped_anywhere_only_what_nobody_needs_is_gone(place: Location, writes: int) -> None:
    older, newer = two(place)
    remove(place, older)
    life = Life(writes)
    seen, _ = watched(place / "backups", life.before)
    try:
        apply_prune(Repository(seen, "r"), plan_prune(opened(place)), workers=1)
    except Killed:
        pass
    else:
        assert writes >= 6
    whole(place)
    back_up(place)
    whole(place)
    run(place)
    assert {e.object for e in newer.files} <= objects(place)
    assert plan_prune(opened(place)).objects == 0
    whole(place)


@pytest.mark.slow
@pytest.mark.parametrize("work", ["backup", "expire", "prune", "copy"])
def test_a_connection_lost_at_any_request(work: str) -> None:
    """It is said, what is listed stays whole, and the same again ends it."""
    for at in range(1, 100):
        place = in_memory()
        two(place)
        second = Repository.open_or_create(place / "second")
        plant(place / "orders", stream(12))
        plant(place / "backups", {"objects/orders/aa/left": b"by a backup that was killed"})
        requests = itertools.count(1)

        def do(repository: Repository, second: Repository = second, place: Location = place) -> None:
            if work == "backup":
                create_backup(Checkpoint.at(place / "orders"), repository)
            elif work == "expire":
                apply_expire(repository, plan_expire(repository, Policy(last=1)))
            elif work == "prune":
                apply_prune(repository, plan_prune(repository), workers=1)
            else:
                copy_backups(repository, second, list(repository.backups("orders")), workers=1)

        def lose(operation: str, path: str, at: int = at, requests: Iterator[int] = requests) -> None:
            if next(requests) == at:
                raise StorageError(f"could not {operation} {path}: connection lost")

        seen, _ = watched(place / "backups", lose)
        with suppress(StorageError):
            do(Repository(seen, "r"))
        whole(place)
        for path in (place / "backups").walk("running"):
            (place / "backups").delete(path)
        do(opened(place))
        whole(place)
        assert check_repository(second).ok
        if next(requests) <= at:
            assert at > 8
            return
    raise AssertionError


def _clock(years: int) -> type[datetime]:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(days=365 * years)

    return Clock
