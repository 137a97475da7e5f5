"""Carrying out a rewind of several streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from airflow_ckpt_provider.backup.beside import repository_for_change
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.recovery.chains.plan import ChainPlan, JointPlan
from airflow_ckpt_provider.recovery.chains.stream import ChainStream
from airflow_ckpt_provider.recovery.chains.together import ChainOutcome, Together, Verb
from airflow_ckpt_provider.recovery.rewind.apply import RewindOutcome, apply_rewind
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.sink import RollBack
from airflow_ckpt_provider.sinks.sink import named_sinks

#: Makes the plan, given the id under which the checkpoints are sealed; ``None``: they are not.
MakePlan = Callable[[str | None], ChainPlan]


def apply_chain(streams: Sequence[ChainStream], plan: MakePlan, **how: Any) -> tuple[ChainPlan, ChainOutcome]:
    """Plan a rewind of several streams and apply it, or resume one that was begun.

    :param streams: the streams, as the plan names them.
    :param plan: makes the plan.
    :param how: see :class:`~airflow_ckpt_provider.recovery.chains.together.Together`, which also says what is raised.
    """
    return Together(streams=streams, verb=_Rewind(plan), **how).apply()


@dataclass(frozen=True)
class _Rewind(Verb[ChainPlan]):
    """The rewind of a chain.

    :param make: makes the plan.
    """

    make: MakePlan
    kind: str = ChainPlan.kind
    what: str = "rewind of a chain"

    def plan(self, chain_id: str | None) -> ChainPlan:
        """Make the plan."""
        return self.make(chain_id)

    def check(self, made: ChainPlan, streams: Mapping[str, ChainStream], held: ExitStack) -> ChainPlan:
        """Check that all sinks can be rolled back."""
        for name, rewind in made.changes:
            stream = streams[name]
            RollBack(rewind, named_sinks(stream.sinks), stream.held).check()
        return made

    def resume(self, kept: JointPlan, streams: Mapping[str, ChainStream]) -> ChainPlan:
        """The plan as it was kept, where the same is asked for: nothing is planned again."""
        return self.make(kept.plan_id)

    def apply(self, change: Any, stream: ChainStream, *, continued: bool, **how: Any) -> RewindOutcome:
        """Rewind one stream."""
        return apply_rewind(
            replace(change, continued=continued),
            Checkpoint.at(stream.checkpoint),
            repository_for_change(stream.place, stream.checkpoint),
            sink=named_sinks(stream.sinks),
            lifts_seal=False,
            **how,
        )

    def check_ended(self, made: ChainPlan, change: Any, done: Mapping[str, Any]) -> None:
        """See that the rollback of each Delta table is the commit behind which its readers stand.

        :raises StorageError: it is not.
        """
        rewind: RewindPlan = change
        versions = [each.get("table_version") for each in ([done] if len(rewind.sinks) == 1 else done.get("sinks", ()))]
        for sink, version in zip(rewind.sinks, versions, strict=True):
            back = sink.report.rollback if sink.rolls_back and sink.report.kind == "delta" else None
            if back and back.from_version is not None and version != back.from_version + 1:
                raise StorageError(
                    f"{sink.report.uri} was rolled back in version {version}, and the streams that read it are behind version "
                    f"{back.from_version + 1}",
                    hint=f"undo the chain, and plan it again: `{made.undo_command}`",
                )
