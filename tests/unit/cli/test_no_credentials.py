"""The command line shows no credential, whatever is wrong with what it was given."""

from __future__ import annotations

import pytest

from airflow_ckpt_provider.cli.main import main

SECRET = "s3cr3t+/value"
AT_NO_SERVER = ("--storage-option", "endpoint_url=http://127.0.0.1:1", "--storage-option", "key=AKIA")


@pytest.mark.parametrize(
    "argv",
    [
        ["inspect", f"nosuch://user:{SECRET}@host/path"],
        ["inspect", f"https://host/path?sig={SECRET}"],
        ["inspect", f"s3://AKIA:{SECRET}@bucket/path", *AT_NO_SERVER, "--storage-option", f"secret={SECRET}"],
        ["backup", f"s3://AKIA:{SECRET}@bucket/path", f"sftp://me:{SECRET}@127.0.0.1:1/backups", *AT_NO_SERVER],
        ["inspect", "s3://bucket/path", "--storage-option", SECRET],
        ["inspect", "s3://bucket/path", "--storage-option", f"secret:{SECRET}"],
        ["inspect", "s3://bucket/path", "--storage-option", f'client_kwargs={{"secret": "{SECRET}"'],
        ["rewind", "s3://bucket/path", "--list", "--sink-option", SECRET],
        ["inspect", "s3://bucket/path", f"s3://user:{SECRET}@bucket/more"],
    ],
)
@pytest.mark.parametrize("flags", [(), ("--debug",), ("--json",)])
def test_an_error_shows_none(argv: list[str], flags: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    try:
        code = main([*argv, *flags])
    except SystemExit as e:
        code = int(e.code or 0)
    shown = capfd.readouterr()
    assert code in (1, 2, 3)
    assert shown.err
    assert SECRET not in shown.out + shown.err
    assert "s3cr3t" not in shown.out + shown.err
