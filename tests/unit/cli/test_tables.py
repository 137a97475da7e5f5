"""What people read. Widths are fixed, so that whole outputs can be compared."""

from __future__ import annotations

import io
import json
import re
import shutil
from argparse import Namespace
from pathlib import Path

import pytest
from rich.console import Console

from airflow_ckpt_provider.checkpoint.offsets import SourceOffset
from airflow_ckpt_provider.checkpoint.source_offsets import parse_offset
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.definition import VERBS
from airflow_ckpt_provider.cli.next_commands import NextCommands
from airflow_ckpt_provider.cli.offsets import in_words
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.checkpoints import contents
from tests.support.command_line import new_repository, run
from tests.support.delta_batches import delta_table
from tests.support.one_checkpoint import NEWEST

STOPPED = ("--query-is-stopped", "--quiet-for", "0")


def lines(text: str) -> list[str]:
    """Lines without the blanks that fill them up."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


def words(shown: list[str]) -> str:
    """What a terminal wraps, in one line."""
    return " ".join(" ".join(shown).split())


def test_inspect(checkpoint: Path):
    finished = run("inspect", checkpoint)
    assert finished.code == 0
    shown = lines(finished.out)
    head, query, batches, planned, holds, *rest = shown
    assert head == str(checkpoint)
    assert re.fullmatch(r"  query id      [0-9a-f-]{36}", query)
    assert batches == f"  batches       {NEWEST} logged, {NEWEST} committed, gap 0"
    assert re.fullmatch(
        r"  last planned  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC, \d+ \w+ ago|  last planned .*future", planned
    )
    assert re.fullmatch(r"  holds         \d+ files, [\d.]+ KiB", holds)
    usage, partitions = rest[13:18], rest[-1]
    assert rest == [
        "",
        f"At its next start Spark runs batch {NEWEST + 1} on new data  SAFE",
        "",
        "source  kind  from",
        "──────────────────────────────────────────",
        f"0       file  entry {NEWEST} of its log of files",
        "",
        "state             stores   partitions  version  provider",
        "─────────────────────────────────────────────────────────",
        f"0 stateStoreSave  default           2        {NEWEST + 1}  RocksDB",
        "",
        "directory  files    bytes  batches",
        "───────────────────────────────────",
        *usage,
        "",
        "store        bytes  keys  by partition: min, median, max     of  skew",
        "─" * 70,
        partitions,
    ]
    assert [row.split()[0] for row in usage] == [".", "commits", "offsets", "sources/0", "state/0"]
    assert usage[1].endswith(f"0 to {NEWEST}")
    # Changelogs without a snapshot do not show how many keys there are.
    assert re.fullmatch(r"0 default  [\d.]+ KiB     \?  +\d+ B, \d+ B, \d+ B  bytes   1\.\d", partitions)


def test_inspect_of_a_batch_that_will_run_again(checkpoint: Path):
    (checkpoint / "commits" / str(NEWEST)).unlink()
    shown = lines(run("inspect", checkpoint).out)
    assert f"  batches       {NEWEST} logged, {NEWEST - 1} committed, gap 1" in shown
    assert f"At its next start Spark runs batch {NEWEST} again, as it was planned  SAFE" in shown
    # What the logs say is safe, the sink may not be: it may have the rows already.
    assert f"sink may have rows of batch {NEWEST}: foreachBatch, foreach and Kafka write them again" in words(shown)
    assert f"airflow-ckpt rewind {checkpoint} --to-current --sink SINK judges it" in words(shown)
    assert shown[shown.index(f"source  kind  {'from':27}  to") + 2] == (
        f"0       file  entry {NEWEST - 1} of its log of files  entry {NEWEST} of its log of files"
    )


def test_inspect_with_findings(checkpoint: Path):
    (checkpoint / "metadata").unlink()
    finished = run("inspect", checkpoint)
    assert finished.code == 1
    shown = lines(finished.out)
    assert shown[1] == "  query id      none: metadata is missing"
    assert f"At its next start Spark runs batch {NEWEST + 1} on new data  WILL_DUPLICATE" in shown
    found = " ".join(line.strip() for line in shown[shown.index("Findings") + 1 :])
    assert found.startswith(
        "✗ metadata is missing: Spark 4.2 and later refuse to start; older ones make a new query id, so "
        "exactly-once sinks take replayed batches for new ones"
    )


def test_inspect_of_a_sealed_checkpoint(checkpoint: Path):
    plan = run("seal", checkpoint, "--reason", "moving house", "--json").document["plan_id"]
    shown = lines(run("inspect", checkpoint).out)
    assert f"Sealed: no Spark starts. Unsealed, it runs batch {NEWEST + 1} on new data  WILL_FAIL" in shown
    assert f"next airflow-ckpt status {checkpoint} --repository REPOSITORY" in words(shown)
    assert shown[-1] == f"  ✗ sealed by plan {plan} (moving house): no Spark can start from it"


def test_inspect_where_a_file_is_missing_that_the_next_batch_needs(checkpoint: Path):
    """The logs are fine. It said SAFE, above the line that names the file."""
    (checkpoint / "state/0/0" / f"{NEWEST}.changelog").unlink()
    finished = run("inspect", checkpoint)
    assert finished.code == 1
    shown = lines(finished.out)
    assert f"At its next start Spark runs batch {NEWEST + 1} on new data  UNKNOWN" in shown
    assert f"next airflow-ckpt doctor {checkpoint}" in words(shown)
    document = run("inspect", checkpoint, "--json").document
    assert (document["verdict"], document["resume"]["verdict"]) == ("UNKNOWN", "SAFE")


def test_inspect_and_doctor_of_a_change_that_is_not_finished(checkpoint: Path):
    """It said what Spark would run without the seal, as if nothing but the seal were in its way."""
    run("seal", checkpoint, "--reason", "restore of a backup")
    (checkpoint / "state/0/0" / f"{NEWEST}.changelog").unlink()
    shown = lines(run("inspect", checkpoint).out)
    assert "Sealed: no Spark starts. A change may be unfinished: do not start it  WILL_FAIL" in shown
    assert f"next airflow-ckpt status {checkpoint} --repository REPOSITORY" in words(shown)
    told = lines(run("doctor", checkpoint).out)
    assert "sealed by plan" in told[1]
    assert f"next: airflow-ckpt status {checkpoint} --repository REPOSITORY" in words(told)


def test_backup(checkpoint: Path, tmp_path: Path):
    place = new_repository(tmp_path / "backups")
    shown = lines(run("backup", checkpoint, place).out)
    assert shown[0] == f"Backed up batch {NEWEST} of {checkpoint}"
    backup_id = re.fullmatch(rf"  backup      (\d{{8}}T\d{{6}}Z-b{NEWEST:06d})", shown[1])[1]
    assert shown[2:4] == ["  stream      orders", f"  batch       {NEWEST} can be restored"]
    holds = re.fullmatch(r"  holds       (\d+ files, [\d.]+ KiB)", shown[4])[1]
    assert re.fullmatch(rf"  copied now  {holds} in \d+\.\d s", shown[5])
    assert shown[6:] == ["", f"To restore it: airflow-ckpt restore {place} {backup_id} TARGET --name orders"]

    again = lines(run("backup", checkpoint, place).out)
    number = holds.partition(" ")[0]
    assert re.fullmatch(
        rf"  copied now  0 files, 0 B in \d+\.\d s; {number} files the repository had already", again[5]
    )


def test_backups(repository: Path, checkpoint: Path):
    run("backup", checkpoint, repository, "--name", "other", "--restorable-batches", "4")
    shown = lines(run("backups", repository).out)
    assert shown[0] == "orders  1 backup"
    assert shown[1] == "backup                    taken     batches  files     size  about".replace(
        "    size", "    size"
    )
    row = r"\d{8}T\d{6}Z-b000005  (just now|\d s ago) +5 +\d+ +[\d.]+ KiB  before lunch; ticket=OPS-1"
    assert re.fullmatch(row, shown[3])
    assert shown[5] == "other  1 backup"
    assert re.fullmatch(r"\d{8}T\d{6}Z-b000005  (just now|\d s ago) +2-5 +\d+ +[\d.]+ KiB", shown[8])
    assert [line for line in lines(run("backups", repository, "--name", "other").out) if "backup" in line] == [
        "other  1 backup",
        shown[6],
    ]


def test_backups_of_an_empty_repository(repository: Path):
    shutil.rmtree(repository / "backups")
    finished = run("backups", repository)
    assert (finished.code, finished.out) == (0, f"{repository} holds no backup\n")


@pytest.mark.parametrize("more", [(), ("--sets",)])
def test_backups_of_an_unknown_name(repository: Path, more: tuple[str, ...]):
    finished = run("backups", repository, "--name", "typo", *more)
    assert (finished.code, finished.out) == (1, "")
    assert finished.err == f"error: {repository} holds no backup of typo\nHINT: it has backups of orders\n"
    shutil.rmtree(repository / "backups")
    finished = run("backups", repository, "--name", "typo", *more)
    assert finished.err == f"error: {repository} holds no backup of typo\nHINT: it has no backups of any stream\n"


@pytest.mark.parametrize(
    "words",
    [
        ("check",),
        ("prune",),
        ("expire", "--keep-last", "1"),
        ("migrate",),
        ("verify", "all"),
        ("repair", "CHECKPOINT"),
        ("upgrade",),
    ],
    ids=lambda words: words[0],
)
def test_an_unknown_name_is_no_success(repository: Path, tmp_path: Path, words: tuple[str, ...]):
    """A check of every night that has the wrong name would say that all is well."""
    verb, *more = (str(tmp_path / "orders") if word == "CHECKPOINT" else word for word in words)
    before = contents(open_location(str(repository)))
    finished = run(verb, repository, *more, "--name", "typo")
    assert (finished.code, finished.out) == (1, "")
    assert finished.err == f"error: {repository} holds no backup of typo\nHINT: it has backups of orders\n"
    assert contents(open_location(str(repository))) == before


def test_a_damaged_manifest_hides_no_other(repository: Path, checkpoint: Path):
    run("backup", checkpoint, repository, "--name", "other")
    (damaged,) = (repository / "backups" / "other").iterdir()
    damaged.write_bytes(damaged.read_bytes()[:-100])
    finished = run("backups", repository)
    assert finished.code == 1
    shown = lines(finished.out)
    assert shown[0] == "orders  1 backup"
    path = damaged.relative_to(repository)
    assert shown[-2:] == ["Findings", f"  ✗ manifest {path} is damaged: it is not what was written"]


def test_verify(repository: Path):
    (backup_id,) = (d["backup_id"] for d in run("backups", repository, "--json").document["backups"])
    shown = lines(run("verify", repository).out)
    assert shown[0] == f"Backup {backup_id} of orders is whole"
    assert shown[2] == "  contents read  none (--read-data reads them)"
    read = lines(run("verify", repository, "--read-data").out)
    assert read[1].removeprefix("  structure      ") == read[2].removeprefix("  contents read  ")
    part = lines(run("verify", repository, "--read-data", "999999/999999").out)
    assert part[2] == "  contents read  none: no object is in this part"


def test_verify_with_findings(repository: Path):
    for path in (repository / "objects").rglob("*"):
        if path.is_file():
            path.unlink()
    finished = run("verify", repository)
    assert finished.code == 1
    shown = lines(finished.out)
    assert shown[0].endswith("of orders is damaged")
    number = shown[1].split()[1]
    assert f"Findings: {number}" in shown
    assert finished.out.count("✗") == int(number)


def test_after_a_restore_whose_sink_is_ahead_the_next_step_is_to_roll_it_back(
    checkpoint: Path, repository: Path, tmp_path: Path
):
    sink, target = tmp_path / "table", tmp_path / "restored"
    query_id = json.loads((checkpoint / "metadata").read_text())["id"]
    delta_table(sink, range(NEWEST + 3), app_id=query_id)
    to = ("restore", repository, "latest", target, "--sink", sink, "--apply", "--accept", "sink_skips")
    shown = " ".join(run(*to).out.split())
    assert "next roll the sink back before you start the query (WILL_SKIP otherwise): airflow-ckpt rewind" in shown
    assert "next start the query" not in shown
    told = " ".join(run("status", target, "--repository", repository).out.split())
    assert "sink_skips was accepted: see what the sink does before you start the stream, or undo the restore" in told
    assert f"airflow-ckpt rewind {target} --to-current --sink SINK" in told


def test_after_a_restore_of_a_lost_checkpoint_nothing_shows_how_far_the_query_came(repository: Path, tmp_path: Path):
    """All that it named for a sink without memory was one batch that is written again."""
    shown = run("restore", repository, "latest", tmp_path / "lost", "--sink", "foreachBatch").out
    assert "holds no checkpoint that shows how far the query came" in " ".join(shown.split())


def test_without_a_change_the_status_does_not_say_that_the_stream_can_be_started(checkpoint: Path):
    (checkpoint / "metadata").unlink()
    told = " ".join(run("status", checkpoint).out.split())
    assert "No change of" in told
    assert "can be started" not in told
    assert "`inspect` and `doctor` say what its next start does" in told


def test_restore(repository: Path, tmp_path: Path):
    target = tmp_path / "restored"
    planned = run("restore", repository, "latest", target)
    assert planned.code == 0
    shown = lines(planned.out)
    assert re.fullmatch(r"Restore, plan [0-9a-f]{8}", shown[0])
    assert f"  batch       {NEWEST}; the query continues with {NEWEST + 1}" in shown
    assert f"  target      {target} (empty)" in shown
    assert " 1 read and check every object of the backup" in shown
    assert shown[-1] == "Nothing was changed: this is a plan. Add --apply to apply it."
    assert not target.exists()

    applied = lines(run("restore", repository, "latest", target, "--apply").out)
    assert applied[-3] == f"Restored {target} to batch {NEWEST}"
    wrote = re.fullmatch(r"  wrote  (\d+) files, [\d.]+ KiB in \d+\.\d s", applied[-2])
    assert wrote
    written = int(wrote[1])
    assert applied[-1] == f"  next   start the query: it continues with batch {NEWEST + 1}"

    again = run("restore", repository, "latest", target, "--apply")
    assert again.code == 0
    assert "the target already holds exactly this batch of this backup: nothing to do" in again.out
    assert "Restored" not in again.out

    (target / "commits" / str(NEWEST)).unlink()
    replaced = lines(run("restore", repository, "latest", target, "--replace", *STOPPED, "--apply").out)
    (wrote,) = (line for line in replaced if line.startswith("  wrote"))
    numbers = re.fullmatch(r"  wrote +(\d+) files? in \d+\.\d s; (\d+) were the same already", wrote)
    assert numbers
    assert int(numbers[1]) + int(numbers[2]) == written
    assert int(numbers[2]) > written / 2


def test_seal_and_unseal(checkpoint: Path):
    shown = lines(run("seal", checkpoint, "--reason", "moving [bold]house").out)
    plan = re.fullmatch(r"  plan    ([0-9a-f]{8})", shown[2])[1]
    assert shown == [
        f"Sealed {checkpoint}",
        f"  file    offsets/{NEWEST + 1}",
        f"  plan    {plan}",
        "  effect  a running query ends its batch and stops; no Spark starts from here",
        "",
        f"To lift it: airflow-ckpt unseal {checkpoint} --plan {plan}",
    ]
    lifted = lines(run("unseal", checkpoint, "--plan", plan).out)
    assert " ".join(lifted[:-2]).split() == ["Lifted", "the", "seal", "of", str(checkpoint)]
    assert lifted[-2].startswith(f"  it was of  plan {plan} (moving [bold]house, ")
    assert lifted[-1] == "  next       start the query"
    assert run("unseal", checkpoint).out == f"{checkpoint} carries no seal: nothing to do\n"


def test_unseal_for_a_start(checkpoint: Path, repository: Path):
    """Whoever starts the query need not know the id of the seal; a change that has begun keeps it."""
    run("seal", checkpoint, "--reason", "reset, new query id")
    refused = run("unseal", checkpoint, "--for-start", "--repository", repository)
    assert refused.code == 1
    assert "it is not known whether that plan has begun to change files" in refused.err
    run("unseal", checkpoint, "--force")
    run("seal", checkpoint, "--reason", "stopping the query for a rewind")
    assert run("unseal", checkpoint, "--for-start").code == 1
    finished = run("unseal", checkpoint, "--for-start", "--repository", repository)
    assert (finished.code, finished.err) == (0, "")
    assert "Lifted the seal of" in finished.out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("-", "no offset yet"),
        ('{"orders":{"1":7,"0":12},"bills":{"0":1}}', "orders: 0=12  1=7\nbills: 0=1"),
        (
            '{"orders":{' + ",".join(f'"{p}":1' for p in range(17)) + "}}",
            "orders: 17 partitions (--json lists them)",
        ),
        (
            '{"sourceVersion":1,"reservoirId":"x","reservoirVersion":12,"index":-1,"isStartingVersion":false}',
            "version 12, its start",
        ),
        (
            '{"sourceVersion":1,"reservoirId":"x","reservoirVersion":0,"index":4,"isStartingVersion":true}',
            "version 0, file 4, still in the first snapshot",
        ),
        ('{"logOffset":-1}', "before its first file"),
        ('{"logOffset":3}', "entry 3 of its log of files"),
        ("42", "second 42"),
        ('{"offset":2500,"timestamp":5000}', "row 2,500"),
        ('{"shard":"a"}', '{"shard":"a"}'),
        ("x" * 121, "x" * 120 + "… (--json shows all)"),
    ],
    ids=lambda value: value[:20],
)
def test_offsets_in_words(text: str, words: str):
    assert in_words(SourceOffset("0", parse_offset(text))) == words


@pytest.mark.parametrize("width", [60, 80, 120])
def test_ids_and_addresses_are_never_cut(width: int):
    """What is copied out of a table is whole, however narrow the window."""
    backup_id, address = "20261121T083000Z-b000223", "s3://lake/" + "long/" * 30
    table = terminal.table("backup!", "files>", "about")
    table.add_row(backup_id, "1,000", address)
    facts = terminal.facts([("target", address)])
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    console.print(facts)
    text = console.export_text()
    assert backup_id in text
    assert max(len(line) for line in text.splitlines()) <= width
    assert re.sub(r"\s|─|backup|files|about|target|1,000|" + backup_id, "", text) == address * 2


@pytest.mark.parametrize("columns", ["40", "1", "0", "x"])
def test_a_narrow_window_cuts_no_id_and_no_number(columns: str, monkeypatch: pytest.MonkeyPatch):
    """A part of an id or of a size would be taken for the whole; and some terminals say that they have no columns."""
    monkeypatch.setenv("COLUMNS", columns)
    out = io.StringIO()
    screen = terminal.screen(out, NextCommands(VERBS[0], Namespace()))
    table = terminal.table("backup!", "taken!", "files>", "size>", "about")
    table.add_row("20261121T083000Z-b000223", "3 min ago", "1,024", "4.0 KiB", "before the upgrade")
    screen.print(table)
    row = lines(out.getvalue())[2]
    assert row.startswith("20261121T083000Z-b000223  3 min ago  1,024  4.0 KiB  before")
