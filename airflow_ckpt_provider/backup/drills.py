"""When a backup was last proven restorable: restored, and run on by the code of production.

Manifests never change, so the proof is a file of its own, ``drills/<name>/<backup id>/<time>.json``.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_ckpt_provider.backup.manifest import CLOCKS_DIFFER
from airflow_ckpt_provider.backup.names import checked_name
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import RefusedError, UntrustedError
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.storage.location import LARGE
from airflow_ckpt_provider.units import shown_time, zoned_time

log = logging.getLogger(__name__)

_DRILLS = "drills"
_TIME = "%Y%m%dT%H%M%SZ"
#: Seconds that no drill takes, nor those that are infinite or no number.
_LONGEST = 10.0**9


@dataclass(frozen=True, slots=True)
class Drill:
    """One proof.

    :param name: name of the stream.
    :param backup_id: the backup that was restored.
    :param at: when, in UTC.
    :param report: the report of the rehearsal.
    """

    name: str
    backup_id: str
    at: datetime
    report: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The proof in a few plain values."""
        return {
            "name": self.name,
            "backup_id": self.backup_id,
            "proven_at": self.at.isoformat(),
            "batch_id": self.report.get("batch_id"),
            "batches": len(self.report.get("batches") or ()),
            "seconds": self.report.get("seconds"),
        }


def record_drill(repository: Repository, report: dict[str, Any]) -> Drill:
    """Keep the proof that a backup was restored and run on.

    :param repository: the repository of the backup.
    :param report: the report of the rehearsal, see ``Rehearsal.to_json``.
    :raises RefusedError: the report does not say that the code continued from the backup.
    """
    name, backup_id = str(report.get("name") or ""), str(report.get("backup_id") or "")
    if not (name and backup_id and report.get("starts")):
        raise RefusedError(
            "the report proves nothing: no code continued from a backup",
            hint="record only a rehearsal that ran batches",
        )
    if "/" in backup_id:
        raise RefusedError(
            f"the report names {backup_id!r} as its backup", hint="take the report that a rehearsal wrote"
        )
    now = datetime.now(UTC).replace(microsecond=0)
    path = f"{_DRILLS}/{checked_name(name)}/{backup_id}/{now.strftime(_TIME)}.json"
    content = {"format": "airflow-ckpt-drill", "version": 1, "proven_at": now.isoformat(), "report": report}
    with suppress(FileExistsError):  # a second one within this second proves no more
        repository.location.create(path, json.dumps(content).encode())
    return Drill(name, backup_id, now, report)


def last_drill(repository: Repository, name: str, *, backup_id: str | None = None) -> Drill | None:
    """The newest proof of a stream, or of one of its backups: one listing and a read. ``None``: it was never proven.

    One that is not signed by a trusted key proves nothing. One that a clock dates in the future counts only if there is no
    other: a machine whose clock was ahead once would hide all later ones.

    :raises RefusedError: the file of the newest proof is damaged.
    """
    newest, ahead = newest_drills(repository, name, now=datetime.now(UTC), backup_id=backup_id)
    return newest or next(iter(ahead), None)


def newest_drills(
    repository: Repository, name: str, *, now: datetime, backup_id: str | None = None
) -> tuple[Drill | None, tuple[Drill, ...]]:
    """The newest proof of a stream, or of one of its backups, and before it those that a clock dates in the future.

    :param repository: the repository.
    :param name: name of the stream.
    :param now: the time.
    :param backup_id: the backup; ``None``: all of them.
    :raises RefusedError: the file of one of these is damaged.
    """
    base = f"{_DRILLS}/{checked_name(name)}" + (f"/{backup_id}" if backup_id else "")
    found = [
        (path.rpartition("/")[2], path.split("/")[-2], path)
        for path in repository.whole_files(base)
        if path.endswith(".json")
    ]
    ahead: list[Drill] = []
    for _, drilled, path in sorted(found, reverse=True):
        try:
            drill = _drill(name, drilled, load_json(repository.location.read_document(path, most=LARGE)))
        except UntrustedError as e:
            log.warning("%s: it is ignored", e.message)
        except (ValueError, KeyError, TypeError) as e:
            raise RefusedError(
                f"{repository.location}/{path} is no record of a drill ({type(e).__name__}: {e})",
                hint="delete this file; the next drill writes another",
            ) from e
        else:
            if drill.at <= now + CLOCKS_DIFFER:
                return drill, tuple(ahead)
            said = f"it is dated {shown_time(drill.at)}, and it is {shown_time(now)} here"
            log.warning("%s/%s: a clock was wrong: %s", repository.location, path, said)
            ahead.append(drill)
    return None, tuple(ahead)


def _drill(name: str, backup_id: str, content: dict[str, Any]) -> Drill:
    """Make the drill of a document; whatever is wrong with it is one of Python's own errors."""
    at, report = zoned_time(content["proven_at"]), dict(content["report"])
    seconds = report.get("seconds")
    if seconds is not None and (type(seconds) not in (int, float) or not 0 <= seconds < _LONGEST):
        raise ValueError(f"it took {seconds!r:.80} seconds")
    if not isinstance(report.get("batches") or [], list):
        raise ValueError(f"its batches are {report['batches']!r:.80}")
    return Drill(name, backup_id, at, report)


def drilled_names(repository: Repository) -> frozenset[str]:
    """Names of the streams of which a backup was ever proven."""
    return frozenset(repository.location.list(_DRILLS).directories)
