"""Go back to a batch or a time, with state and sink."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.registry import GuardSettings
from airflow_ckpt_provider.operators.fields import flag, one_of, required, text
from airflow_ckpt_provider.operators.kafka_connection import guards_with_kafka
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.operators.restore import APPLY, PLAN
from airflow_ckpt_provider.operators.run_identity import has_been_tried, made_by
from airflow_ckpt_provider.operators.sink_operator import SinkOperator
from airflow_ckpt_provider.places import open_place
from airflow_ckpt_provider.recovery.rewind.apply import stop_plan_and_apply
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifiers import KINDS, Specifier
from airflow_ckpt_provider.sinks.report import SinkPolicy

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
    from airflow_ckpt_provider.storage.location import Location

_EXITS = tuple(exit_.value for exit_ in SinkPolicy)
#: Specifiers without a value.
_BARE = ("to_earliest", "to_latest", "to_current")


class CheckpointRewindOperator(SinkOperator):
    """Rewind a stream: its checkpoint, its state and its sink together. Plans only, unless ``mode="apply"``.

    The plan is shown in the log and is the task's result: ``plan`` (JSON), ``markdown`` (for an approval form), ``outcome``
    (``None`` when only planned), as a dictionary and key by key. While a rewind is under way the checkpoint is sealed, so
    that no Spark starts between its halves. A retry goes on where the attempt before was stopped; one that had finished
    changes nothing.

    .. seealso:: :doc:`/howto/rewind`

    :param checkpoint: URI of the checkpoint. (templated)
    :param to: where to: ``to_batch``, ``to_datetime``, ``by_duration``, ``shift_by``, ``to_earliest``, ``to_latest``,
        ``to_current``, ``from_file`` (its content) or ``to_table_version``. (templated)
    :param value: its value, where it has one. (templated)
    :param checkpoint_conn_id: Airflow connection to reach the checkpoint; ``None``: the environment's own credentials.
        (templated)
    :param repository: URI of the repository that keeps what goes, and whose backups can be gone back to; ``None``: beside
        the checkpoint, in ``<checkpoint>.rewinds``. (templated)
    :param repository_conn_id: Airflow connection to reach the repository. (templated)
    :param name: name of the stream in the repository; ``None``: last segment of the checkpoint. (templated)
    :param sink: what the query writes to: directory of a Delta table or a file sink, or ``foreachBatch``, ``foreach``,
        ``kafka``; ``None``: not known. (templated)
    :param sink_conn_id: Airflow connection to read the sink's log. (templated)
    :param sink_exit: what is done about rows that the sink has beyond the target: ``rollback``, ``forward``, ``accept``;
        ``None``: refuse where there are any. (templated)
    :param txn_app_id: ``txnAppId`` with which ``foreachBatch`` writes to the table; ``None``: the query id. (templated)
    :param sink_options: settings of the table's store as ``deltalake`` names them. (templated)
    :param spark_conn_id: Airflow connection of type ``spark``, by which a table with features that ``deltalake`` cannot restore
        is rolled back, under the seal; the query gets a new id then. ``None``: such a table is refused. (templated)
    :param spark_settings: what ``SparkSubmitHook`` is given: ``packages``, ``conf``, …; and ``uri``, the table as Spark names it
        where that differs. (templated)
    :param mode: ``"plan"`` changes nothing, ``"apply"`` rewinds. (templated)
    :param exact_replay: run the next batch again over exactly the same data, where its log entry is there. (templated)
    :param backup_id: go back to a batch of this backup, also where the checkpoint still has it: everything is then as it was when
        the backup was made, whatever other code has written since; ``None``: the checkpoint itself, as far as it reaches.
        (templated)
    :param stop_running: stop a query that still runs, by the seal. (templated)
    :param accept_source_loss: go on though the sources have lost data. (templated)
    :param accept_foreign_loss: go on though rows that others wrote leave the table too. (templated)
    :param downstream: checkpoints of streams that read the sink, or folders of such; the plan says what happens to them,
        reached by ``checkpoint_conn_id``. (templated)
    :param kafka_config_id: Airflow connection of the Kafka brokers, to learn whether they still have the data;
        ``None``: not asked. (templated)
    :param fingerprint: fingerprint of the plan that was shown and approved: apply is refused if checkpoint or sink are others
        now. ``None``: not compared. (templated)
    :param reason: why, for the audit record. (templated)
    :param quiet_for: seconds for which nobody may have written to the checkpoint.
    """

    template_fields: Sequence[str] = (
        "checkpoint",
        "to",
        "value",
        "checkpoint_conn_id",
        "repository",
        "repository_conn_id",
        "name",
        "sink",
        "sink_conn_id",
        "sink_exit",
        "txn_app_id",
        "sink_options",
        "spark_conn_id",
        "spark_settings",
        "mode",
        "exact_replay",
        "backup_id",
        "stop_running",
        "accept_source_loss",
        "accept_foreign_loss",
        "downstream",
        "kafka_config_id",
        "fingerprint",
        "reason",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"reason": "md"}
    ui_color = "#ffe6cc"

    def __init__(
        self,
        *,
        checkpoint: str,
        to: str,
        value: str | int | None = None,
        checkpoint_conn_id: str | None = None,
        repository: str | None = None,
        repository_conn_id: str | None = None,
        name: str | None = None,
        sink: str | None = None,
        sink_conn_id: str | None = None,
        sink_exit: str | None = None,
        txn_app_id: str | None = None,
        sink_options: dict[str, str] | None = None,
        spark_conn_id: str | None = None,
        spark_settings: dict[str, Any] | None = None,
        mode: Literal["plan", "apply"] | str = PLAN,
        exact_replay: bool | str = True,
        backup_id: str | None = None,
        stop_running: bool | str = False,
        accept_source_loss: bool | str = False,
        accept_foreign_loss: bool | str = False,
        downstream: Sequence[str] | None = None,
        kafka_config_id: str | None = None,
        fingerprint: str | None = None,
        reason: str | None = None,
        quiet_for: float = 5.0,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("multiple_outputs", True)
        super().__init__(**kwargs)
        self.checkpoint = checkpoint
        self.to = to
        self.value = value
        self.checkpoint_conn_id = checkpoint_conn_id
        self.repository = repository
        self.repository_conn_id = repository_conn_id
        self.name = name
        self.sink = sink
        self.sink_conn_id = sink_conn_id
        self.sink_exit = sink_exit
        self.txn_app_id = txn_app_id
        self.sink_options = sink_options
        self.spark_conn_id = spark_conn_id
        self.spark_settings = spark_settings
        self.mode = mode
        self.exact_replay = exact_replay
        self.backup_id = backup_id
        self.stop_running = stop_running
        self.accept_source_loss = accept_source_loss
        self.accept_foreign_loss = accept_foreign_loss
        self.downstream = downstream
        self.kafka_config_id = kafka_config_id
        self.fingerprint = fingerprint
        self.reason = reason
        self.quiet_for = quiet_for

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the plan and, where it was carried out, the outcome."""
        with no_retry_when_refused():
            mode = one_of(self.mode, "mode", (PLAN, APPLY))
            checkpoint = self._checkpoint()
            place = self._repository(checkpoint)
            if mode == PLAN:
                made = self._plan(checkpoint, place, None)
                self.log.info("\n%s", made.to_markdown())
                return {"mode": mode, "plan": made.to_json(), "markdown": made.to_markdown(), "outcome": None}
            repository = Repository.open_or_create(place)
            if done := self._done_before(repository, checkpoint, context):
                return done
            made, outcome = stop_plan_and_apply(
                checkpoint,
                repository,
                lambda under: self._checked(self._plan(checkpoint, place, under)),
                sink=self._sink(),
                stop_running=flag(self.stop_running, "stop_running"),
                quiet_for=self.quiet_for,
                made_by=made_by(context),
                reason=text(self.reason) or "",
                accept_source_loss=flag(self.accept_source_loss, "accept_source_loss"),
                accept_foreign_loss=flag(self.accept_foreign_loss, "accept_foreign_loss"),
            )
        self.log.info("%s stands at batch %d; the stream goes on with the next", outcome.checkpoint, outcome.batch_id)
        return {"mode": mode, "plan": made.to_json(), "markdown": made.to_markdown(), "outcome": outcome.to_json()}

    def _plan(self, checkpoint: Checkpoint, place: Location, under: str | None) -> RewindPlan:
        kind = one_of(self.to, "to", KINDS)
        value = "" if kind in _BARE else required(self.value, "value")
        exit_ = text(self.sink_exit)
        return plan_rewind(
            checkpoint,
            Specifier(kind, value),
            sink=self._sink(),
            sink_exit=SinkPolicy(one_of(exit_, "sink_exit", _EXITS)) if exit_ else None,
            repository=place,
            name=text(self.name),
            exact_replay=flag(self.exact_replay, "exact_replay"),
            backup=text(self.backup_id),
            guards=guards_with_kafka(GuardSettings(), text(self.kafka_config_id)),
            downstream=[open_place(uri, text(self.checkpoint_conn_id)) for uri in self.downstream or ()],
            under=under,
        )

    def _checked(self, plan: RewindPlan) -> RewindPlan:
        """Refuse where the plan is not the one that was approved; one under way has changed things itself."""
        self.log.info("\n%s", plan.to_markdown())
        shown = text(self.fingerprint)
        if shown in (None, plan.plan_fingerprint) or plan.already_done or plan.continued:
            return plan
        raise RefusedError(
            f"the plan that was shown ({shown}) is not the one that would be carried out now ({plan.plan_fingerprint}): "
            f"{plan.checkpoint} or its sink have changed since; nothing was changed",
            hint="look at a new plan, and apply that",
        )

    def _done_before(self, repository: Repository, checkpoint: Checkpoint, context: Context) -> dict[str, Any] | None:
        record = repository.audit(made_by(context)) if has_been_tried(context) else None
        if record is None or record.get("kind") != "rewind" or record["checkpoint"] != checkpoint.location.uri:
            return None
        seal = checkpoint.progress().seal
        if seal is not None and seal.plan_id == record["plan_id"]:
            return None  # recorded, and killed before the seal was lifted: it has still to be ended
        plan: dict[str, Any] = record["plan"]
        self.log.info(
            "An attempt before this one rewound %s (plan %s): nothing is changed", plan["checkpoint"], plan["plan_id"]
        )
        outcome = {
            "plan_id": plan["plan_id"],
            "checkpoint": plan["checkpoint"],
            "batch_id": plan["batch_id"],
            "deleted": len(plan["deletes"]),
            "written": len(plan["writes"]),
            "table_version": record["table_version"],
            "kept": record["kept"],
            "seconds": 0.0,
            "already_done": True,
        }
        return {"mode": APPLY, "plan": plan, "markdown": "", "outcome": outcome}
