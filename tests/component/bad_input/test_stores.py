"""Wrong credentials, missing buckets and stores that nobody reaches: the error says what to do, and nothing is changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import run, run_program
from tests.support.refused_commands import refused, says, unchanged
from tests.support.s3_server import FORGER, READER, STRANGER, Identity, S3Server


def options(server: S3Server, identity: Identity) -> list[str]:
    found = []
    for key, value in server.options(identity).items():
        text = json.dumps(value) if isinstance(value, dict) else value
        found += ["--storage-option", f"{key}={text}"]
    return found


_CHECK_KEYS = (
    "check the access key, the secret and the token of the connection (or of storage_options, or the environment)"
)


@pytest.mark.parametrize(
    ("identity", "complaint"), [(STRANGER, "(InvalidAccessKeyId)"), (FORGER, "(SignatureDoesNotMatch)")]
)
def test_wrong_credentials(identity: Identity, complaint: str, s3_server: S3Server, checkpoint: Path, tmp_path: Path):
    bucket = s3_server.make_bucket()
    wrong = options(s3_server, identity)
    with unchanged(tmp_path):
        for argv in (
            ["inspect", f"s3://{bucket}/orders"],
            ["backup", checkpoint, f"s3://{bucket}/backups"],
            ["backups", f"s3://{bucket}/backups"],
        ):
            says(run(*argv, *wrong), complaint, f"s3://{bucket}/", f"HINT: {_CHECK_KEYS}", code=3)
    assert s3_server.filesystem().find(bucket) == []


def test_a_missing_bucket(s3_server: S3Server, checkpoint: Path, tmp_path: Path):
    right = run_program  # through the environment this time, as an AWS client has it
    with unchanged(tmp_path):
        for argv in (
            ["inspect", "s3://no-such-bucket/orders"],
            ["backup", checkpoint, "s3://no-such-bucket/backups"],
            ["backups", "s3://no-such-bucket/backups"],
        ):
            says(
                right(*argv, environment=s3_server.environment()),
                "s3://no-such-bucket/",
                "The specified bucket does not exist (NoSuchBucket)",
                "HINT: create it, or correct the address",
                code=3,
            )


def test_a_read_only_bucket(s3_server: S3Server, checkpoint: Path, repository: Path):
    bucket = s3_server.make_bucket()
    s3_server.filesystem().put(f"{checkpoint}/", f"{bucket}/orders/", recursive=True)
    before = sorted(s3_server.filesystem().find(bucket))
    reader = options(s3_server, READER)
    assert run("inspect", f"s3://{bucket}/orders", *reader).code == 0
    for argv in (
        ["init", f"s3://{bucket}/backups"],
        ["seal", f"s3://{bucket}/orders", "--reason", "x"],
    ):
        says(
            run(*argv, *reader),
            f"error: could not create s3://{bucket}/",
            "(AccessDenied)",
            "HINT: check that these credentials may list, read and write there",
            code=3,
        )
    restored = run("restore", repository, "latest", f"s3://{bucket}/restored", "--apply", *reader)
    assert restored.code == 3
    assert "(AccessDenied)" in restored.err
    assert sorted(s3_server.filesystem().find(bucket)) == before


def test_an_unreachable_store(checkpoint: Path, tmp_path: Path):
    nowhere = ["--storage-option", "endpoint_url=http://127.0.0.1:9", "--storage-option", "key=a"]
    says(
        run("inspect", "s3://lake/orders", *nowhere, "--storage-option", "secret=b"),
        "could not list s3://lake/orders/commits: ",
        "HINT: check the address, the credentials and that the store is reachable",
        code=3,
    )


def test_an_unknown_scheme():
    refused(
        run("inspect", "nosuch://x/y"),
        "nosuch://x/y: Protocol not known: nosuch",
        "use a path, or a scheme and options that fsspec knows",
        code=3,
    )


def test_a_store_whose_client_is_not_installed():
    refused(
        run("inspect", "gs://lake/orders"),
        "gs://lake/orders: the client for gcs:// is not installed (Please install gcsfs to access Google Storage)",
        "pip install 'airflow-ckpt-provider[google]'",
        code=3,
    )
