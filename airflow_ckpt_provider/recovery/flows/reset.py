"""Resetting one flow of a Declarative Pipeline without its table: the next version directory becomes the live checkpoint.

``spark-pipelines run --full-refresh`` resets a flow together with its table. Here the table keeps its rows: the version
``<n+1>`` is made beside the live ``<n>``, which stays as it is. It holds a ``metadata`` file with a new query id (an empty
directory would do for Spark, but object stores have none), and, where the position is to be kept, what was read already.

The first file of ``<n+1>`` makes it the live one, so that file is a seal; ``<n>`` is sealed for the while. Killed anywhere, Spark
refuses, nothing has begun, or all is done, and the same command again finishes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.fail_closed_order import highest_offsets, write_file
from airflow_ckpt_provider.change.plan_seal import seal_for_plan
from airflow_ckpt_provider.change.sealing import put_seal, remove_seal
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.errors import NotACheckpointError, RefusedError, SealedError, UnreadableLogError
from airflow_ckpt_provider.recovery.flows.flow import Flow
from airflow_ckpt_provider.recovery.reset.new_numbers import new_metadata
from airflow_ckpt_provider.recovery.reset.plan import ResetPlan, ResetWay
from airflow_ckpt_provider.recovery.reset.planning import plan_reset
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FlowReset:
    """What the reset of a flow would do.

    :param plan_id: its id; the seals carry it.
    :param flow: the flow, as it was found.
    :param base: the version whose position and history count: the newest one with a batch.
    :param version: the version that becomes the live one.
    :param reset: the same for a checkpoint of its own: positions, contents, the verdict at the cutover.
    :param already_done: the live version is a new checkpoint that was not started yet, and just what is wanted.
    """

    plan_id: str
    flow: Flow
    base: int
    version: int
    reset: ResetPlan
    already_done: bool = False

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
            f"seal version {self.base}, the live one, and look again",
            f"make version {self.version} with {made}",
            "lift the seal: the next run of the pipeline begins in it; the table is not touched",
        )

    @property
    def fingerprint(self) -> str:
        """Changes with the request, the live checkpoint, the positions or the sink: what an approval is given for."""
        return hashlib.sha256(f"{self.version} {self.reset.plan_fingerprint}".encode()).hexdigest()[:16]

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
            "fingerprint": self.fingerprint,
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
        table = "\n".join(f"| {name} | {value} |" for name, value in rows)
        reasons = "\n".join(f"* {reason}" for reason in self.reset.reasons)
        steps = "\n".join(f"{number}. {step}" for number, step in enumerate(self.steps, 1))
        snippet = f"In the flow's definition:\n\n```python\n{self.reset.snippet}\n```\n\n" if self.reset.sources else ""
        if self.already_done:
            steps = f"Nothing to do: version {self.version} is there and was not started yet."
        head = f"### Reset of a flow, plan {self.plan_id}\n\n| | |\n|---|---|\n{table}"
        return f"{head}\n\n{reasons}\n\n{snippet}{steps}\n".replace("\n\n\n", "\n\n")


@dataclass(frozen=True, slots=True)
class FlowOutcome:
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

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain JSON."""
        return {name: getattr(self, name) for name in self.__slots__} | {"seconds": round(self.seconds, 3)}


