"""Changes of chains in tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.change.rest import RestRule
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.recovery.chains.apply import apply_chain
from airflow_ckpt_provider.recovery.chains.plan import ChainPlan
from airflow_ckpt_provider.recovery.chains.planning import plan_chain
from airflow_ckpt_provider.recovery.chains.stream import ChainStream
from airflow_ckpt_provider.recovery.chains.together import ChainOutcome
from airflow_ckpt_provider.recovery.chains.undo import undo_chain
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from tests.support.chained_streams import Chained
from tests.support.stopped import STOPPED


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Chained(tmp_path_factory.mktemp("chained")).root


@pytest.fixture
def chained(template: Path, tmp_path: Path) -> Chained:
    return Chained.copied(template, tmp_path / "0")


def plan_of(streams: Sequence[ChainStream], batch: int = 4, **options: Any) -> ChainPlan:
    return plan_chain(streams, Specifier("to_batch", str(batch)), guards=(), **options)


def carry_out(
    streams: Sequence[ChainStream], batch: int = 4, *, rest: RestRule = STOPPED, **options: Any
) -> tuple[ChainPlan, ChainOutcome]:
    planned = {key: options.pop(key) for key in ("begins_with", "exact_replay", "batches") if key in options}
    return apply_chain(
        streams,
        lambda chain_id: plan_of(streams, batch, chain_id=chain_id, **planned),
        rest=lambda _: rest,
        **options,
    )


def take_back(streams: Sequence[ChainStream], **options: Any) -> ChainOutcome:
    return undo_chain(streams, rest=lambda _: STOPPED, **options)


def batches_of(plan: ChainPlan) -> dict[str, int | None]:
    return {part.name: part.rewind.batch_id if part.rewind else None for part in plan.parts}


def is_sealed(chained: Chained, name: str) -> bool:
    return Checkpoint.at(chained.checkpoint(name)).progress().seal is not None
