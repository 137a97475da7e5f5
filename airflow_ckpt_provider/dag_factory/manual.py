"""The DAGs that a person triggers: restore, rewind, reset, undo and upgrade. Each plans first, and asks before it changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, BaseOperator, Param, task

from airflow_ckpt_provider.change.risks import RISKS
from airflow_ckpt_provider.dag_factory.base import OPTIONAL, DagsOfStreams
from airflow_ckpt_provider.operators.change_operator import UNCHANGED
from airflow_ckpt_provider.operators.reset import NewCheckpointOperator
from airflow_ckpt_provider.operators.restore import CheckpointRestoreOperator
from airflow_ckpt_provider.operators.rewind import CheckpointRewindOperator
from airflow_ckpt_provider.operators.stream_action import (
    AFTER_STOP,
    BEGUN,
    CLEARS,
    ENDED,
    StreamActionOperator,
)
from airflow_ckpt_provider.operators.undo import CheckpointUndoOperator
from airflow_ckpt_provider.operators.upgrade_modes import SAVEPOINT
from airflow_ckpt_provider.streams.stream import Stream
from airflow_ckpt_provider.streams.upgraded import are_upgraded_together, is_upgraded
from airflow_ckpt_provider.task_groups.safe_upgrade import safe_upgrade

_STREAM = "{{ params.stream }}"
_PLAN = "ti.xcom_pull(task_ids='plan')['plan']"
_SHOWN = "{{ ti.xcom_pull(task_ids='plan')['markdown'] }}"
_MODE = Param("plan", type="string", enum=["plan", "apply"], title="Mode", description="plan changes nothing")
_REASON = Param(None, type=OPTIONAL, title="Reason", description="kept in the audit record of the repository")
_ACCEPT = Param(
    [],
    type="array",
    items={"type": "string"},
    examples=list(RISKS),
    title="Accepted risks",
    description="the words that the plan prints",
)
_IS_STOPPED = Param(
    False,
    type="boolean",
    title="The stream is stopped",
    description="by hand, before this run is started; not needed where the declaration says how it is stopped, or has a probe",
)
_STATES = "ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id]).get(ti.run_id, {})"
_KEPT = "ti.xcom_pull(task_ids='{}', key='{}')"
#: Whether the task that stops the stream says that it is stopped. Not if the stream was started since: a change that is cleared
#: afterwards finds the stop of before. A start says which stop it came after; no clock is asked. Of a start by hand nobody knows,
#: so the stop has to be cleared with the change.
_BY_TASK = " and ".join(
    [
        f"{_STATES}.get('stop') == 'success'",
        f"{_KEPT.format('stop', CLEARS)} in (none, dag_run.clear_number)",
        *(
            f"({after} is none or ({after} != '' and {after} != {_KEPT.format('stop', BEGUN)}))"
            for after in (_KEPT.format(start, AFTER_STOP) for start in ("start", "start_again"))
        ),
    ]
)
#: Not when the attempt that changes was started: another run may have changed and started the stream since it was stopped. Where
#: the stop itself does not say when it ended, it is when the task after it began.
_ENDED = f"({_KEPT.format('stop', ENDED)} or {_KEPT.format('stopped', 'return_value')})"
_STOPPED = {
    "query_is_stopped": f"{{{{ params.query_is_stopped or ({_BY_TASK}) }}}}",
    "stopped_since": f"{{{{ ({_BY_TASK} and {_ENDED}) or '' }}}}",
}
#: What the readers of a new checkpoint need at its first start.
_OUTCOME = "(ti.xcom_pull(task_ids='reset', key='outcome') or {})"
_OPTIONS = f"{{{{ {{'options': {_OUTCOME}.get('options'), 'conf': {_OUTCOME}.get('conf')}} | tojson }}}}"
_START = Param(True, type="boolean", title="Start the stream afterwards", description="as its declaration says")
_ASK = Param(True, type="boolean", title="Approval", description="ask before the plan is carried out")


class ManualDags(DagsOfStreams):
    """Makes the DAGs that a person triggers."""

    approval_timeout = timedelta(hours=4)

    def manual(self) -> Iterator[DAG]:
        """Make them."""
        kept = [stream for stream in self.streams.values() if stream.repository]
        every = list(self.streams.values())
        if kept:
            yield self.restore(kept)
        yield self.rewind(every)
        yield self.reset(every)
        yield self.undo(every)
        # A query of an application is stopped and deployed with the others: see `applications`.
        upgraded = [stream for stream in every if is_upgraded(stream) and not stream.application]
        if upgraded:
            yield self.upgrade(upgraded)

    def applications(self) -> Iterator[DAG]:
        """Make the DAGs of applications with several streams: one for each, where its streams declare the same commands."""
        for application in dict.fromkeys(stream.application for stream in self.streams.values() if stream.application):
            streams = self.streams.of_application(application)
            if are_upgraded_together(streams):
                yield self.upgrade_of(application, streams)

    def restore(self, streams: Sequence[Stream]) -> DAG:
        """Put a backup in the place of the checkpoint."""
        asked = {
            "backup_id": "{{ params.backup_id }}",
            "batch": "{{ params.batch }}",
            "replace": "{{ params.replace }}",
        }
        found = {
            "backup_id": f"{{{{ {_PLAN}['backup_id'] }}}}",
            "batch": f"{{{{ {_PLAN}['batch_id'] }}}}",
            "replace": "{{ params.replace }}",
        }
        return self._planned(
            "restore",
            streams,
            CheckpointRestoreOperator,
            asked,
            found,
            {
                "backup_id": Param(
                    "latest", type="string", minLength=1, title="Backup", description="an id, or latest"
                ),
                "batch": Param(
                    None,
                    type=["null", "integer"],
                    minimum=0,
                    title="Batch",
                    description="empty: the newest of the backup",
                ),
                "replace": Param(
                    True,
                    type="boolean",
                    title="Replace",
                    description="what is at the checkpoint; it is set aside before",
                ),
            },
        )

    def rewind(self, streams: Sequence[Stream]) -> DAG:
        """Put checkpoint, state and sinks back to an earlier batch."""
        from airflow_ckpt_provider.recovery.rewind.specifier import KINDS

        common = {"sink_policy": "{{ params.sink_policy }}", "exact_replay": "{{ params.exact_replay }}"}
        return self._planned(
            "rewind",
            streams,
            CheckpointRewindOperator,
            {**common, "to": "{{ params.to }}", "value": "{{ params.value }}"},
            # By the batch that the plan found, not by a time that means another one by now.
            {**common, "to": "to_batch", "value": f"{{{{ {_PLAN}['batch_id'] }}}}"},
            {
                "to": Param("to_datetime", type="string", enum=list(KINDS), title="Where to"),
                "value": Param(
                    None,
                    type=OPTIONAL,
                    title="Value",
                    description="a batch, a number of batches, a time with its zone, a duration such as 2h or PT2H, offsets",
                ),
                "sink_policy": Param(
                    "rollback",
                    type="string",
                    enum=["rollback", "forward", "keep"],
                    title="What happens to the sinks",
                    description="rollback: they are rolled back too; forward: the checkpoint goes to them; keep: they stay",
                ),
                "exact_replay": Param(True, type="boolean", title="Only where the replay is exact"),
            },
        )

    def reset(self, streams: Sequence[Stream]) -> DAG:
        """Put a new checkpoint in the place of the old one."""
        asked = {"way": "{{ params.way }}", "continue_numbers": "{{ params.continue_numbers }}"}
        return self._planned(
            "reset",
            streams,
            NewCheckpointOperator,
            {**asked, "batch": "{{ params.batch }}"},
            {**asked, "batch": "{{ params.batch }}"},
            {
                "way": Param(
                    "keep-position", type="string", enum=["keep-position", "from-scratch", "new-query-id"], title="Way"
                ),
                "batch": Param(
                    None,
                    type=["null", "integer"],
                    minimum=0,
                    title="Batch",
                    description="keep-position: after this one",
                ),
                "continue_numbers": Param(False, type="boolean", title="Continue the batch numbers"),
            },
            # Without the options that the plan prints it would begin elsewhere, and lose or repeat rows.
            start=Param(
                False,
                type="boolean",
                title="Start the stream afterwards",
                description="tick it only if its start hands CKPT_OPTIONS on to the readers, or the plan has no options",
            ),
            options=_OPTIONS,
        )

    def undo(self, streams: Sequence[Stream]) -> DAG:
        """Undo the last change, or another one."""
        params = {
            "stream": self.choice(streams),
            "plan_id": Param(None, type=OPTIONAL, title="Plan", description="empty: a change that is half-way, else the newest"),
            "approval": _ASK,
            "query_is_stopped": _IS_STOPPED,
            "start": _START,
            "reason": _REASON,
        }  # fmt: skip

        def make() -> None:
            plan = self.task(
                CheckpointUndoOperator, "plan", stream=_STREAM, mode="plan", plan_id="{{ params.plan_id }}"
            )
            undo = self.task(
                CheckpointUndoOperator,
                "undo",
                stream=_STREAM,
                # The change that the plan found, not the newest one of a later moment.
                plan_id=f"{{{{ {_PLAN}['of'] }}}}",
                reason="{{ params.reason }}",
                **_STOPPED,
                trigger_rule="none_failed_min_one_success",
            )
            approve = self._approve("undo", _SHOWN)
            ready = self._ready(trigger_rule="none_failed_min_one_success")
            plan >> _what_next() >> [approve, ready]
            approve >> ready >> self._action("stop") >> _stopped() >> undo
            ready >> undo >> [self._action("start", wanted="{{ params.start }}"), self._start_again("undo")]

        return self.dag("undo", make, streams=streams, params=params, doc_md=self.undo.__doc__)

    def upgrade(self, streams: Sequence[Stream]) -> DAG:
        """Upgrade the code of a stateful stream, and roll it back by itself if anything fails."""
        params = {"stream": self.choice(streams), **self._upgrade_params()}

        def make() -> None:
            self._safe_upgrade(_STREAM, stream=_STREAM, mode=self.upgrade_mode, **self.upgrade_arguments)

        return self.dag("upgrade", make, streams=streams, params=params, doc_md=self.upgrade.__doc__)

    def upgrade_of(self, application: str, streams: Sequence[Stream]) -> DAG:
        """Upgrade the code of an application with several queries, all of them or none."""

        def make() -> None:
            self._safe_upgrade(streams[0].name, streams=[stream.name for stream in streams])

        params = self._upgrade_params()
        return self.dag(f"upgrade_{application}", make, streams=streams, params=params, doc_md=self.upgrade_of.__doc__)

    def _upgrade_params(self) -> dict[str, Param]:
        return {
            "version": Param(None, type="string", minLength=1, title="Version", examples=["2.7"], description="what is deployed"),
            "planned_downtime": Param("30m", type="string", minLength=1, title="Planned downtime"),
            "accept": Param(
                [],
                type="array",
                items={"type": "string"},
                examples=["no_way_back", "foreign_loss", "sink_unknown"],
                title="Accept an obstacle on the way back",
            ),
            "reason": _REASON,
        }  # fmt: skip

    def _safe_upgrade(self, acts: str, **given: Any) -> None:
        """Make the tasks.

        :param acts: the stream that declares the commands.
        :param given: which streams, and how.
        """
        safe_upgrade(
            "upgrade",
            **self.of_file,
            stop=self._maker("stop", acts),
            start=self._maker("start", acts),
            deploy=self._maker("deploy", acts),
            roll_back_code=self._maker("roll_back", acts),
            version="{{ params.version }}",
            reason="{{ params.reason }}",
            accept="{{ params.accept }}",
            planned_downtime="{{ params.planned_downtime }}",
            **given,
        )

    #: The mode of the upgrades, and more arguments of :func:`~airflow_ckpt_provider.task_groups.safe_upgrade.safe_upgrade`.
    upgrade_mode = SAVEPOINT
    upgrade_arguments: Mapping[str, Any] = {}

    def _planned(
        self,
        kind: str,
        streams: Sequence[Stream],
        operator: type[Any],
        asked: Mapping[str, Any],
        found: Mapping[str, Any],
        fields: Mapping[str, Param],
        *,
        start: Param = _START,
        options: str | None = None,
    ) -> DAG:
        """A DAG that plans, asks, stops the stream, applies the plan, and starts the stream.

        :param operator: plans and applies.
        :param asked: its arguments as the form has them.
        :param found: its arguments as the plan has made them definite.
        :param fields: the form.
        :param start: the field of the form that says whether the stream is started afterwards.
        :param options: what the start hands on to the readers.
        """
        params = {
            "mode": _MODE,
            "stream": self.choice(streams),
            **fields,
            "accept": _ACCEPT,
            "approval": _ASK,
            "query_is_stopped": _IS_STOPPED,
            "start": start,
            "reason": _REASON,
        }

        def make() -> None:
            # What somebody has to accept is asked for while the stream still runs.
            plan = self.task(
                operator,
                "plan",
                stream=_STREAM,
                mode="plan",
                accept="{{ params.accept }}",
                must_be_accepted="{{ params.mode == 'apply' }}",
                **asked,
            )
            approve = self._approve(kind, _SHOWN)
            ready = self._ready(trigger_rule="none_failed_min_one_success")
            change = self.task(
                operator,
                kind,
                stream=_STREAM,
                mode="apply",
                accept="{{ params.accept }}",
                # Not the fingerprint: the stream continues until it is stopped, after the approval.
                approval="{{ ti.xcom_pull(task_ids='plan')['approval'] | tojson }}",
                reason="{{ params.reason }}",
                stop_running=True,
                **_STOPPED,
                retries=3,
                retry_delay=timedelta(seconds=30),
                trigger_rule="none_failed_min_one_success",
                **found,
            )
            plan >> _what_next() >> [approve, ready]
            approve >> ready >> self._action("stop") >> _stopped() >> change
            start = self._action("start", wanted="{{ params.start }}", options=options)
            ready >> change >> [start, self._start_again(kind)]

        return self.dag(kind, make, streams=streams, params=params, doc_md=getattr(type(self), kind).__doc__)

    def _approve(self, kind: str, body: str) -> BaseOperator:
        return ApprovalOperator(
            task_id="approve",
            subject=f"{kind.capitalize()} {_STREAM}?",
            body=body,
            defaults="Reject",
            response_timeout=self.approval_timeout,
        )

    def _ready(self, **settings: Any) -> BaseOperator:
        """A task that does nothing: the change follows it also where the stop is skipped."""
        from airflow.providers.standard.operators.empty import EmptyOperator

        return EmptyOperator(task_id="ready", **settings)

    def _action(self, action: str, task_id: str | None = None, **arguments: Any) -> BaseOperator:
        asked = {"stream": _STREAM, "action": action, "if_absent": "skip", **_once(action)}
        return self.task(StreamActionOperator, task_id or action, **asked, **arguments)

    def _start_again(self, kind: str) -> BaseOperator:
        """The start of a stream that was stopped for a change which was refused, where nothing was changed.

        Not of one that was stopped by hand before the run. The task ``start`` has no chance then, and the run fails by it.
        """
        unchanged = _KEPT.format(kind, UNCHANGED)
        wanted = f"{{{{ params.start and not params.query_is_stopped and {unchanged} == true and {_BY_TASK} }}}}"
        return self._action("start", "start_again", wanted=wanted, trigger_rule="all_failed")

    def _maker(self, action: str, stream: str) -> Callable[[str], BaseOperator]:
        def make(task_id: str) -> BaseOperator:
            asked = {"stream": stream, "action": action, "version": "{{ params.version }}", **_once(action)}
            return self.task(StreamActionOperator, task_id, **asked)

        return make


def _once(action: str) -> dict[str, int]:
    """No retry of a start: one that failed may have started the stream, and two queries would write to one checkpoint."""
    return {"retries": 0} if action == "start" else {}


@task(task_id="stopped")
def _stopped() -> str:
    """Note when the stream was stopped: a batch that is committed later means that somebody has started it."""
    return datetime.now(UTC).isoformat()


@task.branch(task_id="what_next")
def _what_next(params: dict[str, Any] | None = None) -> str | None:
    """Stop here where only a plan was asked for; ask somebody before it is carried out, where that is wanted."""
    form = params or {}
    if form.get("mode") == "plan":
        return None
    return "approve" if form["approval"] else "ready"
