"""The commands that a verb prints work as they are printed: they name the store, the keys and the connections."""

from __future__ import annotations

import base64
import shlex
from argparse import Namespace
from pathlib import Path

import pytest

from airflow_ckpt_provider.cli.definition import VERBS
from airflow_ckpt_provider.cli.next_commands import NextCommands
from tests.support.command_line import Finished, new_repository, run
from tests.support.one_checkpoint import NEWEST

STOPPED = ("--query-is-stopped", "--quiet-for", "0")


@pytest.fixture
def keys(tmp_path: Path) -> list[Path]:
    """Two keys of encrypted repositories; the directory of the first one has a blank."""
    files = [tmp_path / "my keys" / "first", tmp_path / "second"]
    for number, file in enumerate(files):
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(base64.b64encode(bytes([number]) * 32))
        file.chmod(0o600)
    return files


def printed(finished: Finished, doing: str) -> list[str]:
    """The words of a command that was printed, without the name of the program."""
    (line,) = (line for line in finished.out.splitlines() if line.startswith(f"{doing}: "))
    return shlex.split(line.removeprefix(f"{doing}: airflow-ckpt "))


def completed(text: str, verb: str, program: str = "airflow-ckpt", **args: object) -> str:
    (found,) = (each for each in VERBS if each.name == verb)
    return NextCommands(found, Namespace(**args), program).completed(text)


def test_what_is_printed_is_run_as_it_is(checkpoint: Path, tmp_path: Path, keys: list[Path]) -> None:
    kept = new_repository(tmp_path / "encrypted", "--key-file", keys[0])
    backup = run("backup", checkpoint, kept, "--key-file", keys[0], "--storage-option", "anon=true")
    assert backup.code == 0, backup.err
    words = printed(backup, "To restore it")
    assert words[:5] == ["restore", "--storage-option", "anon=true", "--key-file", str(keys[0])]
    again = run(*(str(tmp_path / "new") if word == "TARGET" else word for word in words), "--apply")
    assert again.code == 0, again.err
    assert (tmp_path / "new" / "offsets" / str(NEWEST)).exists()

    change = ("reset", checkpoint, "--from-scratch", "--sink", "kafka", "--accept", "sink_duplicates", "--apply")
    done = run(*change, "--repository", kept, "--key-file", keys[0], *STOPPED)
    assert done.code == 0, done.err
    status = run("status", checkpoint, "--repository", kept, "--key-file", keys[0], "--json")
    (undo,) = status.document["commands"]
    assert shlex.split(undo)[1:] == printed(done, "To undo it, until the query has run (needs --query-is-stopped)")
    undone = run(*shlex.split(undo)[1:], *STOPPED)
    assert undone.code == 0, undone.err
    assert (checkpoint / "offsets" / str(NEWEST)).exists()


def test_after_a_rotation_the_export_is_opened_by_the_new_key(tmp_path: Path, keys: list[Path]) -> None:
    place = new_repository(tmp_path / "encrypted", "--key-file", keys[1])
    rotated = run("key", "rotate", place, "--key-file", keys[1], "--new-key-file", keys[0])
    assert rotated.code == 0, rotated.err
    words = printed(rotated, "Export the keys again")
    assert words == ["key", "export", str(place), "--key-file", str(keys[0]), "--file", "FILE"]
    exported = run(*(str(tmp_path / "keys.json") if word == "FILE" else word for word in words))
    assert exported.code == 0, exported.err

    added = run("key", "add", place, "--key-file", keys[0], "--new-key-file", keys[1])
    words = printed(added, "Export the keys again")
    assert words == ["key", "export", "--key-file", str(keys[0]), str(place), "--file", "FILE"]


def test_a_command_about_the_target_of_a_copy_names_its_key(repository: Path, tmp_path: Path, keys: list[Path]) -> None:
    target = tmp_path / "second place"
    repository_id = run("init", repository, "--json").document["id"]
    given = ("--target-key-file", keys[1], "--repository-id", repository_id)
    refused = run("copy", repository, "all", target, *given)
    assert refused.code == 1
    assert f"`airflow-ckpt init --key-file {keys[1]} '{target}'`" in refused.err


def test_no_credential_is_printed(checkpoint: Path, tmp_path: Path) -> None:
    given = ["secret=s3cr3t", 'client_kwargs={"aws_secret_access_key": "s3cr3t", "region_name": "eu"}', 'user="1"']
    options = [word for option in given for word in ("--storage-option", option)]
    sealed = run("seal", checkpoint, "--reason", "a test", *options)
    lift = printed(sealed, "To lift it")
    assert lift[1:7] == [
        *("--storage-option", "secret=***"),
        *("--storage-option", 'client_kwargs={"aws_secret_access_key": "***", "region_name": "eu"}'),
        *("--storage-option", 'user="1"'),
    ]
    refused = run("inspect", tmp_path / "nowhere", *options)
    assert "s3cr3t" not in sealed.out + refused.out + refused.err


