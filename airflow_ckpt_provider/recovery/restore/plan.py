"""The plan of a restore: what it would do, and what somebody has to accept."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from airflow_ckpt_provider.backup.content_checks import check_contents, content_damage, is_computable
from airflow_ckpt_provider.backup.damaged import read_damaged
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.file_table import FileTable, paths_of
from airflow_ckpt_provider.backup.kept_contents import KeptContents
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.notes import note_damage
from airflow_ckpt_provider.backup.pack_reads import MovedContents
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.unchanged import COMMIT_FILE, written_as
from airflow_ckpt_provider.backup.verify import check_structure, refuse_findings
from airflow_ckpt_provider.change.edits import Edits, Write, entry_writes, literal_writes
from airflow_ckpt_provider.change.fail_closed_order import is_log
from airflow_ckpt_provider.change.plan import Plan, Risk, chain_command, undo_command
from airflow_ckpt_provider.change.plan_page import accept_block, plan_page
from airflow_ckpt_provider.change.risks import sink_risk
from airflow_ckpt_provider.change.target import Target, expect_files
from airflow_ckpt_provider.checkpoint.closure import resolve_closure
from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import StorageError, command
from airflow_ckpt_provider.fingerprint import fingerprint_of
from airflow_ckpt_provider.parallel import in_order, side_by_side
from airflow_ckpt_provider.recovery.flows.flow import flow_words
from airflow_ckpt_provider.recovery.restore.sink_answer import SinkAnswer
from airflow_ckpt_provider.sinks.report import WITHOUT_MEMORY
from airflow_ckpt_provider.storage.file_set import FEW, FileSet
from airflow_ckpt_provider.storage.store import StoredFile
from airflow_ckpt_provider.units import format_size, format_time
from airflow_ckpt_provider.verdict import Verdict

#: How the reason of its seal ends, once it has begun.
INTO_EMPTY = "into an empty place"
REPLACING = "replacing what was there"


@dataclass(frozen=True, slots=True)
class RestorePlan(Plan):
    """What a restore would do.

    :param plan_id: its id; the seal carries it.
    :param manifest: the backup.
    :param batch_id: the batch that is restored; the next to run is one more.
    :param target: the place, as it was when the plan was made.
    :param entries: files to write.
    :param rewritten: contents that differ from the backup's because they name absolute places, by path.
    :param target_uri: the target as Spark names it, where that was given; empty: it is derived.
    :param replace: whether what is there may be replaced.
    :param replacing: whether there was something to replace when the restore began.
    :param already_done: the target is exactly what the plan wants.
    :param sink: what the sink says to a start after the batch, and why; ``None`` where it was not asked.
    :param kept_before: where an attempt of an earlier version of this package has kept what is replaced.
    :param continued: it was begun before, and is resumed.
    :param observed: URI of the former version of a flow, where the target is its next one; else empty.
    :param other_query: id of the query whose checkpoint is replaced, or that the flow ran as before, or that was backed up from
        this place under another name, if it is not known to be the backup's query; else empty.
    :param not_compared: why it is not known whether the place is another stream's; else empty.
    :param chain: the restore of several streams that it is a part of: see
        :func:`~airflow_ckpt_provider.change.plan.chain_command`; ``None``: it is a restore of its own.
    :param is_prepared: the backup was found whole already, and is kept from being pruned.
    :param kept: gets the contents that :meth:`prepare` reads, so that they are not read again to be written; ``None``: they
        are.
    """

    plan_id: str
    repository: Repository
    manifest: Manifest
    batch_id: int
    target: Target
    entries: Sequence[FileEntry]
    rewritten: dict[str, bytes]
    replace: bool
    replacing: bool
    already_done: bool
    target_uri: str = ""
    sink: SinkAnswer | None = None
    kept_before: str | None = None
    continued: bool = False
    observed: str = ""
    other_query: str = ""
    not_compared: str = ""
    chain: Mapping[str, str] | None = None
    is_prepared: bool = False
    kept: KeptContents | None = field(default=None, repr=False, compare=False)

    kind: ClassVar[str] = "restore"

    @property
    def name(self) -> str:
        """Name of the stream in the repository."""
        return self.manifest.name

    @property
    def checkpoint(self) -> str:
        """URI of the target."""
        return self.target.location.uri

    @property
    def fingerprint(self) -> str:
        """Of the target when the plan was made."""
        return self.target.fingerprint

    @property
    def sets_aside(self) -> bool:
        """Whether what is replaced has still to be kept."""
        return self.kept_before is None

    @property
    def risks(self) -> tuple[Risk, ...]:
        """What has to be accepted: that another query's checkpoint is, or was, there, and what a named sink does, or may do."""
        return (*(() if self.already_done else self._risk_of_query), *self._risks_of_sinks)

    @property
    def _holder(self) -> str:
        """What the other query's was: a checkpoint that is there, or that was backed up from there."""
        return "the former version of the flow holds" if self.observed else "the target belongs to"

    @property
    def _risk_of_query(self) -> tuple[Risk, ...]:
        if not self.other_query:
            return ()
        m = self.manifest
        why = (
            f"{self._holder} query {self.other_query}, and the backup is of query {m.query_id} of {m.checkpoint}; nothing "
            "shows that they are one stream"
        )
        return (Risk("other_query", why),)

    @property
    def _risks_of_sinks(self) -> Iterator[Risk]:
        """One for each thing that a sink does, the worst first: none hides behind that of another sink."""
        if self.sink is None:
            return
        rewind = self._rewind_of_sinks
        # Without a checkpoint at the target there is nothing yet that could be rewound.
        first = (
            ""
            if self.target.is_checkpoint
            else "accept it, restore, do not start the query, and rewind what was restored: "
        )
        way = f"to roll the sink back too: {first}`{rewind}`" if rewind else ""
        for verdict, reasons in self.sink.by_verdict.items():
            word = sink_risk(verdict)
            if word is not None:
                yield Risk(word, "; ".join(reasons), way)

    @property
    def _rewind_of_sinks(self) -> str:
        """The command that rolls the sinks back to the batch; empty if no sink is named or none keeps a memory of batches."""
        if self.sink is None:
            return ""
        sinks = self.sink.sinks or [("SINK", "", self.sink.verdict)]
        if all(kind in WITHOUT_MEMORY for _, kind, _ in sinks):
            return ""
        return command(
            *("rewind", self.checkpoint, "--to-batch", self.batch_id, "--repository", self.repository.location),
            *(word for uri, _, _ in sinks for word in ("--sink", uri)),
            *("--sink-policy", "rollback"),
        )

    @property
    def next_step(self) -> str:
        """What to do once it is restored: start the query, or first roll a sink back that would skip or double rows."""
        if self.sink and self.sink.verdict is not Verdict.SAFE and self._rewind_of_sinks:
            verdict = self.sink.verdict.value
            return f"roll the sink back before you start the query ({verdict} otherwise): {self._rewind_of_sinks}"
        return f"start the query: it continues with batch {self.batch_id + 1}"

    @property
    def writes_offsets(self) -> Collection[str]:
        """Paths in ``offsets/`` that will be written."""
        return [entry.path for entry in self.entries if entry.path.startswith(f"{OFFSETS}/")]

    def prepare(self, *, workers: int) -> None:
        """See that the backup is whole before anything is changed.

        Objects that the store copies itself are compared by the checksum that it vouches for; what comes out of the copy is
        compared again. All others are read, and so is what was found damaged before. What is found is noted. Small contents
        that are right are kept in memory, as far as they fit.
        """
        if self.is_prepared:
            return
        name = self.manifest.name
        found, known = side_by_side(
            lambda: check_structure(self.repository, self.manifest, self.entries),
            lambda: read_damaged(self.repository.location, name).objects,
        )
        wrong = {damage.path for damage in found}
        moved = MovedContents(self.repository)

        def is_read(entry: FileEntry) -> bool:
            if entry.path in wrong:
                return False
            return not self._is_copied(entry) or entry.object in known or moved.now(entry.object) != entry.object

        read = self.entries if all(map(is_read, self.entries)) else FileTable(name, filter(is_read, self.entries))
        found += check_contents(self.repository, read, workers=workers, moved=moved, kept=self.kept)
        note_damage(self.repository, self.manifest, found)
        refuse_findings(self.manifest, found)

    def _is_copied(self, entry: FileEntry) -> bool:
        """Whether the store copies an object to the target by itself."""
        repository, target = self.repository.location, self.target.location
        if entry.checksum is None or entry.path in self.rewritten:
            return False
        return target.store.copies_within and target.store.same_as(repository.store)

    def edits(self, there: Target, repository: Repository) -> Edits:
        """Remove all that is there and differs, hidden files too; write the files of the backup."""
        unchanged = self._unchanged(there)
        seal = there.seal.path if there.seal else None
        moved = MovedContents(repository)

        def is_wanted(path: str) -> bool:
            return path not in unchanged and path not in self.rewritten

        def writes(only: Collection[str] | None = None) -> Iterator[Write]:
            entries = (e for e in self.entries if (only is None or e.path in only) and is_wanted(e.path))
            yield from entry_writes(repository, entries, right_when="the restore began", moved=moved, kept=self.kept)
            yield from literal_writes({p: data for p, data in self.rewritten.items() if only is None or p in only})

        def paths() -> Iterator[str]:
            yield from filter(is_wanted, paths_of(self.entries))
            yield from self.rewritten

        removes = there.files.without(lambda path: path == seal or path in unchanged)
        return Edits(removes, writes, unchanged, paths, writes)

    def _unchanged(self, there: Target) -> FileSet:
        """Files that are at the target already, byte for byte, and need be neither deleted nor written.

        Logs are always written: they are few, and their order is what keeps Spark from starting half-way.
        """
        unchanged = FileSet()

        def same(entry: FileEntry) -> StoredFile | None:
            file = there.visible.get(entry.path)
            if file is None or file.size != entry.size or is_log(entry.path) or entry.path in self.rewritten:
                return None
            if file.checksum is not None and file.checksum in (entry.checksum, f"sha256:{entry.sha256}"):
                return file
            if entry.sha256 is None:
                return None
            try:
                return None if content_damage(entry, there.location.read(entry.path)) else file
            except (FileNotFoundError, StorageError):
                return None

        def keep(file: StoredFile | None) -> None:
            if file is not None:
                unchanged.add(file)

        if there.visible:
            in_order(same, self.entries, keep)
        return unchanged

    def check(self, there: Target) -> None:
        """See that exactly the files of the plan are there, and for Spark a whole closure of the batch."""
        visible = there.visible
        as_planned = len(visible) == len(self.entries)
        for entry in self.entries:
            file = visible.get(entry.path)
            if file is None or file.size != self.size_of(entry):
                as_planned = False
                continue
            # Copied by the store: its checksum has to be the object's, or else the content is read.
            copied = entry.checksum is not None and entry.path not in self.rewritten
            if copied and file.checksum != entry.checksum:
                copy = there.location.read(entry.path)
                # A hash says it without the object, which may lie in a pack by now.
                wrong = content_damage(entry, copy) if is_computable(entry) else None
                if wrong or (not is_computable(entry) and copy != self.repository.location.read(entry.object)):
                    raise StorageError(
                        f"{there.location}/{entry.path} is not what {entry.object} holds: the store copied it wrongly",
                        hint="the target stays sealed; run the same command again",
                    )
        if not as_planned:
            sizes = ((entry.path, self.size_of(entry)) for entry in self.entries)
            expect_files(there, sizes, plan_id=self.plan_id, what="what was written")
        closure = resolve_closure(Tree.of(there.location, files=visible.values()), self.batch_id)
        if len(closure.by_path) != len(visible) or any(path not in closure.by_path for path in visible):
            raise StorageError(
                f"{there.location} does not read back as batch {self.batch_id} of the backup",
                hint=f"the target stays sealed by plan {self.plan_id}; this is a defect: please report it",
            )

    def audit_facts(self, after: Target) -> dict[str, Any]:
        """What the audit record keeps of the plan, and of the commit as it was written: a repair knows it again by that."""
        commit = after.visible.get(f"{COMMITS}/{self.batch_id}")
        kept = {"kept": self.kept_before} if self.kept_before else {}
        return {"plan": self.to_json(), COMMIT_FILE: written_as(commit), **kept}

    def document(self) -> dict[str, Any]:
        """The plan as it is kept in the repository: what an undo needs. Resuming makes it again from the backup."""
        before = {path: file.size for path, file in self.target.visible.items()}
        more = {"before": before, "checkpoint": self.checkpoint, "checkpoint_fingerprint": self.fingerprint}
        # Asked for only after somebody has lifted the seal half-way. Not worth megabytes: the backup shows the rest.
        few = len(self.entries) <= FEW
        written = {e.path: self.size_of(e) for e in self.entries if few or e.path in self.rewritten}
        places = {"target_uri": self.target_uri, "observed": self.observed}
        return {**self.to_json(), **more, **places, "written": written}

    @property
    def bytes(self) -> int:
        """Bytes to write."""
        if isinstance(self.entries, FileTable) and not self.rewritten:
            return self.entries.bytes
        return sum(self.size_of(entry) for entry in self.entries)

    @property
    def plan_fingerprint(self) -> str:
        """Changes with the stream, the backup, the target, what is rewritten, or the sinks: what an approval is given for."""
        m = self.manifest
        parts = {
            "backup": [m.name, m.query_id, m.backup_id, self.batch_id],
            "target": [self.checkpoint, self.fingerprint],
            "rewritten": {path: hashlib.sha256(data).hexdigest() for path, data in self.rewritten.items()},
            "sinks": self.sink.verdicts if self.sink else None,
        }
        return fingerprint_of(parts)

    @property
    def newest_batch(self) -> int:
        """The newest batch that the query has logged."""
        return self.target.newest_batch

    @property
    def subject(self) -> dict[str, Any]:
        """What the plan is about: the backup, the place, also as Spark names it, and whose checkpoint it replaces."""
        m = self.manifest
        return {
            **super(RestorePlan, self).subject,
            "name": m.name,
            "backup_id": m.backup_id,
            "batch_id": self.batch_id,
            "query_id": m.query_id,
            "other_query": self.other_query,
            "target_uri": self.target_uri or None,
            "sinks": [uri for uri, _, _ in self.sink.sinks] if self.sink else [],
        }

    @property
    def seal_reason(self) -> str:
        """What the seal says; a run that was killed finds its own seal by it, and whether it has to keep anything."""
        into = REPLACING if self.replacing else INTO_EMPTY
        together = f"in chain {self.chain['plan_id']} " if self.chain else ""
        return f"restore of {self.manifest.backup_id} batch {self.batch_id} {together}{into}"

    def command_to_undo(self, repository: Repository | None = None) -> str:
        """The command that undoes it; a part of several only with the others.

        :param repository: where the plan is kept; ``None``: beside the checkpoint.
        """
        if self.chain is None:
            return undo_command(self.checkpoint, self.plan_id, repository)
        return chain_command("undo", self.chain)

    @property
    def verdict(self) -> Verdict:
        """What the sink says; ``UNKNOWN`` where it was not read, unless nothing is done."""
        if self.already_done:
            return self.sink.verdict if self.sink else Verdict.SAFE
        of_sink = self.sink.verdict if self.sink else Verdict.UNKNOWN
        not_safe = self.other_query or self.not_compared
        return Verdict.UNKNOWN if not_safe and of_sink is Verdict.SAFE else of_sink

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why, in words."""
        if self.already_done:
            nothing = "the target already holds exactly this batch of this backup: nothing to do"
            return (nothing, *(self.sink.reasons if self.sink else ()))
        n = self.batch_id
        goes_on = f"The query continues with batch {n + 1} from the sources' offsets of batch {n}."
        sources = f"{goes_on} Sources must still have that data."
        of_query = tuple(f"Another query: {risk.why}." for risk in self._risk_of_query)
        if self.not_compared:
            of_query += (f"It is not known whether the target was another stream's: {self.not_compared}.",)
        if self.sink:
            return (*of_query, sources, *self.sink.reasons)
        return (
            *of_query,
            sources,
            f"The sink is not read. If it has batches after {n}, a Delta table or file sink written directly skips their "
            "replay silently; foreachBatch, Kafka and foreach sinks repeat them, which only an idempotent sink (MERGE by "
            "key, overwrite by batch id) puts right.",
        )

    @property
    def steps(self) -> tuple[str, ...]:
        """What ``apply`` does, in order."""
        if self.already_done:
            return ()
        n, there = self.batch_id, self.target
        steps = ["read and check every object of the backup"]
        if there.is_empty:
            steps.append(f"seal the empty target with offsets/{n + 1}")
        else:
            steps += [
                "see that the query is stopped, seal the target",
                f"set aside what differs of its {len(there.visible)} files in the repository, and delete that",
            ]
        what = "" if there.is_empty else ", but for what is there already"
        steps.append(
            f"write {len(self.entries)} files, {format_size(self.bytes)}{what}: "
            f"offsets/{n}, metadata, commits/{n}, sources, state" + (f", and last offsets/{n - 1}" if n else "")
        )
        if self.rewritten:
            steps.append(f"rewrite absolute places in {', '.join(sorted(self.rewritten))}")
        steps += ["check what was written", "write the audit record", "lift the seal"]
        return tuple(steps)

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON."""
        return {
            "plan_id": self.plan_id,
            "kind": "restore",
            "backup_id": self.manifest.backup_id,
            "name": self.manifest.name,
            "batch_id": self.batch_id,
            "target": self.target.location.uri,
            "target_files": len(self.target.visible),
            "query_id": self.manifest.query_id,
            "other_query": self.other_query,
            "replace": self.replace,
            "files": len(self.entries),
            "bytes": self.bytes,
            "rewritten": sorted(self.rewritten),
            "verdict": self.verdict.value,
            "reasons": list(self.reasons),
            **({"sinks": self._sinks_json} if self._sinks_json else {}),
            "steps": list(self.steps),
            "accept": [risk.word for risk in self.risks],
            "fingerprint": self.plan_fingerprint,
            "already_done": self.already_done,
            **({"chain": dict(self.chain)} if self.chain else {}),
        }

    def to_markdown(self) -> str:
        """The plan for people: the log, a form, a terminal."""
        m = self.manifest
        there = "empty" if self.target.is_empty else f"{len(self.target.visible)} files, to be replaced"
        if self.already_done:
            there = "as planned already"
        rows = (
            ("backup", f"`{m.backup_id}` of `{m.name}`, {format_time(m.created)}"),
            ("batch", f"{self.batch_id}; the query continues with {self.batch_id + 1}"),
            ("taken from", f"`{m.checkpoint}`"),
            ("query", f"`{m.query_id}`" + (f"; {self._holder} `{self.other_query}`" if self.other_query else "")),
            ("target", f"`{self.target.location}` ({there})"),
            ("files", f"{len(self.entries)} ({format_size(self.bytes)})"),
            ("verdict", f"**{self.verdict.value}**"),
        )
        parts = (self.sink.table if self.sink else "", accept_block(self.risks))
        return plan_page("Restore", self.plan_id, rows, self.reasons, *parts, steps=self.steps)

    @property
    def _sinks_json(self) -> list[dict[str, str]]:
        """What each of several sinks says."""
        several = self.sink.sinks if self.sink and len(self.sink.sinks) > 1 else ()
        return [{"uri": uri, "kind": kind, "verdict": verdict.value} for uri, kind, verdict in several]

    @property
    def wanted(self) -> FileSet:
        """The files that are to be there in the end, by path and size."""
        return FileSet(StoredFile(entry.path, self.size_of(entry)) for entry in self.entries)

    def size_of(self, entry: FileEntry) -> int:
        """Bytes that a file has once it is written."""
        return len(self.rewritten[entry.path]) if entry.path in self.rewritten else entry.size


def restore_command(document: Mapping[str, Any], repository: str) -> str:
    """The command that resumes a restore.

    :param document: what :meth:`RestorePlan.document` wrote, or an older version of it.
    :param repository: URI of the repository that keeps it.
    """
    target, batch = document["target"], ["--name", document["name"], "--batch", document["batch_id"]]
    if document.get("observed"):
        words = ["flows", *flow_words("--restore-into-next", target), "--repository", repository]
        return command(*words, "--backup-id", document["backup_id"], *batch, "--apply")
    words = ["restore", repository, document["backup_id"], target, *batch]
    words += ["--replace"] if document["replace"] else []
    words += ["--target-uri", uri] if (uri := document.get("target_uri")) else []
    return command(*words, "--apply")
