"""Several streams together: back them up and restore them as one set, rewind them, and undo that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.backup.sets import LATEST_SET, SET, create_set
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.registry import GuardSettings
from airflow_ckpt_provider.lineage.runs import of_chain_undo
from airflow_ckpt_provider.operators.chain_operator import ChainOperator, JointOperator
from airflow_ckpt_provider.operators.change_operator import PLAN, StoppedQueryOperator
from airflow_ckpt_provider.operators.fields import flag, mapping, one_of, required, text, texts, whole_number, words
from airflow_ckpt_provider.operators.progress_log import ProgressLog
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.operators.rewind import BARE
from airflow_ckpt_provider.operators.run_identity import has_been_tried, made_by
from airflow_ckpt_provider.operators.source_connections import guards_by_connection
from airflow_ckpt_provider.places import open_place
from airflow_ckpt_provider.recovery.chains.apply import apply_chain
from airflow_ckpt_provider.recovery.chains.plan import ChainPlan
from airflow_ckpt_provider.recovery.chains.planning import plan_chain
from airflow_ckpt_provider.recovery.chains.set_plan import SetRestorePlan
from airflow_ckpt_provider.recovery.chains.set_restore import plan_set_restore, restore_set
from airflow_ckpt_provider.recovery.chains.stream import ChainStream
from airflow_ckpt_provider.recovery.chains.undo import RISK, chain_undone_by, undo_chain
from airflow_ckpt_provider.recovery.rewind.specifier import KINDS, Specifier

if TYPE_CHECKING:
    from airflow.sdk import Context


#: What a chain can be rewound to; ``to_current`` changes nothing.
CHAIN_KINDS = tuple(kind for kind in KINDS if kind != "to_current")


class ChainBackupOperator(ChainOperator):
    """Back up several checkpoints as one set, which is restored as a whole. The streams may run.

    Each backup is one like those of :class:`~.backup.CheckpointBackupOperator`, at a batch of its own. A retry takes those that
    are missing. The result: ``set_id``, ``streams``, ``backups``, ``whole``, ``problems``.

    Parameters of streams: see :class:`~.chain_operator.ChainOperator`. Sinks are not needed.

    .. code-block:: python

        ChainBackupOperator(
            task_id="backup",
            application="shop",
            reason="before the release",
        )

    .. seealso:: :doc:`/howto/application`

    :param tags: words kept in the manifests. (templated)
    :param reason: why, kept in the manifests. (templated)
    :param restorable_batches: how many of the newest batches can be restored from each backup. (templated)
    """

    template_fields: Sequence[str] = (*ChainOperator.template_fields, "tags", "reason", "restorable_batches")
    ui_color = "#d5e8d4"

    def __init__(
        self,
        *,
        tags: dict[str, str] | None = None,
        reason: str | None = None,
        restorable_batches: int | str = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.tags = tags
        self.reason = reason
        self.restorable_batches = restorable_batches

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the set."""
        with no_retry_when_refused():
            streams, repository, by = self._streams(), self._set_repository(), made_by(context)
            first = min(stream.name for stream in streams)
            before = repository.made_by(first, by) if has_been_tried(context) else None
            made = create_set(
                {stream.name: Checkpoint.at(stream.checkpoint) for stream in streams},
                repository,
                set_id=before.tags.get(SET) if before else None,
                tags={key: str(value) for key, value in mapping(self.tags, "tags").items()},
                reason=text(self.reason) or "",
                made_by=by,
                restorable_batches=whole_number(self.restorable_batches, "restorable_batches", least=1) or 1,
                on_progress=ProgressLog(self.log, "Stored"),
            )
            made.check_whole()
        for name, manifest in made.backups.items():
            self.log.info("Set %s: backup %s of %s, batch %d", made.set_id, manifest.backup_id, name, manifest.batch_id)
        return made.to_json()


