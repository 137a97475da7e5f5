"""The plan of a reset: the files to remove, where the new checkpoint starts, what the sink does. See ``planning``."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from airflow_ckpt_provider import markdown
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.edits import Edits, expect_edited, literal_writes
from airflow_ckpt_provider.change.fail_closed_order import highest_offsets
from airflow_ckpt_provider.change.plan import Plan, Risk, sink_words
from airflow_ckpt_provider.change.plan_document import reads_document
from airflow_ckpt_provider.change.plan_page import accept_block, files, named_sink, plan_page
from airflow_ckpt_provider.change.risks import sink_risk, source_risk
from airflow_ckpt_provider.change.target import Target
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE
from airflow_ckpt_provider.errors import command
from airflow_ckpt_provider.fingerprint import fingerprint_of
from airflow_ckpt_provider.recovery.positions.position import FirstStart
from airflow_ckpt_provider.recovery.reset.new_numbers import new_metadata
from airflow_ckpt_provider.recovery.reset.way import ResetWay
from airflow_ckpt_provider.sinks.cutover import Cutover
from airflow_ckpt_provider.verdict import Verdict, worst


@dataclass(frozen=True, slots=True)
class ResetRequest:
    """What was asked for; a reset that was killed is continued with when the same is asked again.

    :param way: what takes the place of the old checkpoint.
    :param batch_id: the batch after which the new one reads; ``None``: the newest that counts as done.
    :param sinks: a pair for each sink: its URI, or its kind where it has no place (empty: no sink was named), and the
        ``txnAppId`` with which the old query writes to it (empty: the query id).
    :param new_app_id: the one that the new query will write with; else empty.
    :param sources: source of the old query -> its place or name in the new one; empty text: it is gone.
    :param continue_numbers: the new checkpoint continues with the old batch numbers.
    """

    way: ResetWay
    batch_id: int | None = None
    sinks: tuple[tuple[str, str], ...] = (("", ""),)
    new_app_id: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
    continue_numbers: bool = False

    def to_json(self) -> dict[str, Any]:
        """The request as plain JSON."""
        return {
            "way": self.way.value,
            "batch_id": self.batch_id,
            **_sinks_json(self.sinks),
            "new_app_id": self.new_app_id,
            "sources": dict(self.sources),
            "continue_numbers": self.continue_numbers,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ResetRequest:
        """Read what :meth:`to_json` wrote."""
        rest = dict(value)
        of_one = {name: rest.pop(name) for name in ("sink", "app_id") if name in rest}
        sinks = tuple((str(sink["sink"]), str(sink["app_id"])) for sink in rest.pop("sinks", [of_one]))
        return cls(**{**rest, "way": ResetWay(value["way"]), "sinks": sinks})


def _sinks_json(sinks: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """One sink as it was stored before there were several; several as a list, which earlier releases refuse to read."""
    found = [{"sink": name, "app_id": app_id} for name, app_id in sinks]
    return dict(found[0]) if len(found) == 1 else {"sinks": found}


@dataclass(frozen=True, slots=True)
class NewSource:
    """Where one source of the new checkpoint starts.

    :param source: its place or name in the new query.
    :param kind: ``kafka``, ``delta``, ``file``, ….
    :param options: options of its reader.
    :param conf: settings that the session must have at the first start.
    :param verdict: ``SAFE``: exactly what was not read.
    :param reasons: what to know.
    """

    source: str
    kind: str
    options: Mapping[str, str]
    conf: Mapping[str, str]
    verdict: Verdict
    reasons: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The source as plain JSON."""
        return {
            "source": self.source,
            "kind": self.kind,
            "options": dict(self.options),
            "conf": dict(self.conf),
            "verdict": self.verdict.value,
            "reasons": list(self.reasons),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> NewSource:
        """Read what :meth:`to_json` wrote."""
        return cls(**{**value, "verdict": Verdict(value["verdict"]), "reasons": tuple(value["reasons"])})


@dataclass(frozen=True, slots=True)
class ResetPlan(FirstStart, Plan):
    """What a reset would do.

    :param plan_id: its id; the seal carries it.
    :param request: what was asked for.
    :param name: name of the stream in the repository.
    :param checkpoint: URI of the checkpoint.
    :param query_id: the query's id; ``None`` where it cannot be read.
    :param new_query_id: the id it gets; ``None`` where Spark makes one at the first start.
    :param start: the batch after which the new checkpoint reads; ``None`` where it starts from scratch.
    :param newest: the newest batch that the old query may have written; -1 for none.
    :param before: path -> size of all visible files when the plan was made.
    :param fingerprint: of the checkpoint when the plan was made.
    :param sources: where each source starts; empty where the sources' own options decide, or nothing changes.
    :param contents: files that the new checkpoint holds before its first start: path -> content.
    :param cutovers: what each sink does.
    :param cautions: what a new checkpoint changes besides.
    :param notes: what the person who asked should know.
    :param repository: URI of the repository that keeps the old checkpoint; empty where it lies beside the checkpoint.
    """

    plan_id: str
    request: ResetRequest
    name: str
    checkpoint: str
    query_id: str | None
    new_query_id: str | None
    start: int | None
    newest: int
    before: Mapping[str, int]
    fingerprint: str
    sources: tuple[NewSource, ...]
    contents: Mapping[str, str]
    cutovers: tuple[Cutover, ...]
    cautions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    repository: str = ""
    #: Whether it was begun before: a killed run of the same request is resumed.
    continued: bool = field(default=False, compare=False)

    kind: ClassVar[str] = "reset"

    @property
    def cutover(self) -> Cutover:
        """What the only sink does, or the first."""
        return self.cutovers[0]

    @property
    def already_done(self) -> bool:
        """A reset always makes something new."""
        return False

    @property
    def risks(self) -> tuple[Risk, ...]:
        """What has to be accepted: whatever is not ``SAFE`` at the sink or at a source."""
        found: dict[str, str] = {}
        for cutover in self.cutovers:
            if word := sink_risk(cutover.verdict):
                why = "; ".join(cutover.reasons)
                why = why if len(self.cutovers) == 1 else f"{cutover.uri}: {why}"
                found[word] = f"{found[word]}; {why}" if word in found else why
        for source in self.sources:
            if word := source_risk(source.verdict):
                why = f"source {source.source}: {'; '.join(source.reasons)}"
                found[word] = f"{found[word]}; {why}" if word in found else why
        return tuple(Risk(word, why) for word, why in found.items())

    @property
    def seal_reason(self) -> str:
        """What the seal says."""
        return f"reset, {self.way.value}"

    @property
    def writes_offsets(self) -> Collection[str]:
        """Paths in ``offsets/`` that will be written."""
        return [path for path in self.contents if path.startswith("offsets/")]

    @property
    def wanted(self) -> dict[str, bytes]:
        """What is written."""
        if self.way is ResetWay.NEW_QUERY_ID:
            return {METADATA_FILE: new_metadata(str(self.new_query_id)).encode()}
        return {path: content.encode() for path, content in self.contents.items()}

    def edits(self, there: Target, repository: Repository) -> Edits:
        """Remove all of the old checkpoint, hidden files too; write what the new one begins with."""
        wanted = self.wanted
        if self.way is ResetWay.NEW_QUERY_ID:
            return Edits(writes=lambda: literal_writes(wanted))
        seal = there.seal.path if there.seal else None
        return Edits(there.files.without(lambda path: path == seal or path in wanted), lambda: literal_writes(wanted))

    def check(self, there: Target) -> None:
        """See that exactly what was planned is there."""
        removed = () if self.way is ResetWay.NEW_QUERY_ID else self.before
        written = {path: len(content) for path, content in self.wanted.items()}
        expect_edited(there, self.before, removed, written, plan_id=self.plan_id)

    @property
    def way(self) -> ResetWay:
        """What takes the place of the old checkpoint."""
        return self.request.way

    @property
    def deletes(self) -> tuple[str, ...]:
        """Files that go."""
        return () if self.way is ResetWay.NEW_QUERY_ID else tuple(sorted(self.before))

    @property
    def verdict(self) -> Verdict:
        """The worst of sources and sink."""
        return worst((*(source.verdict for source in self.sources), *(c.verdict for c in self.cutovers)))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why, in words."""
        of_sources = (f"source {s.source} ({s.kind}): {reason}" for s in self.sources for reason in s.reasons)
        alone = len(self.cutovers) == 1
        of_sinks = (f"sink{'' if alone else ' ' + c.uri}: {r}" for c in self.cutovers for r in c.reasons)
        return (*of_sinks, *of_sources, *self.cautions, *self.notes)

    @property
    def snippet(self) -> str:
        """Python for the new query: what to set, and what to add to each reader. Empty where nothing has to be."""
        lines = [f"spark.conf.set({_quoted(k)}, {_quoted(v)})  # for the first start" for k, v in self.conf.items()]
        for source in self.sources:
            about = f"# source {source.source} ({source.kind})"
            if source.options:
                options = ", ".join(f"{_quoted(k)}: {_quoted(v)}" for k, v in source.options.items())
                lines += [about, f".options(**{{{options}}})"]
            else:
                why = "the new checkpoint knows what was read" if source.source in self.seeded else "see the plan"
                lines.append(f"{about}: no options; {why}")
        return "\n".join(lines)

    @property
    def seeded(self) -> frozenset[str]:
        """Sources whose position lies in the new checkpoint itself."""
        return frozenset(path.split("/")[1] for path in self.contents if path.startswith("sources/"))

    @property
    def first_batch(self) -> int:
        """Number of the new checkpoint's first batch."""
        return highest_offsets(self.contents) + 1

    @property
    def take_back(self) -> str:
        """The command that puts the old checkpoint back."""
        kept = ("--repository", self.repository) if self.repository else ()
        return command("undo", self.checkpoint, "--plan", self.plan_id, *kept)

    @property
    def again(self) -> str:
        """The command that resumes it."""
        return reset_command(self.checkpoint, self.request, self.repository)

    @property
    def steps(self) -> tuple[str, ...]:
        """What ``apply`` does, in order."""
        if self.way is ResetWay.NEW_QUERY_ID:
            return (
                "seal the checkpoint and list it again",
                "set `metadata` aside in the repository",
                f"write `metadata` with the new query id {self.new_query_id}",
                "write the audit record",
                "lift the seal",
            )
        named = ", ".join(f"`{path}`" for path in self.contents)
        written = (f"write {named}: what was read already, or the batch number",) if named else ()
        return (
            "seal the checkpoint and list it again",
            f"set {'1 file' if len(self.before) == 1 else f'all {files(len(self.before))}'} aside in the repository",
            f"delete them, first the entries of `{_GATE}` without which Spark does not start",
            *written,
            "write the audit record",
            "lift the seal: the place is then a new checkpoint",
        )

    @property
    def newest_batch(self) -> int:
        """The newest batch that the query has logged."""
        return self.newest

    @property
    def subject(self) -> dict[str, Any]:
        """What the plan is about: the place, the query, and what was asked for. Where it starts moves with the query."""
        return {
            **super(ResetPlan, self).subject,
            "name": self.name,
            "query_id": self.query_id,
            **self.request.to_json(),
        }

    @property
    def plan_fingerprint(self) -> str:
        """Changes with the request, the checkpoint, the positions or the sink: what an approval is given for."""
        parts = {
            "request": self.request.to_json(),
            "checkpoint": [self.checkpoint, self.fingerprint],
            "sources": [source.to_json() for source in self.sources],
            **self._cutovers_json,
        }
        return fingerprint_of(parts)

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON."""
        return {
            "plan_id": self.plan_id,
            "kind": "reset",
            "request": self.request.to_json(),
            "name": self.name,
            "checkpoint": self.checkpoint,
            "query_id": self.query_id,
            "new_query_id": self.new_query_id,
            "start": self.start,
            "newest": self.newest,
            "verdict": self.verdict.value,
            "reasons": list(self.reasons),
            "steps": list(self.steps),
            "sources": [source.to_json() for source in self.sources],
            "options": self.options,
            "conf": self.conf,
            "snippet": self.snippet,
            "writes": {path: len(content.encode()) for path, content in self.contents.items()},
            **self._cutovers_json,
            "cautions": list(self.cautions),
            "notes": list(self.notes),
            "repository": self.repository,
            "deletes": list(self.deletes),
            "take_back": self.take_back,
            "accept": [risk.word for risk in self.risks],
            "fingerprint": self.plan_fingerprint,
        }

    def document(self) -> dict[str, Any]:
        """The plan with all that carrying it out needs, as it is kept in the repository."""
        more = {
            "before": dict(self.before),
            "checkpoint_fingerprint": self.fingerprint,
            "contents": dict(self.contents),
            "written": {path: len(content) for path, content in self.wanted.items()},
        }
        return {**self.to_json(), **more}

    @classmethod
    @reads_document
    def of_document(cls, value: Mapping[str, Any]) -> ResetPlan:
        """Read what :meth:`document` wrote, to continue with it."""
        return cls(
            plan_id=value["plan_id"],
            request=ResetRequest.from_json(value["request"]),
            name=value["name"],
            checkpoint=value["checkpoint"],
            query_id=value["query_id"],
            new_query_id=value["new_query_id"],
            start=value["start"],
            newest=value["newest"],
            before=value["before"],
            fingerprint=value["checkpoint_fingerprint"],
            sources=tuple(NewSource.from_json(source) for source in value["sources"]),
            contents=value["contents"],
            cutovers=tuple(Cutover.from_json(each) for each in value.get("sinks") or [value["sink"]]),
            cautions=tuple(value["cautions"]),
            notes=tuple(value["notes"]),
            repository=value["repository"],
            continued=True,
        )

    def to_markdown(self) -> str:
        """The plan for people: the log, an approval form, a terminal."""
        rows = [
            ("checkpoint", f"`{self.checkpoint}`"),
            ("asked for", self.request.way.value),
            ("start", self._start_in_words()),
            ("sink", named_sink(self.cutover.uri, self.cutover.kind))
            if len(self.cutovers) == 1
            else ("sinks", f"{len(self.cutovers)}, see below"),
            ("verdict", f"**{self.verdict.value}**"),
            ("undo", f"`{self.take_back}`"),
        ]
        snippet = f"For the first start of the new query:\n\n```python\n{self.snippet}\n```" if self.sources else ""
        accept = accept_block(self.risks)
        return plan_page(
            "Reset", self.plan_id, rows, self.reasons, self._sinks_table, snippet, accept, steps=self.steps
        )

    @property
    def _sinks_table(self) -> str:
        if len(self.cutovers) == 1:
            return ""
        rows = [(f"`{c.uri}`", c.kind, f"**{c.verdict.value}**") for c in self.cutovers]
        return markdown.table(("sink", "kind", "verdict"), rows)

    @property
    def _cutovers_json(self) -> dict[str, Any]:
        found = [cutover.to_json() for cutover in self.cutovers]
        return {"sink": found[0]} if len(found) == 1 else {"sinks": found}

    def _start_in_words(self) -> str:
        if self.way is ResetWay.NEW_QUERY_ID:
            return f"unchanged, after batch {self.start}; the query's id becomes `{self.new_query_id}`"
        if self.start is None:
            return f"from scratch: where the options of the new query's sources say, with batch {self.first_batch}"
        return f"after batch {self.start} of the old query; the new one begins at batch {self.first_batch}"


def reset_command(checkpoint: str, request: ResetRequest, repository: str) -> str:
    """The command that asks for a reset, and resumes it where it was stopped.

    :param checkpoint: URI of the checkpoint.
    :param request: what is asked for.
    :param repository: URI of the repository that keeps the old checkpoint; empty where it lies beside the checkpoint.
    """
    words = ["reset", checkpoint, f"--{request.way.value}"]
    words += ["--batch", str(request.batch_id)] if request.batch_id is not None else []
    words += sink_words(request.sinks)
    words += ["--new-txn-app-id", request.new_app_id] if request.new_app_id else []
    words += ["--continue-numbers"] if request.continue_numbers else []
    words += [word for old, new in request.sources.items() for word in ("--source", f"{old}={new}")]
    words += ["--repository", repository] if repository else []
    return command(*words, "--apply")


_GATE = "offsets/"


def _quoted(text: str) -> str:
    """A Python string in double quotes, or in single ones where that spares backslashes."""
    return f"'{text}'" if '"' in text and "'" not in text and "\\" not in text else json.dumps(text)
