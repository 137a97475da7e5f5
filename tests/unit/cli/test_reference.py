"""docs/cli.md and the parser say the same, and both commands have the same options."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest
from airflow.cli.cli_config import ActionCommand, GroupCommand

from airflow_ckpt_provider.cli.definition import EXIT_CODES, GROUPS, VERBS, get_cli_commands
from airflow_ckpt_provider.cli.options import Option
from airflow_ckpt_provider.cli.program import build_parser
from airflow_ckpt_provider.cli.verb import Verb
from airflow_ckpt_provider.get_provider_info import get_provider_info
from tests.support.command_lines import parsed

PAGE = Path(__file__).parents[3] / "docs" / "cli.md"


def sections() -> dict[str, str]:
    parts = re.split(r"^## (.+)$", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def table(text: str, header: str) -> list[str]:
    """Rows of the first table with a header."""
    lines = text.splitlines()
    if header not in lines:
        return []
    start = lines.index(header) + 2
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append(line)
    return rows


def row(option: Option) -> str:
    _, settings = option.arguments
    name, metavar = option.flags[0], settings.get("metavar")
    if settings.get("action") is argparse.BooleanOptionalAction:
        name = name.replace("--", "--[no-]")
    if settings.get("nargs") == "?":
        name = f"[{name}]" if option.is_positional else f"{name}[={metavar}]"
    elif metavar and not option.is_positional:
        name = f"{name} {metavar}"
    text = option.help.replace("%(default)s", str(settings.get("default"))).replace("%%", "%")
    return f"| `{name}` | {text} |"


@pytest.mark.parametrize("verb", VERBS, ids=lambda v: v.name)
def test_the_page_has_exactly_the_arguments_of_each_verb(verb: Verb):
    assert table(sections()[verb.name], "| argument | |") == [row(o) for o in verb.options]


def test_the_page_has_the_options_of_every_verb():
    first = VERBS[0]
    common = first.shell_options[len(first.options) :]
    assert table(sections()["Every verb"], "| argument | |") == [row(o) for o in common]


def test_the_page_has_the_connections():
    found = {}
    for verb in VERBS:
        for option in verb.airflow_options[len(verb.shell_options) :]:
            found.setdefault(row(option), []).append(f"`{verb.name}`")
    rows = [f"{left} {', '.join(verbs)} |" for left, verbs in found.items()]
    assert table(sections()["airflow ckpt"], "| argument | | verbs |") == rows


def test_the_page_has_no_verb_that_the_program_has_not():
    assert list(sections()) == ["Every verb", *(verb.name for verb in VERBS), "airflow ckpt"]


def test_the_page_groups_the_verbs_as_the_help_does():
    rows = [
        f"| {title} | {', '.join(f'[{verb.name}](#{verb.name})' for verb in verbs)} |"
        for title, verbs in GROUPS.items()
    ]
    assert table(PAGE.read_text(), "| to | verbs |") == rows


def test_every_command_shown_on_the_page_parses():
    page = PAGE.read_text().replace("\\\n", " ")
    shown = [line.removeprefix("$ airflow-ckpt ") for line in page.splitlines() if line.startswith("$ airflow-ckpt")]
    assert len(shown) > 5
    for line in shown:
        argv = shlex.split(line)
        if argv[0] != "--completion":  # it prints, and ends
            parsed(argv)


def test_the_page_has_the_exit_codes_of_the_help():
    codes = dict(re.findall(r"(\d) ([a-z ]+)", EXIT_CODES))
    rows = {r.split("|")[1].strip(): r.split("|")[2] for r in table(sections()["Every verb"], "| code | meaning |")}
    assert rows.keys() == {*codes, "130"}
    for code, words in codes.items():
        assert words.split(" or ")[0] in rows[code]


def subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (action,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return dict(action.choices)


def test_airflow_has_the_same_verbs_and_options_and_connections_on_top():
    (group,) = get_cli_commands()
    assert isinstance(group, GroupCommand)
    assert group.name == "ckpt"
    shell = subparsers(build_parser())
    assert [command.name for command in group.subcommands] == list(shell)
    for command, verb in zip(group.subcommands, VERBS, strict=True):
        assert isinstance(command, ActionCommand)
        parser = argparse.ArgumentParser()
        for arg in command.args:
            arg.add_to_parser(parser)
        in_shell = {(*a.option_strings, a.dest): a.help for a in shell[verb.name]._actions}
        in_airflow = {(*a.option_strings, a.dest): a.help for a in parser._actions}
        more = {(f"--{place}-conn-id", f"{place}_conn_id") for place in verb.places}
        assert in_airflow.keys() - in_shell.keys() == more
        assert in_shell == {key: text for key, text in in_airflow.items() if key not in more}


def test_airflow_finds_the_commands():
    assert get_provider_info()["cli"] == [f"{get_cli_commands.__module__}.{get_cli_commands.__name__}"]
