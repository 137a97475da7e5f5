"""``--stream orders`` in every verb about a checkpoint or a repository, and the verb ``streams``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.cli.by_stream import fill_in, takes_stream
from airflow_ckpt_provider.cli.definition import VERBS
from airflow_ckpt_provider.cli.main import main
from airflow_ckpt_provider.cli.program import build_parser
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.streams.loading import load_streams, parse_streams
from airflow_ckpt_provider.streams.schema import schema_text
from tests.support.checkpoints import logs, plant
from tests.support.command_line import run
from tests.support.one_checkpoint import unpack

Cli = Callable[..., Any]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a checkpoint, and with a file that declares it."""
    monkeypatch.chdir(tmp_path)
    unpack(tmp_path / "checkpoints" / "orders")
    declare(tmp_path)
    return tmp_path


def declare(place: Path, more: str = "") -> None:
    text = (
        f"defaults: {{repository: {place}/backups}}\nstreams:\n  orders:\n    checkpoint: {place}/checkpoints/orders\n"
    )
    (place / "streams.yaml").write_text(text + more)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    def run(*argv: str, code: int = 0) -> Any:
        assert main(argv) == code, capsys.readouterr()
        captured = capsys.readouterr()
        return json.loads(captured.out) if "--json" in argv and captured.out else captured.out + captured.err

    return run


def test_a_stream_is_backed_up_verified_restored_and_expired_by_its_name(here: Path, cli: Cli) -> None:
    declare(here, "    retention: {last: 1}\n    sinks: [foreachBatch]\n    backup: {verify: all}\n")
    cli("init", "--stream", "orders")
    backup = cli("backup", "--stream=orders", "--json")
    assert (backup["name"], backup["checkpoint"]) == ("orders", str(here / "checkpoints" / "orders"))
    verified = cli("verify", "--stream", "orders", "latest", "--json")
    assert verified["read_files"] == backup["files"]
    (here / "checkpoints" / "orders").rename(here / "lost")
    cli(
        "restore",
        "--stream",
        "orders",
        "latest",
        "--apply",
        "--query-is-stopped",
        "--quiet-for",
        "0",
        "--accept",
        "sink_duplicates",
    )
    assert cli("inspect", "--stream", "orders", "--json")["latest_committed"] == 5
    assert "keep-last 1" in cli("expire", "--stream", "orders")


@pytest.mark.parametrize("rule", ["daily", "keep-daily", "keep_daily"])
def test_a_rule_of_the_retention_is_kept_in_each_spelling(rule: str, here: Path, cli: Cli) -> None:
    """A rule that was spelled as the option was left out, and its backups were removed."""
    declare(here, f"    retention: {{last: 1, {rule}: 30}}\n")
    cli("init", "--stream", "orders")
    cli("backup", "--stream", "orders")
    assert "keep-last 1, keep-daily 30" in cli("expire", "--stream", "orders")


SALES = "http://catalog-eu:8181"


@pytest.mark.parametrize(
    ("sinks", "differs"),
    [
        (
            f"[{{sink: 'iceberg:db.a', options: {{uri: '{SALES}'}}}}, {{sink: 'iceberg:db.b', options: {{uri: x}}}}]",
            True,
        ),
        (f"[{{sink: 'iceberg:db.a', options: {{uri: '{SALES}'}}}}, 'iceberg:db.b']", True),
        (f"[foreachBatch, {{sink: 'iceberg:db.a', options: {{uri: '{SALES}'}}}}]", False),
    ],
)
def test_sinks_with_options_of_their_own(sinks: str, differs: bool, here: Path) -> None:
    """The options of all were put together, and a table of another catalog was rolled back."""
    declare(here, f"    sinks: {sinks}\n")
    rewind = next(verb for verb in VERBS if verb.name == "rewind")
    args = build_parser(by_stream=True).parse_args(["rewind", "--stream", "orders", "--to-batch", "3"])
    if differs:
        with pytest.raises(RefusedError, match="the sinks of orders differ in `options`"):
            fill_in(rewind, args, lambda _: load_streams(here / "streams.yaml"))
    else:
        fill_in(rewind, args, lambda _: load_streams(here / "streams.yaml"))
        assert args.sink_option == [("uri", SALES)]


def test_what_is_given_comes_first(here: Path, cli: Cli) -> None:
    cli("init", str(here / "other"))
    backup = cli("backup", "--stream", "orders", "--repository", str(here / "other"), "--name", "mine", "--json")
    assert backup["name"] == "mine"
    assert list((here / "other" / "backups" / "mine").glob("*.json"))
    assert not (here / "backups").exists()


def test_what_is_given_comes_first_also_where_it_is_the_default(here: Path, cli: Cli) -> None:
    declare(here, "    backup: {restorable_batches: 3}\n")
    cli("init", "--stream", "orders")
    assert cli("backup", "--stream", "orders", "--json")["restorable_batches"] == [3, 4, 5]
    assert cli("backup", "--stream", "orders", "--restorable-batches", "1", "--json")["restorable_batches"] == [5]


