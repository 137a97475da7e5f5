"""A new checkpoint in the place of the old one, for changes that no checkpoint survives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.sdk import BaseOperator

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.set_aside import default_repository
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.delta_rows import rows_before
from airflow_ckpt_provider.operators.fields import flag, one_of, required, text, whole_number
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.operators.restore import APPLY, PLAN
from airflow_ckpt_provider.operators.run_identity import has_been_tried, made_by
from airflow_ckpt_provider.places import open_place
from airflow_ckpt_provider.recovery.positions.asking import partitions_of
from airflow_ckpt_provider.recovery.reset.apply import outcome_of, stop_plan_and_reset
from airflow_ckpt_provider.recovery.reset.plan import ResetPlan, ResetWay
from airflow_ckpt_provider.recovery.reset.planning import plan_reset, read_reset
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.verdict import Verdict

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.storage.location import Location

_WAYS = tuple(way.value for way in ResetWay)
_VERDICTS = tuple(verdict.value for verdict in Verdict)


class CheckpointResetOperator(BaseOperator):
    """Put a new checkpoint in the place of the old one, or give it a new query id. Plans only, unless ``mode="apply"``.

    The plan is shown in the log and is the task's result: ``plan`` (JSON, with ``options``, ``conf`` and ``snippet`` for the
    readers of the new query), ``markdown`` (for an approval form), ``outcome`` (``None`` when only planned), as a dictionary
    and key by key. The old checkpoint is set aside whole; :class:`CheckpointUndoOperator` puts it back as long as the new
    one was not started. A retry goes on where the attempt before was stopped; one that had finished changes nothing.

    .. seealso:: :doc:`/howto/reset`

    :param checkpoint: URI of the checkpoint, whole or broken. (templated)
    :param way: ``"keep-position"``: the new checkpoint reads on where the old one stood; ``"from-scratch"``: where the
        sources' own options say; ``"new-query-id"``: the checkpoint stays, under a new query id. (templated)
    :param batch: with ``keep-position``: after this committed batch; ``None``: the newest one. (templated)
    :param checkpoint_conn_id: Airflow connection to reach the checkpoint; ``None``: the environment's own credentials.
        (templated)
    :param repository: URI of the repository that keeps the old checkpoint; ``None``: ``<checkpoint>.rewinds``. (templated)
    :param repository_conn_id: Airflow connection to reach the repository. (templated)
    :param name: name of the stream in the repository; ``None``: last segment of the checkpoint. (templated)
    :param sink: what the query writes to: directory of a Delta table or a file sink, or ``foreachBatch``, ``foreach``,
        ``kafka``; ``None``: not known. (templated)
    :param sink_conn_id: Airflow connection to read the sink's log. (templated)
    :param txn_app_id: ``txnAppId`` with which ``foreachBatch`` writes to the table; ``None``: the query id. (templated)
    :param new_txn_app_id: the one that the new query will write with. (templated)
    :param sink_options: settings of the table's store as ``deltalake`` names them. (templated)
    :param sources: source of the old query -> its place or name in the new one, where that changes; an empty text for one that
        is gone. (templated)
    :param continue_numbers: the new checkpoint goes on with the old batch numbers, which file sinks want; for queries without
        state. (templated)
    :param kafka_partitions: topic -> how many partitions it has now. (templated)
    :param tables: source -> URI of the Delta table that it reads, to count rows that are read again; reached by
        ``sink_conn_id``. (templated)
    :param mode: ``"plan"`` changes nothing, ``"apply"`` resets. (templated)
    :param accept: the plan's verdict, where it is not ``SAFE`` and is to be carried out all the same. (templated)
    :param stop_running: stop a query that still runs, by the seal. (templated)
    :param under: plan id of a seal that is there already: it is taken over, and lifted with the reset's end. (templated)
    :param fingerprint: fingerprint of the plan that was shown and approved; ``None``: not compared. (templated)
    :param reason: why, for the audit record. (templated)
    :param quiet_for: seconds for which nobody may have written to the checkpoint.
    """

    template_fields: Sequence[str] = (
        "checkpoint",
        "way",
        "batch",
        "checkpoint_conn_id",
        "repository",
        "repository_conn_id",
        "name",
        "sink",
        "sink_conn_id",
        "txn_app_id",
        "new_txn_app_id",
        "sink_options",
        "sources",
        "continue_numbers",
        "kafka_partitions",
        "tables",
        "mode",
        "accept",
        "stop_running",
        "under",
        "fingerprint",
        "reason",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"reason": "md"}
    ui_color = "#ffe6cc"

    def __init__(
        self,
        *,
        checkpoint: str,
        way: Literal["keep-position", "from-scratch", "new-query-id"] | str,
        batch: int | str | None = None,
        checkpoint_conn_id: str | None = None,
        repository: str | None = None,
        repository_conn_id: str | None = None,
        name: str | None = None,
        sink: str | None = None,
        sink_conn_id: str | None = None,
        txn_app_id: str | None = None,
        new_txn_app_id: str | None = None,
        sink_options: dict[str, str] | None = None,
        sources: Mapping[str, str] | None = None,
        continue_numbers: bool | str = False,
        kafka_partitions: Mapping[str, int] | None = None,
        tables: Mapping[str, str] | None = None,
        mode: Literal["plan", "apply"] | str = PLAN,
        accept: str | None = None,
        stop_running: bool | str = False,
        under: str | None = None,
        fingerprint: str | None = None,
        reason: str | None = None,
        quiet_for: float = 5.0,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("multiple_outputs", True)
        super().__init__(**kwargs)
        self.checkpoint = checkpoint
        self.way = way
        self.batch = batch
        self.checkpoint_conn_id = checkpoint_conn_id
        self.repository = repository
        self.repository_conn_id = repository_conn_id
        self.name = name
        self.sink = sink
        self.sink_conn_id = sink_conn_id
        self.txn_app_id = txn_app_id
        self.new_txn_app_id = new_txn_app_id
        self.sink_options = sink_options
        self.sources = sources
        self.continue_numbers = continue_numbers
        self.kafka_partitions = kafka_partitions
        self.tables = tables
        self.mode = mode
        self.accept = accept
        self.stop_running = stop_running
        self.under = under
        self.fingerprint = fingerprint
        self.reason = reason
        self.quiet_for = quiet_for

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the plan and, where it was carried out, the outcome."""
        with no_retry_when_refused():
            mode = one_of(self.mode, "mode", (PLAN, APPLY))
            accept = text(self.accept)
            accepted = Verdict(one_of(accept, "accept", _VERDICTS)) if accept else None
            checkpoint = open_place(required(self.checkpoint, "checkpoint"), text(self.checkpoint_conn_id))
            given = text(self.repository)
            place = open_place(given, text(self.repository_conn_id)) if given else default_repository(checkpoint)
            if mode == PLAN:
                made = self._plan(checkpoint, place, text(self.under))
                self.log.info("\n%s", made.to_markdown())
                return {"mode": mode, "plan": made.to_json(), "markdown": made.to_markdown(), "outcome": None}
            repository = Repository.open_or_create(place)
            if done := self._done_before(repository, checkpoint, context):
                return done
            made, outcome = stop_plan_and_reset(
                checkpoint,
                repository,
                lambda under: self._checked(self._plan(checkpoint, place, under)),
                stop_running=flag(self.stop_running, "stop_running"),
                under=text(self.under),
                quiet_for=self.quiet_for,
                made_by=made_by(context),
                reason=text(self.reason) or "",
                accept=accepted,
            )
        self.log.info("%s is reset; options of the new query's readers:\n%s", outcome.checkpoint, outcome.snippet)
        return {"mode": mode, "plan": made.to_json(), "markdown": made.to_markdown(), "outcome": outcome.to_json()}

    def _plan(self, checkpoint: Location, place: Location, under: str | None) -> ResetPlan:
        sink = Sink.named(
            text(self.sink),
            lambda uri: open_place(uri, text(self.sink_conn_id)),
            app_id=text(self.txn_app_id),
            storage_options=self.sink_options or {},
        )
        tables = {s: rows_before(open_place(uri, text(self.sink_conn_id))) for s, uri in (self.tables or {}).items()}
        return plan_reset(
            checkpoint,
            ResetWay(one_of(self.way, "way", _WAYS)),
            batch_id=whole_number(self.batch, "batch"),
            sink=sink,
            new_app_id=text(self.new_txn_app_id),
            sources={str(old): str(new) for old, new in (self.sources or {}).items()},
            continue_numbers=flag(self.continue_numbers, "continue_numbers"),
            repository=place,
            name=text(self.name),
            kafka_partitions=partitions_of(self.kafka_partitions or {}) or None,
            rows_before=tables or None,
            under=under,
        )

    def _checked(self, plan: ResetPlan) -> ResetPlan:
        """Refuse where the plan is not the one that was approved; one under way has changed things itself."""
        self.log.info("\n%s", plan.to_markdown())
        shown = text(self.fingerprint)
        if shown in (None, plan.plan_fingerprint) or plan.continued:
            return plan
        raise RefusedError(
            f"the plan that was shown ({shown}) is not the one that would be carried out now ({plan.plan_fingerprint}): "
            f"{plan.checkpoint} or its sink have changed since; nothing was changed",
            hint="look at a new plan, and apply that",
        )

    def _done_before(self, repository: Repository, checkpoint: Location, context: Context) -> dict[str, Any] | None:
        record = repository.audit(made_by(context)) if has_been_tried(context) else None
        if record is None or record.get("kind") != "reset" or record["checkpoint"] != checkpoint.uri:
            return None
        if text(self.under) not in (None, record["plan_id"]):
            return None  # of a run that was cleared since: the seal that is there now wants its own
        seal = inspect_target(checkpoint).seal
        plan = read_reset(repository, record["plan_id"])
        if plan is None or (seal is not None and seal.plan_id == plan.plan_id):
            return None  # recorded, and killed before the seal was lifted: it has still to be ended
        self.log.info(
            "An attempt before this one reset %s (plan %s): nothing is changed", plan.checkpoint, plan.plan_id
        )
        outcome = outcome_of(plan, kept=record["kept"], seconds=0.0).to_json()
        return {"mode": APPLY, "plan": plan.to_json(), "markdown": plan.to_markdown(), "outcome": outcome}
