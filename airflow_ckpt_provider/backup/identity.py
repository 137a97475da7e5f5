"""Whether a checkpoint is the stream that a name of the repository stands for.

A stream is known by the id of its query and the place of its checkpoint, which every manifest says. A manifest also says the
chain of ids that the query has had, so the newest one is enough to know a stream by. A backup is of the same stream where the
newest one is of the same query at the same place, or where the difference is explained:

* another id by the plan of a reset or rewind that gave it, by a reset after which Spark made one, by an earlier backup of the
  same place, or by a newer version of the same flow;
* another place by a restore of the newest backup to there.

Anything else is another stream, unless somebody says that it is a new life of this one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.backup.flow_path import flow_path
from airflow_ckpt_provider.backup.id_changes import IdChange, id_changes, restores_done
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.stream_names import new_name
from airflow_ckpt_provider.backup.streams import is_place, stream_in_words
from airflow_ckpt_provider.errors import CkptError, OtherStreamError
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.storage.location import Location

log = logging.getLogger(__name__)


def chain_of_ids(
    repository: Repository,
    newest: Manifest | None,
    checkpoint: Location,
    query_id: str,
    *,
    new_life: bool = False,
    place_is_explained: bool = True,
) -> tuple[str, ...]:
    """The ids that a query has had, for the manifest of its next backup: those of the newest backup, and its own last.

    Reads nothing where the newest backup is of the same query at the same place.

    :param repository: the repository.
    :param newest: the newest backup of the name that can be read; ``None``: there is none.
    :param checkpoint: the checkpoint that is to be backed up.
    :param query_id: the id in its ``metadata``.
    :param new_life: whatever the difference is, somebody says that it is the same stream.
    :param place_is_explained: a recorded restore explains another place. Not where nobody gave the name: a copy that was restored
        beside the checkpoint has the same ending.
    :raises OtherStreamError: the backups of this name are of another stream.
    """
    if newest is None:
        return (query_id,)
    chain = (*(i for i in newest.lives if i != query_id), query_id)
    same_query, same_place = newest.query_id == query_id, is_place(checkpoint, newest.checkpoint)
    if new_life or (same_query and same_place):
        return chain
    if not same_place and not (place_is_explained and _was_restored_to(repository, newest, checkpoint)):
        raise _other_stream(repository, newest, checkpoint, query_id)
    if same_query or _is_known_here(repository, newest, checkpoint, query_id):
        return chain
    changes = _changes_known(repository, checkpoint)
    if query_id in _family(changes, newest.lives):
        return chain
    last = _family(changes, {newest.query_id})
    if _follows_reset(changes, last, query_id, checkpoint, batch_id=newest.batch_id):
        return chain
    raise _other_stream(repository, newest, checkpoint, query_id)


def is_same_stream(repository: Repository, manifest: Manifest, place: Location, query_id: str) -> bool:
    """Whether a query that runs at a place is known to be the one of a backup, under an id of before or since.

    :param manifest: the backup.
    :param place: the checkpoint of the query.
    :param query_id: the id in its ``metadata``.
    """
    if query_id in manifest.lives:
        return True
    ids = repository.backup_ids(manifest.name)
    lives = {*manifest.lives}
    for backup_id in reversed(ids):
        with suppress(CkptError):
            newest = repository.read_manifest(manifest.name, backup_id, with_files=False)
            lives |= {*newest.lives} if lives & {*newest.lives} else set()
            break
    try:
        changes = _changes_known(repository, place)
    except CkptError as e:  # a damaged plan is no reason against a restore; it only explains nothing
        log.warning("%s", e)
        return False
    if query_id in (family := _family(changes, lives)):
        return True
    return _follows_reset(changes, family, query_id, place) or _follows_reset(
        changes, _family(changes, {query_id}), manifest.query_id, place
    )


def other_stream_at(repository: Repository, manifest: Manifest, place: Location) -> Manifest | None:
    """The newest backup of another stream that was taken at a place; ``None``: there is none, or ``manifest`` is of that place.

    :param repository: the repository.
    :param manifest: a backup of the stream that is not meant.
    :param place: a checkpoint, or where one was.
    :raises CkptError: backups under another name cannot be read, so that it is not known.
    """
    if is_place(place, manifest.checkpoint):
        return None

    def newest(name: str) -> Manifest | CkptError | None:
        unread = None
        try:
            for backup_id in reversed(repository.backup_ids(name)):
                try:
                    return repository.read_manifest(name, backup_id, with_files=False)
                except CkptError as e:
                    unread = e
        except CkptError as e:
            unread = e
        return unread

    found = in_parallel(newest, [name for name in repository.names() if name != manifest.name])
    of_place = [m for m in found if isinstance(m, Manifest) and is_place(place, m.checkpoint)]
    for last in sorted(of_place, key=lambda m: m.created, reverse=True):
        return None if is_same_stream(repository, manifest, place, last.query_id) else last
    for error in found:
        if isinstance(error, CkptError):
            raise error
    return None


def _changes_known(repository: Repository, checkpoint: Location) -> list[IdChange]:
    """The changes of query ids that are kept in a repository, and in the one beside the checkpoint."""
    kept = id_changes(repository)
    with suppress(CkptError):  # there may be none, or something else; then it explains nothing
        beside = Repository.open_if_there(default_repository(checkpoint))
        kept += id_changes(beside) if beside else []
    return kept


def _family(changes: Sequence[IdChange], ids: Iterable[str]) -> set[str]:
    """Some ids, and those that plans connect with them.

    An id that a plan made is the same stream's, wherever it was copied to, and also where the change was undone.
    """
    family = {*ids}
    while more := {i for c in changes if c.new and {c.old, c.new} & family for i in (c.old, c.new)} - family:
        family |= more
    return family


def _follows_reset(
    changes: Sequence[IdChange], ids: Iterable[str], query_id: str, checkpoint: Location, *, batch_id: int = -1
) -> bool:
    """Whether an id may be the one that Spark made after a reset of a checkpoint.

    :param ids: the ids of which one was reset.
    :param batch_id: a batch that was written before the reset.
    """
    return query_id not in {change.new for change in changes} and any(
        change.stands
        and not change.new
        and change.old in ids
        and change.newest >= batch_id
        and is_place(checkpoint, change.checkpoint)
        for change in changes
    )


def _is_known_here(repository: Repository, newest: Manifest, checkpoint: Location, query_id: str) -> bool:
    """Whether the stream had this id at this place before, or a newer version of its flow has it."""
    if query_id in newest.lives:
        return True
    here, before = flow_path(checkpoint.uri), flow_path(newest.checkpoint)
    if here and before and here.flow == before.flow and here.version > before.version:
        return True

    def read(backup_id: str) -> Manifest | None:
        with suppress(CkptError):
            return repository.read_manifest(newest.name, backup_id, with_files=False)
        return None

    return any(
        manifest and query_id in manifest.lives and is_place(checkpoint, manifest.checkpoint)
        for manifest in in_parallel(read, repository.backup_ids(newest.name))
    )


def _was_restored_to(repository: Repository, newest: Manifest, checkpoint: Location) -> bool:
    """Whether the newest backup of a name was restored to a place, so that the stream may continue there."""
    return any(
        (done.name, done.backup_id) == (newest.name, newest.backup_id) and is_place(checkpoint, done.target)
        for done in restores_done(repository)
    )


def _other_stream(repository: Repository, newest: Manifest, checkpoint: Location, query_id: str) -> OtherStreamError:
    name = newest.name
    what, here = "of another stream", f"query {query_id} of {checkpoint}"
    other = new_name(repository.names(), checkpoint)
    if newest.query_id == query_id:
        what, here = "of another place", f"the same query at {checkpoint}"
        why = f"if the checkpoint was moved here, say so (--new-life, or new_life=True, with --name {name}); for a copy of it"
    elif is_place(checkpoint, newest.checkpoint):
        why = "if the stream was reset, say so (--new-life, or new_life=True); for another stream"
    else:
        why = f"if it continues that stream, say so (--new-life, or new_life=True, with --name {name}); for another one"
    return OtherStreamError(
        f"the backups named {name!r} in {repository.location} are {what}: {stream_in_words(newest)} "
        f"(newest: {newest.backup_id}); this is {here}",
        hint=f"{why}, give another name (--name {other}, or name={other!r})",
        other=newest.query_id != query_id and not is_place(checkpoint, newest.checkpoint),
    )
