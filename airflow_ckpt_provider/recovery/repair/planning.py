"""Planning a repair: from what the doctor found to the minimal cut, as data. Reads only; ``recovery/repair/apply.py`` applies it.

What a cut cannot fix is said to be so: files of two writers, logs that are gone, a format that is not known.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from airflow_ckpt_provider.backup.beside import repair_place
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.id_changes import IdChange
from airflow_ckpt_provider.backup.records import new_plan_id
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.stream_names import stream_name
from airflow_ckpt_provider.change.sealing import sealed_by_another
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.doctor import check, kinds
from airflow_ckpt_provider.checkpoint.doctor.examination import Examination, examine
from airflow_ckpt_provider.checkpoint.doctor.leftovers import abandoned_files, files_beyond
from airflow_ckpt_provider.checkpoint.doctor.operators import is_repartition, names_place, versioned_metadata
from airflow_ckpt_provider.checkpoint.doctor.sources import torn_entries
from airflow_ckpt_provider.checkpoint.findings import Finding, Severity
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import NotACheckpointError, RefusedError, RepositoryError
from airflow_ckpt_provider.recovery.repair.cut import Cut, Search, find_cut, unreadable_entry
from airflow_ckpt_provider.recovery.repair.plan import RepairPlan
from airflow_ckpt_provider.recovery.repair.sources import (
    Backups,
    backups_of_same_history,
    id_given_since,
    query_id_in,
)
from airflow_ckpt_provider.recovery.restore.relocate import (
    absolute_uris,
    holds_absolute_paths,
    original_place,
    relocated,
    spark_uri,
)
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.store import StoredFile
from airflow_ckpt_provider.verdict import Verdict

#: A repair without a repository keeps what it takes away beside the checkpoint, in one made for it.
_SEAL = "repair to batch "
_NOTHING_WRONG = "nothing is wrong with it"
_GOES_ON = "The query continues where it was."
_LEFT = ("Else only a restore of an older backup is left, or a reset: a new checkpoint and a decision where to begin.",)
#: What no cut fixes, as there is nothing to go by.
_HOPELESS = frozenset({kinds.TWO_WRITERS.code, kinds.STATE_WITHOUT_LOGS.code, kinds.FORMAT_UNKNOWN.code})


def plan_repair(
    checkpoint: Checkpoint,
    *,
    repository: Repository | None = None,
    name: str | None = None,
    query_id: str | None = None,
    contents: bool = True,
    seal_id: str | None = None,
) -> RepairPlan:
    """Find the minimal cut; reads only.

    A repair that was killed is found by its seal, and resumed.

    :param checkpoint: the checkpoint.
    :param repository: where missing files may be fetched from, and where what is taken away is kept; by default nothing is
        fetched, and it is kept beside the checkpoint.
    :param name: name of the stream in the repository; by default the one that the checkpoint has there.
    :param query_id: the query's id, where ``metadata`` is lost.
    :param contents: read state files to find damage in them.
    :param seal_id: id under which the checkpoint was sealed already, to stop its query; the plan takes it.
    :raises NotACheckpointError: there is no checkpoint.
    :raises SealedError: something else has sealed it.
    :raises RefusedError: the query id is no UUID; it is sealed by a repair that was begun with another repository.
    """
    if query_id:
        query_id = _checked_id(query_id)
    location = checkpoint.location
    there = inspect_target(location)
    if there.seal and there.seal.plan_id != seal_id:
        return _continued(there.seal, location, repository)
    tree = Tree.of(location)
    if not {"offsets", "commits", "metadata", "state"} & {*tree.directories(), *tree.files()}:
        raise NotACheckpointError(f"{location} is not a checkpoint", hint="give the checkpointLocation of the query")
    seen = examine(tree, contents=contents)
    findings = check(seen)
    backups = backups_of_same_history(repository, seen, name=name, query_id=query_id) if repository else None
    since = None
    if repository and backups and backups.query_id and not (query_id or query_id_in(seen)):
        since = id_given_since(backups.query_id, location, repository)
    if repository and since:
        query_id = since.new or None  # a reset to a new checkpoint does not know the id that Spark has made
        backups = backups_of_same_history(repository, seen, name=name, query_id=since.new or f"after {since.plan_id}")
    plan = RepairPlan(
        plan_id=seal_id or new_plan_id(),
        name=stream_name(repository, location, name),
        checkpoint=location.uri,
        batch_id=None,
        exact_replay=False,
        replayed=0,
        deletes=(),
        fetches=(),
        rewrites={},
        verdict=Verdict.UNKNOWN,
        reasons=(),
        findings=tuple(finding.to_json() for finding in findings),
        fingerprint=there.fingerprint,
        before={path: file.size for path, file in there.visible.items()},
    )
    if not findings:
        # What nobody finds fault with is left as it is, whatever a search for a cut would prefer.
        return replace(plan, **_as_it_stands(seen), verdict=Verdict.SAFE, reasons=(_NOTHING_WRONG,))
    hopeless = [f for f in findings if f.kind.code in _HOPELESS and f.severity in (Severity.SILENT, Severity.ERROR)]
    if hopeless:
        return replace(
            plan, verdict=Verdict.WILL_FAIL, reasons=tuple(f"{f.message}. {f.kind.remedy}" for f in hopeless)
        )
    return _planned(plan, seen, findings, backups, query_id, since)


def _as_it_stands(seen: Examination) -> dict[str, Any]:
    """The batch after which Spark continues, -1 before the first; and whether it runs the next one as it was planned."""
    newest = max(seen.committed, default=-1)
    return {"batch_id": newest, "exact_replay": newest + 1 in seen.logged}


def _planned(
    plan: RepairPlan,
    seen: Examination,
    findings: tuple[Finding, ...],
    backups: Backups | None,
    query_id: str | None,
    since: IdChange | None,
) -> RepairPlan:
    elsewhere = backups.files() if backups else []
    known = {file.path for file, _ in elsewhere}
    debris = tuple(file.path for file in abandoned_files(seen.tree))
    bad = [f for f in findings if f.severity in (Severity.SILENT, Severity.ERROR)]
    identity = _metadata(query_id) if query_id else None
    if identity is not None and METADATA_FILE not in known:
        elsewhere.append((StoredFile(METADATA_FILE, len(identity), identity="given"), lambda: identity))
    broken = _broken_files(seen, findings)
    search = find_cut(seen, elsewhere, broken=broken, contents=seen.contents)
    if not bad and (search.cut is None or search.cut.moved):
        # Spark continues from it rightly: no batch is given up for what is only untidy.
        holes = _holes_filled(findings, backups)
        return replace(
            plan,
            **_as_it_stands(seen),
            deletes=tuple(sorted(set(debris) - {entry.path for entry, _ in holes})),
            fetches=holes,
            verdict=Verdict.SAFE,
            reasons=(_GOES_ON,),
        )
    if search.cut is None:
        return replace(plan, verdict=Verdict.WILL_FAIL, reasons=_why_not(seen, findings, search, backups))
    cut = search.cut
    taken = {file.path: backups.entry(file) for file in cut.elsewhere} if backups else {}
    filled = {fetch[0].path: fetch for fetch in _holes_filled(findings, backups)}
    fetches = tuple(fetch for _, fetch in sorted({**filled, **taken}.items()) if fetch is not None)
    rewrites = _rewrites(seen, cut, fetches, backups)
    if (
        any(file.path == METADATA_FILE for file in cut.elsewhere)
        and identity is not None
        and METADATA_FILE not in known
    ):
        rewrites[METADATA_FILE] = identity
    if bad and not (cut.deletes or fetches or rewrites):
        reasons = tuple(f"{finding.message}. No change of files fixes it." for finding in bad)
        return replace(plan, verdict=Verdict.WILL_FAIL, reasons=(*reasons, *_LEFT))
    given_up = any(f.kind is kinds.REPARTITION_UNFINISHED for f in findings)  # it is not run again, by nobody
    newest = max((*seen.logged, *seen.committed), default=-1) - given_up
    doubts = tuple(_doubts([fetch for fetch in taken.values() if fetch], backups, query_id))
    verdict = _verdict(seen, cut)
    by_record = METADATA_FILE in rewrites and since is not None
    return replace(
        plan,
        batch_id=cut.batch_id,
        exact_replay=cut.exact_replay,
        replayed=max(newest - cut.batch_id, 0),
        deletes=tuple(sorted({*cut.deletes, *debris} - {e.path for e, _ in fetches} - set(rewrites))),
        fetches=tuple(fetch for fetch in fetches if fetch[0].path not in rewrites),
        rewrites=rewrites,
        verdict=Verdict.UNKNOWN if doubts and verdict is Verdict.SAFE else verdict,
        reasons=(
            *_reasons(seen, cut, search, findings),
            *([f"The query id is the one that {since.kind} {since.plan_id} gave."] if since and by_record else []),
            *doubts,
        ),
        doubts=doubts,
    )


def _doubts(taken: list[tuple[FileEntry, str]], backups: Backups | None, query_id: str | None) -> Iterator[str]:
    """Why what comes from backups may not be what the checkpoint has lost."""
    if backups is None:
        return
    made = [(entry, backup_id) for entry, backup_id in taken if entry.path.startswith(("state/", "sources/"))]
    strange = sorted({backup_id for _, backup_id in made} - backups.of_this_run)
    if strange:
        yield (
            f"Whether backup {', '.join(strange)} is of the run that the checkpoint continues is not known: its newest batch "
            "was written again since, or is missing. If batches ran again with other code, its state is another one."
        )
    fetched = next((backup_id for entry, backup_id in taken if entry.path == METADATA_FILE), None)
    if fetched and not query_id:
        yield (
            f"The query id is that of backup {fetched}. A reset or rewind that this repository does not know may have given "
            "another one since; with an old one the sink skips batches silently. Take it from the logs of the last run "
            "(`Query [id = …`) and give it (query_id / --query-id)."
        )


def _metadata(query_id: str) -> bytes:
    return json.dumps({"id": query_id}, separators=(",", ":")).encode()


def _checked_id(query_id: str) -> str:
    try:
        return str(uuid.UUID(query_id))
    except ValueError as e:
        raise RefusedError(
            f"the query id {query_id!r} is no UUID", hint="take it from the logs of a former run: `Query [id = …`"
        ) from e


def _broken_files(seen: Examination, findings: tuple[Finding, ...]) -> set[str]:
    """Files that are there and cannot be read, besides log entries and state."""
    unreadable = {f.path for f in findings if f.kind is kinds.QUERY_ID_MISSING and seen.tree.get(f.path) is not None}
    return unreadable | set(torn_entries(seen))


def _holes_filled(findings: tuple[Finding, ...], backups: Backups | None) -> tuple[tuple[FileEntry, str], ...]:
    """Older log entries that Spark does not need and a backup has: fetching them loses nothing."""
    paths = {f"{OFFSETS}/{b}" for f in findings if f.kind is kinds.OFFSETS_HOLE for b in f.figures["batches"]}
    paths |= {f.path for f in findings if f.kind is kinds.LOG_FILE_TORN and f.severity is Severity.WARNING}
    filled = []
    for path in sorted(paths) if backups else ():
        of_path = backups.entries.get(path, ()) if backups else ()
        readable = (found for found in of_path if backups and unreadable_entry(backups.read(found[0]), path) is None)
        filled += [found for found in [next(readable, None)] if found is not None]
    return tuple(filled)


def _rewrites(
    seen: Examination, cut: Cut, fetches: tuple[tuple[FileEntry, str], ...], backups: Backups | None
) -> dict[str, bytes]:
    """Operator metadata that names another place, for this one."""
    location = seen.tree.location
    fetched = {entry.path: entry for entry, _ in fetches}
    gone = set(cut.deletes)
    rewritten = {}
    for path in sorted({*versioned_metadata(seen), *filter(holds_absolute_paths, fetched)} - gone):
        entry, file = fetched.get(path), seen.tree.get(path)
        content = backups.read(entry) if entry and backups else seen.tree.read(file) if file else b""
        original = original_place(content, path=path)
        uris = absolute_uris(content, path=path)
        if original is not None and not all(names_place(uri, location) for uri in uris):
            rewritten[path] = relocated(content, path=path, target=spark_uri(location, like=original))
    return rewritten


def _verdict(seen: Examination, cut: Cut) -> Verdict:
    """``SAFE`` only where nothing is run again that can have reached the sink, beyond what Spark does anyway."""
    newest = seen.latest_logged
    if not cut.moved or (newest == cut.batch_id + 1 and _is_repartition(seen, newest)):
        return Verdict.SAFE
    undone = [b for b in (*seen.logged, *seen.committed) if b > cut.batch_id]
    only_planned = max(undone, default=-1) == cut.batch_id + 1 and cut.batch_id + 1 not in seen.committed
    if only_planned and seen.has_state and not any(files_beyond(seen.tree, cut.batch_id + 1)):
        return Verdict.SAFE  # it never wrote its state, which it does before its rows
    return Verdict.UNKNOWN


def _is_repartition(seen: Examination, batch_id: int) -> bool:
    entry, before = seen.offsets.get(batch_id), seen.offsets.get(batch_id - 1)
    return entry is not None and before is not None and is_repartition(entry, before)


def _reasons(seen: Examination, cut: Cut, search: Search, findings: tuple[Finding, ...]) -> tuple[str, ...]:
    after = cut.batch_id
    tried = sorted(((batch, why) for batch, why in search.failures.items() if batch != after), reverse=True)
    reasons = [f"batch {batch} is no target: {why}" for batch, why in tried[:5]]
    if cut.elsewhere and not cut.moved:
        reasons.append("What is missing comes back: nothing is lost and nothing is run again.")
    if not cut.moved:
        return (*reasons, _GOES_ON)
    reasons.append(f"The query continues after batch {after}; its sources must still have what comes after it.")
    if any(f.kind is kinds.REPARTITION_UNFINISHED for f in findings):
        return (*reasons, f"The repartition that was batch {after + 1} is given up; it can be begun again.")
    if _verdict(seen, cut) is Verdict.SAFE:
        return (*reasons, f"Batch {after + 1} had not been run: it is only planned again.")
    reasons.append(
        f"The sink is not read. If it has batches after {after}, foreachBatch, Kafka and foreach sinks get them a second "
        "time, which only an idempotent sink (MERGE by key, overwrite by batch id) puts right; a Delta table or file sink "
        "written directly skips them silently (`airflow-ckpt rewind` rolls such a sink back as well)."
    )
    if any(path.startswith("sources/") for path in cut.deletes):
        reasons.append(
            "Files of a file source that are read again must still lie in its directory: those that were deleted or archived "
            "since (cleanSource) would be lost."
        )
    return tuple(reasons)


def _why_not(
    seen: Examination, findings: tuple[Finding, ...], search: Search, backups: Backups | None
) -> tuple[str, ...]:
    tried = sorted(search.failures, reverse=True)
    reasons = []
    if tried:
        reasons.append(f"No batch from {tried[-1]} to {tried[0]} can be continued after: {search.failures[tried[0]]}")
    else:
        reasons.append("No batch has both its offsets and its commit.")
    if any(f.kind is kinds.QUERY_ID_MISSING for f in findings):
        reasons.append(
            "The query id is lost. With a new one exactly-once sinks take the query for another and write again what is "
            "replayed: give the old one (query_id / --query-id), which every log of a former run names (`Query [id = …`)."
        )
    if backups is None:
        reasons.append("A backup may have what is missing: give its repository (repository / --repository).")
    elif not backups.entries:
        reasons.append("The repository has no backup of this history: same query id, and the same log entries.")
    else:
        reasons += _rejected(search, backups)
        reasons.append("The backups in the repository do not have what is missing either.")
    return (*reasons, *_LEFT)


def _rejected(search: Search, backups: Backups) -> list[str]:
    """What backups have and cannot be put back, for it is damaged there too."""
    found = [(fetch, why) for file, why in search.rejected.items() if (fetch := backups.entry(file))]
    return [
        f"{entry.path} of backup {backup_id} is damaged too: {why.removeprefix(f'{entry.path}: ')}"
        for (entry, backup_id), why in found[:5]
    ]


def _continued(seal: Seal, location: Location, repository: Repository | None) -> RepairPlan:
    """Continue with a repair that was killed; its plan was kept before its seal was set."""
    if not seal.reason.startswith(_SEAL):
        raise sealed_by_another(location.uri, seal)
    try:
        document = (repository or Repository.open(repair_place(location))).kept_plan(seal.plan_id)
    except RepositoryError:
        document = None
    if document is None:
        raise RefusedError(
            f"{location} is sealed by the repair {seal.plan_id}, which was begun with another repository",
            hint="give the same repository as then, and the repair continues where it was stopped",
        )
    return RepairPlan.of_document(document)
