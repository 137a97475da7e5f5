"""``rewind`` and ``undo`` from a shell: documented keys, exit codes, what a person reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.storage.opening import open_location
from tests.support.command_line import run
from tests.support.delta_batches import append, batches_in, delta_table
from tests.support.json_documents import documented
from tests.support.one_checkpoint import NEWEST

STOPPED = ("--query-is-stopped", "--quiet-for", 0)


@pytest.fixture
def query_id(checkpoint: Path) -> str:
    return str(json.loads((checkpoint / "metadata").read_text())["id"])


@pytest.fixture
def table(tmp_path: Path, query_id: str) -> Path:
    delta_table(tmp_path / "table", range(NEWEST + 1), app_id=query_id)
    return tmp_path / "table"


def answer(*argv: object, code: int = 0) -> dict[str, Any]:
    finished = run(*argv, "--json")
    assert finished.code == code, finished.err
    document: dict[str, Any] = json.loads(finished.out)
    return document


def test_list(checkpoint: Path, table: Path) -> None:
    targets = answer("rewind", checkpoint, "--list", "--sink", table)["targets"]
    assert [t["batch_id"] for t in targets][-1] == NEWEST
    assert [t["table_version"] for t in targets] == [t["batch_id"] for t in targets]
    shown = run("rewind", checkpoint, "--list", "--sink", table).out
    assert "exact" in shown
    assert "watermark" in shown


def test_plan_apply_undo(checkpoint: Path, table: Path) -> None:
    before = sorted(p.name for p in (checkpoint / "commits").iterdir() if p.name.isdigit())
    asked = ("rewind", checkpoint, "--to-batch", NEWEST - 1, "--sink", table, "--sink-policy", "rollback")
    plan = answer(*asked)
    assert plan.keys() == documented("rewind").keys()
    assert sorted(p.name for p in (checkpoint / "commits").iterdir() if p.name.isdigit()) == before
    assert plan["accept"] == ["source_loss"]  # the sample's input files are on no disk
    refused = run(*asked, "--apply", *STOPPED)
    assert refused.code == 1
    assert "or accept explicitly: --accept source_loss" in refused.err
    in_use = run(*asked, "--apply", "--quiet-for", 0, "--accept", "source_loss")
    assert "it is not known that its query is stopped" in in_use.err
    outcome = answer(*asked, "--apply", *STOPPED, "--accept", "source_loss")
    assert outcome.keys() == documented("rewind", 1).keys()
    assert outcome["table_version"] == NEWEST + 1
    undone = answer("undo", checkpoint, "--sink", table, *STOPPED)
    assert undone.keys() == documented("undo").keys()
    assert undone["plan_id"] == outcome["plan_id"]
    assert sorted(p.name for p in (checkpoint / "commits").iterdir() if p.name.isdigit()) == before
    assert "had been undone before" in run("undo", checkpoint, "--sink", table).out


def test_a_place_of_kept_files_is_named_only_where_files_were_removed(
    checkpoint: Path, tmp_path: Path, query_id: str
) -> None:
    """The table has a batch more than the checkpoint: only the table is rolled back."""
    delta_table(tmp_path / "table", range(NEWEST + 2), app_id=query_id)
    asked = ("--sink", tmp_path / "table", "--sink-policy", "rollback", "--apply", *STOPPED)
    done = run("rewind", checkpoint, "--to-latest", *asked)
    assert done.code == 0, done.err
    assert "  deleted  0 files\n" in "".join(f"{line.rstrip()}\n" for line in done.out.splitlines())
    assert "  kept " not in done.out
    removed = run("rewind", checkpoint, "--to-batch", NEWEST - 1, *asked, "--accept", "source_loss")
    assert removed.code == 0, removed.err
    assert "  kept " in removed.out


def test_everything_from_a_backup(checkpoint: Path, repository: Path) -> None:
    """Other code has changed what the checkpoint still has of that batch."""
    backup_id = answer("backups", repository)["backups"][-1]["backup_id"]
    commit = checkpoint / "commits" / str(NEWEST)
    before = commit.read_bytes()
    commit.write_bytes(b'v1\n{"nextBatchWatermarkMs":99}')
    (checkpoint / "commits" / f".{NEWEST}.crc").unlink(missing_ok=True)
    asked = ("rewind", checkpoint, "--to-batch", NEWEST, "--repository", repository, "--sink", "foreachBatch")
    assert answer(*asked)["already_done"]
    plan = answer(*asked, "--backup-id", backup_id)
    assert (plan["from"], [entry["path"] for entry in plan["writes"]]) == (
        backup_id,
        [f"commits/{NEWEST}", f"offsets/{NEWEST - 1}", f"offsets/{NEWEST}"],
    )
    accepted = ("--sink-policy", "keep", "--accept", "source_loss", "--accept", "sink_duplicates")
    answer(*asked, "--backup-id", backup_id, "--apply", *accepted, *STOPPED)
    assert commit.read_bytes() == before
    assert run(*asked, "--backup-id", "nonsense").code == 1


@pytest.mark.parametrize("options", [(), ("--to-batch", "1", "--to-earliest"), ("--shift-by=-1", "--to-latest")])
def test_where_to_is_said_exactly_once(checkpoint: Path, options: tuple[str, ...]) -> None:
    finished = run("rewind", checkpoint, *options)
    assert finished.code == 2
    assert "where to?" in finished.err


def test_a_target_out_of_range(checkpoint: Path) -> None:
    finished = run("rewind", checkpoint, "--to-batch", 99)
    assert finished.code == 1
    assert "batch 99 cannot be rewound to; reachable: " in finished.err


@pytest.mark.parametrize("content", [b"\xff\xfe", None], ids=["no text", "missing"])
def test_offsets_of_a_file_that_cannot_be_read(checkpoint: Path, tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "offsets.json"
    if content is not None:
        file.write_bytes(content)
    finished = run("rewind", checkpoint, "--from-file", file)
    assert finished.code == 1
    assert finished.err.startswith(f"error: --from-file {file} cannot be read: ")


@pytest.mark.parametrize("more", [("--apply",), ("--to-batch", 3)], ids=str)
def test_a_list_does_not_rewind(checkpoint: Path, more: tuple[object, ...]) -> None:
    finished = run("rewind", checkpoint, "--list", *more)
    assert (finished.code, finished.err) == (
        2,
        f"error: --list and {more[0]} exclude each other\nHINT: give one of them\n",
    )


def test_a_directory_whose_name_no_stream_can_have(checkpoint: Path) -> None:
    place = checkpoint.rename(checkpoint.with_name("ck pt"))
    for verb in (("rewind", place, "--list"), ("doctor", place, "--repair"), ("backup", place, place.with_name("new"))):
        if verb[0] == "backup":
            assert run("init", verb[2]).code == 0
        finished = run(*verb)
        assert (finished.code, finished.err) == (
            1,
            "error: the directory 'ck pt' cannot be the name of a stream\n"
            "HINT: give the stream a name: name / --name, of letters, digits, '.', '_', '-' and '='\n",
        )
    assert run("rewind", place, "--list", "--name", "orders").code == 0


def test_a_plan_counts_its_files_and_names_its_sink_once(checkpoint: Path) -> None:
    (checkpoint / "commits" / str(NEWEST)).unlink()
    for state in (checkpoint / "state").rglob(f"{NEWEST + 1}.*"):
        state.unlink()
    for source in (checkpoint / "sources").rglob(str(NEWEST)):
        source.unlink()
    shown = run("rewind", checkpoint, "--to-latest", "--sink", "foreachBatch").out
    assert "set 1 file aside in the repository" in shown
    assert f"delete 1 file of the checkpoint: offsets/{NEWEST}" in shown
    assert "foreachBatch (foreachBatch)" not in shown
    assert "unknown (unknown)" not in run("rewind", checkpoint, "--to-latest").out


def test_what_the_next_start_does_is_accepted_though_there_is_nothing_to_do(checkpoint: Path, tmp_path: Path) -> None:
    delta_table(tmp_path / "other", range(2), app_id="of another query")
    finished = run("rewind", checkpoint, "--to-current", "--sink", tmp_path / "other")
    assert finished.code == 1, "a check that found something"
    assert run("rewind", checkpoint, "--to-current").code == 0
    shown = finished.out
    assert shown.index("Nothing to do: ") < shown.index("To be accepted before the query is started:")
    assert "To be accepted before it is applied" not in shown


def test_rows_that_are_in_the_table_twice_are_removed(checkpoint: Path, table: Path, query_id: str) -> None:
    """As docs/concepts/sinks.md says: back to the batch before the first of them."""
    append(table, NEWEST - 1, app_id=query_id)
    shown = " ".join(run("rewind", checkpoint, "--to-current", "--sink", table).out.split())
    assert f"more than one commit of batch {NEWEST - 1}: their rows are doubled" in shown
    back = ("rewind", checkpoint, "--to-batch", NEWEST - 2, "--sink", table, "--sink-policy", "rollback")
    done = run(*back, "--no-exact-replay", "--apply", *STOPPED, "--accept", "source_loss")
    assert done.code == 0, done.err
    assert batches_in(open_location(str(table))) == [batch for batch in range(NEWEST - 1) for _ in range(2)]


def test_rows_that_a_sink_skips_are_named_by_the_status_too(checkpoint: Path, table: Path) -> None:
    to = ("rewind", checkpoint, "--to-batch", 4, "--sink", table, "--sink-policy", "keep", "--no-exact-replay")
    done = run(*to, "--apply", *STOPPED, "--accept", "sink_skips", "--accept", "source_loss")
    assert done.code == 0, done.err
    told = " ".join(run("status", checkpoint).out.split())
    assert "sink_skips was accepted: see what the sink does before you start the stream, or undo the rewind" in told