class ChainRestoreOperator(JointOperator):
    """Restore a set of backups: every stream of it, or none. Plans only, unless ``mode="apply"``.

    All checkpoints are sealed, and every backup is read and found whole, before the first checkpoint is changed. A retry resumes;
    :class:`~.chain.ChainUndoOperator` undoes it.

    Parameters of streams and change: see :class:`~.chain_operator.ChainOperator` and :class:`~.chain_operator.JointOperator`.
    Sinks are asked, and stay as they are; :class:`~.chain.ChainRewindOperator` rolls the sinks back too.

    .. code-block:: python

        ChainRestoreOperator(
            task_id="restore",
            streams=["orders=s3://lake/checkpoints/orders", "returns=s3://lake/checkpoints/returns"],
            repository="s3://backups/streams",
            replace=True,
            stop_running=True,
            mode="apply",
        )

    .. seealso:: :doc:`/howto/application`

    :param set_id: id of the set, or ``"latest"``: the newest one of these streams that is whole. Where a plan is applied later,
        give the id that the plan named; with ``stop_running`` and ``fingerprint`` anything else is refused. (templated)
    :param replace: replace the checkpoints that are there; what differs is set aside before. (templated)
    """

    template_fields: Sequence[str] = (*JointOperator.template_fields, "set_id", "replace")

    def __init__(self, *, set_id: str = LATEST_SET, replace: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.set_id = set_id
        self.replace = replace

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the plan and, where it was carried out, the outcome."""
        with no_retry_when_refused():
            mode, streams, repository = self._mode(), self._streams(), self._set_repository()
            asked: dict[str, Any] = {
                "set_id": required(self.set_id, "set_id"),
                "replace_there": flag(self.replace, "replace"),
            }
            if mode == PLAN:
                return self._shown(plan_set_restore(streams, repository, **asked))
            held = [replace(stream, repository=repository.location) for stream in streams]
            if done := self._done_before(held, context, SetRestorePlan.kind):
                return done
            shown: dict[str, Any] = {}
            how = self._together(context, shown)
            if how["stop_running"] and how["fingerprint"]:
                if asked["set_id"] == LATEST_SET:
                    raise RefusedError(
                        f"set_id is {LATEST_SET}, and a newer set than the approved one may have been made since; with "
                        "stop_running a fingerprint does not show that, as running queries change what is replaced",
                        hint="give the set_id that the approved plan names",
                    )
                self.log.info(
                    "The fingerprint is not compared: the queries change what is replaced until they are stopped."
                )
                how["fingerprint"] = None
            made, outcome = restore_set(streams, repository, **asked, **how)
        for part in made.parts:
            self.log.info("%s holds batch %d of backup %s", part.target, part.batch_id, part.backup_id)
        return self._carried_out({**shown, "outcome": outcome.to_json()}, context)


class ChainRewindOperator(JointOperator):
    """Rewind several streams together. Plans only, unless ``mode="apply"``.

    They are those that read each other's tables, or that one application runs. All go to one boundary, or none does. A retry
    resumes where the attempt before was stopped.

    Parameters of streams and change: see :class:`~.chain_operator.ChainOperator` and :class:`~.chain_operator.JointOperator`.

    .. code-block:: python

        ChainRewindOperator(
            task_id="rewind",
            streams=[
                "bronze=s3://lake/checkpoints/bronze,sink=s3://lake/bronze",
                "silver=s3://lake/checkpoints/silver,sink=s3://lake/silver",
            ],
            to="to_datetime",
            value="2026-11-21T14:05:00Z",
        )

    .. seealso:: :doc:`/howto/rewind-chain`

    :param to: where to, as for :class:`~.rewind.CheckpointRewindOperator`, without ``to_current``. It is for the streams that the
        rewind begins with. (templated)
    :param value: its value, where it has one. (templated)
    :param begins_with: names of the streams that the rewind begins with: a list, or text with commas between them; ``None``:
        those that read no other of the streams. (templated)
    :param exact_replay: run the next batch again over exactly the same data, where nothing that a stream reads is rolled back.
        (templated)
    :param downstream: folders of checkpoints to look for streams that read one of the tables and are not named, beside the
        folders of those that are. (templated)
    :param kafka_config_id: Airflow connection of the Kafka brokers, to learn whether they still have the data; ``None``: not
        asked. (templated)
    :param batches: the batches of a plan that was shown (``plan.output["plan"]["batches"]``): go to exactly these, also where the
        streams have run on since; ``None``: choose by ``to``. (templated)
    """

    template_fields: Sequence[str] = (
        *JointOperator.template_fields,
        "to",
        "value",
        "begins_with",
        "exact_replay",
        "downstream",
        "kafka_config_id",
        "batches",
    )

    def __init__(
        self,
        *,
        to: str,
        value: str | int | None = None,
        begins_with: Sequence[str] | str | None = None,
        exact_replay: bool | str = True,
        downstream: Sequence[str] | None = None,
        kafka_config_id: str | None = None,
        batches: dict[str, int] | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.to = to
        self.batches = batches
        self.value = value
        self.begins_with = begins_with
        self.exact_replay = exact_replay
        self.downstream = downstream
        self.kafka_config_id = kafka_config_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the plan and, where it was carried out, the outcome."""
        with no_retry_when_refused():
            mode, streams = self._mode(), self._streams()
            if mode == PLAN:
                return self._shown(self._plan(streams, None))
            if done := self._done_before(streams, context, ChainPlan.kind):
                return done
            shown: dict[str, Any] = {}
            plan, outcome_of = apply_chain(streams, partial(self._plan, streams), **self._together(context, shown))
        for part, rewind in plan.rewinds:
            self.log.info("%s is at batch %d", part.name, rewind.batch_id)
        return self._carried_out({**shown, "outcome": outcome_of.to_json()}, context)

    def _plan(self, streams: tuple[ChainStream, ...], chain_id: str | None) -> ChainPlan:
        kind = one_of(self.to, "to", CHAIN_KINDS)
        value = "" if kind in BARE else required(self.value, "value")
        given = words(self.begins_with, "begins_with", tuple(stream.name for stream in streams))
        return plan_chain(
            streams,
            Specifier(kind, value),
            begins_with=given,
            exact_replay=flag(self.exact_replay, "exact_replay", empty=True),
            guards=guards_by_connection(GuardSettings(), text(self.kafka_config_id)),
            look_in=[open_place(uri, text(self.checkpoint_conn_id)) for uri in texts(self.downstream, "downstream")],
            batches=_batches(self.batches),
            chain_id=chain_id,
        )


class ChainUndoOperator(StoppedQueryOperator, ChainOperator):
    """Undo a rewind or a restore of several streams, as long as none of them was started since. A retry resumes.

    Parameters of streams and proof: see :class:`~.chain_operator.ChainOperator` and
    :class:`~.change_operator.StoppedQueryOperator`.

    .. code-block:: python

        ChainUndoOperator(
            task_id="undo",
            application="shop",
            plan_id="{{ ti.xcom_pull(task_ids='rewind')['plan']['plan_id'] }}",
            query_is_stopped=True,
        )

    .. seealso:: :doc:`/howto/rewind-chain`

    :param plan_id: id of the rewind or restore; ``None``: the one that is half-way, else the newest one. (templated)
    :param accept: ``source_failure``, where the plan said that a stream would stop at the rollback of a table. (templated)
    :param reason: why, for the audit records. (templated)
    """

    template_fields: Sequence[str] = (
        *ChainOperator.template_fields,
        *StoppedQueryOperator.template_fields,
        "plan_id",
        "accept",
        "reason",
    )
    ui_color = "#fff2cc"

    def __init__(
        self,
        *,
        plan_id: str | None = None,
        accept: Sequence[str] | str | None = None,
        reason: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.plan_id = plan_id
        self.accept = accept
        self.reason = reason

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what was put back."""
        with no_retry_when_refused():
            streams, plan_id = self._streams(), text(self.plan_id)
            if plan_id is None and has_been_tried(context):
                # Not the newest one of now, which may be another run's.
                plan_id = chain_undone_by(streams, made_by(context))
            outcome = undo_chain(
                streams,
                plan_id=plan_id,
                accept=words(self.accept, "accept", (RISK,)),
                rest=lambda checkpoint: self._rest(checkpoint, context),
                made_by=made_by(context),
                reason=text(self.reason) or "",
            )
        self.log.info("Chain %s is undone", outcome.plan_id)
        result, sinks = outcome.to_json(), {each.name: [sink.name for sink in each.sinks] for each in streams}
        self.note(of_chain_undo, result, self.places, sinks)
        for each in result["streams"]:
            extra = {"kind": "undo", "plan_id": outcome.plan_id, "batch_id": None}
            self._announce(each["checkpoint"], extra, context)
        return result


def _batches(value: Any) -> dict[str, int] | None:
    return {
        name: int(required(whole_number(batch, "batches"), "batches"))
        for name, batch in mapping(value, "batches").items()
    } or None
