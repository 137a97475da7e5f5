"""Which query ids a stream has had: read from the plans of resets and rewinds, and from backups.

A plan that gives a query a new id makes that id. So whatever has the id descends from the query of the plan, wherever it was
copied to. Two ids in backups of one checkpoint alone prove nothing: somebody may have deleted the checkpoint in between, and
batch numbers began again. Two ids are of one stream if both know a batch by the same number and the same time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from airflow_ckpt_provider.backup.id_changes import IdChange, id_changes
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import SAFETY_SUFFIX, Repository
from airflow_ckpt_provider.backup.repository_check import readable_manifests
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, parse_offsets
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import CkptError
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.sinks.query_ids import QueryIdLink, QueryIds, strange_ids
from airflow_ckpt_provider.sinks.table_history import TableHistory
from airflow_ckpt_provider.storage.location import Location

log = logging.getLogger(__name__)


def read_query_ids(
    query_id: str | None,
    *,
    place: Location,
    repository: Repository | None,
    name: str,
    becomes: Manifest | None = None,
    app_ids: Collection[str | None] = (),
    histories: Iterable[TableHistory | None] = (),
    tree: Tree | None = None,
) -> QueryIds | None:
    """Find every id that a stream has had.

    :param query_id: the id in the checkpoint's ``metadata``; ``None`` if there is none.
    :param place: the checkpoint.
    :param repository: has the plans and backups; ``None``: there is none.
    :param name: name of the stream in the repository.
    :param becomes: the backup whose id the query will have at its next start; by default the query keeps the one it has.
    :param app_ids: ids that a person named for the sinks.
    :param histories: the logs of the tables that the query writes. Backups are read only if a table has an id that no plan
        explains.
    :param tree: the checkpoint's files, whose log entries are compared with those of backups.
    :return: ``None`` if no id is known at all. For a sink with an id of its own see :meth:`QueryIds.known_as`.
    """
    last = becomes.query_id if becomes else query_id
    if not last:
        return None
    canonical = place.store.canonical
    here = {canonical(place.uri), *([canonical(becomes.checkpoint)] if becomes else [])}
    changes = [change for change in id_changes(repository) if change.new] if repository else []
    family = _Family(changes, here, canonical)
    links = family.of(last, known_by=f"backup {becomes.backup_id}" if becomes else "metadata")
    strange = {id_ for history in histories if history for id_ in strange_ids(history, links)}
    wanted = {*strange, *([query_id] if query_id else [])} - {*links, *app_ids}
    if wanted and repository:
        log_of: dict[str, set[_Batch]] = {query_id: _batches_of(tree)} if query_id and tree else {}
        for id_, backup_id in _proven_by_backups(repository, name, links, wanted, log_of, here, canonical):
            # What only backups know is older than what plans made.
            links = {**family.of(id_, known_by=f"backup {backup_id}"), **links}
    if query_id and query_id not in links:
        successors = frozenset(family.of(query_id, known_by="metadata")) - {*links}
    else:
        successors = frozenset()
    return QueryIds(tuple(links.values()), None, successors).starting_as(last)


#: Number of a batch, and when it was planned.
_Batch = tuple[int, str]


@dataclass(frozen=True, slots=True)
class _Family:
    """Ids that changes connect.

    :param changes: all that are known.
    :param here: places of the checkpoint, as the store names them.
    :param canonical: gives a place the name that the store has for it.
    """

    changes: list[IdChange]
    here: set[str]
    canonical: Callable[[str], str]

    def of(self, query_id: str, *, known_by: str) -> dict[str, QueryIdLink]:
        """What an id was made from, and what was made from those at the same place; oldest first."""
        made = {change.new: change for change in self.changes}
        ids = [query_id]
        while (change := made.get(ids[0])) and change.old not in ids:
            ids.insert(0, change.old)
        for id_ in ids:  # grows as it is read
            ids += [
                c.new
                for c in self.changes
                if c.old == id_ and c.stands and c.new not in ids and self.canonical(c.checkpoint) in self.here
            ]
        return {id_: _link(id_, made.get(id_), known_by if id_ == query_id else "a later change") for id_ in ids}


def _link(query_id: str, change: IdChange | None, known_by: str) -> QueryIdLink:
    if change is None:
        return QueryIdLink(query_id, known_by)
    return QueryIdLink(query_id, f"{change.kind} {change.plan_id}", change.from_batch)


def _proven_by_backups(
    repository: Repository,
    name: str,
    known: Collection[str],
    wanted: Collection[str],
    log_of: Mapping[str, set[_Batch]],
    here: set[str],
    canonical: Callable[[str], str],
) -> Iterator[tuple[str, str]]:
    """Ids of which a backup has a batch in common with the log or a backup of a known id; each with that backup."""
    batches: dict[str, set[_Batch]] = {id_: set(found) for id_, found in log_of.items()}
    backups: dict[str, str] = {}
    for manifest in chain.from_iterable(readable_manifests(repository, each) for each in (name, name + SAFETY_SUFFIX)):
        if manifest.query_id in {*known, *wanted} and canonical(manifest.checkpoint) in here:
            times = manifest.facts.get("batch_times") or {}
            batches.setdefault(manifest.query_id, set()).update((int(b), str(time)) for b, time in times.items())
            backups.setdefault(manifest.query_id, manifest.backup_id)
    proven: set[_Batch] = set().union(*(batches.get(id_, set()) for id_ in known))
    left = {id_ for id_ in wanted if id_ in batches}
    while found := sorted(id_ for id_ in left if batches[id_] & proven):
        for id_ in found:
            proven |= batches[id_]
            yield id_, backups.get(id_, "of the same batches")
        left.difference_update(found)


def _batches_of(tree: Tree) -> set[_Batch]:
    """The batches in the checkpoint's log, each with its time."""

    def read(batch_id: int) -> _Batch | None:
        file = tree.get(f"{OFFSETS}/{batch_id}")
        try:
            time = parse_offsets(tree.read(file), batch_id=batch_id).time if file else None
        except (CkptError, FileNotFoundError):
            return None
        return (batch_id, time.isoformat()) if time else None

    return {batch for batch in in_parallel(read, tree.batches(OFFSETS)) if batch}
