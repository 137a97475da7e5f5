"""The plan of a repair: the batch, the files to remove, the files that come from a backup. See ``planning``."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.pack_reads import MovedContents
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.edits import Edits, Write, entry_writes, listed_files, literal_writes
from airflow_ckpt_provider.change.plan import Plan, Risk, sink_command
from airflow_ckpt_provider.change.plan_document import reads_document
from airflow_ckpt_provider.change.plan_page import accept_block, plan_page, some
from airflow_ckpt_provider.change.target import Target
from airflow_ckpt_provider.checkpoint.doctor import check
from airflow_ckpt_provider.checkpoint.doctor.examination import examine
from airflow_ckpt_provider.checkpoint.findings import Severity
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.fingerprint import fingerprint_of
from airflow_ckpt_provider.verdict import Verdict


@dataclass(frozen=True, slots=True)
class RepairPlan(Plan):
    """What a repair would do.

    :param plan_id: its id; the seal carries it.
    :param name: name of the stream in the repository.
    :param checkpoint: URI of the checkpoint.
    :param batch_id: the batch that is whole and that Spark continues after, -1 before the first; ``None``: there is none.
    :param exact_replay: batch ``batch_id + 1`` runs again with exactly the end offsets it had.
    :param replayed: how many batches are run again that had been logged or committed.
    :param deletes: files that go.
    :param fetches: files that come back from backups, and the id of the backup of each.
    :param rewrites: path -> new content, of files that are written again.
    :param verdict: what the repair does to the data.
    :param reasons: why, in words.
    :param findings: what the doctor found, as plain JSON.
    :param fingerprint: of the checkpoint when the plan was made.
    :param before: path -> size of all visible files when the plan was made; empty in plans of earlier versions.
    :param doubts: why what comes from backups may not be what the checkpoint has lost, in words.
    :param continued: it was begun before and is continued with.
    """

    plan_id: str
    name: str
    checkpoint: str
    batch_id: int | None
    exact_replay: bool
    replayed: int
    deletes: tuple[str, ...]
    fetches: tuple[tuple[FileEntry, str], ...]
    rewrites: Mapping[str, bytes]
    verdict: Verdict
    reasons: tuple[str, ...]
    findings: tuple[Mapping[str, Any], ...]
    fingerprint: str
    before: Mapping[str, int] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()
    continued: bool = field(default=False, compare=False)

    kind: ClassVar[str] = "repair"

    @property
    def repairable(self) -> bool:
        """Whether there is a batch to continue after."""
        return self.batch_id is not None

    @property
    def changes(self) -> bool:
        """Whether any file of the checkpoint changes."""
        return bool(self.deletes or self.fetches or self.rewrites)

    @property
    def already_done(self) -> bool:
        """Whether there is nothing to do."""
        return self.repairable and not self.changes and not self.continued

    @property
    def seal_reason(self) -> str:
        """What the seal says."""
        return f"repair to batch {self.batch_id}"

    @property
    def risks(self) -> tuple[Risk, ...]:
        """What has to be accepted: batches that reached a sink may be run again, and the sink was not asked."""
        if self.verdict is not Verdict.UNKNOWN or not self.repairable or not self.changes:
            return ()
        asked = f"the sink was not asked (after the repair: `{sink_command('CHECKPOINT')}`)"
        if self.replayed:
            why = [f"{_batches(self.replayed)} run again, and {asked}"]
        else:
            why = [] if self.doubts else [f"the query continues after batch {self.batch_id}, and {asked}"]
        return (Risk("sink_unknown", " ".join([*why, *self.doubts])),)

    @property
    def next_step(self) -> str:
        """What to do once it is repaired: start the query, or first see what the sink does."""
        if self.risks:
            return f"before you start the query, see what the sink does: {sink_command(self.checkpoint)}"
        return f"start the query: it continues after batch {self.batch_id}"

    @property
    def writes_offsets(self) -> Collection[str]:
        """Paths in ``offsets/`` that will be written."""
        return [entry.path for entry, _ in self.fetches if entry.path.startswith("offsets/")]

    def edits(self, there: Target, repository: Repository) -> Edits:
        """Remove what is in the way; write what comes from backups, and what is newly made."""
        moved = MovedContents(repository)

        def writes() -> Iterator[Write]:
            fetched = (entry for entry, _ in self.fetches)
            yield from entry_writes(repository, fetched, right_when="the plan was made", moved=moved)
            yield from literal_writes(self.rewrites)

        return Edits(listed_files(there, self.deletes), writes)

    def check(self, there: Target) -> None:
        """See that nothing is left that would stop or mislead Spark."""
        seen = examine(Tree.of(there.location, files=there.visible.values()))
        left = [f for f in check(seen) if f.severity in (Severity.SILENT, Severity.ERROR)]
        if left:
            raise StorageError(
                f"{there.location} is not whole after the repair: {left[0].message}",
                hint="somebody else may write there, or a file was damaged since the plan was made",
            )

    @property
    def steps(self) -> tuple[str, ...]:
        """What ``apply`` does, in order."""
        if not self.repairable or self.already_done:
            return ()
        paths = (*self.deletes, *self.rewrites, *(entry.path for entry, _ in self.fetches))
        there = tuple(path for path in paths if path in self.before or not self.before)
        steps = ["check that nobody writes, seal the checkpoint"]
        if there:
            steps.append(f"set {_count(there)} aside")
        if self.fetches:
            backups = ", ".join(sorted({backup for _, backup in self.fetches}))
            fetched = tuple(entry.path for entry, _ in self.fetches)
            steps.append(f"fetch {_count(self.fetches)} from backup {backups}: {some(fetched)}")
        if self.rewrites:
            steps.append(f"write {some(tuple(self.rewrites))} again")
        if self.deletes:
            steps.append(f"delete {_count(self.deletes)}: {some(self.deletes)}")
        whole = "that it is whole" if self.batch_id == -1 else f"that batch {self.batch_id} is whole"
        return (*steps, f"check {whole}", "write the audit record", "lift the seal")

    @property
    def plan_fingerprint(self) -> str:
        """Changes with the checkpoint and with what would be done: what an approval is given for."""
        writes = [(e.path, e.size, e.sha256 or e.checksum) for e, _ in self.fetches]
        anew = {path: hashlib.sha256(content).hexdigest() for path, content in self.rewrites.items()}
        parts = [self.checkpoint, self.fingerprint, self.batch_id, list(self.deletes), writes, anew]
        return fingerprint_of(parts)

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON."""
        return {
            "plan_id": self.plan_id,
            "kind": "repair",
            "name": self.name,
            "checkpoint": self.checkpoint,
            "repairable": self.repairable,
            "batch_id": self.batch_id,
            "exact_replay": self.exact_replay,
            "replayed": self.replayed,
            "deletes": list(self.deletes),
            "fetches": [{"path": entry.path, "size": entry.size, "backup_id": id_} for entry, id_ in self.fetches],
            "rewrites": sorted(self.rewrites),
            "verdict": self.verdict.value,
            "reasons": list(self.reasons),
            "steps": list(self.steps),
            "accept": [risk.word for risk in self.risks],
            "findings": [finding["code"] for finding in self.findings],
            "fingerprint": self.plan_fingerprint,
            "already_done": self.already_done,
        }

    def document(self) -> dict[str, Any]:
        """The plan with all that carrying it out needs, as it is kept in the repository."""
        return {
            **self.to_json(),
            "fetches": [{**entry.to_json(), "backup_id": id_} for entry, id_ in self.fetches],
            "rewrites": {path: base64.b64encode(content).decode() for path, content in self.rewrites.items()},
            "findings": [dict(finding) for finding in self.findings],
            "checkpoint_fingerprint": self.fingerprint,
            "before": dict(self.before),
            **({"doubts": list(self.doubts)} if self.doubts else {}),
        }

    @classmethod
    @reads_document
    def of_document(cls, value: Mapping[str, Any]) -> RepairPlan:
        """Read what :meth:`document` wrote, to continue with it."""
        return cls(
            plan_id=value["plan_id"],
            name=value["name"],
            checkpoint=value["checkpoint"],
            batch_id=value["batch_id"],
            exact_replay=value["exact_replay"],
            replayed=value["replayed"],
            deletes=tuple(value["deletes"]),
            fetches=tuple((FileEntry.from_json(entry), entry["backup_id"]) for entry in value["fetches"]),
            rewrites={path: base64.b64decode(text) for path, text in value["rewrites"].items()},
            verdict=Verdict(value["verdict"]),
            reasons=tuple(value["reasons"]),
            findings=tuple(value["findings"]),
            fingerprint=value["checkpoint_fingerprint"],
            before=value.get("before", {}),
            doubts=tuple(value.get("doubts", ())),
            continued=True,
        )

    def to_markdown(self) -> str:
        """The plan for people: the log, an approval form, a terminal."""
        rows = [("checkpoint", f"`{self.checkpoint}`"), ("findings", self._findings_in_words())]
        if self.repairable:
            rows += [("batch", self._batch_in_words()), ("run again", _batches(self.replayed))]
        rows.append(("verdict", f"**{self.verdict.value}**"))
        return plan_page("Repair", self.plan_id, rows, self.reasons, accept_block(self.risks), steps=self.steps)

    def _findings_in_words(self) -> str:
        codes = dict.fromkeys(str(finding["code"]) for finding in self.findings)
        return ", ".join(codes) or "none"

    def _batch_in_words(self) -> str:
        if self.batch_id == -1:
            return "none is done; the query begins with batch 0"
        after = "runs again with exactly its old end offsets" if self.exact_replay else "is planned again"
        return f"{self.batch_id} is whole; batch {(self.batch_id or 0) + 1} {after}"


def _batches(number: int) -> str:
    return {0: "nothing", 1: "1 batch"}.get(number, f"{number} batches")


def _count(items: tuple[Any, ...]) -> str:
    return f"{len(items)} file{'' if len(items) == 1 else 's'}"
