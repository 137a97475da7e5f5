"""``chain``: several streams rewound and undone from a shell."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.chained_streams import IDS, Chained
from tests.support.command_line import run
from tests.support.json_documents import documented

STOPPED = ("--query-is-stopped", "--quiet-for", 0)


@pytest.fixture
def chained(tmp_path: Path) -> Chained:
    return Chained(tmp_path)


def streams(chained: Chained, *names: str) -> list[str]:
    return [word for stream in chained.streams(*names) for word in ("--stream", stream.argument)]


def test_there_and_back(chained: Chained) -> None:
    named = streams(chained)
    plan = run("chain", "rewind", *named, "--to-batch", 4, "--json").document
    assert plan.keys() == documented("chain").keys()
    assert plan["batches"] == dict.fromkeys(IDS, 4)
    applied = ("--fingerprint", plan["fingerprint"], "--accept", "source_loss", *STOPPED, "--apply")
    done = run("chain", "rewind", *named, "--to-batch", 4, *applied)
    assert done.code == 0, done.err
    assert "bronze" in done.out
    assert "To undo it, until one of them has run (needs --query-is-stopped): airflow-ckpt chain undo " in done.out
    back = run("chain", "undo", *named, *STOPPED)
    assert back.code == 0, back.err
    assert "its table is forward again in version 8" in back.out
    assert run("chain", "undo", *named, *STOPPED, "--json").document["already_done"] is True


def test_the_declared_table_of_a_source_is_judged(chained: Chained) -> None:
    """No checkpoint has the path of a Delta table that its query reads."""
    place, unknown = chained.root / "streams.yaml", "no table was given for source 0"

    def reasons(*lines: str) -> str:
        stream = (
            "streams:",
            "  silver:",
            f"    checkpoint: {chained.checkpoint('silver').uri}",
            "    application: shop",
        )
        place.write_text("\n".join([*stream, f"    sinks: [{chained.table('silver')}]", *lines]) + "\n")
        how = ("--application", "shop", "--streams", place, "--to-batch", 4, "--json")
        return "\n".join(run("chain", "rewind", *how).document["reasons"])

    assert unknown in reasons()
    tables = f'{{"0": {chained.table("bronze")}}}'
    assert unknown not in reasons("    sources:", "      delta:", f"        tables: {tables}")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--to-batch", 4], 2, "no stream is named"),
        (["--stream", "a=/none,sink=/t"], 2, "where to?"),
        (["--stream", "bronze", "--to-batch", 4], 1, "'bronze' is not NAME=CHECKPOINT,sink=SINK"),
        (["--stream", "a=/none,sink=/t", "--to-batch", 4], 1, "/none"),
    ],
)
def test_what_does_not_fit(words: list[object], code: int, said: str) -> None:
    finished = run("chain", "rewind", *words)
    assert (finished.code, said in finished.err) == (code, True), finished.err


def test_a_table_that_spark_knows_by_its_name(chained: Chained) -> None:
    finished = run(
        "chain", "rewind", "--stream", "a=/a,sink=spark:sales.orders", "--to-batch", 1, "--spark-submit", "true"
    )
    assert finished.code == 3  # it was asked, and is no Spark
    assert "Spark left no description of sales.orders" in finished.err


def test_an_undo_that_is_asked_to_stop_the_queries(chained: Chained) -> None:
    finished = run("chain", "undo", *streams(chained, "bronze"), "--stop-running")
    assert (finished.code, finished.err.splitlines()[-1]) == (2, "HINT: stop them, then leave --stop-running out")