def test_a_profile_is_named_and_not_what_it_says(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "profiles.ini"
    file.write_text("[prod]\nstorage-option = anon=true\nkey-file = key\n")
    monkeypatch.setenv("AIRFLOW_CKPT_PROFILES", str(file))
    (tmp_path / "key").write_bytes(base64.b64encode(bytes(32)))
    (tmp_path / "key").chmod(0o600)
    sealed = run("--profile", "prod", "seal", checkpoint, "--reason", "a test", "--signing-key-file", tmp_path / "key")
    lift = printed(sealed, "To lift it")
    assert lift[:5] == ["--profile", "prod", "unseal", "--signing-key-file", str(tmp_path / "key")]
    assert not {"--storage-option", "--key-file"} & {*lift}


@pytest.mark.parametrize(
    ("verb", "text", "expected"),
    [
        ("chain", "run `airflow-ckpt chain undo --stream a=/a --plan 1`, or not", "chain undo OPTIONS --stream a=/a"),
        ("chain", "see airflow-ckpt backups REPOSITORY --sets", "see airflow-ckpt backups --key-file /k REPOSITORY"),
        (
            "inspect",
            "airflow-ckpt reset C --sink-option A=b",
            "reset --warehouse w --storage-option anon=true --key-file /k C",
        ),
        (
            "key",
            "see: airflow-ckpt key list REPOSITORY",
            "airflow-ckpt key list --storage-option anon=true --key-file /k",
        ),
        ("inspect", "airflow-ckpt-core[delta] or my-airflow-ckpt init or airflow-ckpt nothing", None),
        ("inspect", "airflow-ckpt explain --file log", None),
    ],
)
def test_a_command_gets_what_its_verb_takes(verb: str, text: str, expected: str | None) -> None:
    args = {"storage_option": [("anon", True)], "key_file": "/k", "sink_option": [("TOKEN", "t")], "warehouse": "w"}
    found = completed(text, verb, **(args if verb != "chain" else args | {"storage_option": []}))
    given = "--sink-option 'TOKEN=***' --key-file /k"
    assert expected.replace("OPTIONS", given) in found if expected else found == text


def test_airflows_command_names_its_connections() -> None:
    about = {"repository": "/r", "repository_conn_id": "minio", "target": "/new place", "target_conn_id": "hdfs"}
    undo = completed("`airflow-ckpt undo '/new place' --repository /r`", "restore", "airflow ckpt", **about)
    assert (
        undo == "`airflow ckpt undo --checkpoint-conn-id hdfs --repository-conn-id minio '/new place' --repository /r`"
    )
    init = completed("airflow-ckpt init '/new place'", "copy", "airflow ckpt", **about)
    assert init == "airflow ckpt init --repository-conn-id hdfs '/new place'"


def test_a_hint_without_an_address_gets_that_of_the_verb() -> None:
    hint = "`airflow-ckpt doctor CHECKPOINT --repair --repository REPOSITORY` fetches it; CHECKPOINT stays a word"
    args = {"checkpoint": "s3://lake/my orders", "repository": "s3://lake/backups", "key_file": "k"}
    assert completed(hint, "rewind", **args) == (
        "`airflow-ckpt doctor --key-file k 's3://lake/my orders' --repair --repository s3://lake/backups` fetches it; CHECKPOINT "
        "stays a word"
    )
    # Of a place that the verb was not given the word stays.
    assert completed(hint, "inspect", checkpoint="/ck") == hint.replace("doctor CHECKPOINT", "doctor /ck")
    assert completed(hint, "restore", target="/ck") == hint
    # Another repository than the one that was given has the change.
    assert completed(
        "`airflow-ckpt status /ck --repository REPOSITORY`", "rewind", checkpoint="/ck", repository="/r"
    ) == ("`airflow-ckpt status /ck --repository REPOSITORY`")
    # Which of two repositories it is about is not known.
    assert completed("`airflow-ckpt check REPOSITORY`", "copy", repository="/a", target="/b") == (
        "`airflow-ckpt check REPOSITORY`"
    )


def test_a_damaged_log_names_the_repair_of_this_checkpoint(checkpoint: Path, repository: Path) -> None:
    (checkpoint / "metadata").write_bytes(b"{")
    finished = run("backup", checkpoint, repository)
    assert finished.code == 1
    assert (
        f"`airflow-ckpt doctor {checkpoint} --repair --repository {repository}` fetches it from a backup"
        in finished.err
    )
