"""The plan of restoring a set of backups: one restore for each stream, with one verdict, one fingerprint and one id."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from airflow_ckpt_provider import markdown
from airflow_ckpt_provider.change.plan import Risk, each_word_once
from airflow_ckpt_provider.change.plan_document import reads_document
from airflow_ckpt_provider.change.plan_page import accept_block, plan_page
from airflow_ckpt_provider.fingerprint import fingerprint_of
from airflow_ckpt_provider.recovery.chains.plan import JointPlan
from airflow_ckpt_provider.recovery.restore.plan import RestorePlan
from airflow_ckpt_provider.verdict import Verdict, worst


@dataclass(frozen=True, slots=True)
class SetPart:
    """One stream in the plan.

    :param name: its name, here and in the repository.
    :param argument: the stream as ``--stream`` names it.
    :param plan_id: id of its restore.
    :param backup_id: its backup.
    :param batch_id: the batch that is restored.
    :param target: URI of the place that is restored to.
    :param restore: its restore; ``None`` in a plan that was read from the repository, which makes it again from the backup.
    """

    name: str
    argument: str
    plan_id: str
    backup_id: str
    batch_id: int
    target: str
    restore: RestorePlan | None = field(default=None, compare=False)

    undo_needs: ClassVar[str] = ""

    @property
    def stream_name(self) -> str:
        """Name of the stream in the repository."""
        return self.name

    def to_json(self) -> dict[str, Any]:
        """The part as plain JSON."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "restore"}


@dataclass(frozen=True, slots=True)
class SetRestorePlan(JointPlan):
    """What a restore of several streams would do.

    :param plan_id: its id. Those of its parts begin with it.
    :param set_id: the set.
    :param repository: URI of the repository that holds it.
    :param replace: whether checkpoints that are there may be replaced.
    :param parts: the streams.
    """

    plan_id: str
    set_id: str
    repository: str
    replace: bool
    parts: tuple[SetPart, ...]
    #: Whether it was begun before.
    continued: bool = field(default=False, compare=False)

    kind: ClassVar[str] = "set-restore"

    @property
    def changes(self) -> tuple[tuple[str, RestorePlan], ...]:
        """Stream and restore of each part that is left to be carried out."""
        return tuple((part.name, part.restore) for part in self.parts if part.restore)

    @property
    def change_ids(self) -> tuple[tuple[str, str], ...]:
        """Stream and plan id of each part."""
        return tuple((part.name, part.plan_id) for part in self.parts)

    @property
    def title(self) -> str:
        """What it does, in a few words."""
        return f"restore of set {self.set_id}"

    @property
    def chain(self) -> dict[str, str]:
        """What each part says of this plan."""
        return {"plan_id": self.plan_id, "arguments": self.arguments, "again": self.command}

    @property
    def arguments(self) -> str:
        """The streams and their repository as a command names them."""
        return f"{super(SetRestorePlan, self).arguments} --repository {shlex.quote(self.repository)}"

    @property
    def command(self) -> str:
        """The command that resumes it."""
        replace = " --replace" if self.replace else ""
        return f"airflow-ckpt chain restore {self.arguments} --set {shlex.quote(self.set_id)}{replace} --apply"

    @property
    def verdict(self) -> Verdict:
        """The worst of the parts."""
        return worst(change.verdict for _, change in self.changes)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why, in words, for each part."""
        return tuple(f"{name}: {reason}" for name, change in self.changes for reason in change.reasons)

    @property
    def risks(self) -> tuple[Risk, ...]:
        """What has to be accepted, each word once."""
        return each_word_once(self.risks_of_parts())

    @property
    def steps(self) -> tuple[str, ...]:
        """What carrying it out does, in order."""
        if self.already_done:
            return ()
        return (
            f"see that {self.name} are stopped, and seal their checkpoints",
            "read and check every object of all backups",
            *(f"{name}: {step}" for name, change in self.changes for step in change.steps[2:-1]),
            "write the audit record, lift all seals",
        )

    @property
    def plan_fingerprint(self) -> str:
        """Changes with any backup, and with any target: what an approval is given for."""
        parts = {name: change.plan_fingerprint for name, change in self.changes}
        return fingerprint_of({"set": self.set_id, "parts": parts})

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON."""
        restores = {name: change.to_json() for name, change in self.changes}
        return {
            "plan_id": self.plan_id,
            "kind": self.kind,
            "set_id": self.set_id,
            "repository": self.repository,
            "replace": self.replace,
            "verdict": self.verdict.value,
            "reasons": list(self.reasons),
            "steps": list(self.steps),
            "parts": [{**part.to_json(), "restore": restores.get(part.name)} for part in self.parts],
            "accept": [risk.word for risk in self.risks],
            "fingerprint": self.plan_fingerprint,
            "already_done": self.already_done,
        }

    def document(self) -> dict[str, Any]:
        """The plan as it is kept in the repository. Resuming makes the restores again from their backups."""
        return self.to_json()

    @classmethod
    @reads_document
    def of_document(cls, value: Mapping[str, Any]) -> SetRestorePlan:
        """Read what :meth:`document` wrote, to resume it or to undo it."""
        parts = tuple(
            SetPart(
                name=str(part["name"]),
                argument=str(part["argument"]),
                plan_id=str(part["plan_id"]),
                backup_id=str(part["backup_id"]),
                batch_id=int(part["batch_id"]),
                target=str(part["target"]),
            )
            for part in value["parts"]
        )
        return cls(
            plan_id=str(value["plan_id"]),
            set_id=str(value["set_id"]),
            repository=str(value["repository"]),
            replace=bool(value["replace"]),
            parts=parts,
            continued=True,
        )

    def to_markdown(self) -> str:
        """The plan for people: the log, an approval form, a terminal."""
        rows = [
            ("set", f"`{self.set_id}`"),
            ("streams", self.name),
            ("verdict", f"**{self.verdict.value}**"),
            ("undo", "possible; only until one of the streams is started"),
        ]
        nothing = "Nothing to do: all checkpoints are as the set has them." if self.already_done else ""
        parts = (self._table(), accept_block(self.risks, nothing=nothing))
        return plan_page("Restore of a set", self.plan_id, rows, self.reasons, *parts, steps=self.steps)

    def _table(self) -> str:
        rows = []
        found = dict(self.changes)
        for part in self.parts:
            of_part = ("restored before", "", "")
            if change := found.get(part.name):
                there = "nothing" if change.target.is_empty else f"{len(change.target.visible)} files"
                there = "as planned already" if change.already_done else there
                of_part = (there, str(len(change.entries)), f"**{change.verdict.value}**")
            rows.append((part.name, f"`{part.backup_id}`", part.batch_id, f"`{part.target}`", *of_part))
        return markdown.table(("stream", "backup", "batch", "target", "what is there", "files", "verdict"), rows)