def plan_flow_reset(
    flow: Flow, *, keep_position: bool = False, sink: Sink | None = None, continue_numbers: bool = False
) -> FlowReset:
    """Plan the reset of a flow; reads only.

    :param flow: the flow.
    :param keep_position: the new checkpoint reads on where the live one stands; otherwise where the sources' own options say.
    :param sink: the table or directory that the flow writes to; unknown by default.
    :param continue_numbers: the new checkpoint goes on with the old batch numbers, which a file sink's log wants (tables of
        Parquet and the like); for flows without state.
    :raises RefusedError: the flow has not run yet; no position can be told.
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
    under = _own_seal(flow, marks)
    reset = plan_reset(flow.version(base), way, sink=sink, continue_numbers=continue_numbers, under=under)
    version = live if live > base else base + 1
    plan = FlowReset(under or reset.plan_id, flow, base, version, reset)
    if live > base and not under:
        # Made by a reset before this one, or by a full refresh, and not started yet.
        there = {path: flow.version(live).read(path) for path in looked[live].visible if path != METADATA_FILE}
        wanted = {path: content.encode() for path, content in reset.contents.items() if path != METADATA_FILE}
        if there == wanted:
            return replace(plan, already_done=True)
        return replace(plan, version=live + 1)
    if under and marks[0].reason != plan.seal_reason:
        raise SealedError(
            f"flow {flow.name} is sealed by plan {under} ({marks[0].reason}), which was not ended",
            hint="run that one again, which goes on with it",
        )
    return plan


def apply_flow_reset(
    plan: FlowReset,
    *,
    accept: Verdict | None = None,
    repository: Repository | None = None,
    quiet_for: float = 5.0,
    made_by: str = "",
    reason: str = "",
) -> FlowOutcome:
    """Carry the reset of a flow out.

    :param plan: from :func:`plan_flow_reset`.
    :param accept: the plan's verdict, where it is not ``SAFE`` and is to be carried out all the same.
    :param repository: gets the audit record, where one is given.
    :param quiet_for: seconds without a change after which the flow counts as at rest.
    :param made_by: the run or user that resets.
    :param reason: why, for the audit record.
    :raises RefusedError: the flow runs, or went on since the plan was made, or the verdict was not accepted; nothing was changed.
    :raises StorageError: reading or writing failed; the flow stays sealed, and the same command again finishes.
    """
    began = time.monotonic()
    old, new = plan.flow.version(plan.base), plan.flow.version(plan.version)
    if plan.already_done:
        return _outcome(plan, new, began)
    marks = [place for place in (old, new) if inspect_target(place).seal]
    if not marks:
        if plan.verdict not in (Verdict.SAFE, accept):
            raise RefusedError(
                f"the reset's verdict is {plan.verdict.value}: {'; '.join(plan.reset.reasons)}",
                hint=f"put that right first, or accept it in so many words: --accept {plan.verdict.value}",
            )
        _seal_live(plan, old, quiet_for=quiet_for, made_by=made_by)
    if inspect_target(old).seal:
        _make(plan, new, made_by)
    lifted = inspect_target(new).seal
    if lifted:
        remove_seal(new, lifted)
    if repository:
        facts = {"made_by": made_by, "reason": reason, "checkpoint": new.uri}
        repository.record(plan.plan_id, {"kind": "flow-reset", **facts, "plan": plan.to_json()})
    if mark := inspect_target(old).seal:
        remove_seal(old, mark)
    log.info("flow %s begins in %s at the next run of its pipeline", plan.flow.name, new)
    return _outcome(plan, new, began)


def _seal_live(plan: FlowReset, old: Location, *, quiet_for: float, made_by: str) -> None:
    seal_for_plan(
        old,
        plan_id=plan.plan_id,
        reason=plan.seal_reason,
        made_by=made_by,
        fingerprint=plan.reset.fingerprint,
        quiet_for=quiet_for,
        hint="wait until the pipeline's run has ended, then make a new plan",
    )


def _make(plan: FlowReset, new: Location, made_by: str) -> None:
    """Fill the new version: under a seal of its own, for it is the live one from its first file on."""
    there = inspect_target(new)
    contents = {METADATA_FILE: new_metadata(str(uuid.uuid4())), **plan.reset.contents}
    if not there.seal:
        if all(path in there.visible for path in contents):
            return  # killed before the other seal was lifted
        number = highest_offsets(contents) + 1
        put_seal(new, number, plan_id=plan.plan_id, reason=plan.seal_reason, made_by=made_by)
    for path, content in contents.items():
        write_file(new, path, content.encode())


def _outcome(plan: FlowReset, new: Location, began: float) -> FlowOutcome:
    try:
        query_id = json.loads(new.read(METADATA_FILE))["id"]
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
        f"flow {flow.name} is sealed by plan {mark.plan_id} ({mark.reason}, {mark.made_by}, {mark.since})",
        hint="let that plan finish first",
    )
