"""What holds for every operator: keyword-only, templated, no work before ``execute``."""

from __future__ import annotations

import builtins
import inspect
import socket
from typing import Any

import pytest
from airflow.sdk import BaseOperator

from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.operators.compatibility import CompatibilityOperator
from airflow_ckpt_provider.operators.delta_retention_guard import DeltaRetentionGuardOperator
from airflow_ckpt_provider.operators.doctor import CheckpointDoctorOperator
from airflow_ckpt_provider.operators.expire import CheckpointExpireOperator
from airflow_ckpt_provider.operators.file_source_guard import FileSourceGuardOperator
from airflow_ckpt_provider.operators.fleet import DiscoverCheckpointsOperator, FleetReportOperator
from airflow_ckpt_provider.operators.kafka_retention_guard import (
    KafkaRetentionGuardOperator,
    KafkaRetentionRestoreOperator,
)
from airflow_ckpt_provider.operators.pipeline_refresh import PipelineRefreshOperator
from airflow_ckpt_provider.operators.pipeline_rewind import PipelineRewindOperator
from airflow_ckpt_provider.operators.pipeline_stop import PipelineStopOperator
from airflow_ckpt_provider.operators.preflight import RecoveryPreflightOperator
from airflow_ckpt_provider.operators.repository import CheckpointCopyOperator, CheckpointRepositoryCheckOperator
from airflow_ckpt_provider.operators.reset import CheckpointResetOperator
from airflow_ckpt_provider.operators.reset_checkpoint import ResetCheckpointOperator
from airflow_ckpt_provider.operators.reset_flow import ResetFlowOperator
from airflow_ckpt_provider.operators.restore import CheckpointRestoreOperator
from airflow_ckpt_provider.operators.seal import CheckpointSealOperator, CheckpointUnsealOperator
from airflow_ckpt_provider.operators.starting_positions import StartingPositionsOperator
from airflow_ckpt_provider.operators.verify import CheckpointVerifyOperator

PLACES = {
    CheckpointBackupOperator: ("checkpoint", "repository"),
    CheckpointVerifyOperator: ("repository",),
    CompatibilityOperator: ("checkpoint", "description"),
    CheckpointDoctorOperator: ("checkpoint",),
    CheckpointRestoreOperator: ("repository", "target"),
    CheckpointSealOperator: ("checkpoint", "reason"),
    CheckpointUnsealOperator: ("checkpoint",),
    KafkaRetentionGuardOperator: ("checkpoint",),
    KafkaRetentionRestoreOperator: ("raised",),
    RecoveryPreflightOperator: ("checkpoint",),
    DeltaRetentionGuardOperator: ("checkpoint", "tables"),
    FileSourceGuardOperator: ("checkpoint",),
    StartingPositionsOperator: ("checkpoint",),
    CheckpointResetOperator: ("checkpoint", "way"),
    ResetFlowOperator: ("storage", "flow"),
    ResetCheckpointOperator: ("flows",),
    PipelineRefreshOperator: (),
    PipelineRewindOperator: ("to",),
    PipelineStopOperator: (),
    CheckpointExpireOperator: ("repository", "keep"),
    CheckpointRepositoryCheckOperator: ("repository",),
    CheckpointCopyOperator: ("repository", "target"),
    DiscoverCheckpointsOperator: ("directories",),
    FleetReportOperator: ("repository",),
}
#: Not templated, because they are no question of what is done but of how fast.
NOT_TEMPLATED = {"timeout", "workers", "quiet_for", "poll_interval", "deferrable"}

every_operator = pytest.mark.parametrize("operator", PLACES, ids=lambda cls: cls.__name__)


def _make(operator: type[BaseOperator], **fields: Any) -> Any:
    return operator(task_id="t", **{**dict.fromkeys(PLACES[operator], "x"), **fields})


def _parameters(operator: type[BaseOperator]) -> dict[str, inspect.Parameter]:
    parameters = dict(inspect.signature(operator.__init__).parameters)
    return {name: p for name, p in parameters.items() if name not in ("self", "kwargs")}


@every_operator
def test_keyword_only(operator: type[BaseOperator]) -> None:
    assert {p.kind for p in _parameters(operator).values()} == {inspect.Parameter.KEYWORD_ONLY}


@every_operator
def test_every_parameter_is_templated_and_documented(operator: type[BaseOperator]) -> None:
    assert set(operator.template_fields) == set(_parameters(operator)) - NOT_TEMPLATED
    lines = (operator.__doc__ or "").replace("\n        ", " ").splitlines()
    for name in _parameters(operator):
        (line,) = (found for found in lines if found.strip().startswith(f":param {name}:"))
        assert line.endswith("(templated)") is (name not in NOT_TEMPLATED), line


@every_operator
def test_fields_are_kept_as_given_and_rendered(operator: type[BaseOperator]) -> None:
    template = "{{ params.word }}"
    fields = {f: {"k": template} if f == "tags" else template for f in operator.template_fields}
    made = _make(operator, **fields)
    assert {f: getattr(made, f) for f in operator.template_fields} == fields
    made.render_template_fields({"params": {"word": "rendered"}})
    expected = {f: {"k": "rendered"} if f == "tags" else "rendered" for f in operator.template_fields}
    assert {f: getattr(made, f) for f in operator.template_fields} == expected


@every_operator
def test_no_work_before_execute(operator: type[BaseOperator], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError(f"work in __init__: {args}")

    with monkeypatch.context() as patched:
        patched.setattr(builtins, "open", refuse)
        patched.setattr(socket, "socket", refuse)
        _make(operator)


@every_operator
def test_results_can_be_taken_key_by_key(operator: type[BaseOperator]) -> None:
    """``backup.output["backup_id"]``; a report and a lifted seal are taken whole."""
    whole = (
        KafkaRetentionRestoreOperator,
        CheckpointVerifyOperator,
        CheckpointUnsealOperator,
        CheckpointRepositoryCheckOperator,
        DiscoverCheckpointsOperator,
    )
    assert _make(operator).multiple_outputs is (operator not in whole)
