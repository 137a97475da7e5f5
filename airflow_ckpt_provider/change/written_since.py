"""Whether somebody has written to a place since a change was stopped half-way in it.

While the seal of an attempt is there, no query starts. Where somebody has lifted it, a query may have run: its files have the
names of those that the change was to remove, and nothing may be removed or put back by name any more.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Collection, Mapping
from typing import Any

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.set_aside import SetAside
from airflow_ckpt_provider.change.target import Target
from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.errors import RefusedError, command


def check_not_written_since(now: Target, aside: SetAside, document: Mapping[str, Any], repository: Repository) -> None:
    """See that every file is one that was there before the change, or one that the change writes.

    :param now: the place as it is.
    :param aside: what the change has set aside of it.
    :param document: the plan of the change, as it is kept in the repository.
    :param repository: the one that the change was carried out with.
    :raises RefusedError: a file is neither: a query was started since.
    """
    found = written_since(now, aside, document, repository)
    if found is None:
        return
    kind, plan_id, place = document.get("kind"), document["plan_id"], now.location
    give_up = (
        f"to keep what was written since, lift the seal: `{command('unseal', place, '--plan', now.seal.plan_id)}`"
        if now.seal
        else f"restore a backup, or run the same {kind} again"
    )
    kept = f"what the {kind} removed is in the repository, in {aside.place}/files"
    raise RefusedError(
        f"the seal of {kind} {plan_id} was lifted half-way, and {place}/{found} was written since: to continue with it, or to "
        "put the old files back, would mix two histories; nothing was changed",
        hint=f"stop the query; {give_up}" + (f"; {kept}" if aside.sizes else ""),
    )


def written_since(now: Target, aside: SetAside, document: Mapping[str, Any], repository: Repository) -> str | None:
    """A file that neither was there before nor is what the change writes; ``None`` if there is none.

    Parameters: see :func:`check_not_written_since`.
    """
    kept, left, written = aside.sizes or {}, aside.left, written_by(document, repository)
    if left is None and not document.get("before"):
        return first_run_since(now, document, known={*kept, *written})
    for path, file in now.visible.items():
        if path in kept:
            if file.size == kept[path] and aside.is_kept(path, now.location.read(path)):
                continue
        elif left is not None and path in left:
            if left[path] == file.identity:
                continue
        elif left is None and document.get("before", {}).get(path) == file.size:
            continue  # plans of earlier versions noted no more than sizes; and nothing was changed before files were set aside
        if written.get(path) != file.size:
            return path
    return None


def first_run_since(now: Target, document: Mapping[str, Any], known: Collection[str] = ()) -> str | None:
    """A batch that was logged or committed since a repair of version 0.1.0, which did not note what was there before.

    A batch that is run again is logged already; it shows by its commit.

    :param now: the place as it is.
    :param document: the plan of the repair.
    :param known: paths that the repair removes or writes.
    :return: the path of its log entry; ``None`` if there is none.
    """
    batch = document.get("batch_id")
    if not isinstance(batch, int):
        return OFFSETS  # not known
    allowed = {OFFSETS: batch + 1 if document.get("exact_replay") else batch, COMMITS: batch}
    for log, newest in allowed.items():
        for path in now.visible.files(log):
            number = batch_id_of(path)
            if number is not None and number > newest and f"{log}/{path}" not in known:
                return f"{log}/{path}"
    return None


def written_by(document: Mapping[str, Any], repository: Repository) -> dict[str, int]:
    """Path -> size of what a plan writes, as far as its document and the backup that it restores say.

    :raises NoSuchBackupError: the backup that it restores is needed and was removed.
    """
    found: dict[str, int] = {}
    if document.get("kind") == "restore" and len(document.get("written") or ()) < int(document.get("files", 0)):
        manifest = repository.manifest(str(document["backup_id"]), name=str(document["name"]))
        found |= {entry.path: entry.size for entry in manifest.files}
    writes = document.get("writes") or {}
    if isinstance(writes, Mapping):
        found |= {str(path): int(size) for path, size in writes.items()}
    else:
        found |= {str(entry["path"]): int(entry["size"]) for entry in writes}
    found |= {str(entry["path"]): int(entry["size"]) for entry in document.get("fetches") or ()}
    found |= {str(path): len(b64decode(text)) for path, text in dict(document.get("rewrites") or {}).items()}
    found |= {str(path): int(size) for path, size in (document.get("written") or {}).items()}
    return found
