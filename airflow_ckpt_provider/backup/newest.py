"""The newest backup of a stream that can be used: whole, and of the one stream that its name stands for."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_ckpt_provider.backup.damaged import read_damaged
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.streams import stream_in_words, streams_among
from airflow_ckpt_provider.errors import DamagedBackupError, NoSuchBackupError, command
from airflow_ckpt_provider.parallel import in_parallel, side_by_side

if TYPE_CHECKING:
    from airflow_ckpt_provider.backup.repository import Repository

log = logging.getLogger(__name__)


def newest_whole(repository: Repository, name: str) -> Manifest | None:
    """The newest backup of a stream that is not known to be damaged; ``None``: there is no backup.

    :raises DamagedBackupError: all are.
    """

    def read(backup_id: str) -> Manifest | DamagedBackupError | None:
        try:
            return repository.read_manifest(name, backup_id)
        except NoSuchBackupError:
            return None  # expired since it was listed
        except DamagedBackupError as e:
            return e

    def begin() -> tuple[tuple[str, ...], Manifest | DamagedBackupError | None]:
        ids = repository.backup_ids(name)
        return ids, read(ids[-1]) if ids else None

    known, (ids, newest) = side_by_side(lambda: read_damaged(repository.location, name), begin)
    passed_over: dict[str, str] = {}
    for backup_id in reversed(ids):
        found = newest if backup_id == ids[-1] else read(backup_id)
        if isinstance(found, Manifest):
            damage = known.of(found)
            if not damage:
                for passed, why in passed_over.items():
                    log.warning("backup %s of %s is passed over: it is damaged: %s", passed, name, why)
                return found
            passed_over[backup_id] = next(iter(damage.values())).message
        elif found is not None:
            passed_over[backup_id] = found.message
    if not passed_over:
        return None
    if len(passed_over) == 1 and isinstance(newest, DamagedBackupError):
        raise newest
    which = f"all {len(passed_over)} backups of {name} are" if len(passed_over) > 1 else f"the only backup of {name} is"
    raise DamagedBackupError(
        f"{which} damaged: {next(iter(passed_over.values()))}",
        findings=tuple(f"{passed}: {why}" for passed, why in passed_over.items()),
        hint=f"`{command('repair', repository.location, 'CHECKPOINT')}` rebuilds what is left elsewhere; or take a new backup. "
        "A backup that is named by its id is taken in any case",
    )


def of_one_stream(repository: Repository, newest: Manifest) -> Manifest:
    """See that all backups of a name are of one stream, where an earlier version of this package made the newest one.

    Since then, a backup of another stream under the name is refused.

    :param newest: the newest one that can be used.
    :return: that one.
    :raises NoSuchBackupError: they are of several streams.
    """
    if newest.query_ids:
        return newest

    def read(backup_id: str) -> Manifest | None:
        try:
            return repository.read_manifest(newest.name, backup_id, with_files=False)
        except (NoSuchBackupError, DamagedBackupError):
            return None  # it is not the latest that is asked for

    others = [i for i in reversed(repository.backup_ids(newest.name)) if i != newest.backup_id]
    streams = streams_among([newest, *filter(None, in_parallel(read, others))])
    if len(streams) > 1:
        each = "; ".join(f"{stream_in_words(stream[0])} (newest: {stream[0].backup_id})" for stream in streams)
        raise NoSuchBackupError(
            f"the backups named {newest.name!r} in {repository.location} are of {len(streams)} streams: {each}",
            hint="give the id of the backup, and back each stream up under a name of its own",
        )
    return newest
