"""The plan of a repair of a repository: which objects are damaged, and from where each can be written again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider import markdown
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.fingerprint import fingerprint_of
from airflow_ckpt_provider.verdict import Verdict

#: Where a content is taken from.
CHECKPOINT, REPOSITORY, SECOND = "checkpoint", "repository", "second repository"


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """An object that can be rebuilt.

    :param entry: a manifest's entry of it.
    :param source: where its content is: path in the checkpoint or in a repository.
    :param origin: ``checkpoint``, ``repository`` or ``second repository``.
    """

    entry: FileEntry
    source: str
    origin: str

    @property
    def from_checkpoint(self) -> bool:
        """Whether it is rebuilt from the live checkpoint."""
        return self.origin == CHECKPOINT

    def to_json(self) -> dict[str, Any]:
        """The object as plain JSON."""
        return {"object": self.entry.object, "path": self.entry.path, "from": self.origin, "source": self.source}


@dataclass(frozen=True, slots=True)
class ObjectsRepairPlan:
    """What can be rebuilt, and what cannot.

    :param rebuilt: objects that will be written.
    :param lost: objects whose content is nowhere, with the backups that list them.
    :param whole_again: objects that were found damaged before, and are whole when they are read now.
    :param disputed: objects of which manifests say different things, with the backups whose manifests are wrong, or with all
        that list them where that cannot be determined. They are neither rebuilt nor lost.
    """

    plan_id: str
    repository: str
    checkpoint: str
    rebuilt: tuple[Rebuilt, ...]
    lost: tuple[tuple[str, tuple[str, ...]], ...]
    whole_again: tuple[FileEntry, ...] = ()
    disputed: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def verdict(self) -> Verdict:
        """``SAFE`` where all can be rebuilt, ``WILL_LOSE`` where some backups stay damaged."""
        return Verdict.WILL_LOSE if self.lost or self.disputed else Verdict.SAFE

    @property
    def fingerprint(self) -> str:
        """Changes with what is written."""
        parts = sorted([*(f"{r.entry.object} {r.source}" for r in self.rebuilt), *(e.object for e in self.whole_again)])
        return fingerprint_of("\n".join([self.repository, *parts]))

    @property
    def steps(self) -> tuple[str, ...]:
        """What ``apply`` does, in order."""
        steps = []
        if self.rebuilt:
            write = f"read {len(self.rebuilt)} contents again, compare them with what was backed up, and write them"
            steps.append(f"{write}; read back what was written")
        if self.whole_again:
            steps.append(f"read {len(self.whole_again)} objects again that are whole now")
        if not steps:
            return ()
        return (*steps, "note that these objects are whole", "write the audit record")

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
            "whole_again": [entry.object for entry in self.whole_again],
            "disputed": [{"object": path, "backups": list(backups)} for path, backups in self.disputed],
            "steps": list(self.steps),
            "fingerprint": self.fingerprint,
        }

    def to_markdown(self) -> str:
        """The plan for people."""
        rebuilt = markdown.bullets(f"`{r.entry.object}` from the {r.origin}: `{r.source}`" for r in self.rebuilt)
        again = markdown.bullets(f"`{e.object}` was found damaged and is whole now" for e in self.whole_again)
        lost = markdown.bullets(f"`{path}` is lost; needed by {', '.join(backups)}" for path, backups in self.lost)
        disputed = markdown.bullets(
            f"`{path}` is not rebuilt: its manifests contradict each other. Find out who wrote those of {', '.join(backups)}"
            for path, backups in self.disputed
        )
        parts = (
            f"### Repair of the repository, plan {self.plan_id}",
            f"{len(self.rebuilt)} objects can be rebuilt, {len(self.lost)} are lost: **{self.verdict.value}**",
            rebuilt,
            again,
            lost,
            disputed,
            markdown.steps(self.steps),
        )
        return "\n\n".join(filter(None, parts)) + "\n"
