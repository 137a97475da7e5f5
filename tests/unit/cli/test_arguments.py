"""What the arguments may be, and what wrong usage gives: exit code 2 and a word about it."""

from __future__ import annotations

import argparse
import re
import shlex

import pytest

from airflow_ckpt_provider.cli.definition import GROUPS, VERBS
from airflow_ckpt_provider.cli.definition.examples import EXAMPLES
from airflow_ckpt_provider.cli.options import pair, setting
from tests.support.command_line import run
from tests.support.command_lines import parsed


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("endpoint_url=http://host:9000/?a=b", "http://host:9000/?a=b"),
        ("anon=true", True),
        ("anon=false", False),
        ("token=null", None),
        ("port=8020", 8020),
        ("secret=1e5", "1e5"),
        ("secret=", ""),
        ('key="0123"', "0123"),
        ('client_kwargs={"region_name": "eu-central-1"}', {"region_name": "eu-central-1"}),
        ("hosts=[1, 2]", [1, 2]),
        ("name=NaN", "NaN"),
        ("name=trueish", "trueish"),
    ],
)
def test_a_storage_option_is_text_or_json(text: str, value: object):
    assert setting(text) == (text.partition("=")[0], value)


def test_a_storage_option_that_begins_as_json_has_to_be_json():
    with pytest.raises(argparse.ArgumentTypeError, match=r"^the value of client_kwargs is no JSON: "):
        setting("client_kwargs={region: 1}")


