"""``airflow-ckpt reset``, ``undo`` of it, and ``flows``: usage, output for people and for programs."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from tests.support.command_line import new_repository, run
from tests.support.one_checkpoint import NEWEST

STOPPED = ("--query-is-stopped", "--quiet-for", "0")
KEEP = ("--keep-position", "--sink", "foreachBatch", *STOPPED)


def files(place: Path) -> set[str]:
    found = (f.relative_to(place).as_posix() for f in place.rglob("*") if f.is_file())
    return {path for path in found if "/." not in f"/{path}"}


def test_plan_apply_undo(checkpoint: Path) -> None:
    before = files(checkpoint)
    plan = run("reset", checkpoint, *KEEP, "--json")
    assert (plan.code, plan.document["kind"], plan.document["start"]) == (0, "reset", NEWEST)
    assert files(checkpoint) == before
    done = run("reset", checkpoint, *KEEP, "--apply", "--json")
    assert done.code == 0
    assert set(done.document) == {
        "plan_id", "checkpoint", "way", "start", "query_id", "new_query_id", "options", "conf", "snippet", "deleted",
        "written", "kept", "seconds",
    }  # fmt: skip
    assert files(checkpoint) == {"sources/0/0"}
    undone = run("undo", checkpoint, "--plan", done.document["plan_id"], *STOPPED)
    assert undone.code == 0
    assert f"Reset {done.document['plan_id']} is undone" in undone.out
    assert files(checkpoint) == before


def test_the_command_in_the_plan_takes_it_back(checkpoint: Path, tmp_path: Path) -> None:
    before = files(checkpoint)
    where = ("--repository", new_repository(tmp_path / "kept"))
    done = run("reset", checkpoint, *KEEP, *where, "--apply", "--json").document
    plan = json.loads((tmp_path / "kept" / "plans" / f"{done['plan_id']}.json").read_text())
    assert run(*plan["take_back"].split()[1:], *STOPPED).code == 0
    assert files(checkpoint) == before


def test_in_a_directory_of_somebody_else(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The emptied directory of the checkpoint can then not be removed, and need not be: Spark starts in it."""
    rmdir = os.rmdir

    def of_another(path: str) -> None:
        if Path(path) == checkpoint:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        rmdir(path)

    monkeypatch.setattr(os, "rmdir", of_another)
    done = run(
        "reset",
        checkpoint,
        "--from-scratch",
        "--sink",
        "foreachBatch",
        *STOPPED,
        "--accept",
        "sink_duplicates",
        "--apply",
    )
    assert (done.code, done.err) == (0, "")
    assert list(checkpoint.iterdir()) == []


def test_for_people(checkpoint: Path) -> None:
    shown = run("reset", checkpoint, *KEEP)
    assert shown.code == 0
    assert "Nothing was changed: this is a plan." in shown.out
    assert "no options; the new checkpoint knows what was read" in shown.out
    done = run("reset", checkpoint, *KEEP, "--apply")
    assert f"{checkpoint} is a new checkpoint" in done.out.replace("\n", "")


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["--keep-position", "--from-scratch"], 2, "--keep-position and --from-scratch exclude each other"),
        ([], 2, "what is to take the place of"),
        (["--keep-position", "--apply", *STOPPED], 1, "--accept sink_unknown"),
        (["--from-scratch", "--batch", "3"], 1, "a batch goes with keep-position"),
        (["--keep-position", "--batch", "99"], 1, "batch 99 is not in the log"),
        (["--keep-position", "--source", "4=5"], 1, "the query has no source '4'"),
        (["--keep-position", "--kafka-config", "nowhere"], 3, "--kafka-config nowhere cannot be read"),
        (["--keep-position", "--accept", "FINE"], 2, "'FINE' is not one of sink_skips, "),
        (["--keep-position", "--sink", "nowhere"], 1, "neither a Delta table nor the output of a file sink"),
    ],
)
def test_refused(checkpoint: Path, argv: list[str], code: int, words: str) -> None:
    before = files(checkpoint)
    finished = run("reset", checkpoint, *argv)
    assert finished.code == code
    assert words in finished.err
    assert files(checkpoint) == before


class TestFlows:
    @pytest.fixture
    def storage(self, checkpoint: Path, tmp_path: Path) -> Path:
        shutil.copytree(checkpoint, tmp_path / "pipeline/_checkpoints/spark_catalog/default/sales/ingest/0")
        return tmp_path / "pipeline"

    def test_list(self, storage: Path) -> None:
        shown = run("flows", storage)
        assert shown.code == 0
        assert "ingest  spark_catalog.default.sales  0             5" in shown.out
        (flow,) = run("flows", storage, "--json").document["flows"]
        assert (flow["flow"], flow["live"], flow["progress"]["latest_committed"]) == ("ingest", 0, NEWEST)
        assert flow["checkpoint"].endswith("/ingest/0")

    def test_reset(self, storage: Path) -> None:
        reset = ("flows", storage, "--reset", "ingest", "--keep-position", "--sink", "kafka", *STOPPED)
        plan = run(*reset, "--json")
        assert (plan.code, plan.document["version"], plan.document["verdict"]) == (0, 1, "SAFE")
        assert "Nothing was changed" in run(*reset).out
        done = run(*reset, "--apply", "--repository", new_repository(storage.parent / "audit"), "--json")
        assert (done.code, done.document["version"]) == (0, 1)
        (record,) = (storage.parent / "audit" / "audit").iterdir()
        assert json.loads(record.read_text())["kind"] == "flow-reset"
        assert run(*reset, "--apply", "--json").document["already_done"]

    def test_restore(self, storage: Path) -> None:
        live = run("flows", storage, "--json").document["flows"][0]["checkpoint"]
        repository = new_repository(storage.parent / "backups")
        assert run("backup", live, repository, "--name", "ingest").code == 0
        restore = ("flows", storage, "--restore-into-next", "ingest", "--repository", repository, "--sink", "kafka")
        assert run(*restore, "--json").document["version"] == 1
        done = run(*restore, *STOPPED, "--apply", "--json")
        assert (done.code, done.document["version"], done.document["batch_id"]) == (0, 1, NEWEST)

    @pytest.mark.parametrize(
        ("argv", "code", "words"),
        [
            (["--reset", "nothing"], 1, "there is no flow 'nothing'"),
            (["--reset", "ingest", "--restore-into-next", "ingest"], 2, "exclude each other"),
            (["--restore-into-next", "ingest"], 2, "--restore-into-next needs --repository"),
            (["--reset", "ingest", "--continue-numbers"], 1, "keeps state"),
        ],
    )
    def test_refused(self, storage: Path, argv: list[str], code: int, words: str) -> None:
        finished = run("flows", storage, *argv)
        assert finished.code == code
        assert words in finished.err

    def test_no_pipeline(self, checkpoint: Path) -> None:
        finished = run("flows", checkpoint)
        assert finished.code == 1
        assert "holds no flows of Spark Declarative Pipelines" in finished.err
