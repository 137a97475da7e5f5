"""The five kinds of changes, each in its smallest form: what is there before, and how it is carried out and undone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.stopping import stop_plan_and_apply
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.recovery.flows.flow import flow_named, flows_of
from airflow_ckpt_provider.recovery.flows.reset import apply_flow_reset, plan_flow_reset
from airflow_ckpt_provider.recovery.flows.restore import apply_flow_restore, plan_flow_restore
from airflow_ckpt_provider.recovery.repair.apply import apply_repair, stop_plan_and_repair
from airflow_ckpt_provider.recovery.repair.plan import RepairPlan
from airflow_ckpt_provider.recovery.repair.planning import plan_repair
from airflow_ckpt_provider.recovery.reset.apply import apply_reset
from airflow_ckpt_provider.recovery.reset.plan import ResetPlan
from airflow_ckpt_provider.recovery.reset.planning import plan_reset
from airflow_ckpt_provider.recovery.reset.way import ResetWay
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.plan import RestorePlan
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.recovery.undo import UndoOutcome, undo
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from tests.samples.archives import sample
from tests.support.backups import back_up, stream
from tests.support.checkpoints import Files, contents, logs, plant
from tests.support.damaged_samples import delta_missing
from tests.support.stopped import ACCEPTED, STOPPED
from tests.support.watched_stores import WRITES, in_memory

SINK = Sink(kind="foreachBatch")
FLOW = "_checkpoints/spark_catalog/default/orders/ingest"


def orders(here: Location) -> Location:
    return here / "orders"


def held(here: Location) -> Repository:
    return Repository.open(here / "backups")


@dataclass(frozen=True)
class Verb:
    """One kind of change.

    :param kind: as its plan names it.
    :param before: files of the place where all is.
    :param carry_out: does it, given that place, or resumes it; with what else is asked for, such as ``fingerprint``.
    :param checkpoint: the checkpoint that is changed; of a flow, its next version.
    :param observed: the checkpoint whose query is stopped, where that is another one: of a flow, its former version.
    :param stops: does it after the query was stopped by the seal.
    """

    kind: str
    before: Callable[[], Files]
    carry_out: Callable[..., Any]
    checkpoint: str = "orders"
    observed: str = "orders"
    stops: Callable[[Location], Any] | None = None

    def begin(self, here: Location) -> Location:
        """Put everything there that is there before."""
        Repository.open_or_create(here / "backups")
        return plant(here, self.before())

    def live(self, here: Location) -> Location:
        """The checkpoint that a person names: of a flow the former version, until the next one is there."""
        changed = here / self.checkpoint
        return here / self.observed if not changed.walk() else changed

    def changes(self, here: Location, operation: str, path: str) -> bool:
        """Whether a request changes the checkpoint."""
        return operation in WRITES and path.startswith(f"{(here / self.checkpoint).root}/")

    def take_back(self, here: Location) -> UndoOutcome:
        return undo(self.live(here), held(here), rest=STOPPED)

    def changed(self, here: Location) -> Files:
        """All that the change is about: every file but those of the repository."""
        return {path: data for path, data in contents(here).items() if not path.startswith("backups/")}


def _orders(files: Files) -> Files:
    return {f"orders/{path}": data for path, data in files.items()}


def stop_and_apply(
    here: Location, plan: Callable[[str | None], Any], apply: Callable[..., Any], *, change: str
) -> tuple[Any, Any]:
    """Carry a change out after its query was stopped by the seal."""
    return stop_plan_and_apply(orders(here), held(here), plan, apply, change=change, stop_running=True, rest=STOPPED)


def _plan_rewind(here: Location, seal_id: str | None = None, batch: int = 0) -> RewindPlan:
    return plan_rewind(
        Checkpoint.at(orders(here)),
        Specifier("to_batch", str(batch)),
        sink=SINK,
        sink_exit=SinkPolicy.ACCEPT,
        repository=here / "backups",
        guards=(),
        seal_id=seal_id,
    )


def _rewind(here: Location, **how: Any) -> Any:
    return apply_rewind(_plan_rewind(here), Checkpoint.at(orders(here)), held(here), sink=SINK, rest=STOPPED, **how)


def rewind_applier(here: Location) -> Callable[..., Any]:
    return functools.partial(apply_rewind, checkpoint=Checkpoint.at(orders(here)), repository=held(here), sink=SINK)


def _stop_and_rewind(here: Location) -> Any:
    return stop_and_apply(here, functools.partial(_plan_rewind, here), rewind_applier(here), change="rewind")


def _plan_reset(here: Location, seal_id: str | None = None) -> ResetPlan:
    return plan_reset(orders(here), ResetWay.KEEP_POSITION, sink=SINK, repository=here / "backups", seal_id=seal_id)


def _reset(here: Location, **how: Any) -> Any:
    return apply_reset(_plan_reset(here), orders(here), held(here), accept=ACCEPTED, rest=STOPPED, **how)


def _stop_and_reset(here: Location) -> Any:
    apply = functools.partial(apply_reset, checkpoint=orders(here), repository=held(here), accept=ACCEPTED)
    return stop_and_apply(here, functools.partial(_plan_reset, here), apply, change="reset")


def _plan_repair(here: Location, seal_id: str | None = None) -> RepairPlan:
    return plan_repair(Checkpoint.at(orders(here)), repository=held(here), seal_id=seal_id)


def _repair(here: Location, **how: Any) -> Any:
    plan, checkpoint = _plan_repair(here), Checkpoint.at(orders(here))
    return apply_repair(plan, checkpoint, repository=held(here), accept=ACCEPTED, rest=STOPPED, **how)


def _stop_and_repair(here: Location) -> Any:
    plan = functools.partial(_plan_repair, here)
    return stop_plan_and_repair(
        Checkpoint.at(orders(here)), plan, repository=held(here), stop_running=True, accept=ACCEPTED, rest=STOPPED
    )


def _plan_restore(here: Location, seal_id: str | None = None) -> RestorePlan:
    repository = held(here)
    manifest = repository.manifest(name="orders")
    return plan_restore(repository, manifest, orders(here), replace=True, seal_id=seal_id)


def _restore(here: Location, **how: Any) -> Any:
    return apply_restore(_plan_restore(here), rest=STOPPED, **how)


def _stop_and_restore(here: Location) -> Any:
    return stop_and_apply(here, functools.partial(_plan_restore, here), apply_restore, change="restore")


def _reset_flow(here: Location, **how: Any) -> Any:
    plan = plan_flow_reset(flow_named(flows_of(here / "pipeline"), "ingest"), keep_position=True, sink=SINK)
    return apply_flow_reset(plan, repository=held(here), rest=STOPPED, **how)


def _restore_flow(here: Location, **how: Any) -> Any:
    repository = held(here)
    flow = flow_named(flows_of(here / "pipeline"), "ingest")
    plan = plan_flow_restore(flow, repository, repository.manifest(name="ingest"), sink=SINK)
    return apply_flow_restore(plan, accept=ACCEPTED, rest=STOPPED, **how)


def _damaged() -> Files:
    """A real one, one delta of whose state is missing; without Hadoop's checksums, for a seal takes those of its name."""
    found = {path: data for path, data in sample("4.0.0", "hdfs_agg").files.items() if "/." not in path}
    delta_missing(found)
    return found


