"""Profiles: what every command would need, by name, below the command line and the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_ckpt_provider.cli.pipeline_notes import notes_directory
from airflow_ckpt_provider.cli.profile import fill_in_profile, profile_of
from airflow_ckpt_provider.cli.program import build_parser
from airflow_ckpt_provider.errors import RefusedError
from tests.support.command_line import run
from tests.support.one_checkpoint import unpack

FILE = """
[default]
streams = of default.yaml

[staging]
streams = staging/streams.yaml
repository = s3://staging/%backups
trusted-key = A B
storage-option =
    endpoint_url=http://minio:9000
    anon=true
key-file = ~/key
repository-id = of-profile
kafka_config = /etc/kafka.json
"""


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file, where a person has it; in a directory with a file that declares a stream."""
    file = tmp_path / "config" / "airflow-ckpt" / "profiles.ini"
    file.parent.mkdir(parents=True)
    file.write_text(FILE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("PROFILE", "PROFILES", "STREAMS", "REPOSITORY"):
        monkeypatch.delenv(f"AIRFLOW_CKPT_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    for name, stream in {"of default.yaml": "orders", "staging/streams.yaml": "clicks"}.items():
        declared = file.parent / name
        declared.parent.mkdir(exist_ok=True)
        declared.write_text(f"streams: {{{stream}: {{checkpoint: {unpack(tmp_path / stream)}}}}}\n")
    return file


def listed(*argv: str) -> list[tuple[str, str | None]]:
    answer = run(*argv, "streams", "list", "--json")
    assert answer.code == 0, answer.err
    return [(each["name"], each["repository"]) for each in answer.document["streams"]]


def test_the_profile_is_that_of_the_command_else_of_the_environment_else_default(
    profiles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert listed() == [("orders", None)]
    assert listed("--profile", "staging") == listed("--profile=staging") == [("clicks", "s3://staging/%backups")]
    monkeypatch.setenv("AIRFLOW_CKPT_PROFILE", "staging")
    assert listed() == [("clicks", "s3://staging/%backups")]
    assert listed("--profile", "default") == [("orders", None)]
    assert run("--profile", "default", "inspect", "--stream", "orders").code == 0


def test_the_environment_and_the_command_come_first(
    profiles: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRFLOW_CKPT_REPOSITORY", "/mine")
    assert listed("--profile", "staging") == [("clicks", "/mine")]
    monkeypatch.setenv("AIRFLOW_CKPT_STREAMS", str(profiles.parent / "of default.yaml"))
    assert listed("--profile", "staging") == [("orders", "/mine")]


def filled(*argv: str, **environment: str) -> dict[str, object]:
    args = build_parser().parse_args(argv)
    fill_in_profile(args, profile_of("staging"), environment)
    names = ("storage_option", "key_file", "repository_id", "trusted_key", "kafka_config")
    return {name: getattr(args, name) for name in names if hasattr(args, name)}


def test_options_of_every_verb_come_from_the_profile(profiles: Path, tmp_path: Path) -> None:
    expected = {
        "storage_option": [("endpoint_url", "http://minio:9000"), ("anon", True)],
        "key_file": str(tmp_path / "home" / "key"),
        "repository_id": "of-profile",
        "trusted_key": ["A B"],
        "kafka_config": "/etc/kafka.json",
    }
    assert filled("backup", "/c", "/r") == expected
    given = ("--key-file", "/k", "--repository-id", "I", "--trusted-key", "T", "--storage-option", "a=b")
    assert filled("verify", "/r", *given) == {
        "storage_option": [("a", "b")],
        "key_file": "/k",
        "repository_id": "I",
        "trusted_key": ["T"],
    }
    assert filled("verify", "/r", CKPT_REPOSITORY_ID="J")["repository_id"] is None  # the environment has it
    assert filled("positions", "/c")["kafka_config"] is None  # of a mirror, which this is not


@pytest.mark.parametrize(
    ("text", "profile", "said"),
    [
        ("[prod]\n", "prd", "profiles.ini has no profile 'prd'\nHINT: did you mean 'prod'?"),
        ("[a]\nrepositry = x\n", "a", "[a] has no setting 'repositry'\nHINT: did you mean 'repository'?"),
        ("[a]\nstorage-option = x\n", "a", "storage_option: what was given is not key=value\nHINT: write key=value"),
        ("repository = x\n", "a", "cannot be read: File contains no section headers"),
        ("[a]\n[a]\n", "a", "section 'a' already exists\nHINT: write sections [NAME] with lines key = value"),
        (None, "a", "there is no file of profiles: "),
    ],
)
def test_what_is_wrong_with_the_file_is_said(text: str | None, profile: str, said: str, profiles: Path) -> None:
    profiles.unlink()
    if text is not None:
        profiles.write_text(text)
    answer = run("--profile", profile, "inspect", "/nowhere", "--json")
    assert answer.code == 1
    assert said in answer.err
    assert answer.document["error"]["type"] == "RefusedError"


def test_a_user_without_a_home_has_no_profiles(profiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs under a number which has no name."""
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    assert profile_of(None) == {}
    answer = run("--profile", "staging", "inspect", "/nowhere")
    assert (answer.code, answer.err.splitlines()[0]) == (
        1,
        "error: there is no file of profiles: ~/.config/airflow-ckpt/profiles.ini",
    )
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    with pytest.raises(RefusedError, match="this user has no home directory for the notes"):
        notes_directory()


def test_without_a_file_or_a_default_profile_nothing_changes(profiles: Path) -> None:
    profiles.write_text("[prod]\nrepository = /r\n")
    assert profile_of(None) == {}
    profiles.unlink()
    assert profile_of(None) == {}
