"""Sets: backups of several streams that are restored together, such as those of the queries of one application.

Each backup of a set is a backup like any other. Two tags of its manifest name the set and all streams of it. So a set needs no
document of its own: it is whole once the last of its backups is written, and a copy of its backups is a copy of the set.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.damaged import read_damaged
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.names import checked_name
from airflow_ckpt_provider.backup.records import checked_plan_id, new_plan_id
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_check import readable
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import CkptError, DamagedBackupError, NoSuchBackupError, RefusedError, StorageError

log = logging.getLogger(__name__)

#: Tags of a manifest: the id of the set, and the names of all its streams with commas between.
SET, SET_OF = "backup_set", "backup_set_of"
LATEST_SET = "latest"
_LISTS = "`airflow-ckpt backups REPOSITORY --sets` lists the sets"


@dataclass(frozen=True, slots=True)
class BackupSet:
    """A set, as far as its backups are there.

    :param set_id: its id.
    :param names: the streams that it is made of, in order.
    :param backups: stream -> its backup.
    :param damaged: stream -> why its backup cannot be restored, as far as that is known.
    """

    set_id: str
    names: tuple[str, ...]
    backups: Mapping[str, Manifest]
    damaged: Mapping[str, str] = field(default_factory=dict)

    @property
    def missing(self) -> tuple[str, ...]:
        """The streams whose backup is missing."""
        return tuple(name for name in self.names if name not in self.backups)

    @property
    def is_whole(self) -> bool:
        """Whether every backup is there, and none is known to be damaged."""
        return not self.missing and not self.damaged

    @property
    def problems(self) -> tuple[str, ...]:
        """Why it is not whole, in words."""
        gone = (
            f"it has no backup of {name} that can be read: it was not taken, it expired, or its manifest is damaged"
            for name in self.missing
        )
        return (*gone, *(f"the backup of {name} is damaged: {why}" for name, why in self.damaged.items()))

    def check_whole(self) -> None:
        """See that it is whole.

        :raises DamagedBackupError: it is not.
        """
        if not self.is_whole:
            raise DamagedBackupError(
                f"set {self.set_id} of {', '.join(self.names)} is not whole: {'; '.join(self.problems)}",
                findings=self.problems,
                hint=f"choose another set ({_LISTS}); or restore what is there one by one: `airflow-ckpt restore`",
            )

    def to_json(self) -> dict[str, Any]:
        """The set as plain JSON."""
        return {
            "set_id": self.set_id,
            "streams": list(self.names),
            "backups": [self.backups[name].summary() for name in self.names if name in self.backups],
            "whole": self.is_whole,
            "problems": list(self.problems),
        }


def create_set(
    checkpoints: Mapping[str, Checkpoint],
    repository: Repository,
    *,
    set_id: str | None = None,
    tags: Mapping[str, str] | None = None,
    **about: Any,
) -> BackupSet:
    """Back up several checkpoints as one set, or resume a set that was begun.

    Each backup is consistent by itself, at a batch of its own.

    :param checkpoints: name of the stream in the repository -> its checkpoint.
    :param repository: where to.
    :param set_id: id of the set; what it has already is not taken again. ``None``: a new one.
    :param tags: more tags of each backup.
    :param about: what else :func:`~airflow_ckpt_provider.backup.create.create_backup` takes.
    :raises RefusedError: nothing was committed to one of the checkpoints yet, or the set is of other streams: nothing was taken.
    :raises CkptError: as :func:`~airflow_ckpt_provider.backup.create.create_backup` raises. The set stays in part: the same call
        with its id resumes it.
    """
    names, set_id = _checked(checkpoints), checked_plan_id(set_id or new_plan_id())
    if taken := {SET, SET_OF} & set(tags or ()):
        raise RefusedError(f"the tag {min(taken)} names the set of a backup", hint="choose another tag")
    for name, checkpoint in checkpoints.items():
        if checkpoint.progress().latest_committed is None:
            raise RefusedError(
                f"{name} ({checkpoint.location}) has nothing to back up: no batch was committed yet; no backup was taken",
                hint="let it commit a batch, or leave it out",
            )
    there = find_set(repository, set_id, names)
    log.info("backing up %s as set %s", ", ".join(names), set_id)
    about["tags"] = {**(tags or {}), SET: set_id, SET_OF: ",".join(names)}
    for name in names:
        if name in there.backups and name not in there.damaged:
            continue
        try:
            create_backup(checkpoints[name], repository, name=name, **about)
        except CkptError as e:
            e.add_hint(f"then resume set {set_id}, which has not all of its backups yet: --set {set_id} (set_id)")
            raise
    return find_set(repository, set_id, names)


def find_set(repository: Repository, set_id: str, names: Iterable[str]) -> BackupSet:
    """Find what is there of a set.

    :param repository: the repository.
    :param set_id: its id; :data:`LATEST_SET`: the newest set of exactly these streams that is whole.
    :param names: its streams.
    :raises NoSuchBackupError: no set of these streams is whole, where the newest is wanted.
    :raises RefusedError: the set is of other streams.
    :raises StorageError: a manifest could not be read.
    """
    wanted = _checked(names)
    if set_id == LATEST_SET:
        return _latest(repository, wanted)
    backups, damaged = {}, {}
    for name in wanted:
        for manifest in _newest_first(repository, name):
            if manifest.tags.get(SET) != set_id:
                continue
            if manifest.tags.get(SET_OF) != ",".join(wanted):
                raise RefusedError(
                    f"set {set_id} is of {manifest.tags.get(SET_OF)}, not of {','.join(wanted)}",
                    hint="name all of its streams, by their names in the repository",
                )
            backups[name] = manifest
            if damage := read_damaged(repository.location, name).of(manifest):
                damaged[name] = next(iter(damage.values())).message
            break
    return BackupSet(set_id, wanted, backups, damaged)


def all_sets(repository: Repository) -> list[BackupSet]:
    """All sets of a repository, the newest first, as far as the ids of backups tell. Reads every manifest."""
    found: dict[tuple[str, str], dict[str, Manifest]] = {}
    damaged: dict[tuple[str, str], dict[str, str]] = {}
    for name in repository.names():
        known = read_damaged(repository.location, name)
        for manifest in _newest_first(repository, name):
            key = (manifest.tags.get(SET, ""), manifest.tags.get(SET_OF, ""))
            if not all(key) or name not in key[1].split(",") or name in found.get(key, {}):
                continue
            found.setdefault(key, {})[name] = manifest
            if damage := known.of(manifest):
                damaged.setdefault(key, {})[name] = next(iter(damage.values())).message
    sets = [
        BackupSet(set_id, tuple(of.split(",")), backups, damaged.get((set_id, of), {}))
        for (set_id, of), backups in found.items()
    ]
    return sorted(sets, key=lambda each: max(m.backup_id for m in each.backups.values()), reverse=True)


def _latest(repository: Repository, names: tuple[str, ...]) -> BackupSet:
    passed_over: list[str] = []
    for manifest in _newest_first(repository, names[0]):
        set_id = manifest.tags.get(SET)
        if set_id is None or set_id in passed_over or manifest.tags.get(SET_OF) != ",".join(names):
            continue
        found = find_set(repository, set_id, names)
        if found.is_whole:
            return found
        log.warning("set %s is passed over: %s", set_id, "; ".join(found.problems))
        passed_over.append(set_id)
    not_whole = f"; not whole: {', '.join(passed_over)}" if passed_over else ""
    raise NoSuchBackupError(
        f"{repository.location} has no whole set of backups of {', '.join(names)}{not_whole}",
        hint=f"back them up together: `airflow-ckpt chain backup`; {_LISTS}",
    )


def _newest_first(repository: Repository, name: str) -> Iterator[Manifest]:
    """The manifests of a stream that are not damaged, the newest first.

    :raises StorageError: one could not be read: whether it belongs to a set is not known.
    """
    newest_first = tuple(reversed(repository.backup_ids(name)))
    for each in readable(repository, name, newest_first, with_files=False):
        if isinstance(each, Manifest):
            yield each
        elif each.is_unread:
            raise StorageError(each.problems[0], hint="run the same command again")
        else:
            log.warning("backup %s of %s is passed over: %s", each.backup_id, name, each.problems[0])


def _checked(names: Iterable[str]) -> tuple[str, ...]:
    """Names of streams, each once, in order.

    :raises RefusedError: there is none, or one can be no name.
    """
    found = tuple(sorted({checked_name(name) for name in names}))
    if not found:
        raise RefusedError("no stream is named", hint="name the streams of the set")
    return found
