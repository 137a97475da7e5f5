"""Options of version 0.1: they still work, and say on standard error what to give instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.change.old_acceptance import OLD_FLAGS, OLD_VERDICTS, words_of
from airflow_ckpt_provider.change.risks import RISKS
from airflow_ckpt_provider.cli import options
from airflow_ckpt_provider.cli.definition import VERBS
from tests.support.command_line import run
from tests.support.command_lines import parsed

REWIND = ["rewind", "/c", "--to-latest"]
RESTORE = ["restore", "/r", "latest", "/t"]


@pytest.mark.parametrize(
    ("given", "argument", "value", "instead"),
    [
        ([*REWIND, "--sink-exit", "forward"], "sink_policy", ["forward"], "--sink-policy"),
        ([*REWIND, "--fresh"], "exact_replay", False, "--no-exact-replay"),
        ([*REWIND, "--backup", "b1"], "backup_id", "b1", "--backup-id"),
        ([*REWIND, "--accept-foreign-loss"], "accept", ["foreign_loss"], "--accept foreign_loss"),
        (
            [*REWIND, "--accept", "sink_skips", "--accept-source-loss"],
            "accept",
            ["sink_skips", "source_loss", "source_failure", "source_skips"],
            "--accept source_loss --accept source_failure --accept source_skips",
        ),
        ([*RESTORE, "--seal-running"], "stop_running", True, "--stop-running"),
        ([*RESTORE, "--accept-sink"], "accept", ["sink_skips", "sink_duplicates"], "--accept sink_skips"),
        (
            ["reset", "/c", "--accept", "WILL_DUPLICATE"],
            "accept",
            ["sink_duplicates", "source_duplicates"],
            "--accept sink_duplicates --accept source_duplicates",
        ),
        (["flows", "/s", "--backup", "b1"], "backup_id", "b1", "--backup-id"),
        (["guard", "--repository", "/r", "--backup", "b1"], "backup_id", "b1", "--backup-id"),
        (["positions", "--repository", "/r", "--backup", "b1"], "backup_id", "b1", "--backup-id"),
    ],
)
def test_old_options(
    given: list[str], argument: str, value: Any, instead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert getattr(parsed(given), argument) == value
    warned = capsys.readouterr().err
    assert warned.startswith("warning: ")
    assert f"give {instead}" in warned


def test_they_are_not_in_the_help() -> None:
    for verb in VERBS:
        shown = run(verb.name, "--help").out
        for option in verb.deprecated:
            assert f"{option.flags[0]} " not in shown
            assert f"{option.flags[0]}]" not in shown


def test_the_defaults_are_those_of_the_new_options() -> None:
    args = parsed(REWIND)
    assert (args.sink_policy, args.exact_replay, args.backup_id, args.accept) == ([], True, None, [])


def test_accepting_does_not_carry_over_to_the_next_command() -> None:
    assert parsed([*REWIND, "--accept", "foreign_loss"]).accept == ["foreign_loss"]
    assert parsed(REWIND).accept == []


def test_the_words_are_those_of_the_core() -> None:
    assert sorted(options.RISKS) == sorted(RISKS)
    assert sorted(options._OLD_VERDICTS) == sorted(OLD_VERDICTS)
    accepted = {word for words in OLD_FLAGS.values() for word in words}
    assert accepted | {word for verdict in OLD_VERDICTS for word in words_of(verdict)} <= set(RISKS)


def test_the_old_policy_accept_still_accepts_what_the_sink_does(checkpoint: Path) -> None:
    asked = (
        "rewind",
        checkpoint,
        "--to-batch",
        4,
        "--sink",
        "kafka",
        "--query-is-stopped",
        "--quiet-for",
        0,
        "--apply",
    )
    refused = run(*asked, "--sink-policy", "keep", "--accept", "source_loss")
    assert "--accept sink_duplicates" in refused.err
    finished = run(*asked, "--sink-exit", "accept", "--accept-source-loss")
    assert finished.code == 0, finished.err
    assert "--sink-policy keep" in finished.err
