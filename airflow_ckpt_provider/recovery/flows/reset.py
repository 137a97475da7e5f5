"""Resetting one flow of a Declarative Pipeline without its table: the next version directory becomes the live checkpoint.

``spark-pipelines run --full-refresh`` resets a flow together with its table. Here the table keeps its rows: the version
``<n+1>`` is made beside the live ``<n>``, which stays as it is. It holds a ``metadata`` file with a new query id (an empty
directory would do for Spark, but object stores have none), and, where the position is to be kept, what was read already.

The first file of ``<n+1>`` makes it the live one, so that file is a seal; ``<n>`` is sealed for the while. If the
process is killed, nothing has begun, all is done, or Spark refuses to start; the same command again finishes.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.backup.names import checked_name
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.edits import Edits, literal_writes
from airflow_ckpt_provider.change.engine import Change
from airflow_ckpt_provider.change.plan import Plan, Risk, sink_words, undo_command
from airflow_ckpt_provider.change.plan_page import accept_block, plan_page
from airflow_ckpt_provider.change.rest import RestRule
from airflow_ckpt_provider.change.target import Target, expect_files, inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE, parse_query_id
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.errors import NotACheckpointError, RefusedError, SealedError, UnreadableLogError, command
from airflow_ckpt_provider.fingerprint import fingerprint_of
from airflow_ckpt_provider.recovery.flows.flow import Flow, flow_words
from airflow_ckpt_provider.recovery.outcome import RecoveryOutcome
from airflow_ckpt_provider.recovery.reset.new_numbers import new_metadata
from airflow_ckpt_provider.recovery.reset.plan import ResetPlan, ResetRequest
from airflow_ckpt_provider.recovery.reset.planning import plan_reset
from airflow_ckpt_provider.recovery.reset.way import ResetWay
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.units import shown_time
from airflow_ckpt_provider.verdict import Verdict

log = logging.getLogger(__name__)

#: What new query ids are made of, beside the plan's id.
_NEW_IDS = uuid.UUID("f10ec0de-0000-4000-8000-726573657400")


@dataclass(frozen=True, slots=True)
class FlowReset(Plan):
    """What the reset of a flow would do.

    :param plan_id: its id; the seals carry it.
    :param flow: the flow, as it was found.
    :param base: the version whose position and history count: the newest one with a batch.
    :param version: the version that becomes the live one.
    :param reset: the same for a checkpoint of its own: positions, contents, the verdict at the cutover.
    :param fingerprint: of the version that becomes the live one, when the plan was made.
    :param already_done: the live version is a new checkpoint that was not started yet, and just what is wanted.
    :param continued: it was begun before, and is resumed.
    """

    plan_id: str
    flow: Flow
    base: int
    version: int
    reset: ResetPlan
    fingerprint: str = ""
    already_done: bool = False
    continued: bool = False

    kind: ClassVar[str] = "flow-reset"

    @property
    def name(self) -> str:
        """Name of the flow in the repository."""
        return checked_name(self.flow.path.replace("/", "."))

    @property
    def checkpoint(self) -> str:
        """URI of the version that becomes the live one."""
        return self.path

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why, in words."""
        return self.reset.reasons

    @property
    def risks(self) -> tuple[Risk, ...]:
        """What has to be accepted: whatever is not ``SAFE`` at the sink or at a source."""
        return self.reset.risks

    @property
    def contents(self) -> dict[str, bytes]:
        """What the new version begins with. Its query id follows from the plan: resumed, it is the same."""
        own = new_metadata(str(uuid.uuid5(_NEW_IDS, self.plan_id)))
        return {path: content.encode() for path, content in {METADATA_FILE: own, **self.reset.contents}.items()}

    @property
    def writes_offsets(self) -> Collection[str]:
        """Paths in ``offsets/`` that will be written."""
        return [path for path in self.reset.contents if path.startswith("offsets/")]

    def edits(self, there: Target, repository: Repository) -> Edits:
        """Write what the new version begins with."""
        return Edits(writes=lambda: literal_writes(self.contents))

    def check(self, there: Target) -> None:
        """See that exactly what was planned is there."""
        expect_files(there, {p: len(c) for p, c in self.contents.items()}.items(), plan_id=self.plan_id)

    def document(self) -> dict[str, Any]:
        """The plan as it is kept in the repository: what an undo needs. Resuming makes it again."""
        return {
            **self.to_json(),
            "request": self.reset.request.to_json(),
            "name": self.name,
            "checkpoint": self.path,
            "observed": self.flow.version(self.base).uri,
            "before": {},
            "checkpoint_fingerprint": self.fingerprint,
            "written": {path: len(content) for path, content in self.contents.items()},
        }

    @property
    def path(self) -> str:
        """URI of the version that becomes the live one."""
        return self.flow.version(self.version).uri

    @property
    def verdict(self) -> Verdict:
        """The worst of sources and sink."""
        return self.reset.verdict

    @property
    def seal_reason(self) -> str:
        """What the seals say; a run that was killed finds its own by it."""
        return f"flow {self.flow.name} reset into version {self.version} ({self.reset.way.value})"

    @property
    def steps(self) -> tuple[str, ...]:
        """What ``apply`` does, in order."""
        if self.already_done:
            return ()
        made = ", ".join(
            f"`{path}`" for path in (*(p for p in self.reset.contents if p != METADATA_FILE), METADATA_FILE)
        )
        return (
            f"seal version {self.base}, the live one, and list it again",
            f"make version {self.version} with {made}",
            "lift the seal: the next run of the pipeline begins in it; the table is not touched",
        )

    @property
    def plan_fingerprint(self) -> str:
        """Changes with the request, the live checkpoint, the positions or the sink: what an approval is given for."""
        return fingerprint_of(f"{self.version} {self.reset.plan_fingerprint}")

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON."""
        of_reset = self.reset.to_json()
        shared = ("verdict", "reasons", "start", "sources", "options", "conf", "snippet", "writes", "sink")
        return {
            "plan_id": self.plan_id,
            "kind": "flow-reset",
            "way": self.reset.way.value,
            "flow": self.flow.name,
            "target": self.flow.target,
            "from_version": self.base,
            "version": self.version,
            "path": self.path,
            **{key: of_reset[key] for key in shared},
            "steps": list(self.steps),
            "accept": [risk.word for risk in self.risks],
            "fingerprint": self.plan_fingerprint,
            "already_done": self.already_done,
        }

    def to_markdown(self) -> str:
        """The plan for people: the log, an approval form, a terminal."""
        start = "from scratch" if self.reset.start is None else f"after batch {self.reset.start} of version {self.base}"
        rows = [
            ("flow", f"{self.flow.name} into {self.flow.target}"),
            ("new checkpoint", f"`{self.path}`"),
            ("start", start),
            ("sink", f"`{self.reset.cutover.uri}` ({self.reset.cutover.kind})"),
            ("verdict", f"**{self.verdict.value}**"),
        ]
        snippet = f"In the flow's definition:\n\n```python\n{self.reset.snippet}\n```" if self.reset.sources else ""
        nothing = (
            f"Nothing to do: version {self.version} is there and was not started yet." if self.already_done else ""
        )
        accept = accept_block(self.risks)
        return plan_page(
            "Reset of a flow", self.plan_id, rows, self.reasons, snippet, accept, nothing, steps=self.steps
        )


@dataclass(frozen=True, slots=True)
class FlowOutcome(RecoveryOutcome):
    """A flow whose live checkpoint is another one now.

    :param plan_id: the plan.
    :param flow: the flow.
    :param version: the version that is live now.
    :param path: its URI.
    :param query_id: its query id.
    :param options: source -> options of its reader, where the position is kept.
    :param conf: settings for the first run.
    :param snippet: both as Python.
    :param seconds: how long it took.
    :param already_done: nothing had to be done.
    """

    plan_id: str
    flow: str
    version: int
    path: str
    query_id: str | None
    options: Mapping[str, Mapping[str, str]]
    conf: Mapping[str, str]
    snippet: str
    seconds: float
    already_done: bool


def plan_flow_reset(
    flow: Flow, *, keep_position: bool = False, sink: Sink | None = None, continue_numbers: bool = False
) -> FlowReset:
    """Plan the reset of a flow; reads only.

    :param flow: the flow.
    :param keep_position: the new checkpoint continues at the position of the live one; else where the sources' own options say.
    :param sink: the table or directory that the flow writes to; unknown by default.
    :param continue_numbers: the new checkpoint continues with the old batch numbers, which a file sink's log wants (tables of
        Parquet and the like); for flows without state.
    :raises RefusedError: the flow has not run yet; no position can be determined.
    :raises SealedError: something else has sealed its checkpoint.
    """
    way = ResetWay.KEEP_POSITION if keep_position else ResetWay.FROM_SCRATCH
    looked = {n: inspect_target(flow.version(n)) for n in flow.versions[-2:]}
    base = next((n for n in reversed(flow.versions) if _has_run(flow.version(n))), None)
    if base is None:
        raise RefusedError(
            f"flow {flow.path.replace('/', '.')} has not run yet: there is nothing to reset", hint="run the pipeline"
        )
    live = flow.versions[-1]
    marks = [target.seal for target in looked.values() if target.seal]
    seal_id = _own_seal(flow, marks)
    reset = plan_reset(flow.version(base), way, sink=sink, continue_numbers=continue_numbers, seal_id=seal_id)
    version = live if live > base else base + 1
    plan = FlowReset(
        plan_id=seal_id or reset.plan_id,
        flow=flow,
        base=base,
        version=version,
        reset=reset,
        fingerprint=inspect_target(flow.version(version)).fingerprint,
        continued=seal_id is not None,
    )
    if live > base and not seal_id:
        # Made by a reset before this one, or by a full refresh, and not started yet.
        there = {path: flow.version(live).read(path) for path in looked[live].visible if path != METADATA_FILE}
        wanted = {path: content.encode() for path, content in reset.contents.items() if path != METADATA_FILE}
        if there == wanted:
            return replace(plan, already_done=True)
        empty = inspect_target(flow.version(live + 1)).fingerprint
        return replace(plan, version=live + 1, fingerprint=empty)
    if seal_id and marks[0].reason != plan.seal_reason:
        raise SealedError(
            f"flow {flow.name} is sealed by plan {seal_id} ({marks[0].reason}), which was not ended",
            hint="run that one again, which continues with it; where the flow has run since and is to continue as it is, lift "
            f"the seal: `{command('unseal', flow.version(live), '--plan', seal_id)}`",
        )
    return plan


def apply_flow_reset(
    plan: FlowReset,
    *,
    accept: Collection[str] = (),
    fingerprint: str | None = None,
    repository: Repository | None = None,
    rest: RestRule | None = None,
    made_by: str = "",
    reason: str = "",
) -> FlowOutcome:
    """Carry the reset of a flow out, or resume it.

    :param plan: from :func:`plan_flow_reset`.
    :param accept: words of the risks that somebody accepts, as the plan names them.
    :param fingerprint: of the plan that was approved; ``None``: not compared.
    :param repository: keeps the plan and the audit record; by default one beside the storage of the pipeline.
    :param rest: how the pipeline's run is known to have ended.
    :param made_by: the run or user that resets.
    :param reason: why, for the audit record.
    :raises SealedError: one that was asked for otherwise has sealed the flow, and was not ended.
    :raises CkptError: as :meth:`~airflow_ckpt_provider.change.engine.Change.apply` raises.
    """
    began = time.monotonic()
    old, new = plan.flow.version(plan.base), plan.flow.version(plan.version)
    if plan.already_done:
        plan.check_accepted(accept)
        return _outcome(plan, new, began)
    repository = repository or Repository.open_or_create(default_repository(plan.flow.storage))
    _check_same_request(plan, repository)
    change = Change(
        plan,
        new,
        repository,
        observed=old,
        observed_fingerprint=plan.reset.fingerprint,
        rest=rest or RestRule(),
        made_by=made_by,
        reason=reason,
    )
    change.apply(accept=accept, fingerprint=fingerprint)
    log.info("flow %s begins in %s at the next run of its pipeline", plan.flow.name, new)
    return _outcome(plan, new, began)


def _check_same_request(plan: FlowReset, repository: Repository) -> None:
    """See that a reset that is resumed was begun with the same request: it is planned again.

    :raises SealedError: it was begun with another one.
    """
    kept = repository.kept_plan(plan.plan_id) if plan.continued else None
    if kept and kept.get("request", asked := plan.reset.request.to_json()) != asked:
        again = flow_reset_command(kept, repository.location.uri)
        raise SealedError(
            f"flow {plan.flow.name} is sealed by plan {plan.plan_id} ({plan.seal_reason}), which was asked for otherwise and was "
            "not ended",
            hint=f"run that one again: `{again}`, or undo it: `{undo_command(plan.checkpoint, plan.plan_id, repository)}`",
        )


def flow_reset_command(document: Mapping[str, Any], repository: str) -> str:
    """The command that resumes the reset of a flow.

    :param document: what :meth:`FlowReset.document` wrote.
    :param repository: URI of the repository that keeps it.
    """
    request = ResetRequest.from_json(document["request"])
    words = ["flows", *flow_words("--reset", document["path"])]
    words += ["--keep-position"] if request.way is ResetWay.KEEP_POSITION else []
    words += ["--continue-numbers"] if request.continue_numbers else []
    return command(*words, *sink_words(request.sinks), "--repository", repository, "--apply")


def _outcome(plan: FlowReset, new: Location, began: float) -> FlowOutcome:
    try:
        query_id = parse_query_id(new.read(METADATA_FILE))
    except FileNotFoundError:
        query_id = None
    return FlowOutcome(
        plan_id=plan.plan_id,
        flow=plan.flow.path.replace("/", "."),
        version=plan.version,
        path=new.uri,
        query_id=query_id,
        options=plan.reset.options,
        conf=plan.reset.conf,
        snippet=plan.reset.snippet,
        seconds=time.monotonic() - began,
        already_done=plan.already_done,
    )


def _has_run(place: Location) -> bool:
    """Whether a version has read anything: one that was just made may hold log entries without an offset."""
    try:
        return any(source.offset is not None for source in Checkpoint.at(place).progress().sources)
    except NotACheckpointError:
        return False
    except UnreadableLogError:
        return True


def _own_seal(flow: Flow, marks: list[Seal]) -> str | None:
    if not marks:
        return None
    if all(mark.reason.startswith(f"flow {flow.name} reset into version ") for mark in marks):
        return marks[0].plan_id
    mark = next(m for m in marks if not m.reason.startswith("flow "))
    raise SealedError(
        f"flow {flow.name} is sealed by plan {mark.plan_id} ({mark.reason}, {mark.made_by}, {shown_time(mark.since)})",
        hint="let that plan finish first",
    )
