"""Advice in ``airflow-ckpt doctor``: beside the findings, without a say in the exit code."""

from __future__ import annotations

from pathlib import Path

from tests.support.command_line import run


def codes(document: dict[str, list[dict[str, str]]]) -> set[str]:
    return {finding["code"] for finding in document["advice"]}


def test_advice_is_no_finding(checkpoint: Path):
    finished = run("doctor", checkpoint, "--target", "main.sales.payments", "--json")
    assert finished.code == 0
    document = finished.document
    assert document["findings"] == []
    assert "PATH-NOT-TIED" in codes(document)
    (advice,) = (a for a in document["advice"] if a["code"] == "PATH-NOT-TIED")
    assert advice["severity"] == "advice"
    assert advice["figures"] == {"target": "main.sales.payments", "looked_for": "payments"}


def test_what_is_not_given_is_not_guessed(checkpoint: Path):
    assert "PATH-NOT-TIED" not in codes(run("doctor", checkpoint, "--json").document)


def test_advice_for_people(checkpoint: Path):
    shown = run("doctor", checkpoint, "--target", "main.sales.payments").out
    assert "PATH-NOT-TIED" in shown
    assert "names nothing of the target main.sales.payments" in " ".join(shown.split())


def test_a_broken_log_leaves_the_findings(checkpoint: Path):
    (checkpoint / "offsets" / "5").write_bytes(b"")
    finished = run("doctor", checkpoint, "--target", "main.sales.payments", "--json")
    assert finished.code == 1
    assert finished.document["findings"]
    assert finished.document["advice"] == []


def test_a_trigger_is_a_number_of_seconds(checkpoint: Path):
    assert run("doctor", checkpoint, "--trigger", "soon").code == 2
    assert run("doctor", checkpoint, "--trigger", "10").code == 0
