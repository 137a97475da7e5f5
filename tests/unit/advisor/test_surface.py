"""Hints where they are read in Airflow: arguments stand for options, commands stay, and every argument exists."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pkgutil import iter_modules

import pytest

from airflow_ckpt_provider.advisor import surface
from airflow_ckpt_provider.advisor.registry import CONDITIONS
from airflow_ckpt_provider.advisor.surface import for_operators, operator_call
from airflow_ckpt_provider.checkpoint.doctor import kinds
from airflow_ckpt_provider.checkpoint.findings import FindingKind


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("`--repair` removes the newest one", "`repair=True` removes the newest one"),
        ("Fetch them (`--repair --repository`), or", "Fetch them (`repair=True, repository`), or"),
        ("with the id (`--query-id`).", "with the id (`query_id`)."),
        ("(1) say so: query_is_stopped / --query-is-stopped; or", "(1) say so: query_is_stopped; or"),
        ("roll it back (sink_policy / --sink-policy rollback)", "roll it back (sink_policy rollback)"),
        ("rewind with --sink-policy keep, restore", 'rewind with sink_policy="keep", restore'),
        ("accept it: --accept other_query", 'accept it: accept="other_query"'),
        ("name it: --sink s3://lake/orders", 'name it: sink="s3://lake/orders"'),
        ("--accept a_b --accept c_d (accept=['a_b', 'c_d'])", "accept=['a_b', 'c_d']"),
        ("name it: --sink TABLE", "name it: sink=TABLE"),
        ("plans it, --apply applies it", 'plans it, mode="apply" applies it'),
        ("use --to-batch", 'use to="to_batch"'),
        ("`airflow-ckpt undo /ck --plan 12` undoes it", "`airflow-ckpt undo /ck --plan 12` undoes it"),
        (
            "run: airflow-ckpt key import R --file E; then --repair",
            "run: airflow-ckpt key import R --file E; then repair=True",
        ),
        ("give --key-file", "give --key-file"),  # no operator has it: a connection does
        ("nothing of the kind", "nothing of the kind"),
    ],
)
def test_an_option_becomes_an_argument(given: str, said: str):
    assert for_operators(given) == said


def test_no_remedy_of_the_doctor_names_a_bare_option_in_airflow():
    remedies = [kind.remedy for kind in vars(kinds).values() if isinstance(kind, FindingKind)]
    assert len(remedies) > 10
    for remedy in remedies:
        assert "--" not in re.sub(r"`airflow-ckpt [^`]*`", "", for_operators(remedy)), remedy


def test_every_argument_is_one_of_an_operator():
    package = import_module("airflow_ckpt_provider.operators")
    modules = [import_module(f"{package.__name__}.{found.name}") for found in iter_modules(package.__path__)]
    classes = {cls for module in modules for cls in vars(module).values() if isinstance(cls, type)}
    known = {name for cls in classes for name in inspect.signature(cls.__init__).parameters}
    named = {*surface._ARGUMENTS.values(), *(flag.partition("=")[0] for flag in surface._FLAGS.values())}
    assert named <= known
    assert {name for names in surface._POSITIONAL.values() for name in names} <= known


def test_a_task_that_does_what_a_command_does():
    command = ("restore", "s3://b/k", "latest", "CHECKPOINT", "--name", "orders", "--replace")
    assert operator_call("CheckpointRestoreOperator", command) == (
        'CheckpointRestoreOperator(repository="s3://b/k", backup_id="latest", target=CHECKPOINT, name="orders", replace=True)'
    )
    assert operator_call("CheckpointRewindOperator", ("rewind", "CHECKPOINT", "--list")) == ""
    assert operator_call("CheckpointRewindOperator", ("rewind", "CHECKPOINT", "--to-latest", "--sink", "SINK")) == (
        'CheckpointRewindOperator(checkpoint=CHECKPOINT, to="to_latest", sink=SINK)'
    )
    assert operator_call("DeltaRetentionGuardOperator", ("guard", "CHECKPOINT", "--option", "delta.table.0=TABLE")) == (
        'DeltaRetentionGuardOperator(checkpoint=CHECKPOINT, tables={"0": TABLE})'
    )


def test_every_task_of_the_advice_can_be_written():
    steps = {step for condition in CONDITIONS for step in condition.steps if step.operator and step.command}
    written = {step for step in steps if operator_call(step.operator, step.command)}
    # What has no argument for an option of the command stays a class name beside the command.
    assert {step.command[0] for step in steps - written} <= {"rewind"}
