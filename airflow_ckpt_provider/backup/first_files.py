"""The file that a source wrote once, at its first start, as a backup has it."""

from __future__ import annotations

import logging

from airflow_ckpt_provider.backup.content_checks import read_content
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.source_offsets import RateOffset
from airflow_ckpt_provider.checkpoint.sources import SOURCES, log_directory
from airflow_ckpt_provider.errors import CkptError

log = logging.getLogger(__name__)


def first_files(repository: Repository, manifest: Manifest, batch_id: int) -> dict[str, bytes]:
    """``sources/<n>/0`` of the sources that may be of Spark's format ``rate``: source -> content.

    :param repository: holds the backup.
    :param manifest: the backup.
    :param batch_id: one of its batches.
    """
    offsets = manifest.facts.get("end_offsets", ())
    names = [str(each.get("name", each.get("index"))) for each in offsets]
    wanted = [name for name, each in zip(names, offsets, strict=True) if each.get("kind") == RateOffset.kind]
    if not wanted:
        return {}
    entries = {entry.path: entry for entry in manifest.files_of(batch_id) if entry.path.startswith(f"{SOURCES}/")}
    directories = {path.split("/")[1] for path in entries}
    found = {}
    for name in wanted:
        entry = entries.get(f"{SOURCES}/{log_directory(name, len(names), directories)}/0")
        try:
            if entry is not None:
                found[name] = read_content(repository, entry)
        except CkptError as e:
            log.info("%s", e)
    return found
