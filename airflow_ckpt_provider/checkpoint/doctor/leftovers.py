"""Checks for what should not be there: temporary files, and state of batches that nobody logged."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.doctor import kinds
from airflow_ckpt_provider.checkpoint.doctor.examination import Examination
from airflow_ckpt_provider.checkpoint.findings import Finding, Severity
from airflow_ckpt_provider.checkpoint.operators import STATE
from airflow_ckpt_provider.checkpoint.state_files import RESERVED, StateFiles, state_files
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.storage.store import StoredFile
from airflow_ckpt_provider.units import format_size

#: ``.<final name>.<uuid>[.TID<task attempt>].tmp`` (``CheckpointFileManager.generateTempPath``).
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(\.TID\d+)?\.tmp")
#: A younger one may belong to a writer that is at work.
_AT_WORK = timedelta(minutes=1)


def temporary_files(seen: Examination) -> Iterator[Finding]:
    """7: what a writer that was killed left behind."""
    found = abandoned_files(seen.tree)
    if found:
        size = sum(file.size for file in found)
        yield Finding(
            kinds.TEMPORARY_FILES,
            found[0].path,
            f"{len(found)} temporary files, {format_size(size)}",
            figures={"files": len(found), "bytes": size, "paths": [f.path for f in found[:20]]},
        )


def abandoned_files(tree: Tree) -> list[StoredFile]:
    """Temporary files that nobody is writing any more: older than the newest commit, or than a minute."""
    batches = tree.batches(COMMITS)
    newest = tree.get(f"{COMMITS}/{batches[-1]}") if batches else None
    now = datetime.now(UTC)

    def is_abandoned(file: StoredFile) -> bool:
        if file.modified is None or now - file.modified > _AT_WORK:
            return True
        return newest is not None and newest.modified is not None and file.modified < newest.modified

    names = sorted(p for p in tree.hidden if _TEMPORARY.fullmatch(p.rpartition("/")[2]))
    return [tree.hidden[path] for path in names if is_abandoned(tree.hidden[path])]


def stale_versions(seen: Examination) -> Iterator[Finding]:
    """9: state versions beyond what the newest logged batch can have written."""
    logged = [b for b in (seen.latest_logged, seen.latest_committed) if b is not None]
    if not logged or seen.is_continuous:
        return
    highest = max(logged) + 1
    stale = list(files_beyond(seen.tree, highest))
    if not stale:
        return
    harmful = [file for store, file in stale if _is_loaded(store, file)]
    figures = {"files": len(stale), "highest_version": highest, "paths": [f.path for _, f in stale[:20]]}
    if harmful:
        yield Finding(
            kinds.STATE_STALE_VERSIONS,
            harmful[0].path,
            f"{len(stale)} state files of versions above {highest}, snapshots among them, though batch {max(logged)} is the "
            "newest",
            figures=figures,
        )
        return
    yield Finding(
        kinds.STATE_STALE_VERSIONS,
        stale[0][1].path,
        f"{len(stale)} state files of versions above {highest}, though batch {max(logged)} is the newest",
        figures=figures,
        effect="Writes over them as it gets there, or never reads them. Its maintenance counts from the highest version on "
        "disk, and may delete older files that are still needed.",
        remedy="`--repair` deletes them.",
        level=Severity.WARNING,
    )


def all_stores(tree: Tree) -> Iterator[StateFiles]:
    """The state files of every directory of a partition or store on disk, whether it should be there or not."""
    for operator in tree.numbered_directories(STATE):
        for partition in tree.numbered_directories(f"{STATE}/{operator}"):
            directory = f"{STATE}/{operator}/{partition}"
            yield state_files(directory, tree.files(directory))
            for name in tree.directories(directory):
                if name not in RESERVED:
                    yield state_files(f"{directory}/{name}", tree.files(f"{directory}/{name}"))


def files_beyond(tree: Tree, version: int) -> Iterator[tuple[StateFiles, StoredFile]]:
    """State files of versions above ``version``, with the store each is in."""
    for store in all_stores(tree):
        for kind in (store.deltas, store.snapshots, store.zips, store.changelogs):
            for of, file in sorted(kind.items(), key=lambda item: (item[0].number, item[0].unique_id or "")):
                if of.number > version:
                    yield store, file


def _is_loaded(store: StateFiles, file: StoredFile) -> bool:
    """Whether Spark would load the file in place of what the new run writes (format reference, 4.3).

    A snapshot is not written again with the batch, a delta or changelog is; without changelogs a zip is too; and in state
    checkpoint format 2 only what a commit names is ever read.
    """
    if file.path.endswith(".snapshot"):
        return True
    with_id = any(v.unique_id is not None for v in store.zips)
    return file.path.endswith(".zip") and bool(store.changelogs) and not with_id
