"""Rewind to a batch or a time, with state and sink."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.operators.change_operator import APPLY, PLAN, StoppingOperator
from airflow_ckpt_provider.operators.fields import flag, for_each, one_of, required, text, texts
from airflow_ckpt_provider.operators.place_operators import CheckpointOperator, StreamOperator
from airflow_ckpt_provider.operators.renamed import deprecated, renamed
from airflow_ckpt_provider.operators.sink_operator import RollBackOperator
from airflow_ckpt_provider.sinks.policy import SinkPolicy

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
    from airflow_ckpt_provider.storage.location import Location

_KEEP = "keep"
_POLICIES = (SinkPolicy.ROLLBACK.value, SinkPolicy.FORWARD.value, _KEEP)
#: Specifiers without a value.
BARE = ("to_earliest", "to_latest", "to_current")


class CheckpointRewindOperator(StoppingOperator, CheckpointOperator, StreamOperator, RollBackOperator):
    """Rewind a stream: its checkpoint, its state and its sink together. Plans only, unless ``mode="apply"``.

    Parameters of places, sink and change: see :class:`~.place_operators.CheckpointOperator`,
    :class:`~.place_operators.StreamOperator` (the repository keeps what is removed, and its backups can be rewound to; ``None``:
    ``<checkpoint>.rewinds``), :class:`~.sink_operator.RollBackOperator` and :class:`~.change_operator.StoppingOperator`.

    .. code-block:: python

        CheckpointRewindOperator(
            task_id="rewind",
            checkpoint="s3://lake/checkpoints/orders",
            repository="s3://backups/streams",
            sink="s3://lake/tables/orders",
            sink_policy="rollback",
            to="to_datetime",
            value="2026-11-21T14:05:00Z",
            stop_running=True,
        )

    .. seealso:: :doc:`/howto/rewind`

    :param to: where to: ``to_batch``, ``to_datetime``, ``by_duration``, ``shift_by``, ``to_earliest``, ``to_latest``,
        ``to_current``, ``from_file`` (its content) or ``to_table_version``. (templated)
    :param value: its value, where it has one. (templated)
    :param sink_policy: what is done about rows that the sink has beyond the target: ``rollback``: the sink is rolled back too;
        ``forward``: the checkpoint goes to where the sink is; ``keep`` or ``None``: nothing, and ``accept`` has to name what
        happens then. Of several sinks one for all, or a list with one for each. (templated)
    :param exact_replay: run the next batch again over exactly the same data, where its log entry is there. (templated)
    :param backup_id: rewind to a batch of this backup, also where the checkpoint still has it: everything is then as it was when
        the backup was made, whatever other code has written since; ``None``: the checkpoint itself, as far as it reaches.
        (templated)
    :param downstream: checkpoints of streams that read the sink, or folders of such, reached by ``checkpoint_conn_id``; what a
        rollback does to them counts in the verdict, and ``accept`` has to name it. (templated)
    :param kafka_config_id: Airflow connection of the Kafka brokers, to learn whether they still have the data;
        ``None``: not asked. (templated)
    """

    template_fields: Sequence[str] = (
        *CheckpointOperator.template_fields,
        *StreamOperator.template_fields,
        *RollBackOperator.template_fields,
        *StoppingOperator.template_fields,
        "to",
        "value",
        "sink_policy",
        "exact_replay",
        "backup_id",
        "downstream",
        "kafka_config_id",
    )
    old_flags = ("accept_source_loss", "accept_foreign_loss")

    def __init__(
        self,
        *,
        to: str,
        value: str | int | None = None,
        repository: str | None = None,
        sink_policy: str | Sequence[str | None] | None = None,
        exact_replay: bool | str = True,
        backup_id: str | None = None,
        downstream: Sequence[str] | None = None,
        kafka_config_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        sink_policy = renamed(kwargs, old="sink_exit", new="sink_policy", value=sink_policy, default=None)
        super().__init__(repository=repository, **kwargs)
        self.to = to
        self.value = value
        self.sink_policy = sink_policy
        self.exact_replay = exact_replay
        self.backup_id = backup_id
        self.downstream = downstream
        self.kafka_config_id = kafka_config_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the plan and, where it was carried out, the outcome."""
        from airflow_ckpt_provider.backup.beside import repository_for_change
        from airflow_ckpt_provider.change.stopping import stop_plan_and_apply
        from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
        from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan

        with self._refusals(context, self._checkpoint_place, self._given_repository):
            mode = self._mode()
            checkpoint = self._checkpoint()
            place = self._repository_beside(checkpoint.location)
            if mode == PLAN:
                return self._shown(self._plan(checkpoint, place, None))
            repository = repository_for_change(place, checkpoint.location)
            if record := self._ended_before(repository, checkpoint.location, context, kind=RewindPlan.kind):
                return self._carried_out(_of_record(record), context)
            shown: dict[str, Any] = {}

            def plan(seal_id: str | None) -> RewindPlan:
                made = self._plan(checkpoint, place, seal_id)
                shown.update(self._shown(made))
                return made

            _, outcome = stop_plan_and_apply(
                checkpoint.location,
                repository,
                plan,
                partial(apply_rewind, checkpoint=checkpoint, repository=repository, sink=self._sinks()),
                change=RewindPlan.kind,
                accept=self._accepted(),
                **self._how(checkpoint.location, context),
            )
        self.log.info("%s is at batch %d; the stream continues with the next", outcome.checkpoint, outcome.batch_id)
        return self._carried_out({**shown, "outcome": outcome.to_json()}, context)

    def _plan(self, checkpoint: Checkpoint, place: Location, seal_id: str | None) -> RewindPlan:
        from airflow_ckpt_provider.operators.source_connections import guards_by_connection
        from airflow_ckpt_provider.places import open_place
        from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
        from airflow_ckpt_provider.recovery.rewind.specifier import KINDS, Specifier

        kind = one_of(self.to, "to", KINDS)
        value = "" if kind in BARE else required(self.value, "value")
        return plan_rewind(
            checkpoint,
            Specifier(kind, value),
            sink=self._sinks(),
            sink_exit=self._policies(),
            repository=place,
            name=text(self.name),
            exact_replay=flag(self.exact_replay, "exact_replay", empty=True),
            backup=text(self.backup_id),
            guards=guards_by_connection(self.declared_guard_settings(), text(self.kafka_config_id)),
            downstream=[open_place(uri, text(self.checkpoint_conn_id)) for uri in texts(self.downstream, "downstream")],
            seal_id=seal_id,
        )

    def _policies(self) -> list[SinkPolicy | None]:
        given = for_each(self.sink_policy, len(texts(self.sink, "sink")) or 1, "sink_policy")
        return [self._policy(text(chosen)) for chosen in given]

    def _policy(self, chosen: str | None) -> SinkPolicy | None:
        if chosen == SinkPolicy.ACCEPT.value:
            deprecated("sink_policy='accept'", instead="sink_policy='keep', accept=[…]")
            return SinkPolicy.ACCEPT
        if chosen is None or one_of(chosen, "sink_policy", _POLICIES) == _KEEP:
            return None
        return SinkPolicy(chosen)


def _of_record(record: dict[str, Any]) -> dict[str, Any]:
    """What the attempt returned that has written an audit record."""
    plan: dict[str, Any] = record["plan"]
    outcome = {
        "plan_id": plan["plan_id"],
        "checkpoint": plan["checkpoint"],
        "batch_id": plan["batch_id"],
        "deleted": len(plan["deletes"]),
        "written": len(plan["writes"]),
        "table_version": record.get("table_version"),
        "kept": record["kept"],
        "seconds": 0.0,
        "already_done": True,
        **({"sinks": record["sinks"]} if "sinks" in record else {}),
    }
    return {"mode": APPLY, "plan": plan, "markdown": "", "outcome": outcome}