def test_words_of_a_declaration_are_shown_as_they_are(here: Path, cli: Cli) -> None:
    """rich would take some for markup, which it may refuse, and others for pictures."""
    declare(here, "    owner: 'see [/wiki]:100:'\n")
    assert "see [/wiki]:100:" in cli("streams", "list")


def test_the_file_is_the_given_one_or_that_of_the_environment(
    here: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "streams.yaml").rename(here / "all.yaml")
    said = cli("inspect", "--stream", "orders", code=1)
    assert said.splitlines()[-2:] == [
        "error: no file declares streams: there is no streams.yaml here",
        "HINT: give --streams FILE, or set AIRFLOW_CKPT_STREAMS; `airflow-ckpt streams init ROOT` writes a first one",
    ]
    cli("inspect", "--stream", "orders", "--streams", "all.yaml")
    monkeypatch.setenv("AIRFLOW_CKPT_STREAMS", str(here / "all.yaml"))
    cli("inspect", "--stream", "orders")
    (here / "all.yaml").write_text(f"streams: {{orders: {{checkpoint: {here}/checkpoints/orders}}}}")
    assert "error: orders declares no repository" in cli("backup", "--stream", "orders", code=2)
    monkeypatch.setenv("AIRFLOW_CKPT_REPOSITORY", str(here / "configured"))
    cli("init", "--stream", "orders")
    assert (here / "configured" / "repository.json").exists()


def test_an_unknown_stream_is_told_with_the_nearest(here: Path, cli: Cli) -> None:
    assert cli("inspect", "--stream", "ordes", code=1).endswith(
        f"error: {here}/streams.yaml declares no stream 'ordes'\nHINT: did you mean 'orders'?\n"
    )


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_verb_about_a_stream_takes_it(verb: Any) -> None:
    """``chain`` has options of its own: several streams, or an application."""
    takes = {option.flags[0] for option in verb.shell_options} >= {"--stream", "--streams"}
    assert takes is (verb.name not in ("explain", "new-signing-key", "discover", "pipelines"))
    assert takes_stream(verb) is (takes and verb.name != "chain")


@pytest.mark.parametrize(
    "argv",
    [
        ("doctor",),
        ("doctor", "--repair"),
        ("guard",),
        ("positions",),
        ("positions", "--batch", "3"),
        ("positions", "--backup-id", "latest"),
        ("rewind", "--list"),
        ("status",),
        ("unseal",),
        ("unseal", "--for-start"),
    ],
    ids=" ".join,
)
def test_a_stream_with_a_repository_is_all_that_a_verb_needs(argv: tuple[str, ...], here: Path) -> None:
    declare(here, "    max_downtime: 24h\n    sinks: [foreachBatch]\n    backup: {restorable_batches: 2}\n")
    assert run("init", "--stream", "orders").code == 0
    assert run("backup", "--stream", "orders").code == 0
    verb, *more = argv
    answer = run(verb, "--stream", "orders", *more, "--json")
    assert answer.err == ""
    assert "error" not in answer.document


def test_positions_of_a_stream_are_those_of_its_checkpoint_unless_a_backup_is_named(here: Path) -> None:
    assert run("init", "--stream", "orders").code == 0
    assert run("backup", "--stream", "orders").code == 0
    assert run("positions", "--stream", "orders", "--json").document["origin"] == f"{here}/checkpoints/orders"
    of_backup = run("positions", "--stream", "orders", "--repository", str(here / "backups"), "--json")
    assert of_backup.document["origin"].startswith("backup ")


def test_addresses_are_options_beside_a_stream_and_arguments_without(capsys: pytest.CaptureFixture[str]) -> None:
    args = build_parser(by_stream=True).parse_args(["restore", "--stream", "orders", "latest", "--target", "/t"])
    assert (args.repository, args.backup, args.target) == (None, "latest", "/t")
    with pytest.raises(SystemExit):
        build_parser().parse_args(["backup", "/c"])
    assert "REPOSITORY" in capsys.readouterr().err


def test_a_first_file_is_written_and_read(here: Path, cli: Cli) -> None:
    plant(open_location(str(here / "checkpoints" / "pay ments")), logs(range(3)))
    text = cli("streams", "init", str(here / "checkpoints"))
    declared = parse_streams(text)
    assert {name: stream.checkpoint for name, stream in declared.items()} == {
        "orders": str(here / "checkpoints" / "orders"),
        "pay_ments": str(here / "checkpoints" / "pay ments"),
    }
    plain = cli("streams", "init", str(here / "checkpoints" / "orders"), "--repository", str(here / "backups"))
    assert f"  checkpoint: {here}/checkpoints/{{stream}}\n  repository: {here}/backups\n" in plain
    (here / "streams.yaml").write_text(plain)
    assert cli("streams", "check") == "1 stream as declared\n"
    uncommented = "\n".join(
        line.replace("# ", "", 1) if line.startswith("  # ") else line for line in plain.splitlines()
    )
    assert parse_streams(uncommented)["orders"].retention == {"hourly": 48, "daily": 30}


