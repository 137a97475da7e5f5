"""The newest report of a fleet, kept in the repository for whoever has no access to the checkpoints: the page.

``reports/<writer>.json``: what :meth:`~airflow_ckpt_provider.fleet.fleet.Fleet.to_json` says, and of each stream the oldest batch
that its checkpoint still has. One file for each writer, replaced by its next report. Nothing decides by it: it is shown.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, parse_offsets
from airflow_ckpt_provider.errors import CkptError
from airflow_ckpt_provider.fingerprint import fingerprint_of
from airflow_ckpt_provider.fleet.discovery import said
from airflow_ckpt_provider.fleet.fleet import Fleet
from airflow_ckpt_provider.fleet.stream import Stream
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.storage.location import SMALL
from airflow_ckpt_provider.units import format_size, zoned_time

log = logging.getLogger(__name__)

#: Directory of the reports in a repository.
REPORTS = "reports"
_FORMAT, _VERSION = "airflow-ckpt-fleet-report", 1
#: Batches that a running query may have purged since its checkpoint was listed.
_PURGED_SINCE = 5
#: Writers whose reports are read; a repository has one or a few.
_MOST = 50


@dataclass(frozen=True, slots=True)
class Reports:
    """The reports that are kept in a repository.

    :param found: those that can be read, newest first.
    :param unread: what is wrong with each other one, in words: what it says of its streams is not known.
    """

    found: tuple[dict[str, Any], ...]
    unread: tuple[str, ...] = ()


def keep_report(repository: Repository, fleet: Fleet, *, writer: str) -> None:
    """Keep a report in the place of the one before by the same writer.

    :param repository: where the backups of the streams are.
    :param fleet: the report.
    :param writer: who reports on these streams regularly, such as a task of a DAG.
    :raises CkptError: the repository cannot be written to.
    """
    document = fleet.to_json()
    oldest = in_parallel(_oldest, fleet.streams)
    rows = [{**row, "oldest": each} for row, each in zip(document["streams"], oldest, strict=True)]
    content = {"format": _FORMAT, "version": _VERSION, "writer": writer, **document, "streams": rows}
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", writer)[:80]
    path = f"{REPORTS}/{name}-{fingerprint_of(writer)[:8]}.json"
    repository.location.replace(path, json.dumps(content, separators=(",", ":")).encode())


def _oldest(stream: Stream) -> dict[str, Any] | None:
    """The oldest batch that the checkpoint can be rewound to by itself, with the time when it was planned."""
    progress = stream.found.progress
    both = sorted({*progress.logged} & {*progress.committed}) if progress else []
    if not both:
        return None
    for batch in both[:_PURGED_SINCE]:
        # Purged since, by a query that runs; or the store said no: it is only shown.
        with suppress(CkptError, OSError):
            entry = parse_offsets(stream.found.place.read(f"{OFFSETS}/{batch}"), batch_id=batch)
            return {"batch_id": batch, "batch_time": entry.time.isoformat() if entry.time else None}
    return {"batch_id": both[0], "batch_time": None}


def read_reports(repository: Repository) -> Reports:
    """The reports that are kept. Half a file that a killed process left has a hidden name, and is none."""
    files = [file for file in repository.location.list(REPORTS).files if not file.path.startswith(f"{REPORTS}/.")]
    found = []
    unread = (
        [f"{len(files) - _MOST} more reports are not read, but for the first {_MOST}"] if len(files) > _MOST else []
    )
    for file in files[:_MOST]:
        try:
            if file.size > SMALL:  # whoever opens the page would fill the memory of Airflow's server
                raise ValueError(f"it has {format_size(file.size)}, and may have {format_size(SMALL)}")
            report = repository.read_object(file.path, "writer", time="looked_at")
            if report.get("format") != _FORMAT or not isinstance(report.get("streams"), list):
                raise ValueError("it is no report of a fleet")
            found.append((zoned_time(report["looked_at"]), report))
        except FileNotFoundError:
            continue  # removed since it was listed
        except (CkptError, OSError, ValueError) as e:
            unread.append(f"report {file.path} cannot be used: {said(e)}")
    for each in unread:
        log.warning("%s: %s", repository.location, each)
    return Reports(tuple(report for _, report in sorted(found, key=lambda each: each[0], reverse=True)), tuple(unread))


def rows_of(reports: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each checkpoint, of the newest report that has it, by name; ``looked_at`` says how old it is."""
    rows: dict[str, dict[str, Any]] = {}
    for report in reports:
        for row in report["streams"]:
            if isinstance(row, Mapping) and isinstance(row.get("checkpoint"), str):
                rows.setdefault(row["checkpoint"], {**row, "looked_at": report["looked_at"]})
    return sorted(rows.values(), key=lambda row: (str(row.get("name")), row["checkpoint"]))
