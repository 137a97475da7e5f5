"""What is known to be damaged, as the command line says it."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.storage.packs import PACK_SUFFIX
from tests.support.command_line import Finished, new_repository, run, run_program
from tests.support.json_documents import documented, named_in, one_document
from tests.support.spoiled import file_at, flip


def rot(repository: Path, path: str = "offsets/5") -> Path:
    """Let the object of a file rot, of the newest backup, so that neither size nor time shows."""
    manifest = Repository.open(open_location(str(repository))).manifest(whole=False)
    found = next(entry.object for entry in manifest.files if entry.path == path)
    file = file_at(repository, found)
    stat = file.stat()
    flip(open_location(str(repository)), found, at=-1)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return repository / found


@pytest.fixture
def rotten(repository: Path) -> Path:
    """The object of the only backup that is known to be damaged."""
    found = rot(repository)
    assert run("verify", repository, "--read-data").code == 1
    return found


def test_verify_all(repository: Path) -> None:
    document = one_document(run("verify", repository, "all", "--json", "--read-data=1/30"))
    assert document.keys() == documented("verify", 1).keys()
    (orders,) = document["streams"]
    named_in(documented("verify", 1)["streams"], [orders])
    named_in(documented("verify")["coverage"], [orders["coverage"]])
    assert (orders["backups"], orders["read_objects"], orders["noted"]) == (1, 1, True)
    assert (orders["coverage"]["days"], orders["coverage"]["read"]) == (30, 1)
    read = one_document(run("verify", repository, "--read-data", "all", "--json"))
    assert "backup_id" in read, "a word behind --read-data is what is read"
    assert one_document(run("verify", repository, "all", "--read-data", "--json"))["streams"][0]["read_objects"] > 1


def test_verify_all_for_people(repository: Path) -> None:
    out = run("verify", repository, "all", "--read-data=1/30").out
    assert "orders: 1 of " in out
    assert " objects read within 30 days, " in out
    assert "never read" in out
    rot(repository)
    finished = run("verify", repository, "all", "--read-data")
    assert finished.code == 1
    assert "Findings: 1" in finished.out


@pytest.mark.parametrize("verb", [("verify",), ("verify", "all"), ("check",)], ids=" ".join)
def test_damage_ends_with_the_command_that_plans_its_repair(
    repository: Path, checkpoint: Path, rotten: Path, verb: tuple[str, ...]
) -> None:
    finished = run(verb[0], repository, *verb[1:])
    assert finished.code == 1
    last = finished.out.splitlines()[-1]
    assert last == f"To plan the repair: airflow-ckpt repair {repository} {checkpoint} --name orders"
    assert run(*shlex.split(last.partition(": airflow-ckpt ")[2])).code == 0


def test_without_damage_there_is_nothing_to_repair(repository: Path) -> None:
    assert "To plan the repair" not in run("verify", repository).out + run("check", repository).out


def test_verify_one_of_them_by_age(repository: Path) -> None:
    document = one_document(run("verify", repository, "--json", "--read-data=1/7"))
    named_in(documented("verify")["coverage"], [document["coverage"]])
    shown = run("verify", repository, "--read-data=1/100").out
    assert re.search(r"coverage +[1-9]\d* of 24 objects read within 100 days", shown), shown


def says(finished: Finished, words: str) -> bool:
    return any(words in finding for finding in finished.document["findings"])


def test_every_verb_goes_by_it(repository: Path, checkpoint: Path, rotten: Path, tmp_path: Path) -> None:
    name = str(rotten.relative_to(repository))
    known = f"its object {name} was found damaged on "
    listed = run("backups", repository, "--json")
    assert listed.code == 1
    assert says(listed, known)
    checked = run("check", repository, "--json")
    assert checked.code == 1
    assert known in checked.document["streams"][0]["damaged"][0]["problems"][0]
    refused = run("restore", repository, "latest", tmp_path / "restored")
    assert refused.code == 1
    assert "the only backup of orders is damaged: " in refused.err
    again = one_document(run("backup", checkpoint, repository, "--skip-if-unchanged", "--json"))
    # Nothing is taken up from a pack that is damaged.
    packed = PACK_SUFFIX in name
    assert (again["unchanged"], again["copied_files"]) == (False, again["files"] if packed else 1)
    restored = one_document(run("restore", repository, "latest", tmp_path / "restored", "--apply", "--json"))
    assert restored["backup_id"] == again["backup_id"]


def test_what_is_passed_over_is_said(repository: Path, checkpoint: Path, tmp_path: Path) -> None:
    good = run("backups", repository, "--json").document["backups"][0]["backup_id"]
    (checkpoint / "commits" / "5").write_bytes((checkpoint / "commits" / "5").read_bytes() + b" ")
    bad = one_document(run("backup", checkpoint, repository, "--json"))["backup_id"]
    rot(repository, "commits/5")
    assert run("verify", repository, "--read-data").code == 1
    planned = run_program("restore", repository, "latest", tmp_path / "restored", "--json")
    assert planned.code == 0
    assert planned.document["backup_id"] == good
    assert f"backup {bad} of orders is passed over: it is damaged: commits/5: its object" in planned.err
    assert run("verify", repository, "--json").document["backup_id"] == bad, "verify reads it again"


def test_repair(repository: Path, checkpoint: Path, rotten: Path) -> None:
    plan = run("repair", repository, checkpoint, "--json")
    keys = documented("repair")
    assert plan.document.keys() == keys.keys()
    named_in(keys["plan"], [{k: v for k, v in plan.document["plan"].items() if k != "kind"}])
    done = one_document(run("repair", repository, checkpoint, "--apply", "--json"))
    named_in(keys["outcome"], [done["outcome"]])
    assert (done["outcome"]["rebuilt"], done["outcome"]["lost"]) == (1, 0)
    assert run("check", repository).code == 0


def test_repair_from_a_second_repository(repository: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    second, key = tmp_path / "second", tmp_path / "key"
    key.touch(0o600)
    key.write_text("a" * 43 + "=")
    new_repository(second, "--key-file", key)
    assert run("copy", repository, "all", second, "--target-key-file", key).code == 0
    rot(repository)
    assert run("verify", repository, "--read-data").code == 1
    lost = run("repair", repository, tmp_path / "nowhere", "--json")
    assert f"no checkpoint is at {tmp_path / 'nowhere'}: is the address right?" in caplog.text
    assert (lost.code, len(lost.document["plan"]["lost"])) == (1, 1)
    argv = ["repair", repository, tmp_path / "nowhere", "--second", second, "--second-key-file", key]
    done = one_document(run(*argv, "--apply", "--json"))
    assert done["plan"]["rebuilt"][0]["from"] == "second repository"
    assert run("check", repository).code == 0


def test_a_restore_notes_what_it_comes_upon(repository: Path, tmp_path: Path) -> None:
    rot(repository)
    assert run("restore", repository, "latest", tmp_path / "restored", "--apply").code == 1
    assert run("check", repository).code == 1