def test_a_first_file_has_the_repository_by_a_path_that_holds_anywhere(here: Path, cli: Cli) -> None:
    text = cli("streams", "init", "checkpoints", "--repository", "backups")
    [stream] = parse_streams(text).values()
    assert (stream.checkpoint, stream.repository) == (str(here / "checkpoints" / "orders"), str(here / "backups"))


def test_a_place_without_checkpoints_is_refused(here: Path, cli: Cli) -> None:
    (here / "empty").mkdir()
    assert "there is no checkpoint with a committed batch below" in cli("streams", "init", str(here / "empty"), code=1)


def test_what_is_not_as_declared_is_found_at_once(here: Path, cli: Cli) -> None:
    declare(
        here,
        "    max_downtime: 3d\n    objectives: {restorable_for: 30d}\n    retention: {daily: 7}\n"
        f"    sinks: [{here}/no_table]\n    driver: {{progress_log: {here}/none.jsonl}}\n"
        f"  gone: {{checkpoint: {here}/gone, backup: {{create: true}}}}\n",
    )
    found = cli("streams", "check", "--json", code=1)["findings"]
    assert [(each["stream"], each["field"]) for each in found] == [
        ("orders", "repository"),
        ("orders", "sinks[0]"),
        ("orders", "driver.progress_log"),
        ("orders", "retention"),
        ("gone", "checkpoint"),
    ]
    assert found[3]["message"] == "objectives.restorable_for is 30 d, and the rules keep backups for 7 d"
    assert [each["stream"] for each in cli("streams", "check", "--stream", "gone", "--json", code=1)["findings"]] == [
        "gone"
    ]


def test_an_application_that_cannot_be_upgraded_is_found(here: Path, cli: Cli) -> None:
    unpack(here / "checkpoints" / "clicks")
    commands = "application: shop, start: ./start, deploy: ./deploy, roll_back: ./back"
    (here / "streams.yaml").write_text(
        f"defaults: {{repository: {here}/backups, checkpoint: '{here}/checkpoints/{{stream}}', stop: './stop {{stream}}', "
        f"backup: {{create: true}}, {commands}}}\nstreams: {{orders: , clicks: }}"
    )
    [found] = cli("streams", "check", "--json", code=1)["findings"]
    assert (found["stream"], found["field"]) == ("orders", "stop")
    [found] = cli("streams", "check", "--stream", "clicks", "--json", code=1)["findings"]
    assert (found["stream"], found["field"]) == ("clicks", "stop")
    assert "1 stream as declared, 1 finding in 1\n" in cli("streams", "check", code=1)


def test_a_bad_file_is_told_with_lines(here: Path, cli: Cli) -> None:
    declare(here, "    max_downtime: soon\n    checkpont: /x\n")
    document = cli("streams", "check", "--json", code=1)
    assert [(each["line"], each["field"]) for each in document["problems"]] == [
        (5, "streams.orders.max_downtime"),
        (6, "streams.orders.checkpont"),
    ]
    said = cli("streams", "check", code=1)
    assert "line 6, streams.orders.checkpont: there is no such field (did you mean 'checkpoint'?)" in said


def test_what_is_declared_is_listed_and_the_schema_printed(here: Path, cli: Cli) -> None:
    declare(here, "    objectives: {rpo: 1h}\n    owner: team\n")
    [row] = cli("streams", "list", "--json")["streams"]
    assert (row["name"], row["schedule"], row["owner"]) == ("orders", "every 1 h", "team")
    assert "every 1 h" in cli("streams", "list")
    assert cli("streams", "schema") == schema_text()
    assert cli("streams", "schema", "--path").endswith("streams.schema.json\n")


@pytest.mark.parametrize("reported", [True, False])
@pytest.mark.parametrize("named", [("--stream", "orders"), ("--streams", "streams.yaml", "backups"), ("backups",)])
def test_pages_show_what_is_declared_where_the_file_is_given(
    named: tuple[str, ...], reported: bool, here: Path
) -> None:
    declare(here, "    objectives: {rpo: 2d}\n")
    assert run("init", "backups").code == 0
    assert run("backup", "--stream", "orders").code == 0
    if reported:
        run("fleet", "backups", "checkpoints", "--keep-report")
    answer = run("report", *named, "--html", "site", "--json")
    assert answer.code == 0, answer.err
    assert str(here / "site" / "index.html") in answer.document["files"]
    shown = (here / "site" / "stream-orders.html").read_text()
    met = "met" if reported else "UNKNOWN"  # what no report informs nobody knows
    assert (f"<dt>RPO 2 d</dt><dd>{met}</dd>" in shown) is (named[0] != "backups")
