"""The plan of a rewind: the batch, the files to remove, what it means for sources and sink. See ``planning``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID, uuid5

from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.plan import (
    Edits,
    Plan,
    Risk,
    Write,
    accept_block,
    entry_writes,
    expect_edited,
    listed_files,
    literal_writes,
    plan_page,
    reads_document,
    sink_risk,
    some,
    source_risk,
)
from airflow_ckpt_provider.change.target import Target
from airflow_ckpt_provider.checkpoint.closure import resolve_closure
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import CkptError, StorageError
from airflow_ckpt_provider.fingerprint import fingerprint_of
from airflow_ckpt_provider.guards.report import worst
from airflow_ckpt_provider.recovery.reset.new_numbers import new_metadata
from airflow_ckpt_provider.sinks.report import SinkPolicy, SinkReport
from airflow_ckpt_provider.verdict import Verdict

#: What new query ids are made of, beside the plan's id: the same plan gives the same id, however often it is gone on with.
_NEW_IDS = UUID("b0a8c0de-0000-4000-8000-7265776f756e")


@dataclass(frozen=True, slots=True)
class RewindRequest:
    """What was asked for; a rewind that was killed is gone on with when the same is asked again.

    :param target: where to, as :class:`~airflow_ckpt_provider.recovery.rewind.specifiers.Specifier` prints itself.
    :param sink: URI of the sink, or the kind of one without a place; empty where none was named.
    :param sink_exit: what is done about rows beyond the target; empty where none was chosen.
    :param app_id: the ``txnAppId`` of the sink where it is not the query id; else empty.
    :param exact_replay: the next batch is to run again with exactly its logged end offsets.
    :param backup: the backup that everything is to come from; empty: the checkpoint itself, as far as it reaches.
    """

    target: str
    sink: str = ""
    sink_exit: str = ""
    app_id: str = ""
    exact_replay: bool = True
    backup: str = ""

    def to_json(self) -> dict[str, Any]:
        """The request as plain JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class RewindPlan(Plan):
    """What a rewind would do.

    :param plan_id: its id; the seal and the table's commit carry it.
    :param request: what was asked for.
    :param name: name of the stream in the repository.
    :param checkpoint: URI of the checkpoint.
    :param query_id: the query's id.
    :param batch_id: the batch that is gone back to; the next to run is one more.
    :param newest: the newest batch that had been logged.
    :param source_of_state: ``checkpoint``, or the id of the backup that files are taken from.
    :param exact_replay: batch ``batch_id + 1`` runs again with exactly the end offsets it had.
    :param before: path -> size of all visible files when the plan was made.
    :param fingerprint: of the checkpoint when the plan was made.
    :param deletes: files that go.
    :param writes: files that are written from the backup.
    :param sink: what the sink says.
    :param sink_exit: what is done about rows beyond the target, where anything is.
    :param app_id: the id by which the sink knows the query.
    :param replay: what is read and run again.
    :param sources: what the guards say of the sources, as plain JSON; ``None`` where they were not asked.
    :param downstream: what happens to streams that read the sink, in words.
    :param notes: what the person who asked should know.
    :param ended: when the batch had ended at the latest, in UTC.
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
    sink: SinkReport
    sink_exit: SinkPolicy | None
    app_id: str
    replay: Mapping[str, Any]
    sources: Mapping[str, Any] | None = None
    downstream: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    ended: datetime | None = None
    #: Whether it could be taken back: ``possible`` and ``reasons``; ``None`` in a plan of an older release.
    undo: Mapping[str, Any] | None = None
    #: Whether it was begun before: a killed run of the same request is resumed.
    continued: bool = field(default=False, compare=False)

    kind: ClassVar[str] = "rewind"

    @property
    def changes_checkpoint(self) -> bool:
        """Whether any file of the checkpoint changes."""
        return bool(self.deletes or self.writes)

    @property
    def rolls_sink_back(self) -> bool:
        """Whether the sink goes back too."""
        return self.sink_exit is SinkPolicy.ROLLBACK and self.sink.rollback is not None

    @property
    def by_spark(self) -> str | None:
        """The table feature because of which Spark has to roll the table back, or ``None``."""
        return self.sink.rollback.feature if self.rolls_sink_back and self.sink.rollback else None

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
        """What happens at the sink with the exit that was chosen."""
        if not self.rolls_sink_back:
            return self.sink.verdict
        if self.sink.rollback and (self.sink.rollback.reverts or self.sink.rollback.foreign):
            return Verdict.WILL_LOSE
        return Verdict.UNKNOWN if self.sink.doubts else Verdict.SAFE

    @property
    def verdict(self) -> Verdict:
        """The worst of sources and sink."""
        return worst((self.source_verdict, self.sink_verdict))

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
        found += [f"sink: {reason}" for reason in (self.sink.doubts if self.rolls_sink_back else self.sink.reasons)]
        if self.rolls_sink_back and self.sink.rollback:
            found += [f"sink: a rollback removes rows of others: {commit}" for commit in self.sink.rollback.foreign]
            found += [f"sink: a rollback takes back: {change}" for change in self.sink.rollback.reverts]
        return (*found, *self.downstream, *self.notes)

    @property
    def risks(self) -> tuple[Risk, ...]:
        """What has to be accepted: what the sink does when nothing is done to it, rows of others, lost input."""
        found = []
        word = sink_risk(self.sink.verdict)
        if word and not self.rolls_sink_back and self.sink_exit is not SinkPolicy.ACCEPT:
            found.append(Risk(word, "; ".join(self.sink.reasons)))
        rollback = self.sink.rollback
        if self.rolls_sink_back and rollback and rollback.foreign:
            others = (
                f"others have written into {self.sink.uri} since batch {self.batch_id}: {', '.join(rollback.foreign)}"
            )
            settings = f", and takes back: {'; '.join(rollback.reverts)}" if rollback.reverts else ""
            found.append(Risk("foreign_loss", f"{others}; a roll-back removes their rows too{settings}"))
        elif self.rolls_sink_back and rollback and rollback.reverts:
            others = f"others have changed {self.sink.uri} since batch {self.batch_id}"
            found.append(Risk("foreign_loss", f"{others}; a rollback takes back: {'; '.join(rollback.reverts)}"))
        if self.source_verdict in (Verdict.WILL_LOSE, Verdict.WILL_FAIL, Verdict.WILL_SKIP):
            reasons = "; ".join(self.sources["reasons"]) if self.sources else ""
            found.append(Risk(str(source_risk(self.source_verdict)), reasons))
        return tuple(found)

    @property
    def seal_reason(self) -> str:
        """What the seal says."""
        return f"rewind to batch {self.batch_id}"

    @property
    def writes_offsets(self) -> Collection[str]:
        """Paths in ``offsets/`` that will be written."""
        return [entry.path for entry in self.writes if entry.path.startswith("offsets/")]

    def edits(self, there: Target, repository: Repository) -> Edits:
        """Remove what lies beyond the batch; write what comes from the backup, and the new query id."""
        renamed = {METADATA_FILE: new_metadata(self.new_query_id).encode()} if self.new_query_id else {}
        entries = [entry for entry in self.writes if entry.path not in renamed]

        def writes() -> Iterator[Write]:
            yield from entry_writes(repository, entries, right_when="the plan was made")
            yield from literal_writes(renamed)

        return Edits(listed_files(there, self.deletes), writes)

    @property
    def written(self) -> dict[str, int]:
        """Path -> size of the files that are written."""
        renamed = {METADATA_FILE: len(new_metadata(self.new_query_id))} if self.new_query_id else {}
        return {entry.path: entry.size for entry in self.writes} | renamed

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
                hint=f"take it back: `airflow-ckpt undo {self.checkpoint} --plan {self.plan_id}`",
            ) from e

    @property
    def steps(self) -> tuple[str, ...]:
        """What ``apply`` does, in order."""
        if self.already_done:
            return ()
        steps = ["seal the checkpoint and look again", f"set {len(self.deletes)} files aside in the repository"]
        rollback = self.sink.rollback
        if self.rolls_sink_back and rollback:
            if rollback.to_version is not None:
                how = f"in one commit; it then remembers batch {self.batch_id}"
                what = "snapshot" if self.sink.kind == "iceberg" else "version"
                if self.by_spark:
                    how = f"by Spark, because it has the feature {self.by_spark}; it still remembers its newer batches"
                steps.append(f"roll the table back to {what} {rollback.to_version} {how}")
            else:
                steps.append(f"set {len(rollback.paths)} files of the sink aside and delete them, its log first")
        steps.append(f"delete {len(self.deletes)} files of the checkpoint: {some(self.deletes)}")
        if self.writes:
            steps.append(f"write {len(self.writes)} files from backup {self.source_of_state}")
        if self.new_query_id:
            steps.append(
                f"write `{METADATA_FILE}` with the new query id {self.new_query_id}, which the table does not know"
            )
        return (*steps, f"check that batch {self.batch_id} is whole", "write the audit record", "lift the seal")

    @property
    def plan_fingerprint(self) -> str:
        """Changes with the request, the checkpoint or the sink: what an approval is given for."""
        parts = {
            "request": self.request.to_json(),
            "checkpoint": [self.checkpoint, self.fingerprint],
            "batch": self.batch_id,
            "sink": self.sink.to_json(),
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
            "sink": self.sink.to_json(),
            "sink_exit": self.sink_exit.value if self.sink_exit else None,
            "app_id": self.app_id,
            "new_query_id": self.new_query_id,
            "downstream": list(self.downstream),
            "notes": list(self.notes),
            "undo": self.undo,
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
        """Read what :meth:`document` wrote, to go on with it."""
        return cls(
            plan_id=value["plan_id"],
            request=RewindRequest(**value["request"]),
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
            sink=SinkReport.from_json(value["sink"]),
            sink_exit=SinkPolicy(value["sink_exit"]) if value["sink_exit"] else None,
            app_id=value["app_id"],
            replay=value["replay"],
            sources=value["sources"],
            downstream=tuple(value["downstream"]),
            notes=tuple(value["notes"]),
            ended=datetime.fromisoformat(value["ended"]) if value["ended"] else None,
            undo=value.get("undo"),
            continued=True,
        )

    def to_markdown(self) -> str:
        """The plan for people: the log, an approval form, a terminal."""
        when = f", which had ended by {self.ended:%Y-%m-%d %H:%M:%S} UTC" if self.ended else ""
        after = "runs again with exactly its old end offsets" if self.exact_replay else "is planned anew"
        rows = [
            ("checkpoint", f"`{self.checkpoint}`"),
            ("asked for", self.request.target),
            ("batch", f"{self.batch_id}{when}; batch {self.batch_id + 1} {after}"),
            ("state from", self.source_of_state),
            ("replay", self._replay_in_words()),
            ("sink", self._sink_in_words()),
            ("verdict", f"**{self.verdict.value}**"),
            *([("undo", self._undo_in_words(self.undo))] if self.undo else []),
        ]
        steps = self.steps
        nothing = "Nothing to do: the checkpoint stands at this batch." if self.already_done else ""
        accept = accept_block(self.risks)
        return plan_page("Rewind", self.plan_id, rows, self.reasons, accept, nothing, steps=steps)

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

    def _sink_in_words(self) -> str:
        exit_ = f", exit {self.sink_exit.value}" if self.sink_exit else ""
        rollback = self.sink.rollback
        if not (self.rolls_sink_back and rollback):
            return f"`{self.sink.uri}` ({self.sink.kind}{exit_})"
        rows = "a number of rows not known" if rollback.rows is None else f"{rollback.rows:,} rows"
        where = (
            f"{'snapshot' if self.sink.kind == 'iceberg' else 'version'} {rollback.from_version} to {rollback.to_version}"
            if rollback.to_version is not None
            else "its log"
        )
        return f"`{self.sink.uri}` ({self.sink.kind}{exit_}): {where}, {rows} of {rollback.batches} batches leave it"