@functools.cache
def _with_a_backup() -> Files:
    """A checkpoint at batch 2, and a backup of batch 1 of the same stream."""
    place = in_memory()
    back_up(place, stream(1, partitions=1), name="orders")
    kept = {path: data for path, data in contents(place).items() if path.startswith("backups/")}
    return {**kept, **_orders(stream(2, partitions=1))}


@functools.cache
def _flow_with_a_backup() -> Files:
    """A flow whose live version is at batch 2, and a backup of its batch 0."""
    place = in_memory()
    version = plant(place / f"pipeline/{FLOW}/0", logs(range(1)))
    create_backup(Checkpoint.at(version), Repository.open_or_create(place / "backups"), name="ingest")
    plant(version, logs(range(3)))
    return contents(place)


VERBS = {
    "rewind": Verb("rewind", lambda: _orders(stream(2, partitions=1)), _rewind, stops=_stop_and_rewind),
    "reset": Verb("reset", lambda: _orders(stream(1, partitions=1)), _reset, stops=_stop_and_reset),
    "repair": Verb("repair", lambda: _orders(_damaged()), _repair, stops=_stop_and_repair),
    "restore": Verb("restore", _with_a_backup, _restore, stops=_stop_and_restore),
    "flow-reset": Verb(
        "flow-reset",
        lambda: {f"pipeline/{FLOW}/0/{path}": data for path, data in logs(range(2)).items()},
        _reset_flow,
        checkpoint=f"pipeline/{FLOW}/1",
        observed=f"pipeline/{FLOW}/0",
    ),
    "restore of a flow": Verb(
        "restore",
        _flow_with_a_backup,
        _restore_flow,
        checkpoint=f"pipeline/{FLOW}/1",
        observed=f"pipeline/{FLOW}/0",
    ),
}


def names(which: Callable[[Verb], object] = bool) -> Collection[str]:
    """Names of verbs, for parameters of tests."""
    return [name for name, verb in VERBS.items() if which(verb)]
