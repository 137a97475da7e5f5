"""Rebuilding objects that are missing or cut off, where their content is still to be had.

From the live checkpoint, at the path it was backed up from; or from another object of the repository that holds the same. A
content is taken only if it is proven to be the one that was backed up, by its SHA-256 or by a store's MD5.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.backup.contents import objects_there, stream_names
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository, new_plan_id
from airflow_ckpt_provider.backup.repository_check import readable
from airflow_ckpt_provider.backup.verify import check_structure, content_damage
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict

#: ETags that are the MD5 of what was written.
_MD5 = re.compile(r"(etag|md5):[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """An object that can be rebuilt.

    :param entry: a manifest's entry of it.
    :param source: where its content is: path in the checkpoint or in the repository.
    :param from_checkpoint: which of the two.
    """

    entry: FileEntry
    source: str
    from_checkpoint: bool

    def to_json(self) -> dict[str, Any]:
        """The object as plain JSON."""
        where = "checkpoint" if self.from_checkpoint else "repository"
        return {"object": self.entry.object, "path": self.entry.path, "from": where, "source": self.source}


@dataclass(frozen=True, slots=True)
class ObjectsRepairPlan:
    """What can be rebuilt, and what cannot.

    :param rebuilt: objects that will be written.
    :param lost: objects whose content is nowhere, with the backups that list them.
    """

    plan_id: str
    repository: str
    checkpoint: str
    rebuilt: tuple[Rebuilt, ...]
    lost: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def verdict(self) -> Verdict:
        """``SAFE`` where all can be rebuilt, ``WILL_LOSE`` where some backups stay damaged."""
        return Verdict.WILL_LOSE if self.lost else Verdict.SAFE

    @property
    def fingerprint(self) -> str:
        """Changes with what is written."""
        parts = sorted(f"{r.entry.object} {r.source}" for r in self.rebuilt)
        return hashlib.sha256("\n".join([self.repository, *parts]).encode()).hexdigest()[:16]

    @property
    def steps(self) -> tuple[str, ...]:
        """What ``apply`` does, in order."""
        if not self.rebuilt:
            return ()
        return (
            f"read {len(self.rebuilt)} contents once more, compare them with what was backed up, and write them",
            "write the audit record",
        )

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON."""
        return {
            "plan_id": self.plan_id,
            "kind": "repository repair",
            "repository": self.repository,
            "checkpoint": self.checkpoint,
            "verdict": self.verdict.value,
            "rebuilt": [r.to_json() for r in self.rebuilt],
            "lost": [{"object": path, "backups": list(backups)} for path, backups in self.lost],
            "steps": list(self.steps),
            "fingerprint": self.fingerprint,
        }

    def to_markdown(self) -> str:
        """The plan for people."""
        rebuilt = "\n".join(f"* `{r.entry.object}` from `{r.source}`" for r in self.rebuilt)
        lost = "\n".join(f"* `{path}` is lost; needed by {', '.join(backups)}" for path, backups in self.lost)
        steps = "\n".join(f"{number}. {step}" for number, step in enumerate(self.steps, 1))
        parts = (
            f"### Repair of the repository, plan {self.plan_id}",
            f"{len(self.rebuilt)} objects can be rebuilt, {len(self.lost)} are lost: **{self.verdict.value}**",
            rebuilt,
            lost,
            steps,
        )
        return "\n\n".join(filter(None, parts)) + "\n"


def plan_objects_repair(repository: Repository, checkpoint: Location, *, name: str | None = None) -> ObjectsRepairPlan:
    """Look for the contents of missing objects; reads only.

    :param checkpoint: a live checkpoint of the streams' backups; other checkpoints prove nothing and do no harm.
    :param name: only this stream.
    """
    names = stream_names(repository) if name is None else (name,)
    rebuilt: dict[str, Rebuilt] = {}
    lost: dict[str, list[str]] = {}
    for each in names:
        there = objects_there(repository, each)
        wrong: dict[str, FileEntry] = {}
        whole: dict[tuple[str, int], str] = {}
        needed_by: dict[str, list[str]] = {}
        for manifest in readable(repository, each, repository.backup_ids(each)):
            if not isinstance(manifest, Manifest):
                continue
            damaged = {d.object for d in check_structure(repository, manifest, list(manifest.files), listed=there)}
            for entry in manifest.files:
                if entry.object in damaged:
                    wrong[entry.object] = entry
                    needed_by.setdefault(entry.object, []).append(manifest.backup_id)
                elif entry.sha256:
                    whole[entry.sha256, entry.size] = entry.object
        for path, entry in wrong.items():
            sources = _sources(entry, whole)
            found = next((s for s in sources if _content(repository, checkpoint, s) is not None), None)
            if found:
                rebuilt[path] = found
            else:
                lost[path] = needed_by[path]
    return ObjectsRepairPlan(
        new_plan_id(),
        repository.location.uri,
        checkpoint.uri,
        tuple(rebuilt.values()),
        tuple((path, tuple(dict.fromkeys(backups))) for path, backups in lost.items()),
    )


def _sources(entry: FileEntry, whole: dict[tuple[str, int], str]) -> Iterator[Rebuilt]:
    if entry.sha256 and (twin := whole.get((entry.sha256, entry.size))):
        yield Rebuilt(entry, twin, False)
    yield Rebuilt(entry, entry.path, True)


def _content(repository: Repository, checkpoint: Location, rebuilt: Rebuilt) -> bytes | None:
    """The content, if it is there and proven."""
    entry = rebuilt.entry
    if not entry.sha256 and not _MD5.fullmatch(entry.checksum or ""):
        return None  # nothing that could be computed here says what it was
    try:
        content = (checkpoint if rebuilt.from_checkpoint else repository.location).read(rebuilt.source)
    except FileNotFoundError:
        return None
    return content if content_damage(entry, content) is None else None


def apply_objects_repair(
    repository: Repository, checkpoint: Location, plan: ObjectsRepairPlan, *, made_by: str = "", reason: str = ""
) -> dict[str, Any]:
    """Write the objects, and return how many there were. One that is cut off is replaced: nothing can need it as it is.

    :raises StorageError: a content is gone since the plan was made, or cannot be written; the same command again goes on.
    """
    for each in plan.rebuilt:
        content = _content(repository, checkpoint, each)
        if content is None:
            raise StorageError(
                f"{each.source} is not any more what {each.entry.object} was", hint="make a new plan: run it again"
            )
        repository.location.replace(each.entry.object, content)
    outcome = {"plan_id": plan.plan_id, "rebuilt": len(plan.rebuilt), "lost": len(plan.lost)}
    if plan.rebuilt:
        record = {"kind": "repository repair", "made_by": made_by, "reason": reason, "plan": plan.to_json()}
        repository.record(plan.plan_id, record)
    return outcome
