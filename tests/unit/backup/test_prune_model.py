"""Backups, restores, expires and prunes of one stream at the same moment, stepped request by request in any order.

Each actor is a real one, in a thread of its own; before each request to the repository it stops until the model lets it continue.
It may be killed there, or be suspended for as long as the model likes, also while a prune gives it up for dead.
After every step every backup that is listed is whole; at the end each is restored and compared.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from airflow_ckpt_provider.backup import lease, pack_use
from airflow_ckpt_provider.backup import repository as repositories
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import plan_expire
from airflow_ckpt_provider.backup.migrate import apply_migrate, plan_migrate
from airflow_ckpt_provider.backup.notes import hold, record_verification
from airflow_ckpt_provider.backup.prune import MaxUnused, apply_prune, plan_prune
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import CkptError, NoSuchBackupError
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.location import Location
from tests.support.backups import files_in
from tests.support.checkpoints import batch_metadata, commit_log, metadata, offsets_log, plant
from tests.support.every_run import of_these
from tests.support.one_by_one import one_by_one
from tests.support.random_histories import settings_of
from tests.support.watched_stores import Killed, forget_all, in_memory, watched

#: A prune that takes everybody for dead who has not ended, and one that waits for all of them.
EVERYBODY_IS_DEAD, NOBODY_IS_DEAD = timedelta(0), timedelta(days=1)


class Actor:
    """Something that works on the repository, one request at a time.

    :param work: given the repository as this actor sees it.
    """

    def __init__(self, kind: str, place: Location, work: Callable[[Repository], object]) -> None:
        self.kind = kind
        self.error: BaseException | None = None
        self.ended = False
        self.killed = False
        self.requests: list[str] = []
        self._turn = threading.Condition()
        self._may_go = 0
        self._waiting = False
        seen, _ = watched(place, self._before)
        self._thread = threading.Thread(target=self._run, args=(work, seen), daemon=True)
        self._thread.start()
        self._until_it_waits()

    def step(self, requests: int) -> None:
        """Let it make so many requests more."""
        for _ in range(requests):
            with self._turn:
                if self.ended:
                    return
                self._waiting = False
                self._may_go += 1
                self._turn.notify_all()
            self._until_it_waits()

    def kill(self) -> None:
        """Let it make none any more."""
        self.killed = True
        self.step(1)
        self._thread.join(10)
        assert self.ended

    def finish(self) -> None:
        """Let it continue to its end."""
        while not self.ended:
            self.step(1)

    def _before(self, operation: str, path: str) -> None:
        with self._turn:
            self._waiting = True
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._may_go > 0 or self.killed)
            self._may_go = 0
        self.requests.append(f"{operation} {path}")
        if self.killed:
            raise Killed(f"before {operation} of {path}")

    def _run(self, work: Callable[[Repository], object], seen: Location) -> None:
        try:
            work(Repository(seen, "the model's"))  # of the format of new ones
        except BaseException as e:
            self.error = e
        with self._turn:
            self.ended = True
            self._turn.notify_all()

    def _until_it_waits(self) -> None:
        with self._turn:
            assert self._turn.wait_for(lambda: self._waiting or self.ended, timeout=30)


class Stream(RuleBasedStateMachine):
    """One stream, its checkpoint, and whoever works on its backups."""

    #: Format of the repository.
    format = 1

    @initialize()
    def begin(self) -> None:
        self.base = in_memory()
        self.checkpoint = self.base / "orders"
        self.place = self.base / "backups"
        # One request at a time for each actor, or what happens would depend on Python's threads.
        self.patches = pytest.MonkeyPatch()
        one_by_one(self.patches)
        self.patches.setattr(lease, "_RENEW_EVERY", 10_000.0)
        self.patches.setattr(repositories, "DEFAULT_FORMAT", self.format)
        self.patches.setattr(pack_use, "MERGED_FROM", 2)  # small packs are merged, too
        self.repository = Repository.open_or_create(self.place)
        self.running: list[Actor] = []
        self.given_up = False
        self.held: set[str] = set()
        self.targets = 0
        self.newest = 1
        for batch in range(2):
            self._commit(batch)
        self._start("backup", lambda r: create_backup(Checkpoint.at(self.checkpoint), r, workers=1)).finish()

    @property
    def at_work(self) -> list[Actor]:
        return [actor for actor in self.running if not actor.ended]

    def _commit(self, batch: int) -> None:
        # Few contents, so that what was expired comes back: the objects that a prune is about to delete.
        plant(
            self.checkpoint,
            {
                "metadata": metadata(),
                f"offsets/{batch}": offsets_log(str(batch % 4), metadata=batch_metadata(batch % 4)),
                f"commits/{batch}": commit_log(),
            },
        )

    def _start(self, kind: str, work: Callable[[Repository], object]) -> Actor:
        actor = Actor(kind, self.place, work)
        self.running.append(actor)
        return actor

    @rule()
    def the_stream_goes_on(self) -> None:
        self.newest += 1
        self._commit(self.newest)

    @rule()
    def somebody_backs_up(self) -> None:
        for path in self.place.walk(
            "running"
        ):  # a courtesy, which keeps no two backups apart when a process is suspended
            self.place.delete(path)
        self._start("backup", lambda r: create_backup(Checkpoint.at(self.checkpoint), r, workers=1))

    @rule(choice=st.integers(0, 5))
    def somebody_restores(self, choice: int) -> None:
        ids = self.repository.backup_ids("orders")
        self.targets += 1
        target = self.base / f"target{self.targets}"

        def restore(repository: Repository) -> None:
            manifest = repository.manifest(ids[choice % len(ids)])
            apply_restore(plan_restore(repository, manifest, target), workers=1)

        self._start("restore", restore)

    @rule(last=st.integers(1, 2), minutes=st.sampled_from((0, 0, -120, 120)))
    def somebody_expires(self, last: int, minutes: int) -> None:
        def expire(repository: Repository) -> None:
            now = datetime.now(UTC) + timedelta(minutes=minutes)  # a clock that is wrong
            apply_expire(repository, plan_expire(repository, Policy(last=last), now=now))

        self._start("expire", expire)

    @rule(may_stay=st.sampled_from((0, 0, 300)), dead=st.booleans())
    def somebody_prunes(self, may_stay: int, dead: bool) -> None:
        self.given_up = self.given_up or dead
        after = EVERYBODY_IS_DEAD if dead else NOBODY_IS_DEAD

        def prune(repository: Repository) -> None:
            plan = plan_prune(repository, max_unused=MaxUnused(may_stay))
            apply_prune(repository, plan, abandoned_after=after, workers=1)

        self._start("prune", prune)

    @precondition(lambda self: self.at_work)
    @rule(which=st.integers(0, 7), requests=st.sampled_from((1, 2, 3, 5, 8, 13, 21, 34)))
    def one_goes_on(self, which: int, requests: int) -> None:
        self.at_work[which % len(self.at_work)].step(requests)

    @precondition(lambda self: self.at_work)
    @rule(which=st.integers(0, 7))
    def one_runs_to_its_end(self, which: int) -> None:
        self.at_work[which % len(self.at_work)].finish()

    @precondition(lambda self: self.at_work)
    @rule(which=st.integers(0, 7))
    def one_is_killed(self, which: int) -> None:
        self.at_work[which % len(self.at_work)].kill()

    @rule(dead=st.booleans(), commits=st.integers(1, 4))
    def meanwhile_everything_happens(self, dead: bool, commits: int) -> None:
        """While all others stand still, all that they had found is expired and pruned."""
        for _ in range(commits):
            self.the_stream_goes_on()
        self.somebody_backs_up()
        self.running[-1].finish()
        self.somebody_expires(1, 0)
        self.running[-1].finish()
        self.somebody_prunes(0, dead)
        self.running[-1].finish()

    @rule()
    def somebody_holds_the_oldest(self) -> None:
        oldest = self.repository.backup_ids("orders")[0]
        try:
            hold(self.repository, self.repository.manifest(oldest), reason="the model wants it")
            self.held.add(oldest)
        except CkptError:
            pass  # it is being removed, and that was said

    @rule()
    def somebody_verifies_the_newest(self) -> None:
        manifest = self.repository.manifest()
        report = verify_backup(self.repository, manifest, read_data=ReadData())
        record_verification(self.repository, report)

    @invariant()
    def every_listed_backup_is_whole(self) -> None:
        for manifest in self.repository.backups("orders"):
            report = verify_backup(self.repository, manifest, read_data=ReadData(), workers=1)
            assert report.ok, (report.findings, [(a.kind, a.requests) for a in self.running])

    @invariant()
    def there_is_always_one_and_held_ones_stay(self) -> None:
        ids = self.repository.backup_ids("orders")
        assert ids
        assert self.held <= set(ids)

    @invariant()
    def nobody_fails_without_saying_why(self) -> None:
        for actor in self.running:
            if actor.ended and actor.error is not None and not isinstance(actor.error, Killed):
                assert isinstance(actor.error, CkptError), (actor.kind, actor.error, actor.requests)

    @invariant()
    def no_prune_takes_what_a_restore_reads(self) -> None:
        for actor in self.running:
            began = any(request.startswith("create ") and "/claims/" in request for request in actor.requests)
            if actor.kind == "restore" and began and not self.given_up and not actor.killed:
                assert actor.error is None or isinstance(actor.error, NoSuchBackupError), (actor.error, actor.requests)

    def teardown(self) -> None:
        for actor in self.running:
            actor.finish()
        self.every_listed_backup_is_whole()
        for number, manifest in enumerate(self.repository.backups("orders")):
            target = self.base / f"end{number}"
            apply_restore(plan_restore(self.repository, manifest, target), workers=1)
            assert {path: target.read(path) for path in target.walk()} == files_in(manifest, self.base)
        # With nobody at work what is left over goes, all of it.
        apply_prune(self.repository, plan_prune(self.repository), abandoned_after=EVERYBODY_IS_DEAD)
        self.every_listed_backup_is_whole()
        assert plan_prune(self.repository).objects == 0
        self.patches.undo()
        forget_all()


class PackedStream(Stream):
    """The same with small files in packs, which prunes repack."""

    format = 2


class MigratedStream(Stream):
    """One whose backups are of format 1, and whose objects somebody puts into packs."""

    format = 2

    @initialize()
    def begin(self) -> None:
        self.format = 1
        super().begin()
        self.repository = repositories.raise_format(self.place, self.repository, 2)
        self.format = 2
        self.patches.setattr(repositories, "DEFAULT_FORMAT", 2)

    @rule()
    def somebody_who_had_opened_it_before_backs_up(self) -> None:
        for path in self.place.walk("running"):
            self.place.delete(path)

        def back_up(repository: Repository) -> None:
            opened = Repository(repository.location, repository.repository_id, 1)
            create_backup(Checkpoint.at(self.checkpoint), opened, workers=1)

        self._start("backup", back_up)

    @rule(dead=st.booleans())
    def somebody_migrates(self, dead: bool) -> None:
        self.given_up = self.given_up or dead
        after = EVERYBODY_IS_DEAD if dead else NOBODY_IS_DEAD

        def migrate(repository: Repository) -> None:
            plan = plan_migrate(repository)
            apply_migrate(repository.location, plan, abandoned_after=after, workers=1)

        self._start("migrate", migrate)

    @rule(dead=st.booleans(), commits=st.integers(1, 4))
    def meanwhile_everything_happens(self, dead: bool, commits: int) -> None:
        self.somebody_migrates(dead)
        self.running[-1].finish()
        super().meanwhile_everything_happens(dead, commits)
        self.somebody_migrates(dead)
        self.running[-1].finish()

    def teardown(self) -> None:
        for actor in self.running:
            actor.finish()
        apply_migrate(self.place, plan_migrate(self.repository), abandoned_after=EVERYBODY_IS_DEAD)
        assert plan_migrate(self.repository).steps == ()
        super().teardown()


Stream.TestCase.settings, PackedStream.TestCase.settings = settings_of(10), settings_of(5)
MigratedStream.TestCase.settings = settings_of(5)
TestPruneModel = Stream.TestCase
TestPackedPruneModel = PackedStream.TestCase
TestMigratedPruneModel = MigratedStream.TestCase


OTHERS = ("restore", "expire", "prune")


def somebody(model: Stream, kind: str) -> Actor:
    """Let an actor begin."""
    begin = {
        "backup": model.somebody_backs_up,
        "restore": lambda: model.somebody_restores(0),
        "expire": lambda: model.somebody_expires(1, 0),
        "prune": lambda: model.somebody_prunes(0, False),
    }
    if isinstance(model, MigratedStream):
        begin["migrate"] = lambda: model.somebody_migrates(False)
        begin["old backup"] = model.somebody_who_had_opened_it_before_backs_up
    begin[kind]()
    return model.running[-1]


def check(model: Stream) -> None:
    model.every_listed_backup_is_whole()
    model.there_is_always_one_and_held_ones_stay()
    model.nobody_fails_without_saying_why()
    model.no_prune_takes_what_a_restore_reads()


def begun(kind: type[Stream] = Stream) -> Stream:
    """A stream with two backups, and something for a prune to do."""
    model = kind()
    model.begin()
    model.the_stream_goes_on()
    somebody(model, "backup").finish()
    if kind is PackedStream:
        model.the_stream_goes_on()
        somebody(model, "backup").finish()
        somebody(model, "expire").finish()
        (plan,) = plan_prune(model.repository, max_unused=MaxUnused(0)).streams
        assert plan.repacked
    model.place.create("objects/orders/aa/left", b"by a backup that was killed")
    return model


@pytest.mark.parametrize(
    ("streams", "kind", "dead"),
    of_these(
        (
            *itertools.product((Stream, PackedStream), ("backup", *OTHERS), (False, True)),
            *itertools.product((MigratedStream,), ("backup", "old backup", "migrate", *OTHERS), (False, True)),
        ),
        (MigratedStream, "old backup", False),
    ),
)
def test_each_may_stand_still_at_every_request(streams: type[Stream], kind: str, dead: bool) -> None:
    """And continues, or is killed, after everything has happened meanwhile."""
    requests = 0
    while True:
        requests += 1
        for end in (Actor.finish, Actor.kill):
            model = begun(streams)
            one = somebody(model, kind)
            one.step(requests)
            if one.ended:
                assert requests > 5
                model.teardown()
                return
            model.meanwhile_everything_happens(dead, 3)
            end(one)
            check(model)
            model.teardown()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("streams", "first", "second"),
    [
        *itertools.product((Stream, PackedStream), ("backup", *OTHERS), ("backup", *OTHERS)),
        *itertools.product((MigratedStream,), ("backup", "old backup", "migrate", *OTHERS), ("migrate",)),
        *itertools.product((MigratedStream,), ("migrate",), ("backup", "old backup", *OTHERS)),
    ],
)
def test_two_may_stand_still_at_every_request(streams: type[Stream], first: str, second: str) -> None:
    """In every combination; the one that began last continues first, and the other way round."""
    tried = 0
    for k, j, backwards in itertools.product(range(1, 15), range(1, 15), (False, True)):
        model = begun(streams)
        one = somebody(model, first)
        one.step(k)
        model.the_stream_goes_on()
        two = somebody(model, second)
        two.step(j)
        model.meanwhile_everything_happens(False, 2)
        for actor in (two, one) if backwards else (one, two):
            actor.finish()
            check(model)
            model.meanwhile_everything_happens(False, 1)
        check(model)
        model.teardown()
        tried += 1
    assert tried == 392
