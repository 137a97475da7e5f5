"""The plan of a repair: which batch, what goes, what comes back from a backup. Data and words; see ``repair`` for the making."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.verdict import Verdict

#: Paths that Markdown names of each kind; the JSON has them all.
_SHOWN = 6


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """What a repair would do.

    :param plan_id: its id; the seal carries it.
    :param name: name of the stream in the repository.
    :param checkpoint: URI of the checkpoint.
    :param batch_id: the batch that is whole and that Spark goes on after, -1 before the first; ``None``: there is none.
    :param exact_replay: batch ``batch_id + 1`` runs again with exactly the end offsets it had.
    :param replayed: how many batches are run again that had been logged or committed.
    :param deletes: files that go.
    :param fetches: files that come back from backups, and the id of the backup of each.
    :param rewrites: path -> new content, of files that are written anew.
    :param verdict: what the repair does to the data.
    :param reasons: why, in words.
    :param findings: what the doctor found, as plain JSON.
    :param fingerprint: of the checkpoint when the plan was made.
    :param continued: it was begun before and is gone on with.
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
    continued: bool = field(default=False, compare=False)

    @property
    def repairable(self) -> bool:
        """Whether there is a batch to go on after."""
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
    def steps(self) -> tuple[str, ...]:
        """What ``apply`` does, in order."""
        if not self.repairable or self.already_done:
            return ()
        touched = len(self.deletes) + len(self.rewrites) + len(self.fetches)
        steps = ["check that nobody writes, seal the checkpoint", f"set aside what is there of {touched} files"]
        if self.fetches:
            backups = ", ".join(sorted({backup for _, backup in self.fetches}))
            paths = tuple(entry.path for entry, _ in self.fetches)
            steps.append(f"fetch {_count(self.fetches)} from backup {backups}: {_some(paths)}")
        if self.rewrites:
            steps.append(f"write {_some(tuple(self.rewrites))} anew")
        if self.deletes:
            steps.append(f"delete {_count(self.deletes)}: {_some(self.deletes)}")
        whole = "that it is whole" if self.batch_id == -1 else f"that batch {self.batch_id} is whole"
        return (*steps, f"check {whole}", "write the audit record", "lift the seal")

    @property
    def plan_fingerprint(self) -> str:
        """Changes with the checkpoint and with what would be done: what an approval is given for."""
        writes = [(e.path, e.size, e.sha256 or e.checksum) for e, _ in self.fetches]
        anew = {path: hashlib.sha256(content).hexdigest() for path, content in self.rewrites.items()}
        parts = [self.checkpoint, self.fingerprint, self.batch_id, list(self.deletes), writes, anew]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

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
        }

    @classmethod
    def of_document(cls, value: Mapping[str, Any]) -> RepairPlan:
        """Read what :meth:`document` wrote, to go on with it."""
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
            continued=True,
        )

    def to_markdown(self) -> str:
        """The plan for people: the log, an approval form, a terminal."""
        rows = [("checkpoint", f"`{self.checkpoint}`"), ("findings", self._findings_in_words())]
        if self.repairable:
            rows += [("batch", self._batch_in_words()), ("run again", _batches(self.replayed))]
        rows.append(("verdict", f"**{self.verdict.value}**"))
        table = "\n".join(f"| {name} | {value} |" for name, value in rows)
        reasons = "\n".join(f"* {reason}" for reason in self.reasons)
        steps = "\n".join(f"{number}. {step}" for number, step in enumerate(self.steps, 1))
        parts = [f"### Repair, plan {self.plan_id}", f"| | |\n|---|---|\n{table}", reasons, steps]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _findings_in_words(self) -> str:
        codes = dict.fromkeys(str(finding["code"]) for finding in self.findings)
        return ", ".join(codes) or "none"

    def _batch_in_words(self) -> str:
        if self.batch_id == -1:
            return "none is done; the query begins with batch 0"
        after = "runs again with exactly its old end offsets" if self.exact_replay else "is planned anew"
        return f"{self.batch_id} is whole; batch {(self.batch_id or 0) + 1} {after}"


def _batches(number: int) -> str:
    return {0: "nothing", 1: "1 batch"}.get(number, f"{number} batches")


def _count(items: tuple[Any, ...]) -> str:
    return f"{len(items)} file{'' if len(items) == 1 else 's'}"


def _some(paths: tuple[str, ...]) -> str:
    more = f", and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(paths[:_SHOWN]) + more
