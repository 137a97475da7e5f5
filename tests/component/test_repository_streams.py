"""The repository from the command line, on a disk and on a real S3 server: streams, and what must not become one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.checkpoints import QUERY_ID
from tests.support.command_line import Finished, run
from tests.support.replaced_queries import OTHER, begin
from tests.support.s3_server import S3Server


@dataclass(frozen=True)
class Lake:
    """Two checkpoints whose paths have the same last segment, and a repository.

    :param place: where they are.
    :param command: runs the program with what it takes to reach them.
    """

    place: Location
    command: Callable[..., Finished]

    def uri(self, path: str) -> str:
        return (self.place / path).uri

    def back_up(self, path: str, *options: object) -> Finished:
        return self.command("backup", self.uri(path), self.uri("backups"), *options)

    def query_id(self, path: str) -> str:
        return str(json.loads((self.place / path).read("metadata"))["id"])


@pytest.fixture(params=["disk", "s3"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, s3_server: S3Server) -> Lake:
    if request.param == "disk":
        made = Lake(open_location(str(tmp_path)), run)
    else:
        options = s3_server.options()
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in options.items()}
        arguments = [word for key, text in texts.items() for word in ("--storage-option", f"{key}={text}")]
        made = Lake(
            open_location(f"s3://{s3_server.make_bucket()}", storage_options=options),
            lambda *argv: run(*argv, *arguments),
        )
    assert made.command("init", made.uri("backups")).code == 0
    begin(made.place / "orders/_checkpoint", QUERY_ID)
    begin(made.place / "payments/_checkpoint", OTHER)
    return made


def test_two_streams_stay_two(lake: Lake) -> None:
    """The finding: both were `_checkpoint`, a restore put payments into orders, an expire removed the only backup of orders."""
    for path, name in (("orders/_checkpoint", "_checkpoint"), ("payments/_checkpoint", "payments._checkpoint")) * 2:
        assert lake.back_up(path, "--json").document["name"] == name
    kept = lake.command("expire", lake.uri("backups"), "--keep-last", 1, "--apply", "--json")
    assert kept.code == 0
    listed = lake.command("backups", lake.uri("backups"), "--json").document["backups"]
    assert [(b["name"], b["query_id"]) for b in listed] == [("_checkpoint", QUERY_ID), ("payments._checkpoint", OTHER)]

    into = ("restore", lake.uri("backups"), "latest", lake.uri("orders/_checkpoint"), "--replace", "--apply")
    stopped = ("--query-is-stopped", "--quiet-for", 0)
    assert lake.command(*into, "--name", "_checkpoint", *stopped).code == 0
    assert lake.query_id("orders/_checkpoint") == QUERY_ID
    refused = lake.command(*into, "--name", "payments._checkpoint", *stopped)
    assert refused.code == 1
    assert f"other_query (the target belongs to query {QUERY_ID}, and the backup is of query {OTHER}" in refused.err
    assert "--accept other_query" in refused.err
    assert lake.query_id("orders/_checkpoint") == QUERY_ID
    accepted = lake.command(*into, "--name", "payments._checkpoint", *stopped, "--accept", "other_query")
    assert accepted.code == 0, accepted.err
    assert lake.query_id("orders/_checkpoint") == OTHER


def test_a_name_is_of_one_stream(lake: Lake) -> None:
    assert lake.back_up("orders/_checkpoint", "--name", "sales").code == 0
    refused = lake.back_up("payments/_checkpoint", "--name", "sales")
    assert refused.code == 1
    assert f"are of another stream: query {QUERY_ID} of {lake.uri('orders/_checkpoint')}" in refused.err
    assert "HINT: if it continues that stream, say so (--new-life, or new_life=True, with --name sales)" in refused.err
    assert lake.back_up("payments/_checkpoint", "--name", "sales", "--new-life").code == 0
    assert lake.back_up("payments/_checkpoint", "--json").document["name"] == "sales"
