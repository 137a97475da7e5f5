"""A new checkpoint in the place of the old one, for changes that no checkpoint survives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from airflow_ckpt_provider.operators.change_operator import APPLY, PLAN, StoppingOperator
from airflow_ckpt_provider.operators.fields import flag, mapping, one_of, required, text, whole_number
from airflow_ckpt_provider.operators.place_operators import CheckpointOperator, StreamOperator
from airflow_ckpt_provider.operators.renamed import deprecated_class, renamed
from airflow_ckpt_provider.operators.sink_operator import SinkOperator
from airflow_ckpt_provider.recovery.reset.way import ResetWay

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.backup.repository import Repository
    from airflow_ckpt_provider.guards.registry import Guard
    from airflow_ckpt_provider.recovery.reset.plan import ResetPlan
    from airflow_ckpt_provider.storage.location import Location

_WAYS = tuple(way.value for way in ResetWay)


class NewCheckpointOperator(StoppingOperator, CheckpointOperator, StreamOperator, SinkOperator):
    """Put a new checkpoint in the place of the old one, or give it a new query id. Plans only, unless ``mode="apply"``.

    The plan has ``options``, ``conf`` and ``snippet`` for the readers of the new query. The old checkpoint, whole or broken, is
    set aside whole.

    Parameters of places, sink and change: see :class:`~.place_operators.CheckpointOperator`,
    :class:`~.place_operators.StreamOperator` (the repository keeps the old checkpoint; ``None``: ``<checkpoint>.rewinds``),
    :class:`~.sink_operator.SinkOperator` and :class:`~.change_operator.StoppingOperator`.

    .. code-block:: python

        NewCheckpointOperator(
            task_id="reset",
            checkpoint="s3://lake/checkpoints/orders",
            repository="s3://backups/streams",
            way="keep-position",
            kafka_config_id="kafka_orders",
            stop_running=True,
        )

    .. seealso:: :doc:`/howto/reset`

    :param way: ``"keep-position"``: the new checkpoint continues at the position of the old one; ``"from-scratch"``: where the
        sources' own options say; ``"new-query-id"``: the checkpoint stays, under a new query id. (templated)
    :param batch: with ``keep-position``: after this committed batch; ``None``: the newest one. (templated)
    :param new_txn_app_id: ``txnAppId`` that the new query will write with. (templated)
    :param sources: source of the old query -> its place or name in the new one, where that changes; an empty text for one that
        is gone. (templated)
    :param continue_numbers: the new checkpoint continues with the old batch numbers, which file sinks want; for queries without
        state. (templated)
    :param kafka_partitions: topic -> how many partitions it has now. (templated)
    :param tables: source -> URI of the Delta table that it reads, to learn whether it still has the kept position, and to count
        rows that are read again; reached by ``sink_conn_id``. A table that is not named leaves its position ``UNKNOWN``.
        (templated)
    :param kafka_config_id: Airflow connection of the Kafka brokers, to learn whether they still have a kept position; ``None``:
        nobody is asked, and the position is ``UNKNOWN``. (templated)
    :param seal_id: plan id of a seal that is there already: it is taken over, and lifted with the reset's end. (templated)
    """

    template_fields: Sequence[str] = (
        *CheckpointOperator.template_fields,
        *StreamOperator.template_fields,
        *SinkOperator.template_fields,
        *StoppingOperator.template_fields,
        "way",
        "batch",
        "new_txn_app_id",
        "sources",
        "continue_numbers",
        "kafka_partitions",
        "tables",
        "kafka_config_id",
        "seal_id",
    )

    _guards: tuple[Guard, ...] | None = None

    def __init__(
        self,
        *,
        way: Literal["keep-position", "from-scratch", "new-query-id"] | str,
        batch: int | str | None = None,
        repository: str | None = None,
        new_txn_app_id: str | None = None,
        sources: Mapping[str, str] | None = None,
        continue_numbers: bool | str = False,
        kafka_partitions: Mapping[str, int] | None = None,
        tables: Mapping[str, str] | None = None,
        kafka_config_id: str | None = None,
        seal_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        seal_id = renamed(kwargs, old="under", new="seal_id", value=seal_id, default=None)
        super().__init__(repository=repository, **kwargs)
        self.way = way
        self.batch = batch
        self.new_txn_app_id = new_txn_app_id
        self.sources = sources
        self.continue_numbers = continue_numbers
        self.kafka_partitions = kafka_partitions
        self.tables = tables
        self.kafka_config_id = kafka_config_id
        self.seal_id = seal_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the plan and, where it was carried out, the outcome."""
        from airflow_ckpt_provider.backup.beside import repository_for_change
        from airflow_ckpt_provider.change.stopping import stop_plan_and_apply
        from airflow_ckpt_provider.recovery.reset.apply import apply_reset
        from airflow_ckpt_provider.recovery.reset.plan import ResetPlan

        with self._refusals(context, self._checkpoint_place, self._given_repository):
            mode = self._mode()
            checkpoint, seal_id = self._checkpoint_place(), text(self.seal_id)
            place = self._repository_beside(checkpoint)
            if mode == PLAN:
                return self._shown(self._plan(checkpoint, place, seal_id))
            repository = repository_for_change(place, checkpoint)
            if done := self._done_before(repository, checkpoint, seal_id, context):
                return self._carried_out(done, context)
            shown: dict[str, Any] = {}

            def plan(sealed_under: str | None) -> ResetPlan:
                made = self._plan(checkpoint, place, sealed_under)
                shown.update(self._shown(made))
                return made

            _, outcome = stop_plan_and_apply(
                checkpoint,
                repository,
                plan,
                partial(apply_reset, checkpoint=checkpoint, repository=repository),
                change=ResetPlan.kind,
                seal_id=seal_id,
                accept=self._accepted(),
                **self._how(checkpoint, context),
            )
        self.log.info("%s is reset; options of the new query's readers:\n%s", outcome.checkpoint, outcome.snippet)
        return self._carried_out({**shown, "outcome": outcome.to_json()}, context)

    def _asked(self) -> dict[str, Any]:
        from airflow_ckpt_provider.guards.kafka import KafkaGuard

        servers = next((guard.servers for guard in self._guards or () if isinstance(guard, KafkaGuard)), "")
        return {"tables": list(mapping(self.tables, "tables").values()), "servers": servers}

    def _plan(self, checkpoint: Location, place: Location, seal_id: str | None) -> ResetPlan:
        from airflow_ckpt_provider.operators.source_connections import guards_by_connection
        from airflow_ckpt_provider.places import open_place
        from airflow_ckpt_provider.recovery.positions.asking import partitions_of
        from airflow_ckpt_provider.recovery.reset.planning import plan_reset

        kafka = text(self.kafka_config_id)
        self._guards = guards_by_connection(self.declared_guard_settings(), kafka) if kafka else None
        tables = {
            s: open_place(required(uri, "tables"), text(self.sink_conn_id))
            for s, uri in mapping(self.tables, "tables").items()
        }
        return plan_reset(
            checkpoint,
            ResetWay(one_of(self.way, "way", _WAYS)),
            batch_id=whole_number(self.batch, "batch"),
            sink=self._sinks(),
            new_app_id=text(self.new_txn_app_id),
            sources={old: text(new) or "" for old, new in mapping(self.sources, "sources").items()},
            continue_numbers=flag(self.continue_numbers, "continue_numbers"),
            repository=place,
            name=text(self.name),
            kafka_partitions=partitions_of(mapping(self.kafka_partitions, "kafka_partitions")) or None,
            tables=tables or None,
            guards=self._guards,
            seal_id=seal_id,
        )

    def _done_before(
        self, repository: Repository, checkpoint: Location, seal_id: str | None, context: Context
    ) -> dict[str, Any] | None:
        from airflow_ckpt_provider.recovery.reset.apply import outcome_of
        from airflow_ckpt_provider.recovery.reset.plan import ResetPlan
        from airflow_ckpt_provider.recovery.reset.planning import read_reset

        record = self._ended_before(repository, checkpoint, context, kind=ResetPlan.kind)
        if record is None or seal_id not in (None, record["plan_id"]):
            return None  # of a run that was cleared since: the seal that is there now wants its own
        plan = read_reset(repository, record["plan_id"])
        if plan is None:
            return None
        outcome = outcome_of(plan, kept=record["kept"], seconds=0.0).to_json()
        return {"mode": APPLY, "plan": plan.to_json(), "markdown": plan.to_markdown(), "outcome": outcome}


class CheckpointResetOperator(NewCheckpointOperator):
    """Deprecated name of :class:`~.reset.NewCheckpointOperator`.

    .. seealso:: :doc:`/howto/reset`
    """

    def __init__(self, **kwargs: Any) -> None:
        deprecated_class("CheckpointResetOperator", instead="NewCheckpointOperator")
        super().__init__(**kwargs)
