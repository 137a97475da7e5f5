"""What the steps of an upgrade have in common: the places, the record, and the sink with its way back."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from airflow_ckpt_provider.errors import CkptError, RefusedError
from airflow_ckpt_provider.operators.declared import UNSET
from airflow_ckpt_provider.operators.fields import (
    flag,
    for_each,
    mapping,
    mapping_or_text,
    one_of,
    text,
    texts,
    words,
)
from airflow_ckpt_provider.operators.place_operators import CheckpointOperator, StreamOperator
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.operators.renamed import deprecated, renamed, renamed_value
from airflow_ckpt_provider.operators.sink_operator import SinkOperator
from airflow_ckpt_provider.sensors.stream_health import mark_baseline
from airflow_ckpt_provider.sinks.policy import SinkPolicy, policy_word

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.backup.repository import Repository
    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.streams.stream import Stream
    from airflow_ckpt_provider.upgrade.record import Upgrade
    from airflow_ckpt_provider.upgrade.together import Member
    from airflow_ckpt_provider.upgrade.way_back import DryRun

_DRIVER_LOGS = ("progress_log", "error_log", "progress_log_conn_id")
_POLICIES = {policy_word(policy): policy for policy in SinkPolicy}
#: Values of ``sink_policy`` that have a new name.
RENAMED_POLICIES = {"accept": "keep"}


class UpgradeOperator(CheckpointOperator, StreamOperator):
    """Base of the steps of an upgrade: the places, and the record of the upgrade.

    :param checkpoint: URI of the checkpoint. (templated)
    :param checkpoint_conn_id: Airflow connection to reach it; ``None``: the environment's own credentials. (templated)
    :param repository: URI of the repository that keeps the backups and the record of the upgrade. (templated)
    :param repository_conn_id: Airflow connection to reach it; ``None`` likewise. (templated)
    :param name: name of the stream in the repository; ``None``: the one that the checkpoint has there, else a
        new one. (templated)
    :param streams: streams of one application, which are upgraded together: names of declared ones, or
        :class:`~airflow_ckpt_provider.streams.stream.Stream`. All else that is about one stream comes from its declaration, and
        the result has it in ``streams``, by its name. ``()``: it is about one stream.
    :param driver_logs: where the driver says how it goes, as :func:`~airflow_ckpt_provider.sensors.stream_health.stream_baseline`
        takes it: ``progress_log``, ``error_log``, ``progress_log_conn_id``; what they say by now is no fault of what is started
        next. (templated)
    """

    template_fields: Sequence[str] = (
        *CheckpointOperator.template_fields,
        *StreamOperator.template_fields,
        "driver_logs",
    )
    ui_color = "#dae8fc"

    def __init__(
        self,
        *,
        checkpoint: str | None = UNSET,
        repository: str | None = UNSET,
        streams: Sequence[str | Stream] = (),
        driver_logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        of_one = (None, None) if streams else (checkpoint, repository)
        super().__init__(checkpoint=of_one[0], repository=of_one[1], **kwargs)
        self.streams = tuple(streams)
        self.driver_logs = driver_logs

    def _steps(self) -> dict[str, Self]:
        """The same step for each stream of the application, by the names of the streams; itself for one."""
        return {str(stream): self._of(stream) for stream in self.streams} or {"": self}

    def _of(self, stream: str | Stream) -> Self:
        step = copy.copy(self)
        step.streams, step.stream = (), stream
        step.after_rendering()
        return step

    @property
    def _member(self) -> Member:
        """The stream of this step."""
        from airflow_ckpt_provider.upgrade.together import Member

        checkpoint, repository = self._checkpoint(), self._open_repository()
        return Member(self._name(repository, checkpoint), checkpoint, repository)

    def _members(self, context: Context) -> tuple[dict[str, Self], list[Member], list[Upgrade]]:
        """The step, the stream and the upgrade of each."""
        from airflow_ckpt_provider.upgrade.record import upgrade_of

        steps = self._steps()
        members = [step._member for step in steps.values()]
        return steps, members, [upgrade_of(m.repository, m.name, upgrade_id(context)) for m in members]

    def _result(self, results: Mapping[str, dict[str, Any]], **of_all: Any) -> dict[str, Any]:
        """The result of the task: that of the stream, or those of several by their names.

        :param of_all: what is said once.
        """
        return {**of_all, "streams": dict(results)} if self.streams else {**of_all, **results[""]}

    @contextmanager
    def _about(self, name: str) -> Iterator[None]:
        """Name the stream in an error, where there are several."""
        try:
            yield
        except CkptError as e:
            if name:
                e.add_subject(name)
            raise

    def _name(self, repository: Repository, checkpoint: Checkpoint) -> str:
        from airflow_ckpt_provider.backup.stream_names import stream_name

        return stream_name(repository, checkpoint.location, text(self.name))

    def _baseline(self, upgrade: Upgrade, batch_id: int | None, *, anew: bool = False) -> dict[str, Any]:
        """The pace that was measured before the upgrade, for the batches that come next."""
        from airflow_ckpt_provider.upgrade.record import Event

        measured: dict[str, Any] = dict(upgrade.fact(Event.BEGUN, "baseline"))
        measured["batch_id"] = -1 if anew or batch_id is None else batch_id
        if anew:
            # Of a new checkpoint every batch is a new one, under an id that Spark makes.
            measured["query_id"] = None
        return mark_baseline(measured, **self._driver_logs())

    def _driver_logs(self) -> dict[str, Any]:
        logs = mapping(self.driver_logs, "driver_logs")
        if unknown := sorted(set(logs) - set(_DRIVER_LOGS)):
            raise RefusedError(f"driver_logs has {unknown[0]!r}", hint=f"give some of: {', '.join(_DRIVER_LOGS)}")
        return logs

    def _upgrade(self, repository: Repository, checkpoint: Checkpoint, context: Context) -> Upgrade:
        from airflow_ckpt_provider.upgrade.record import upgrade_of

        return upgrade_of(repository, self._name(repository, checkpoint), upgrade_id(context))

    def check_under_way(self, context: Context, *, brings_new_code: bool = False) -> None:
        """See that a task of the user may still run: not once the upgrade has ended, for nobody would undo what it does.

        :param brings_new_code: it puts the new code in place, or starts it: nor once the way back has begun.
        :raises AirflowFailException: it has ended, or the new code is kept; or the way back has begun.
        """
        from airflow_ckpt_provider.upgrade.together import goes_back, is_kept

        step = copy.copy(self)
        step.render_template_fields(context)
        with no_retry_when_refused():
            upgrades = step._members(context)[2]
            if is_kept(upgrades):
                raise RefusedError(
                    f"{upgrade_id(context)} keeps the new code of {', '.join(each.name for each in upgrades)}: this task would "
                    "change what runs",
                    hint="clear the run from its first task on, or start a new one",
                )
            if brings_new_code and goes_back(upgrades):
                raise RefusedError(
                    f"{upgrade_id(context)} rolls {', '.join(each.name for each in upgrades)} back: the new code is neither put "
                    "in place nor started any more",
                    hint="clear `take_back` with downstream tasks to end the way back; then start a new run",
                )

    def _states(self, context: Context) -> dict[str, str]:
        """State of each task of the group in this run, by its id within the group."""
        ti, prefix = context["ti"], self._sibling("")
        states = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id]).get(ti.run_id, {})
        return {t.removeprefix(prefix): state for t, state in states.items() if t.startswith(prefix)}

    def _sibling(self, task_id: str) -> str:
        """The id of a task of the same group."""
        return f"{self.task_id.rpartition('.')[0]}.{task_id}".lstrip(".")


def task_part(stream: str | Stream) -> str:
    """The end of the id of a task that is about one of several streams.

    :param stream: the stream.
    """
    return re.sub(r"[^\w.-]", "_", str(stream))


def upgrade_id(context: Context) -> str:
    """Who upgrades: the run, the same for all tasks and attempts of it."""
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.run_id}"


class UpgradeSinkOperator(UpgradeOperator, SinkOperator):
    """Base of the steps that judge or take the way back: the sink, and what a person accepts.

    :param sink: what the stream writes to, as for
        :class:`~airflow_ckpt_provider.operators.rewind.CheckpointRewindOperator`; ``None``: not known. (templated)
    :param sink_conn_id: Airflow connection to read the sink's log. (templated)
    :param sink_policy: what becomes of the rows that the new code wrote, on the way back: ``rollback``: they leave the sink;
        ``keep``: they stay. Of several sinks one for all, or a list with one for each; of several streams also a dictionary with
        the names of streams. (templated)
    :param txn_app_id: ``txnAppId`` with which ``foreachBatch`` writes to the table. (templated)
    :param sink_options: settings of the table's store as ``deltalake`` names them. (templated)
    :param spark_conn_id: Airflow connection of type ``spark``, for tables that only Spark can restore. (templated)
    :param spark_settings: what ``SparkSubmitHook`` is given. (templated)
    :param accept: words that accept what would be refused, as the refusal and the plan print them: ``no_way_back``,
        ``foreign_loss``, ``sink_unknown``. (templated)
    :param accept_foreign_loss: deprecated: ``accept=["foreign_loss"]``. (templated)
    """

    template_fields: Sequence[str] = (
        *UpgradeOperator.template_fields,
        "sink",
        "sink_conn_id",
        "sink_policy",
        "txn_app_id",
        "sink_options",
        "databricks_conn_id",
        "warehouse_id",
        "spark_conn_id",
        "spark_settings",
        "accept",
        "accept_foreign_loss",
    )

    def __init__(
        self,
        *,
        sink: str | Sequence[str] | None = None,
        sink_conn_id: str | Sequence[str | None] | None = None,
        sink_policy: str | Sequence[str] | Mapping[str, Any] = SinkPolicy.ROLLBACK.value,
        txn_app_id: str | Sequence[str | None] | None = None,
        sink_options: dict[str, str] | Sequence[dict[str, str]] | None = None,
        spark_conn_id: str | None = None,
        spark_settings: dict[str, Any] | None = None,
        accept: Sequence[str] | str = (),
        accept_foreign_loss: bool | str | None = None,
        **kwargs: Any,
    ) -> None:
        sink_policy = renamed(
            kwargs,
            old="sink_exit",
            new="sink_policy",
            value=sink_policy,
            default=SinkPolicy.ROLLBACK.value,
            values=RENAMED_POLICIES,
        )
        if accept_foreign_loss is not None:
            deprecated("accept_foreign_loss", instead='accept=["foreign_loss"]')
        super().__init__(**kwargs)
        self.sink = sink
        self.sink_conn_id = sink_conn_id
        self.sink_policy = sink_policy
        self.txn_app_id = txn_app_id
        self.sink_options = sink_options
        self.spark_conn_id = spark_conn_id
        self.spark_settings = spark_settings
        self.accept = accept
        self.accept_foreign_loss = accept_foreign_loss

    def _spark_of_sinks(self) -> tuple[str | None, dict[str, Any]]:
        return text(self.spark_conn_id), mapping(self.spark_settings, "spark_settings")

    def _of(self, stream: str | Stream) -> Self:
        step = super()._of(stream)
        if isinstance(of_each := mapping_or_text(self.sink_policy, "sink_policy"), Mapping):
            step.sink_policy = of_each.get(str(stream), SinkPolicy.ROLLBACK.value)
        return step

    def _policies(self) -> list[SinkPolicy]:
        return [self._policy(chosen) for chosen in for_each(self.sink_policy, len(self._names()), "sink_policy")]

    def _names(self) -> list[str]:
        return texts(self.sink, "sink") or [""]

    @staticmethod
    def _policy(chosen: str | None) -> SinkPolicy:
        found = renamed_value(chosen, "sink_policy", RENAMED_POLICIES)
        return _POLICIES[one_of(found or SinkPolicy.ROLLBACK.value, "sink_policy", tuple(_POLICIES))]

    def _accepted(self) -> tuple[str, ...]:
        from airflow_ckpt_provider.upgrade.way_back import ACCEPTABLE, FOREIGN_LOSS

        found = words(self.accept, "accept", ACCEPTABLE)
        foreign = flag(self.accept_foreign_loss, "accept_foreign_loss")
        return tuple(dict.fromkeys((*found, FOREIGN_LOSS))) if foreign else found

    def _dry_run(self, checkpoint: Checkpoint) -> DryRun:
        from airflow_ckpt_provider.upgrade.way_back import dry_run

        return dry_run(checkpoint, self._sinks, self._policies())