@pytest.mark.parametrize("text", ["novalue", "=value", " =value"])
def test_a_pair_has_a_key_and_a_value(text: str):
    with pytest.raises(argparse.ArgumentTypeError, match=rf"^{re.escape(repr(text))} is not key=value$"):
        pair(text)


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--vesion"], "HINT: did you mean --version?"),
        (["inspect"], "airflow-ckpt inspect: error: the following arguments are required: CHECKPOINT"),
        (["inspect", ""], "airflow-ckpt inspect: error: argument CHECKPOINT: it is empty"),
        (["inspect", "a", "b"], "HINT: `airflow-ckpt inspect --help` lists what there is"),
        (["inspect", "a", "--batch", "1"], "HINT: `airflow-ckpt inspect --help` lists what there is"),
        (["backup", "a", "b", "--resaon=x"], "HINT: did you mean --reason?"),
        (
            ["streams", "chek"],
            "airflow-ckpt streams: error: argument ACTION: there is no 'chek'; did you mean 'check'?",
        ),
        (
            ["streams"],
            "airflow-ckpt streams: error: the following arguments are required: ACTION (init, check, list, schema)",
        ),
        (
            ["pipelines", "rset"],
            "airflow-ckpt pipelines: error: argument ACTION: there is no 'rset'; did you mean 'reset'?",
        ),
        (
            ["fleet"],
            "airflow-ckpt fleet: error: the following arguments are required: REPOSITORY",
        ),
        (
            ["backup", "a", "b", "--tag", "x"],
            "airflow-ckpt backup: error: argument --tag: 'x' is not key=value",
        ),
        (["backup", "a", "b", "--name", ""], "airflow-ckpt backup: error: argument --name: it is empty"),
        (
            ["backup", "a", "b", "--restorable-batches", "0"],
            "airflow-ckpt backup: error: argument --restorable-batches: '0' is not a whole number from 1 up",
        ),
        (
            ["backup", "a", "b", "--workers", "many"],
            "airflow-ckpt backup: error: argument --workers: 'many' is not a whole number from 1 up",
        ),
        (
            ["restore", "a", "b"],
            "airflow-ckpt restore: error: the following arguments are required: TARGET",
        ),
        (
            ["restore", "a", "b", "", "--apply"],
            "airflow-ckpt restore: error: argument TARGET: it is empty",
        ),
        (
            ["restore", "a", "b", "c", "--batch", "-1"],
            "airflow-ckpt restore: error: argument --batch: '-1' is not a whole number from 0 up",
        ),
        (
            ["restore", "a", "b", "c", "--quiet-for", "inf"],
            "airflow-ckpt restore: error: argument --quiet-for: 'inf' is no length of time such as 24h, 90min or 1d 12h",
        ),
        (["restore", "a", "b", "c", "--appl"], "HINT: did you mean --apply?"),
        (["seal", "a"], "airflow-ckpt seal: error: the following arguments are required: --reason"),
        (["restore", "a", "b", "c\0d"], "airflow-ckpt restore: error: argument TARGET: it has a zero byte"),
        (["seal", "a", "--reason", " "], "airflow-ckpt seal: error: argument --reason: it is empty"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage(argv: list[str], complaint: str):
    finished = run(*argv)
    assert (finished.code, finished.out) == (2, "")
    assert finished.err.splitlines()[-1] == complaint


def test_an_unknown_verb_is_told_the_nearest():
    finished = run("restor", "--apply")
    assert finished.code == 2
    assert finished.err.endswith("airflow-ckpt: error: there is no verb 'restor'; did you mean 'restore'?\n")


def test_what_is_unknown_is_told_with_the_usage_of_its_verb():
    finished = run("inspect", "a", "--tokn=s3cr3t", "--password", "s3cr3t")
    assert finished.err.startswith("usage: airflow-ckpt inspect ")
    assert "unrecognized arguments: --tokn=" in finished.err
    assert "--password ***" in finished.err


def test_without_arguments_the_help_is_shown():
    finished = run()
    assert (finished.code, finished.out, finished.err) == (2, "", run("--help").out)


def test_the_help_has_every_verb_once_in_its_group():
    shown = run("--help").out
    for title, verbs in GROUPS.items():
        block = shown[shown.index(f"\n{title}:\n") :].split("\n\n")[0]
        assert re.findall(r"^  (\S+)", block, re.MULTILINE) == [verb.name for verb in verbs]


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_the_help_of_a_verb_shows_commands_that_parse(verb: str):
    shown = run(verb, "--help").out.split("\nexamples:\n")[1].partition("\n\n")[0].splitlines()
    assert shown == [f"  airflow-ckpt {verb} {words}" for words in EXAMPLES[verb]]
    for line in shown:
        argv = shlex.split(re.split(r" [<>] ", line.strip())[0])[1:]
        parsed(argv)


def test_examples_are_of_verbs_that_there_are_and_fit_a_terminal():
    assert list(EXAMPLES) == [verb.name for verb in VERBS]
    assert max(len(f"  airflow-ckpt {verb} {words}") for verb, lines in EXAMPLES.items() for words in lines) <= 120


@pytest.mark.parametrize(
    ("argv", "message", "hint"),
    [
        (
            ["verify", "a", "latest", "--read-data=9/3"],
            "cannot read '9/3' of the data",
            "use all, n/t with 1 <= n <= t <= 999999, or x%",
        ),
        (
            ["verify", "a", "--read-data", "120%"],
            "cannot read '120%' of the data",
            "use all, n/t with 1 <= n <= t <= 999999, or x%",
        ),
        (
            ["unseal", "a", "--plan", "1", "--force"],
            "--plan and --force exclude each other",
            "give one of them",
        ),
        (
            ["unseal", "a", "--force", "--for-start"],
            "--force and --for-start exclude each other",
            "give one of them",
        ),
        (
            ["unseal", "a", "--plan", "1", "--repository", "b"],
            "--repository has a meaning with --for-start only",
            "leave it out, or add --for-start",
        ),
        (
            ["expire", "a", "--keep-last", "3", "--max-unused", "5%", "--apply"],
            "--max-unused has a meaning with --prune only",
            "leave it out, or add --prune",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_arguments_that_do_not_fit_together(argv: list[str], message: str, hint: str):
    finished = run(*argv)
    assert (finished.code, finished.out, finished.err) == (2, "", f"error: {message}\nHINT: {hint}\n")


@pytest.mark.parametrize(
    ("argv", "read_data", "backup"),
    [
        (["R", "ID", "--read-data=1/8"], "1/8", "ID"),
        (["R", "--read-data=1/8", "ID"], "1/8", "ID"),
        (["--read-data=1/8", "R", "ID"], "1/8", "ID"),
        (["R", "ID", "--read-data"], "all", "ID"),
        (["R", "--read-data", "--name", "orders", "ID"], "all", "ID"),
        (["R", "--read-data"], "all", None),
        (["R", "ID"], None, "ID"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_may_stand_anywhere(argv: list[str], read_data: str | None, backup: str | None):
    args = parsed(["verify", *argv])
    assert (args.repository, args.backup, args.read_data) == ("R", backup, read_data)
