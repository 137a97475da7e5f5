"""``airflow-ckpt explain``: from a file or standard input, for people and as JSON."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from airflow_ckpt_provider.cli.verbs import explain as verb
from tests.samples.failing import recorded
from tests.support.command_line import Finished, run, run_program

NO_DELTA = recorded("4.0.0")["no_delta"]["message"]
KEYS = {
    "recognised",
    "code",
    "condition",
    "wrapped_in",
    "evidence",
    "cause",
    "do_not",
    "remedy",
    "steps",
    "facts",
    "also",
    "ways",
}


def explained(text: str, monkeypatch: pytest.MonkeyPatch, *argv: str) -> Finished:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    return run("explain", *argv)


def test_standard_input(monkeypatch: pytest.MonkeyPatch):
    finished = explained(NO_DELTA, monkeypatch)
    assert finished.code == 0
    first, *rest = finished.out.splitlines()
    assert first == "STATE-FILE-MISSING  CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA_FILE_NOT_EXISTS"
    shown = "\n".join(rest)
    assert "   airflow-ckpt doctor /srv/streams/no_delta/ck --repair --repository REPOSITORY --name ck" in shown
    assert "   airflow-ckpt restore REPOSITORY latest /srv/streams/no_delta/ck --name ck --replace --sink SINK" in shown
    assert "in a DAG: CheckpointRestoreOperator" in shown
    assert "way out     restore" in shown


def test_a_file_and_json(tmp_path: Path):
    log = tmp_path / "driver.log"
    log.write_text(NO_DELTA)
    finished = run("explain", log, "--json")
    assert finished.code == 0
    document = finished.document
    assert document.keys() == KEYS
    assert document["code"] == "STATE-FILE-MISSING"
    assert document["wrapped_in"] == ["STREAM_FAILED", "FOREACH_BATCH_USER_FUNCTION_ERROR"]
    assert document["facts"]["checkpoint"] == "/srv/streams/no_delta/ck"
    assert document["remedy"] == "restore"
    assert [step.keys() for step in document["steps"]] == [{"text", "command", "operator", "call"}] * len(
        document["steps"]
    )
    assert "airflow-ckpt doctor /srv/streams/no_delta/ck" in [step["command"] for step in document["steps"]]


def test_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch):
    assert explained(NO_DELTA, monkeypatch, "-", "--json").document["recognised"]


def test_what_is_not_known(monkeypatch: pytest.MonkeyPatch):
    finished = explained("something else broke", monkeypatch)
    assert finished.code == 1
    assert finished.out.startswith("UNKNOWN\n")
    assert "nothing in this text is an error condition that is known here" in " ".join(finished.out.split())
    document = explained("something else broke", monkeypatch, "--json").document
    assert (document["recognised"], document["code"], document["remedy"]) == (False, "UNKNOWN", None)


@pytest.mark.parametrize("text", ["", "  \n"])
def test_nothing_to_explain(text: str, monkeypatch: pytest.MonkeyPatch):
    finished = explained(text, monkeypatch)
    assert finished.code == 2
    assert finished.err.splitlines()[0] == "error: there is no text to explain"


def test_bytes_that_are_no_text(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe [MALFORMED_LOG_FILE] \x00")))
    assert run("explain", "--json").document["code"] == "LOG-MALFORMED"


def test_of_a_long_log_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(verb, "_MOST_BYTES", 100_000)
    log = tmp_path / "driver.log"
    log.write_text("[KAFKA_DATA_LOSS.START_OFFSET_RESET]\n" + "INFO nothing\n" * 10_000 + "[MALFORMED_LOG_FILE]\n")
    assert run("explain", log, "--json").document["also"] == []
    assert run("explain", log, "--json").document["code"] == "LOG-MALFORMED"


def test_a_pipe_into_the_program():
    finished = run_program(
        "explain",
        "--json",
        input=json.dumps({"error_code": "CONFLICT", "message": "An active update u already exists for pipeline 'p'."}),
    )
    assert (finished.code, finished.document["code"]) == (0, "PIPELINE-BUSY")


@pytest.mark.parametrize("name", ["nope.log", "."])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str):
    finished = run("explain", tmp_path / name)
    assert finished.code == 3
    assert f"{tmp_path / name} cannot be read: " in finished.err
    assert "name a log file on this machine" in " ".join(finished.err.split())
