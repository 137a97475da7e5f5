"""Let old backups go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.operators.change_operator import PLAN, PlannedOperator
from airflow_ckpt_provider.operators.declared import UNSET
from airflow_ckpt_provider.operators.fields import flag, mapping, required, text
from airflow_ckpt_provider.operators.place_operators import StreamOperator
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.operators.run_identity import made_by
from airflow_ckpt_provider.parallel import WORKERS
from airflow_ckpt_provider.units import format_size, parse_duration
from airflow_ckpt_provider.verdict import Usefulness

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.backup.expire_plan import AskSources, ExpirePlan


class CheckpointExpireOperator(PlannedOperator, StreamOperator):
    """Remove the backups that no rule keeps, and the objects that none needs any more. Plans only, unless ``mode="apply"``.

    The rules are restic's, for each stream of its own. Whatever they say, these stay: held backups, the newest verified one,
    the newest that can be replayed, the only copy of what an unfinished restore replaced, and backups dated in the future.

    The result has ``plan`` (JSON: ``kept`` and ``going``, with the reasons of each), ``markdown``, ``prune``, ``outcome`` and
    ``prune_outcome`` (``None`` when only planned), as a dictionary and key by key. Run again it finds the work done.

    Parameters of repository and plan: see :class:`~.place_operators.StreamOperator` (``name``: only this stream) and
    :class:`~.change_operator.PlannedOperator`.

    .. code-block:: python

        CheckpointExpireOperator(
            task_id="expire",
            repository="s3://backups/streams",
            keep={"last": 3, "daily": 7, "weekly": 4},
            prune=True,
            mode="apply",
        )

    .. seealso:: :doc:`/howto/retention`

    :param keep: the rules by the names of restic's options, without ``keep-``: ``last``, ``hourly``, ``daily``, ``weekly``,
        ``monthly``, ``yearly`` (a number, or ``"unlimited"``), ``within`` and ``within-hourly`` to ``within-yearly`` (a span
        such as ``"2y5m7d3h"``), ``tag`` (a list); and ``replayable`` (a number): those whose sources still have what they
        would read. (templated)
    :param prune: delete the objects that no backup lists any more. (templated)
    :param max_unused: what may stay though no backup lists it: ``"200M"``, ``"5%"`` or ``"unlimited"``. (templated)
    :param abandoned_after: a backup or restore that began that long ago and has not ended is dead to the prune, such as
        ``"24h"``. (templated)
    :param kafka_config_id: connection of type ``kafka``: asked which backups can still be replayed; ``None``: that counts as
        not known. (templated)
    :param workers: objects deleted at the same time.
    """

    template_fields: Sequence[str] = (
        *StreamOperator.template_fields,
        *PlannedOperator.template_fields,
        "keep",
        "prune",
        "max_unused",
        "abandoned_after",
        "kafka_config_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"reason": "md", "keep": "json"}
    ui_color = "#fff2cc"

    def __init__(
        self,
        *,
        keep: Mapping[str, Any] | str | None = UNSET,
        prune: bool | str = False,
        max_unused: str | None = None,
        abandoned_after: str = "24h",
        kafka_config_id: str | None = None,
        workers: int = WORKERS,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.keep: Mapping[str, Any] | str | None = self.needed(keep, "keep")
        self.prune = prune
        self.max_unused = max_unused
        self.abandoned_after = abandoned_after
        self.kafka_config_id = kafka_config_id
        self.workers = workers

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what was kept and what went, and why."""
        from airflow_ckpt_provider.backup.expire import apply_expire
        from airflow_ckpt_provider.backup.expire_plan import plan_expire
        from airflow_ckpt_provider.backup.prune import MaxUnused, apply_prune, plan_prune
        from airflow_ckpt_provider.backup.retention import Policy

        with no_retry_when_refused():
            mode = self._mode()
            most = text(self.max_unused)
            limit = MaxUnused.parse(most) if most else None
            after = parse_duration(required(self.abandoned_after, "abandoned_after"), field="abandoned_after")
            repository = self._open_repository()
            name, pruning = text(self.name), flag(self.prune, "prune")
            policy = Policy.parse(mapping(self.keep, "keep"))
            plan = plan_expire(repository, policy, name=name, ask_sources=self._asking())
            result: dict[str, Any] = {**self._shown(plan), "prune": None}
            if mode == PLAN:
                if pruning:
                    going: dict[str, list[str]] = {}
                    for decision in plan.going:
                        going.setdefault(decision.backup.name, []).append(decision.backup.backup_id)
                    result["prune"] = plan_prune(repository, name=name, max_unused=limit, without=going).to_json()
                return {**result, "prune_outcome": None}
            self._check_fingerprint(plan)
            outcome = apply_expire(repository, plan, made_by=made_by(context), reason=text(self.reason) or "")
            self.log.info(
                "Removed %d backups, %d stay", len(outcome.removed), len(plan.decisions) - len(outcome.removed)
            )
            result |= {"outcome": outcome.to_json(), "prune_outcome": None}
            if pruning:
                unused = plan_prune(repository, name=name, max_unused=limit)
                pruned = apply_prune(
                    repository, unused, made_by=made_by(context), abandoned_after=after, workers=self.workers
                )
                self.log.info("Deleted %d objects, %s", pruned.objects, format_size(pruned.bytes))
                for stream, who in pruned.waits_for.items():
                    self.log.info("%s waits for the next prune: %s", stream, "; ".join(who))
                result |= {"prune": unused.to_json(), "prune_outcome": pruned.to_json()}
        return result

    def _asking(self) -> AskSources | None:
        from airflow_ckpt_provider.operators.kafka_connection import open_kafka

        kafka_config_id = text(self.kafka_config_id)
        if kafka_config_id is None:
            return None
        from airflow_ckpt_provider.guards.kafka_backups import judge_backups

        client = open_kafka(kafka_config_id)

        def ask(facts: Sequence[Mapping[str, Any]]) -> list[Usefulness]:
            return [verdict.usefulness for verdict in judge_backups(client, facts)]

        return ask

    def _check_fingerprint(self, plan: ExpirePlan) -> None:
        shown = text(self.fingerprint)
        # What went already, in an attempt before this one, is no other plan.
        if shown in (None, plan.fingerprint) or not plan.going:
            return
        raise RefusedError(
            f"the plan that was shown ({shown}) is not the one that would be carried out now ({plan.fingerprint}): other "
            "backups would go; nothing was removed",
            hint="make a new plan, and apply that",
        )
