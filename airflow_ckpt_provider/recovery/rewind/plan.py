"""The plan of a rewind: the batch, the files to remove, what it means for sources and sink. See ``planning``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID, uuid5

from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.pack_reads import MovedContents
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.edits import Edits, Write, entry_writes, expect_edited, listed_files, literal_writes
from airflow_ckpt_provider.change.plan import Plan, Risk, chain_command, each_word_once, undo_command
from airflow_ckpt_provider.change.plan_document import reads_document
from airflow_ckpt_provider.change.plan_page import accept_block, files, plan_page, some
from airflow_ckpt_provider.change.risks import source_risk
from airflow_ckpt_provider.change.target import Target
from airflow_ckpt_provider.checkpoint.closure import resolve_closure
from airflow_ckpt_provider.checkpoint.progress import read_progress
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE
from airflow_ckpt_provider.checkpoint.resume import start_after
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import CkptError, StorageError, command
from airflow_ckpt_provider.fingerprint import fingerprint_of
from airflow_ckpt_provider.recovery.reset.new_numbers import new_metadata
from airflow_ckpt_provider.recovery.rewind.downstream import RISKS_OF_READERS, verdict_in
from airflow_ckpt_provider.recovery.rewind.planned_sink import (
    PlannedSink,
    RequestedSink,
    planned_sinks_of,
    reasons_of,
    risks_of,
    sinks_json,
    sinks_table,
    steps_of,
    verdict_of,
)
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.report import SinkReport
from airflow_ckpt_provider.units import format_time
from airflow_ckpt_provider.verdict import Verdict, worst

#: What new query ids are made of, beside the plan's id: the same plan gives the same id, however often it is continued with.
_NEW_IDS = UUID("b0a8c0de-0000-4000-8000-7265776f756e")


@dataclass(frozen=True, slots=True)
class RewindRequest:
    """What was asked for; a rewind that was killed is continued with when the same is asked again.

    :param target: where to, as :class:`~airflow_ckpt_provider.recovery.rewind.specifier.Specifier` prints itself.
    :param sinks: what was asked for each sink.
    :param exact_replay: the next batch is to run again with exactly its logged end offsets.
    :param backup: the backup that everything is to come from; empty: the checkpoint itself, as far as it reaches.
    """

    target: str
    sinks: tuple[RequestedSink, ...] = (RequestedSink(),)
    exact_replay: bool = True
    backup: str = ""

    @property
    def sink(self) -> str:
        """Name of the only sink, or of the first."""
        return self.sinks[0].sink

    def to_json(self) -> dict[str, Any]:
        """The request as plain JSON."""
        of_sinks: dict[str, Any] = self.sinks[0].to_json()
        if len(self.sinks) > 1:
            of_sinks = {"sinks": [sink.to_json() for sink in self.sinks]}
        return {"target": self.target, **of_sinks, "exact_replay": self.exact_replay, "backup": self.backup}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RewindRequest:
        """Read what :meth:`to_json` wrote."""
        rest = dict(value)
        of_one = {name: rest.pop(name) for name in ("sink", "sink_exit", "app_id") if name in rest}
        sinks = tuple(RequestedSink(**sink) for sink in rest.pop("sinks", [of_one]))
        return cls(sinks=sinks, **rest)


@dataclass(frozen=True, slots=True)
class RewindPlan(Plan):
    """What a rewind would do.

    :param plan_id: its id; the seal and the table's commit carry it.
    :param request: what was asked for.
    :param name: name of the stream in the repository.
    :param checkpoint: URI of the checkpoint.
    :param query_id: the query's id.
    :param batch_id: the batch that is rewound to; the next to run is one more.
    :param newest: the newest batch that had been logged.
    :param source_of_state: ``checkpoint``, or the id of the backup that files are taken from.
    :param exact_replay: batch ``batch_id + 1`` runs again with exactly the end offsets it had.
    :param before: path -> size of all visible files when the plan was made.
    :param fingerprint: of the checkpoint when the plan was made.
    :param deletes: files that go.
    :param writes: files that are written from the backup.
    :param sinks: what each sink says, and what is done to it.
    :param replay: what is read and run again.
    :param sources: what the guards say of the sources, as plain JSON; ``None`` where they were not asked.
    :param downstream: what happens to streams that read the sink, in words, each with a verdict at its end.
    :param notes: what the person who asked should know.
    :param ended: when the batch had ended at the latest, in UTC.
    :param moved: path -> content of the log entries whose source positions move behind the rollback of a table that this
        stream reads; see :mod:`~airflow_ckpt_provider.recovery.chains.positions`.
    :param chain: the chain that the plan is a part of, for :func:`~airflow_ckpt_provider.change.plan.chain_command`.
    """

    plan_id: str
    request: RewindRequest
    name: str
    checkpoint: str
    query_id: str
    batch_id: int
    newest: int
    source_of_state: str
    exact_replay: bool
    before: Mapping[str, int]
    fingerprint: str
    deletes: tuple[str, ...]
    writes: tuple[FileEntry, ...]
    sinks: tuple[PlannedSink, ...]
    replay: Mapping[str, Any]
    sources: Mapping[str, Any] | None = None
    downstream: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    ended: datetime | None = None
    #: Whether it could be undone: ``possible`` and ``reasons``; ``None`` in a plan of an older release.
    undo: Mapping[str, Any] | None = None
    moved: Mapping[str, str] = field(default_factory=dict)
    chain: Mapping[str, str] | None = None
    #: Whether it was begun before: a killed run of the same request is resumed.
    continued: bool = field(default=False, compare=False)

    kind: ClassVar[str] = "rewind"

    @property
    def changes_checkpoint(self) -> bool:
        """Whether any file of the checkpoint changes."""
        return bool(self.deletes or self.writes or self.moved)

    @property
    def sink(self) -> SinkReport:
        """What the only sink says, or the first."""
        return self.sinks[0].report

    @property
    def sink_exit(self) -> SinkPolicy | None:
        """What is done about rows beyond the target in the only sink, or the first."""
        return self.sinks[0].policy

    @property
    def app_id(self) -> str:
        """The id by which the only sink, or the first, knows the query."""
        return self.sinks[0].app_id

    @property
    def rolls_sink_back(self) -> bool:
        """Whether a sink is rolled back too."""
        return any(sink.rolls_back for sink in self.sinks)

    @property
    def by_spark(self) -> str | None:
        """The table feature because of which Spark has to roll a table back, or ``None``."""
        return next((sink.by_spark for sink in self.sinks if sink.by_spark), None)

    @property
    def new_query_id(self) -> str | None:
        """The id that the query gets where Spark rolls the table back: what the table remembers of the old one stays in it."""
        return str(uuid5(_NEW_IDS, self.plan_id)) if self.by_spark else None

    @property
    def already_done(self) -> bool:
        """Whether everything is as the plan wants it."""
        return not (self.changes_checkpoint or self.rolls_sink_back or self.continued)

    @property
    def source_verdict(self) -> Verdict:
        """What the guards said; ``UNKNOWN`` where they were not asked."""
        if self.replay.get("batches") == 0 and self.sources is None:
            return Verdict.SAFE
        return Verdict(self.sources["verdict"]) if self.sources else Verdict.UNKNOWN

    @property
    def sink_verdict(self) -> Verdict:
        """The worst of what happens at the sinks with the policies that were chosen."""
        return verdict_of(self.sinks)

    @property
    def verdict(self) -> Verdict:
        """The worst of sources, sinks and what becomes of the streams that read them."""
        readers = filter(None, map(verdict_in, self.downstream))
        return worst((self.source_verdict, self.sink_verdict, *readers))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why, in words."""
        found = []
        if self.sources is None and self.source_verdict is Verdict.UNKNOWN:
            found.append(
                f"sources: not asked whether they still have the data after batch {self.batch_id} (a guard does)"
            )
        elif self.sources and self.source_verdict is not Verdict.SAFE:
            found += [f"sources: {reason}" for reason in self.sources["reasons"]]
        found += reasons_of(self.sinks)
        return (*found, *self.downstream, *self.notes)

    @property
    def risks(self) -> tuple[Risk, ...]:
        """What has to be accepted: what the sink does when nothing is done to it, rows of others, lost input, readers."""
        found = risks_of(self.sinks, self.batch_id)
        if self.source_verdict in (Verdict.WILL_LOSE, Verdict.WILL_FAIL, Verdict.WILL_SKIP):
            reasons = "; ".join(self.sources["reasons"]) if self.sources else ""
            found.append(Risk(str(source_risk(self.source_verdict)), reasons))
        readers = ((verdict_in(sentence), sentence) for sentence in self.downstream)
        found += [Risk(RISKS_OF_READERS[verdict], sentence) for verdict, sentence in readers if verdict]
        return each_word_once(found)

    @property
    def seal_reason(self) -> str:
        """What the seal says."""
        return f"rewind to batch {self.batch_id}" + (f" in chain {self.chain['plan_id']}" if self.chain else "")

    def command_to_undo(self, repository: Repository | None = None) -> str:
        """The command that undoes it; a part of a chain only with the others.

        :param repository: where the plan is kept; ``None``: beside the checkpoint.
        """
        if self.chain is None:
            return undo_command(self.checkpoint, self.plan_id, repository, (sink.sink for sink in self.request.sinks))
        return chain_command("undo", self.chain)

    @property
    def writes_offsets(self) -> Collection[str]:
        """Paths in ``offsets/`` that will be written."""
        return [*(entry.path for entry in self.writes if entry.path.startswith("offsets/")), *self.moved]

    def edits(self, there: Target, repository: Repository) -> Edits:
        """Remove what lies beyond the batch; write what comes from the backup, and the new query id."""
        literal = {path: content.encode() for path, content in self._literal.items()}
        entries = [entry for entry in self.writes if entry.path not in literal]
        moved = MovedContents(repository)

        def writes() -> Iterator[Write]:
            yield from entry_writes(repository, entries, right_when="the plan was made", moved=moved)
            yield from literal_writes(literal)

        return Edits(listed_files(there, self.deletes), writes)

    @property
    def written(self) -> dict[str, int]:
        """Path -> size of the files that are written."""
        literal = {path: len(content.encode()) for path, content in self._literal.items()}
        return {entry.path: entry.size for entry in self.writes} | literal

    @property
    def _literal(self) -> dict[str, str]:
        """Path -> content of the files whose content the plan knows."""
        renamed = {METADATA_FILE: new_metadata(self.new_query_id)} if self.new_query_id else {}
        return {**self.moved, **renamed}

    def check(self, there: Target) -> None:
        """See that exactly what was planned is there, and that it is whole for Spark."""
        expect_edited(there, self.before, self.deletes, self.written, plan_id=self.plan_id)
        try:
            resolve_closure(
                Tree.of(there.location, files=there.visible.values()), self.batch_id, replays_next=self.exact_replay
            )
        except CkptError as e:
            raise StorageError(
                f"{there.location} does not read back as batch {self.batch_id}: {e.message}",
                hint="see who else writes there",
            ) from e
        verdict, reason = start_after(there.location, read_progress(there.location), self.batch_id)
        if verdict not in (Verdict.SAFE, Verdict.UNKNOWN):
            raise StorageError(
                f"{there.location} does not continue after batch {self.batch_id} ({verdict.value}): {reason}",
                hint="do not start the query, and see who else writes there; what continues from here: "
                f"`{command('status', self.checkpoint)}`",
            )

    @property
    def steps(self) -> tuple[str, ...]:
        """What ``apply`` does, in order."""
        if self.already_done:
            return ()
        steps = ["seal the checkpoint and list it again"]
        if self.deletes:
            steps.append(f"set {files(len(self.deletes))} aside in the repository")
        steps += steps_of(self.sinks, self.batch_id)
        if self.deletes:
            steps.append(f"delete {files(len(self.deletes))} of the checkpoint: {some(self.deletes)}")
        if self.writes:
            steps.append(f"write {files(len(self.writes))} from backup {self.source_of_state}")
        if self.moved:
            entries = ", ".join(f"`{path}`" for path in sorted(self.moved))
            steps.append(f"write {entries} with source positions behind the rollback of what the stream reads")
        if self.new_query_id:
            steps.append(
                f"write `{METADATA_FILE}` with the new query id {self.new_query_id}, which the table does not know"
            )
        return (*steps, f"check that batch {self.batch_id} is whole", "write the audit record", "lift the seal")

    @property
    def newest_batch(self) -> int:
        """The newest batch that the query has logged."""
        return self.newest

    @property
    def subject(self) -> dict[str, Any]:
        """What the plan is about: the place, the batch, and what is done to the sinks. Not by which words the batch was found."""
        asked = {key: value for key, value in self.request.to_json().items() if key != "target"}
        own = {"name": self.name, "query_id": self.query_id, "batch_id": self.batch_id}
        return {**super(RewindPlan, self).subject, **own, **asked}

    @property
    def plan_fingerprint(self) -> str:
        """Changes with the request, the checkpoint, the backup or the sink: what an approval is given for."""
        writes = sorted((e.path, e.size, e.sha256 or e.checksum or "") for e in self.writes)
        parts = {
            "request": self.request.to_json(),
            "checkpoint": [self.checkpoint, self.fingerprint],
            "batch": self.batch_id,
            "from": [self.source_of_state, sorted(self.deletes), writes],
            **({"sink": self.sink.to_json()} if len(self.sinks) == 1 else sinks_json(self.sinks)),
            **({"moved": dict(self.moved)} if self.moved else {}),
        }
        return fingerprint_of(parts)

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON."""
        return {
            "plan_id": self.plan_id,
            "kind": "rewind",
            "request": self.request.to_json(),
            "name": self.name,
            "checkpoint": self.checkpoint,
            "query_id": self.query_id,
            "batch_id": self.batch_id,
            "newest": self.newest,
            "from": self.source_of_state,
            "exact_replay": self.exact_replay,
            "ended": self.ended.isoformat() if self.ended else None,
            "verdict": self.verdict.value,
            "reasons": list(self.reasons),
            "steps": list(self.steps),
            "replay": dict(self.replay),
            "sources": self.sources,
            **sinks_json(self.sinks),
            "new_query_id": self.new_query_id,
            "downstream": list(self.downstream),
            "notes": list(self.notes),
            "undo": self.undo,
            # Only in chains: earlier releases know neither.
            **({"moved": dict(self.moved)} if self.moved else {}),
            **({"chain": dict(self.chain)} if self.chain else {}),
            "deletes": list(self.deletes),
            "writes": [entry.to_json() for entry in self.writes],
            "accept": [risk.word for risk in self.risks],
            "fingerprint": self.plan_fingerprint,
            "already_done": self.already_done,
        }

    def document(self) -> dict[str, Any]:
        """The plan with all that carrying it out needs, as it is kept in the repository."""
        more = {"before": dict(self.before), "checkpoint_fingerprint": self.fingerprint, "written": self.written}
        return {**self.to_json(), **more}

    @classmethod
    @reads_document
    def of_document(cls, value: Mapping[str, Any]) -> RewindPlan:
        """Read what :meth:`document` wrote, to continue with it."""
        return cls(
            plan_id=value["plan_id"],
            request=RewindRequest.from_json(value["request"]),
            name=value["name"],
            checkpoint=value["checkpoint"],
            query_id=value["query_id"],
            batch_id=value["batch_id"],
            newest=value["newest"],
            source_of_state=value["from"],
            exact_replay=value["exact_replay"],
            before=value["before"],
            fingerprint=value["checkpoint_fingerprint"],
            deletes=tuple(value["deletes"]),
            writes=tuple(FileEntry.from_json(entry) for entry in value["writes"]),
            sinks=planned_sinks_of(value),
            replay=value["replay"],
            sources=value["sources"],
            downstream=tuple(value["downstream"]),
            notes=tuple(value["notes"]),
            ended=datetime.fromisoformat(value["ended"]) if value["ended"] else None,
            undo=value.get("undo"),
            moved=dict(value.get("moved") or {}),
            chain=value.get("chain"),
            continued=True,
        )

    def to_markdown(self) -> str:
        """The plan for people: the log, an approval form, a terminal."""
        when = f", which had ended by {format_time(self.ended)}" if self.ended else ""
        after = "runs again with exactly its old end offsets" if self.exact_replay else "is planned again"
        rows = [
            ("checkpoint", f"`{self.checkpoint}`"),
            ("asked for", self.request.target),
            ("batch", f"{self.batch_id}{when}; batch {self.batch_id + 1} {after}"),
            ("state from", self.source_of_state),
            ("replay", self._replay_in_words()),
            ("sink", self.sinks[0].in_words) if len(self.sinks) == 1 else ("sinks", f"{len(self.sinks)}, see below"),
            ("verdict", f"**{self.verdict.value}**"),
            *([("undo", self._undo_in_words(self.undo))] if self.undo else []),
        ]
        steps = self.steps
        nothing = "Nothing to do: the checkpoint is at this batch." if self.already_done else ""
        parts = (sinks_table(self.sinks), accept_block(self.risks, nothing=nothing))
        return plan_page("Rewind", self.plan_id, rows, self.reasons, *parts, steps=steps)

    def _replay_in_words(self) -> str:
        batches = self.replay.get("batches") or 0
        if not batches:
            return "nothing"
        words = [f"{batches} batches" if batches > 1 else "1 batch"]
        for source, count in sorted((self.replay.get("records") or {}).items()):
            counted = "a number of records not known" if count is None else f"{count:,} records or files"
            words.append(f"{counted} of source {source}")
        seconds = self.replay.get("seconds")
        if seconds is not None:
            words.append(f"took {seconds:,.0f} s the first time")
        return "; ".join(words)

    @staticmethod
    def _undo_in_words(undo: Mapping[str, Any]) -> str:
        return f"{'possible' if undo['possible'] else '**not possible**'}: {'; '.join(undo['reasons'])}"
