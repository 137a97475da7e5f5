"""The newest batch that a query may have written. Its checkpoint only shows how far it is now.

An earlier restore, rewind, reset or repair may have set the checkpoint back, and the rows of the later batches are in the sink
all the same. So what backups and the plans of earlier changes say counts too. Batch numbers are compared under the ids of one
stream only: a reset begins the numbers again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.backup.flow_path import flow_path
from airflow_ckpt_provider.backup.id_changes import KeptPlan, kept_plans
from airflow_ckpt_provider.backup.manifest import Manifest, batch_in_id
from airflow_ckpt_provider.backup.names import is_name
from airflow_ckpt_provider.backup.repository import SAFETY_SUFFIX, Repository
from airflow_ckpt_provider.change.attempts import attempts_directory, numbers_in, read_attempt
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import CkptError, NoSuchBackupError, NotACheckpointError
from airflow_ckpt_provider.parallel import in_parallel, side_by_side
from airflow_ckpt_provider.recovery.kept_changes import places_beside
from airflow_ckpt_provider.recovery.query_ids import read_query_ids
from airflow_ckpt_provider.recovery.rewind.targets import logged_batches, logged_in_backup
from airflow_ckpt_provider.sinks.query_ids import QueryIds
from airflow_ckpt_provider.storage.location import Location

#: Before the first batch.
_NONE = -1


@dataclass(frozen=True, slots=True)
class NewestBatch:
    """How far a query may have written.

    :param reached: the newest batch that its checkpoint has, or had when it was changed before; -1 for none.
    :param backed_up: the newest batch of the backups that name a later one; -1 if none does.
    :param later: why it may have written more, of which no number is known.
    """

    reached: int
    backed_up: int = _NONE
    later: tuple[str, ...] = ()

    def after(self, batch_id: int) -> int:
        """The newest batch that the query may have written, for a start after a batch.

        Where there may be more than is known, one more batch is assumed.
        """
        known = max(self.reached, self.backed_up, batch_id)
        return batch_id + 1 if known == batch_id and self.why_assumed(batch_id) else known

    def notes(self, batch_id: int) -> tuple[str, ...]:
        """What a plan says of it."""
        why = self.why_assumed(batch_id)
        return (f"at least one batch after {batch_id} is assumed: {'; '.join(why)}",) if why else ()

    def why_assumed(self, batch_id: int) -> tuple[str, ...]:
        """Why one more batch is assumed, in words; empty if there is no reason."""
        if max(self.reached, self.backed_up) > batch_id:
            return ()
        if not self.later and batch_id > self.reached:
            return (
                f"nothing shows how far the query came after batch {batch_id}: its checkpoint is at {self.reached}",
            )
        return self.later


def newest_batch(
    place: Location,
    logged: int | None,
    query_id: str | None,
    *,
    starts_as: str | None,
    repository: Repository | None,
    name: str,
    unlogged: Sequence[str] = (),
    ids: QueryIds | None = None,
    backup: Manifest | None = None,
    tree: Tree | None = None,
) -> NewestBatch:
    """Find the newest batch that a query may have written.

    Where the checkpoint was never changed and no backup names a later batch, it takes the listings of the backups and of the
    attempts at changes; of a flow also that of its versions.

    :param place: the checkpoint.
    :param logged: the newest batch in its logs; ``None`` if there is no checkpoint that can be read.
    :param query_id: the id in its ``metadata``; ``None`` if there is none.
    :param starts_as: the id that the query has at its next start; ``None``: not known, and all batch numbers count.
    :param repository: has the plans and backups; ``None``: there is none, but those beside the checkpoint are read.
    :param name: name of the stream in the repository.
    :param unlogged: why it may have written rows that its logs do not show; see
        :func:`~airflow_ckpt_provider.checkpoint.progress.why_unlogged`.
    :param ids: all ids of the stream, where they were read already.
    :param backup: what the start is from: what ran after it, from an older batch on, may have written more than its batches did.
    :param tree: the checkpoint's files, to compare its batches with those of the backup.
    """
    numbers = _Numbers(place, repository, name, starts_as, ids)
    later: list[str] = list(unlogged)
    if logged is None:
        later.append(f"{place} holds no checkpoint that shows how far the query came")
    elif query_id and not numbers.has(query_id):
        later.append(f"query {query_id} has run at {place}, with batch numbers of its own")
    former = _former(place)
    (plans, unread), backups = side_by_side(
        lambda: _plans([place, *former], repository), lambda: _backup_ids(repository, name)
    )
    later += unread
    begun = [_NONE if logged is None else logged, *_of_former(former, numbers, later)]
    reached = max((*begun, *_of_plans(plans, numbers, later, logged)))
    if backup is not None:
        later += _after_backup(backup, plans, logged)
        later += _of_another_run(backup, tree) if tree else ()
    was_restored = any(kept.plan.get("kind") == "restore" for kept in plans)
    backed_up = _of_backups(repository, backups, numbers, reached, later, was_restored=was_restored)
    later += numbers.unread
    return NewestBatch(reached, backed_up, tuple(dict.fromkeys(later)))


def _after_backup(backup: Manifest, plans: Iterable[KeptPlan], logged: int | None) -> Iterator[str]:
    """Why batches that a backup has may have been written again, as other batches, since it was taken.

    :param logged: the newest batch in the logs of the checkpoint; if it is not beyond a change, nothing has run since that.
    """
    for kept in plans:
        to = kept.plan.get("batch_id")
        if type(to) is not int or to >= backup.batch_id or (logged is not None and logged <= to + 1):
            continue  # a reset begins the numbers again; or only the next batch has begun: its time shows which it is
        if kept.stands and (kept.at is None or kept.at > backup.complete_at):
            yield (
                f"{kept.plan['kind']} {kept.plan['plan_id']} went below batch {backup.batch_id} after backup {backup.backup_id} "
                "was taken: what has run since may have written other rows under its numbers"
            )


def _of_another_run(backup: Manifest, tree: Tree) -> Iterator[str]:
    """Why the batches of a checkpoint are not those that a backup has under the same numbers."""
    live, in_backup = logged_batches(tree).planned, logged_in_backup(backup).planned
    other = min((batch for batch, at in in_backup.items() if live.get(batch, at) != at), default=None)
    if other is not None:
        yield (
            f"the checkpoint has planned batch {other} at another time than backup {backup.backup_id} says: it is of another "
            "run, which may have written other rows"
        )


class _Numbers:
    """Which query ids have the batch numbers of the stream. The ids are read when somebody asks for one that is not the first."""

    def __init__(
        self, place: Location, repository: Repository | None, name: str, starts_as: str | None, ids: QueryIds | None
    ) -> None:
        self._of = (place, repository, name)
        self._starts_as = starts_as
        self._ids: frozenset[str] | None = frozenset(link.query_id for link in ids.links) if ids else None
        self.unread: list[str] = []

    def has(self, query_id: str) -> bool:
        """Whether the batches of an id have the numbers of the stream; in doubt they have."""
        return self._starts_as is None or query_id == self._starts_as or query_id in self._all(self._starts_as)

    def has_one(self, query_ids: Iterable[str]) -> bool:
        """Whether those of one of some ids have."""
        return any(map(self.has, query_ids))

    def _all(self, starts_as: str) -> frozenset[str]:
        if self._ids is None:
            place, repository, name = self._of
            self._ids = frozenset()
            try:
                found = read_query_ids(starts_as, place=place, repository=repository, name=name)
                self._ids = frozenset(link.query_id for link in found.links) if found else frozenset()
            except CkptError as e:
                self.unread.append(e.message)
        return self._ids


def _plans(places: Sequence[Location], repository: Repository | None) -> tuple[list[KeptPlan], list[str]]:
    """The plans of earlier changes of some checkpoints, and why some cannot be read.

    Only the attempts at these checkpoints are listed, so plans for others are not read.
    """
    held = repository.location.uri if repository else None
    beside = {kept.uri: kept for place in places for kept in places_beside(place)}
    keepers: list[tuple[Location, Repository | None]] = [(repository.location, repository)] if repository else []
    keepers += [(kept, None) for uri, kept in beside.items() if uri != held]
    asked = [(where, opened, place) for where, opened in keepers for place in places]
    found = in_parallel(lambda one: _plans_in(*one), asked)
    return [kept for plans, _ in found for kept in plans], [why for _, whys in found for why in whys]


def _former(place: Location) -> list[Location]:
    """The former checkpoints of a flow, oldest first: a restore or reset of a flow leaves them as they are."""
    path = flow_path(place.root)
    if path is None:
        return []
    flow = Location(place.store, path.directory)
    numbers = sorted(int(name) for name in flow.list().directories if name.isdecimal())
    return [flow / str(number) for number in numbers if number < path.version]


def _plans_in(where: Location, opened: Repository | None, place: Location) -> tuple[list[KeptPlan], list[str]]:
    directory = attempts_directory(place)
    try:
        numbers = numbers_in(where.walk(directory))
        if not numbers:
            return [], []
        held = opened or Repository.open(where)
        attempts = in_parallel(lambda number: read_attempt(held.location / directory, number), numbers)
        unread = [f"attempt {a.number} in {where}/{directory} cannot be read" for a in attempts if a.pid < 0]
        ids = {attempt.plan_id for attempt in attempts if attempt.pid >= 0}
        return kept_plans(held, lambda plan: True, of=ids), unread
    except CkptError as e:
        return [], [e.message]


def _of_plans(plans: Iterable[KeptPlan], numbers: _Numbers, later: list[str], logged: int | None) -> Iterator[int]:
    """The newest batch that each plan saw, and in ``later`` what may have been written besides.

    :param logged: the newest batch in the logs of the checkpoint; beyond a plan's batch it shows how far the query came since.
    """
    for kept in plans:
        plan = kept.plan
        own = [str(plan[key]) for key in ("query_id", "new_query_id") if plan.get(key)]
        if own and not numbers.has_one(own):
            continue  # the numbers of another query
        if plan["kind"] == "reset" and own and not plan.get("new_query_id") and kept.stands:
            later.append(f"after reset {plan['plan_id']} a query with batch numbers of its own was to run")
        other = str(plan.get("other_query") or "")
        if other and not numbers.has(other):
            later.append(f"query {other} had run before restore {plan['plan_id']}, with batch numbers of its own")
            continue
        saw, to = _newest_in(plan), plan.get("batch_id")
        if kept.stands and saw == _NONE and type(to) is int and logged is not None and 0 <= logged <= to:
            later.append(f"before {plan['kind']} {plan['plan_id']} no checkpoint showed how far the query came")
        yield saw


def _of_former(former: Iterable[Location], numbers: _Numbers, later: list[str]) -> Iterator[int]:
    """The newest batch of each former checkpoint, and in ``later`` what ran under other numbers after the first of them."""
    is_begun = False
    for checkpoint in former:
        try:
            progress = Checkpoint.at(checkpoint).progress()
        except NotACheckpointError:
            continue
        except CkptError as e:
            later.append(e.message)
            continue
        if progress.query_id is None or numbers.has(progress.query_id):
            is_begun = True
            yield _NONE if progress.latest_begun is None else progress.latest_begun
        elif is_begun and progress.latest_begun is not None:
            later.append(f"query {progress.query_id} has run at {checkpoint}, with batch numbers of its own")


def _newest_in(plan: Mapping[str, Any]) -> int:
    """The newest batch of the checkpoint when a plan was made: as the plan says, and by the files that were there."""
    before, newest = plan.get("before"), plan.get("newest")
    paths = (path.partition("/") for path in before) if isinstance(before, Mapping) else ()
    there = (batch_id_of(file) for directory, _, file in paths if directory in (OFFSETS, COMMITS))
    return max((b for b in (newest, *there) if type(b) is int), default=_NONE)


def _backup_ids(repository: Repository | None, name: str) -> list[tuple[str, str]]:
    """The backups of a stream, each with its name: those that restores of version 0.1.0 made have another one."""
    if repository is None:
        return []
    names = [own for own in (name + SAFETY_SUFFIX, name) if is_name(own)]
    found = in_parallel(repository.backup_ids, names)
    return [(stream, backup_id) for stream, ids in zip(names, found, strict=True) for backup_id in ids]


def _of_backups(
    repository: Repository | None,
    backups: Sequence[tuple[str, str]],
    numbers: _Numbers,
    reached: int,
    later: list[str],
    *,
    was_restored: bool,
) -> int:
    """The newest batch of the backups that name a later one than is known; their manifests show whose numbers these are.

    :param was_restored: the checkpoint was restored before, so only backups may show that another query ran there. The newest
        one says all ids that there were.
    """

    def read(backup: tuple[str, str]) -> Manifest | str | None:
        try:
            return repository.read_manifest(*backup, with_files=False) if repository else None
        except NoSuchBackupError:
            return None  # expired since it was listed
        except CkptError as e:
            return e.message

    named = {backup: batch_in_id(backup[1]) for backup in backups}
    in_order = map(read, reversed(backups)) if was_restored else iter(())
    newest_one = next((made for made in in_order if isinstance(made, Manifest)), None)
    all_of_them = newest_one is not None and not all(map(numbers.has, newest_one.lives))
    wanted = [backup for backup, batch in named.items() if all_of_them or batch is None or batch > reached]
    newest = _NONE
    for backup, manifest in zip(wanted, in_parallel(read, wanted), strict=True):
        if isinstance(manifest, str):
            batch = named[backup]
            if batch is None or batch > reached:
                later.append(manifest)
        elif manifest is None:
            continue
        elif numbers.has(manifest.query_id):
            newest = max(newest, manifest.batch_id)
        elif numbers.has_one(manifest.lives):
            later.append(f"backup {manifest.backup_id} is of query {manifest.query_id}, which took over")
    return newest
