"""Plans over several streams, with one verdict, one fingerprint and one id; and that of a chain, a rewind of each stream."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from airflow_ckpt_provider import markdown
from airflow_ckpt_provider.change.plan import Plan, Risk, chain_command, each_word_once
from airflow_ckpt_provider.change.plan_document import reads_document
from airflow_ckpt_provider.change.plan_page import accept_block, plan_page
from airflow_ckpt_provider.fingerprint import fingerprint_of
from airflow_ckpt_provider.recovery.rewind.downstream import RISKS_OF_READERS, verdict_in
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.specifier import option_for
from airflow_ckpt_provider.verdict import Verdict, worst


class JointPart(Protocol):
    """One stream in a plan over several."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def argument(self) -> str:
        """The stream as ``--stream`` names it."""

    @property
    def undo_needs(self) -> str:
        """Why its undo would not be row-exact, in words; empty where it is."""

    @property
    def stream_name(self) -> str:
        """Name of the stream in the repository; empty where nothing is done to it."""


class JointPlan(Plan):
    """Base of the plans over several streams."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def parts(self) -> Sequence[JointPart]:
            """All streams that were named."""

        @property
        def changes(self) -> Sequence[tuple[str, Plan]]:
            """Stream and plan of each part that has to be carried out, in order."""

        @property
        def change_ids(self) -> Sequence[tuple[str, str]]:
            """Stream and plan id of each part that is changed, in order; also of those that were carried out before."""

        @property
        def title(self) -> str:
            """What it does, in a few words."""

        @property
        def command(self) -> str:
            """The command that resumes it."""

    @property
    def name(self) -> str:
        """The streams, in words."""
        return ", ".join(part.name for part in self.parts)

    @property
    def checkpoint(self) -> str:
        """The streams, for messages."""
        return f"the streams {self.name}"

    @property
    def subject(self) -> dict[str, Any]:
        """What the plan is about: what each part is about."""
        return {name: change.subject for name, change in self.changes}

    @property
    def already_done(self) -> bool:
        """Whether everything is as the plan wants it."""
        return not self.continued and all(change.already_done for _, change in self.changes)

    @property
    def arguments(self) -> str:
        """The streams as a command names them."""
        return " ".join(f"--stream {part.argument}" for part in self.parts)

    @property
    def undo_command(self) -> str:
        """The command that undoes it."""
        return chain_command("undo", {"plan_id": self.plan_id, "arguments": self.arguments})

    def risks_of_parts(self) -> list[Risk]:
        """The risks of each part, which they name."""
        return [replace(risk, why=f"{name}: {risk.why}") for name, change in self.changes for risk in change.risks]


def rewind_command(arguments: str, target: str, begins_with: Sequence[str], *, exact_replay: bool) -> str:
    """The command that rewinds streams together.

    :param arguments: the streams as a command names them.
    :param target: where to, in words.
    :param begins_with: the streams that the target is for.
    :param exact_replay: whether the next batch is to run again over the same data.
    """
    first = " ".join(f"--from {shlex.quote(name)}" for name in begins_with)
    replay = "" if exact_replay else " --no-exact-replay"
    return f"airflow-ckpt chain rewind {arguments} {shlex.quote(option_for(target))} {first}{replay} --apply"


@dataclass(frozen=True, slots=True)
class ChainPart:
    """One stream in the plan.

    :param name: its name.
    :param checkpoint: URI of its checkpoint.
    :param argument: the stream as ``--stream`` names it.
    :param reads: source -> the table of another stream of the chain that it is.
    :param newest: its newest committed batch.
    :param rewind: what is done to it; ``None``: it stays as it is, for it reads nothing that changes.
    :param undo_needs: why its undo would not be row-exact, in words; empty where it is.
    """

    name: str
    checkpoint: str
    argument: str
    reads: Mapping[str, str]
    newest: int
    rewind: RewindPlan | None = None
    undo_needs: str = ""

    @property
    def stream_name(self) -> str:
        """Name of the stream in the repository; empty where it stays."""
        return self.rewind.name if self.rewind else ""

    def to_json(self) -> dict[str, Any]:
        """The part as plain JSON."""
        return {
            "name": self.name,
            "checkpoint": self.checkpoint,
            "argument": self.argument,
            "reads": dict(self.reads),
            "newest": self.newest,
            "rewind": self.rewind.to_json() if self.rewind else None,
            "undo_needs": self.undo_needs,
        }


def _verdict_in(sentence: str) -> Verdict:
    """The verdict at the end of a sentence about another stream; plans of earlier versions know only one."""
    return verdict_in(sentence) or Verdict.WILL_FAIL


@dataclass(frozen=True, slots=True)
class ChainPlan(JointPlan):
    """What a rewind of several streams would do.

    :param plan_id: its id. Those of its parts begin with it.
    :param target: where to, in words.
    :param begins_with: the streams that the target is for.
    :param parts: all streams that were named, writers before their readers.
    :param notes: what the person who asked should know.
    :param others: streams that were not named and read a sink that is rolled back, in words that end with a verdict.
    """

    plan_id: str
    target: str
    begins_with: tuple[str, ...]
    parts: tuple[ChainPart, ...]
    notes: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    #: Whether it was begun before.
    continued: bool = field(default=False, compare=False)

    kind: ClassVar[str] = "chain"

    @property
    def title(self) -> str:
        """What it does, in a few words."""
        return f"rewind ({self.target})"

    @property
    def command(self) -> str:
        """The command that resumes it."""
        return rewind_command(self.arguments, self.target, self.begins_with, exact_replay=self.exact_replay)

    @property
    def exact_replay(self) -> bool:
        """Whether the next batch was to run again over the same data, where nothing that a stream reads is rolled back.

        What was asked for is in the request of the first writer: it reads nothing that is rolled back.
        """
        return bool(self.rewinds) and self.rewinds[-1][1].request.exact_replay

    @property
    def batches(self) -> dict[str, int]:
        """Stream -> the batch that it goes to, of those that are rewound."""
        return {part.name: rewind.batch_id for part, rewind in self.rewinds}

    @property
    def changes(self) -> tuple[tuple[str, RewindPlan], ...]:
        """Stream and rewind of each part that is rewound, in order."""
        return tuple((part.name, rewind) for part, rewind in self.rewinds)

    @property
    def change_ids(self) -> tuple[tuple[str, str], ...]:
        """Stream and plan id of each part that is rewound, in order."""
        return tuple((part.name, rewind.plan_id) for part, rewind in self.rewinds)

    @property
    def rewinds(self) -> tuple[tuple[ChainPart, RewindPlan], ...]:
        """The parts that are rewound, readers before the writers of what they read: the order in which they are changed.

        A reader is behind the rollback of a table before that rollback is committed, so no stream of the chain ever stands
        before one.
        """
        return tuple((part, part.rewind) for part in reversed(self.parts) if part.rewind)

    @property
    def verdict(self) -> Verdict:
        """The worst of the parts."""
        return worst([*(rewind.verdict for _, rewind in self.rewinds), *map(_verdict_in, self.others)])

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why, in words: those of each part, then what concerns all of them."""
        of_parts = (f"{part.name}: {reason}" for part in self.parts if part.rewind for reason in part.rewind.reasons)
        undo = (f"undo: {part.name} {part.undo_needs}" for part in self.parts if part.undo_needs)
        return (*of_parts, *self.others, *undo, *self.notes, self.question)

    @property
    def question(self) -> str:
        """What nobody but a person knows."""
        return (
            f"a table does not say who reads it. This plan knows of the streams {self.name}. Is this all of it? A stream that "
            "is not named and reads one of these tables keeps what it has read of the rows that leave it, and a Delta reader "
            "stops at the rollback"
        )

    @property
    def risks(self) -> tuple[Risk, ...]:
        """What has to be accepted, each word once."""
        others = (Risk(RISKS_OF_READERS[_verdict_in(sentence)], sentence) for sentence in self.others)
        return each_word_once((*self.risks_of_parts(), *others))

    @property
    def steps(self) -> tuple[str, ...]:
        """What carrying it out does, in order."""
        if self.already_done:
            return ()
        names = ", ".join(part.name for part, _ in self.rewinds)
        return (
            f"see that {names} are stopped, and seal their checkpoints",
            "see that nobody has written into any of their sinks",
            *(f"{part.name}: {step}" for part, rewind in self.rewinds for step in rewind.steps[1:-1]),
            "write the audit record, lift all seals",
        )

    @property
    def plan_fingerprint(self) -> str:
        """Changes with the request, any checkpoint, any backup or any sink: what an approval is given for."""
        parts = {part.name: part.rewind.plan_fingerprint if part.rewind else "" for part in self.parts}
        return fingerprint_of({"target": self.target, "parts": parts})

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON."""
        return {
            "plan_id": self.plan_id,
            "kind": self.kind,
            "target": self.target,
            "begins_with": list(self.begins_with),
            "batches": self.batches,
            "verdict": self.verdict.value,
            "reasons": list(self.reasons),
            "steps": list(self.steps),
            "parts": [part.to_json() for part in self.parts],
            "notes": list(self.notes),
            "others": list(self.others),
            "accept": [risk.word for risk in self.risks],
            "fingerprint": self.plan_fingerprint,
            "already_done": self.already_done,
        }

    def document(self) -> dict[str, Any]:
        """The plan with all that carrying it out needs, as it is kept in the repository."""
        parts = [{**part.to_json(), "rewind": part.rewind.document() if part.rewind else None} for part in self.parts]
        return {**self.to_json(), "parts": parts}

    @classmethod
    @reads_document
    def of_document(cls, value: Mapping[str, Any]) -> ChainPlan:
        """Read what :meth:`document` wrote, to resume it."""
        parts = tuple(
            ChainPart(
                name=str(part["name"]),
                checkpoint=str(part["checkpoint"]),
                argument=str(part["argument"]),
                reads=dict(part["reads"]),
                newest=int(part["newest"]),
                rewind=RewindPlan.of_document(part["rewind"]) if part["rewind"] else None,
                undo_needs=str(part["undo_needs"]),
            )
            for part in value["parts"]
        )
        words = {name: tuple(str(word) for word in value[name]) for name in ("begins_with", "notes", "others")}
        return cls(str(value["plan_id"]), str(value["target"]), parts=parts, continued=True, **words)

    def to_markdown(self) -> str:
        """The plan for people: the log, an approval form, a terminal."""
        exact = [part.name for part in self.parts if part.undo_needs]
        undo = f"**not row-exact** for {', '.join(exact)}, see below" if exact else "possible"
        rows = [
            ("streams", self.name),
            ("asked for", f"{self.target}, of {', '.join(self.begins_with)}"),
            ("verdict", f"**{self.verdict.value}**"),
            ("undo", f"{undo}; only until one of the streams is started"),
        ]
        nothing = "Nothing to do: all streams are at these batches." if self.already_done else ""
        parts = (self._table(), accept_block(self.risks, nothing=nothing))
        return plan_page("Rewind of a chain", self.plan_id, rows, self.reasons, *parts, steps=self.steps)

    def _table(self) -> str:
        rows: list[tuple[object, ...]] = []
        for part in self.parts:
            reads = ", ".join(f"`{table}`" for table in part.reads.values()) or "-"
            if part.rewind is None:
                rows.append((part.name, reads, part.newest, "stays", "", "", "", "reads nothing that changes"))
                continue
            for number, sink in enumerate(part.rewind.sinks):
                back = sink.report.rollback if sink.rolls_back else None
                versions = (
                    (back.from_version, back.to_version) if back and back.to_version is not None else ("", "stays")
                )
                if back and back.to_version is None:
                    versions = ("its log", f"{len(back.paths)} files leave it")
                first = (part.name, reads, part.rewind.newest, part.rewind.batch_id) if not number else ("", "", "", "")
                rows.append((*first, f"`{sink.report.uri}`", *versions, f"**{part.rewind.verdict.value}**"))
        columns = ("stream", "reads", "from batch", "to batch", "table", "from version", "to version", "verdict")
        return markdown.table(columns, rows)
