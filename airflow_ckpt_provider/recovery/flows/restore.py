"""Rolling a flow back: a backup of its checkpoint is restored into the next version, which never overwrites the broken one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.target import check_at_rest, inspect_target
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.recovery.flows.flow import Flow
from airflow_ckpt_provider.recovery.restore.apply import RestoreOutcome, apply_restore
from airflow_ckpt_provider.recovery.restore.plan import RestorePlan, plan_restore
from airflow_ckpt_provider.sinks.cutover import Cutover, Known, cutover_of_same_query
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.verdict import Verdict


@dataclass(frozen=True, slots=True)
class FlowRestore:
    """What restoring a backup of a flow would do.

    :param flow: the flow, as it was found.
    :param version: the version that the backup is restored into; it becomes the live one.
    :param restore: the restore itself.
    :param cutover: what the sink does with the batches that are run again.
    """

    flow: Flow
    version: int
    restore: RestorePlan
    cutover: Cutover

    @property
    def path(self) -> str:
        """URI of the version that becomes the live one."""
        return self.restore.target.location.uri

    @property
    def already_done(self) -> bool:
        """Whether the live version is exactly this backup."""
        return self.restore.already_done

    @property
    def verdict(self) -> Verdict:
        """What the sink does."""
        return Verdict.SAFE if self.already_done else self.cutover.verdict

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON."""
        return {
            "kind": "flow-restore",
            "flow": self.flow.name,
            "target": self.flow.target,
            "from_version": self.flow.live,
            "version": self.version,
            "path": self.path,
            "verdict": self.verdict.value,
            "sink": self.cutover.to_json(),
            "restore": self.restore.to_json(),
            "already_done": self.already_done,
        }

    def to_markdown(self) -> str:
        """The plan for people: the log, an approval form, a terminal."""
        head = f"### Roll-back of flow {self.flow.path.replace('/', '.')} into version {self.version}\n"
        return f"{head}\n{self.restore.to_markdown()}"


def plan_flow_restore(
    flow: Flow, repository: Repository, manifest: Manifest, *, batch: int | None = None, sink: Sink | None = None
) -> FlowRestore:
    """Plan to restore a backup into the next version of a flow; reads only.

    :param flow: the flow.
    :param repository: holds the backup.
    :param manifest: the backup, of any version of this flow.
    :param batch: the batch to go back to; by default the newest of the backup.
    :param sink: the table or directory that the flow writes to; unknown by default.
    :raises RefusedError: the backup is of something else; the batch is not in it.
    :raises SealedError: something else has sealed the flow.
    :raises DamagedBackupError: objects of the backup are missing or of the wrong size.
    """
    if flow.live is None:
        raise RefusedError(f"flow {flow.path} has no checkpoint yet", hint="run the pipeline first")
    live = flow.version(flow.live)
    parent = manifest.checkpoint.rstrip("/").rpartition("/")[0]
    if not parent.endswith(flow.path):
        raise RefusedError(
            f"backup {manifest.backup_id} is of {manifest.checkpoint}, not of flow {flow.path}",
            hint="choose a backup of this flow: --backup, --name",
        )
    chosen = manifest.batch_id if batch is None else batch
    newest = flow.progress.latest_logged if flow.progress else None
    cutover = cutover_of_same_query(
        Known.of(sink or Sink()),
        manifest.query_id,
        start=chosen,
        newest=chosen if newest is None else max(newest, chosen),
    )
    told = (cutover.verdict, cutover.reasons)
    begun = (
        inspect_target(live).seal is not None
    )  # by this restore, stopped half-way; or by somebody else, which is refused
    try:
        here = plan_restore(repository, manifest, live, batch=batch, sink=told)
        if begun or here.already_done:
            return FlowRestore(flow, flow.live, here, cutover)
    except RefusedError:
        if begun:
            raise
    version = flow.live + 1
    restore = plan_restore(repository, manifest, flow.version(version), batch=batch, sink=told)
    return FlowRestore(flow, version, restore, cutover)


def apply_flow_restore(
    plan: FlowRestore,
    *,
    accept: Verdict | None = None,
    quiet_for: float = 5.0,
    made_by: str = "",
    reason: str = "",
) -> RestoreOutcome:
    """Carry it out.

    :param plan: from :func:`plan_flow_restore`.
    :param accept: the plan's verdict, where it is not ``SAFE`` and is to be carried out all the same.
    :param quiet_for: seconds without a change after which the flow counts as at rest.
    :param made_by: the run or user that restores.
    :param reason: why, for the audit record.
    :raises RefusedError: the flow runs, or the verdict was not accepted; nothing was changed.
    :raises StorageError: reading or writing failed; the new version stays sealed, and the same command again finishes.
    """
    if not plan.already_done and plan.restore.target.seal is None:
        if plan.verdict not in (Verdict.SAFE, accept):
            raise RefusedError(
                f"the sink says {plan.verdict.value}: {'; '.join(plan.cutover.reasons)}",
                hint=f"accept it in so many words: --accept {plan.verdict.value}",
            )
        if plan.flow.live is not None:
            check_at_rest(inspect_target(plan.flow.version(plan.flow.live)), quiet_for=quiet_for)
    # What the sink does was accepted above, and a restore that is gone on with was accepted when it began.
    return apply_restore(plan.restore, made_by=made_by, reason=reason, accept_sink=True)
