"""Rolling a flow back: a backup of its checkpoint is restored into the next version, which never overwrites the broken one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from airflow_ckpt_provider.backup.identity import is_same_stream
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.rest import RestRule
from airflow_ckpt_provider.change.sealing import sealed_by_another
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE, parse_query_id
from airflow_ckpt_provider.errors import RefusedError, UnreadableLogError
from airflow_ckpt_provider.recovery.flows.flow import Flow
from airflow_ckpt_provider.recovery.newest_batch import newest_batch
from airflow_ckpt_provider.recovery.query_ids import read_query_ids
from airflow_ckpt_provider.recovery.restore.apply import RestoreOutcome, apply_restore
from airflow_ckpt_provider.recovery.restore.plan import RestorePlan
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.recovery.restore.sink_answer import SinkAnswer
from airflow_ckpt_provider.recovery.rewind.targets import logged_in_backup
from airflow_ckpt_provider.sinks.cutover import Cutover, cutover_of_same_query
from airflow_ckpt_provider.sinks.known import Known
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
        return self.cutover.verdict

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
    :param batch: the batch to rewind to; by default the newest of the backup.
    :param sink: the table or directory that the flow writes to; unknown by default.
    :raises RefusedError: the backup is of something else; the batch is not in it.
    :raises SealedError: something else has sealed the flow.
    :raises DamagedBackupError: objects of the backup are missing or of the wrong size.
    """
    if flow.live is None:
        raise RefusedError(f"flow {flow.path} has no checkpoint yet", hint="run the pipeline first")
    live = flow.version(flow.live)
    parent = manifest.checkpoint.rstrip("/").rpartition("/")[0]
    if not parent.endswith(f"/{flow.path}"):
        raise RefusedError(
            f"backup {manifest.backup_id} is of {manifest.checkpoint}, not of flow {flow.path}",
            hint="choose a backup of this flow (backup_id / --backup-id, name / --name)",
        )
    chosen = manifest.batch_id if batch is None else batch
    known = Known.of(sink or Sink())
    ids = read_query_ids(
        flow.progress.query_id if flow.progress else None,
        place=live,
        repository=repository,
        name=manifest.name,
        becomes=manifest,
        app_ids=[known.sink.app_id],
        histories=[known.history],
    )
    newest = newest_batch(
        live,
        flow.progress.latest_begun if flow.progress else None,
        flow.progress.query_id if flow.progress else None,
        starts_as=manifest.query_id,
        repository=repository,
        name=manifest.name,
        unlogged=flow.progress.unlogged if flow.progress else (),
        ids=ids,
        backup=manifest,
    )
    in_backup = logged_in_backup(manifest)
    cutover = cutover_of_same_query(
        known,
        ids.known_as(known.sink.app_id) if ids else None,
        start=chosen,
        newest=newest.after(chosen),
        planned=in_backup.planned,
        complete_at=in_backup.complete_at,
    )
    if known.found is None:
        cutover = replace(cutover, reasons=(*cutover.reasons, *newest.notes(chosen)))
    how: dict[str, Any] = {"batch": batch, "sink": SinkAnswer(cutover.verdict, cutover.reasons)}
    mark = inspect_target(live).seal
    if mark is None:
        try:
            here = plan_restore(repository, manifest, live, **how)
        except RefusedError:  # it holds another history, which stays as it is
            here = None
        if here and here.already_done:
            return FlowRestore(flow, flow.live, _still_sealed(flow, here, repository) or here, cutover)
    version = flow.live
    if mark is None or (repository.kept_plan(mark.plan_id) or {}).get("target") not in (None, live.uri):
        version += 1  # not sealed, or by a restore that was stopped before it had begun the next version
    restore = plan_restore(repository, manifest, flow.version(version), seal_id=mark.plan_id if mark else None, **how)
    restore = replace(restore, other_query=_other_query(flow, version, repository, manifest))
    if mark and mark.reason != restore.seal_reason:
        raise sealed_by_another(live.uri, mark)
    former = [n for n in flow.versions if n < version]
    observed = flow.version(former[-1]).uri if former else ""
    return FlowRestore(flow, version, replace(restore, observed=observed, continued=mark is not None), cutover)


def _other_query(flow: Flow, version: int, repository: Repository, manifest: Manifest) -> str:
    """The newest query of the flow, where the backup is of none that it is known to have run as; else empty.

    Each version of a flow has a query id of its own. The name of the directory alone does not show that it is the same flow: a
    pipeline of another ``storage`` may have one of that name.

    :param version: the version that the backup is restored into.
    """
    newest = ""
    for number in sorted((n for n in flow.versions if n < version), reverse=True):
        place = flow.version(number)
        try:
            query_id = parse_query_id(place.read(METADATA_FILE))
        except (FileNotFoundError, UnreadableLogError):
            continue
        if is_same_stream(repository, manifest, place, query_id):
            return ""
        newest = newest or query_id
    return newest


def _still_sealed(flow: Flow, done: RestorePlan, repository: Repository) -> RestorePlan | None:
    """The same restore to be ended, where it was stopped after it had lifted the seal of the version that it made.

    :param done: the restore into the live version, which holds just what is wanted.
    :return: ``None`` where the former version is not sealed by it any more.
    """
    former = [n for n in flow.versions if flow.live is not None and n < flow.live]
    mark = inspect_target(flow.version(former[-1])).seal if former else None
    if mark is None or (repository.kept_plan(mark.plan_id) or {}).get("target") != done.checkpoint:
        return None
    observed = flow.version(former[-1]).uri
    return replace(done, plan_id=mark.plan_id, observed=observed, replacing=False, already_done=False, continued=True)


def apply_flow_restore(
    plan: FlowRestore,
    *,
    accept: Collection[str] = (),
    fingerprint: str | None = None,
    rest: RestRule | None = None,
    made_by: str = "",
    reason: str = "",
) -> RestoreOutcome:
    """Apply it, or resume it.

    :param plan: from :func:`plan_flow_restore`.
    :param accept: words of the risks that somebody accepts, as the plan names them.
    :param fingerprint: of the plan that was approved; ``None``: not compared.
    :param rest: how the pipeline's run is known to have ended.
    :param made_by: the run or user that restores.
    :param reason: why, for the audit record.
    :raises CkptError: as :meth:`~airflow_ckpt_provider.change.engine.Change.apply` raises.
    """
    former = [n for n in plan.flow.versions if n < plan.version]
    observed = plan.flow.version(former[-1]) if former and not plan.already_done else None
    return apply_restore(
        plan.restore,
        observed=observed,
        observed_fingerprint=inspect_target(observed).fingerprint if observed else None,
        accept=accept,
        fingerprint=fingerprint,
        rest=rest,
        made_by=made_by,
        reason=reason,
    )
