"""``--json``: exactly the documented keys, and nothing else on standard output."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from airflow_ckpt_provider.storage.packs import file_of
from tests.support.command_line import new_repository, run
from tests.support.json_documents import documented, named_in, one_document
from tests.support.one_checkpoint import NEWEST


def test_inspect(checkpoint: Path):
    document = one_document(run("inspect", checkpoint, "--json"))
    keys = documented("inspect")
    assert list(document) != []
    assert document.keys() == keys.keys()
    named_in(keys["resume"], [document["resume"]])
    named_in(keys["sources"], document["sources"])
    named_in(keys["state"], [document["state"], *document["state"]["operators"]])
    assert (document["uri"], document["latest_logged"], document["latest_committed"], document["gap"]) == (
        str(checkpoint),
        NEWEST,
        NEWEST,
        0,
    )
    assert document["sources"] == [{"index": 0, "kind": "file", "offset": {"logOffset": NEWEST}}]
    assert (document["resume"]["batch_id"], document["resume"]["replay"]) == (NEWEST + 1, False)
    assert [o["name"] for o in document["state"]["operators"]] == ["stateStoreSave"]
    visible = [p for p in checkpoint.rglob("*") if p.is_file() and not p.name.startswith(".")]
    assert (document["files"], document["bytes"]) == (len(visible), sum(p.stat().st_size for p in visible))


def test_backup_and_backups(checkpoint: Path, tmp_path: Path):
    place = new_repository(tmp_path / "backups")
    document = one_document(
        run("backup", checkpoint, place, "--json", "--tag", "a=1", "--tag", "b=x=y", "--reason", "why")
    )
    assert document.keys() == documented("backup").keys()
    assert (document["name"], document["batch_id"], document["tags"], document["reason"]) == (
        "orders",
        NEWEST,
        {"a": "1", "b": "x=y"},
        "why",
    )
    assert (document["copied_files"], document["copied_bytes"]) == (document["files"], document["bytes"])
    assert re.fullmatch(r".+@.+", document["made_by"])

    again = one_document(run("backup", checkpoint, place, "--json", "--restorable-batches", "2"))
    assert again["copied_files"] < again["files"]
    assert again["restorable_batches"] == [NEWEST - 1, NEWEST]

    listed = one_document(run("backups", place, "--json"))
    keys = documented("backups")
    assert listed.keys() == keys.keys()
    named_in(keys["backups"], listed["backups"])
    assert listed["backups"] == [
        {"hold": None, **{key: value for key, value in d.items() if key in listed["backups"][0]}}
        for d in (document, again)
    ]
    assert listed["findings"] == []


def test_verify(repository: Path):
    document = one_document(run("verify", repository, "--json"))
    assert document.keys() == documented("verify").keys()
    assert (document["ok"], document["read_files"], document["findings"]) == (True, 0, [])
    read = one_document(run("verify", repository, "latest", "--json", "--read-data"))
    assert (read["read_files"], read["read_bytes"]) == (read["files"], read["bytes"])
    some = one_document(run("verify", repository, "--json", "--read-data", "1%"))
    assert some["read_files"] == 1


def test_verify_with_the_id_behind_read_data(repository: Path):
    backup_id = run("backups", repository, "--json").document["backups"][0]["backup_id"]
    document = one_document(run("verify", repository, "--json", "--read-data", backup_id))
    assert (document["backup_id"], document["read_files"]) == (backup_id, document["files"])


def test_verify_with_findings(repository: Path):
    (removed, *_) = sorted(p for p in (repository / "objects").rglob("*") if p.is_file())
    removed.unlink()
    finished = run("verify", repository, "--json")
    assert (finished.code, finished.err) == (1, "")
    found = finished.document["findings"]
    named_in(documented("verify")["findings"], found)
    here = str(removed.relative_to(repository))
    assert len(found) == 1 or here.endswith(".pack"), "one for each file in it, and one of its own"
    assert {file_of(finding["object"]) for finding in found} == {here}
    assert {finding["problem"] for finding in found} == {"missing"}


def test_restore_plans_then_applies(repository: Path, tmp_path: Path):
    target = tmp_path / "restored"
    plan = one_document(run("restore", repository, "latest", target, "--json"))
    assert plan.keys() == documented("restore").keys()
    assert (plan["kind"], plan["batch_id"], plan["target"]) == ("restore", NEWEST, str(target))
    assert not target.exists()

    outcome = one_document(run("restore", repository, plan["backup_id"], target, "--json", "--apply"))
    assert outcome.keys() == documented("restore", 1).keys()
    assert (outcome["files"], outcome["bytes"]) == (plan["files"], plan["bytes"])
    assert (outcome["kept"], outcome["already_done"]) == (None, False)
    assert run("inspect", target, "--json").document["resume"]["batch_id"] == NEWEST + 1

    again = one_document(run("restore", repository, "latest", target, "--json", "--apply"))
    assert again["already_done"] is True


def test_restore_of_an_older_batch_in_place(checkpoint: Path, tmp_path: Path):
    place = new_repository(tmp_path / "backups")
    run("backup", checkpoint, place, "--restorable-batches", "3")
    arguments = [
        "restore",
        place,
        "latest",
        checkpoint,
        "--batch",
        NEWEST - 2,
        "--replace",
        "--query-is-stopped",
        "--quiet-for",
        "0.1",
    ]
    outcome = one_document(run(*arguments, "--apply", "--json", "--reason", "too far"))
    assert outcome["batch_id"] == NEWEST - 2
    assert (place / outcome["kept"] / "files" / "offsets" / str(NEWEST)).is_file()
    assert run("inspect", checkpoint, "--json").document["latest_committed"] == NEWEST - 2
    (record,) = (json.loads(p.read_text()) for p in (place / "audit").iterdir())
    assert (record["reason"], record["plan"]["plan_id"]) == ("too far", outcome["plan_id"])


def test_seal_and_unseal(checkpoint: Path):
    sealed = one_document(run("seal", checkpoint, "--reason", "moving house", "--json"))
    keys = documented("seal").keys()
    assert sealed.keys() == keys
    assert sealed["path"] == f"offsets/{NEWEST + 1}"
    assert (checkpoint / sealed["path"]).read_text() == sealed["sentence"]

    looked_at = run("inspect", checkpoint, "--json")
    assert looked_at.code == 1
    assert looked_at.document["sealed"] == sealed["sentence"]
    assert looked_at.document["resume"]["verdict"] == "WILL_FAIL"

    lifted = one_document(run("unseal", checkpoint, "--plan", sealed["plan_id"], "--json"))
    assert lifted.keys() == documented("unseal").keys()
    assert lifted["lifted"] == {key: sealed[key] for key in keys - {"uri"}}
    assert not (checkpoint / sealed["path"]).exists()

    nothing = one_document(run("unseal", checkpoint, "--force", "--json"))
    assert nothing == {"uri": str(checkpoint), "lifted": None}


@pytest.mark.parametrize(
    ("argv", "code", "kind"),
    [
        (["inspect"], 1, "NotACheckpointError"),
        (["backups"], 1, "RepositoryError"),
        (["verify", "--read-data=0/1"], 2, "UsageError"),
        (["inspect", "--storage-option", "x=1"], 1, "NotACheckpointError"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_error_is_a_document_too(argv: list[str], code: int, kind: str, tmp_path: Path):
    verb, *options = argv
    finished = run(verb, tmp_path / "nowhere", "--json", *options)
    assert finished.code == code
    error = finished.document["error"]
    assert finished.document.keys() == {"error"}
    assert error["type"] == kind
    assert finished.err == f"error: {error['message']}\nHINT: {error['hint']}\n"


@pytest.mark.parametrize(
    "argv",
    [["inspect"], ["inspect", "/c", "--jsno"], ["backup", "/c", "/r", "--workers", "0"], ["inspekt", "/c"]],
    ids=" ".join,
)
def test_wrong_usage_is_a_document_too(argv: list[str]):
    finished = run(*argv, "--json")
    error = finished.document["error"]
    assert (finished.code, error["type"]) == (2, "UsageError")
    hint = f"\nHINT: {error['hint']}" if error["hint"] else ""
    assert finished.err.endswith(f" error: {error['message']}{hint}\n")
