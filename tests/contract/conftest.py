"""The workspace that the contract is asked of: the fake one, or the one that ``make contract`` names."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.cli.databricks_client import open_client
from airflow_ckpt_provider.errors import CkptError
from tests.contract.recording import Masks, Recording, RecordingClient
from tests.contract.target import Target as Target
from tests.fake_databricks import TOKEN, WAREHOUSE, FakeWorkspace

HOST = os.environ.get("CONTRACT_HOST", "")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """The workspace, with the contract's pipeline, its table and its source file; all are removed in the end."""
    recording = Recording()
    RecordingClient.recording = recording
    if not HOST:
        with FakeWorkspace() as fake:
            client = RecordingClient(fake.url, lambda: {"Authorization": f"Bearer {TOKEN}"}, sleep=lambda _: None)
            yield from _with_pipeline(Target(client, "ckpt_contract", "main.contract", WAREHOUSE, False))
        recording.save(tmp_path_factory.mktemp("contract") / "recording.jsonl", Masks({fake.url: "host"}))
        return
    os.environ["DATABRICKS_HOST"] = HOST
    opened = open_client(os.environ.get("CONTRACT_PROFILE") or None)
    client = RecordingClient(opened.host, opened._login)
    name, schema = os.environ["CONTRACT_PIPELINE"], os.environ.get("CONTRACT_SCHEMA") or "main.default"
    warehouse = os.environ.get("CONTRACT_WAREHOUSE") or _first_warehouse(client)
    try:
        yield from _with_pipeline(Target(client, name, schema, warehouse, True))
    finally:
        path = Path(os.environ.get("CONTRACT_RECORDING") or "contract-recording.jsonl")
        recording.save(path, Masks({client.host: "host", warehouse: "warehouse"}))
        print(f"\nrecorded in {path}: {recording.findings}")


def _first_warehouse(client: RecordingClient) -> str:
    found = client.call("GET", "2.0/sql/warehouses").get("warehouses") or []
    assert found, "there is no SQL warehouse: give WAREHOUSE=<id>"
    return str(found[0]["id"])


def _with_pipeline(target: Target) -> Iterator[Target]:
    client = target.client
    taken = [each for each in client.iter_pipelines(target.name) if each.get("name") == target.name]
    assert not taken, f"there is a pipeline {target.name} already: give the name of one that does not exist"
    catalog, schema = target.schema.split(".")
    path = f"/Shared/{target.name}.sql"
    code = f"CREATE OR REFRESH STREAMING TABLE {target.name}_copy AS SELECT * FROM STREAM({target.source})"
    removals: list[Callable[[], Any]] = []
    try:
        target.queries(f"CREATE SCHEMA IF NOT EXISTS {target.schema}")
        target.queries(f"CREATE TABLE {target.source} (id STRING, value STRING)")
        removals.append(lambda: target.queries(f"DROP TABLE {target.source}"))
        target.queries(f"INSERT INTO {target.source} VALUES ('a', '1'), ('b', '2')")
        content = base64.b64encode(code.encode()).decode()
        client.call(
            "POST", "2.0/workspace/import", {"path": path, "format": "AUTO", "content": content, "overwrite": True}
        )
        removals.append(lambda: client.call("POST", "2.0/workspace/delete", {"path": path}))
        made = client.call(
            "POST",
            "2.0/pipelines",
            {
                "name": target.name,
                "catalog": catalog,
                "schema": schema,
                "serverless": True,
                "continuous": False,
                "development": True,
                "configuration": {"contract.kept": "1"},
                "libraries": [{"file": {"path": path}}],
            },
        )
        target.pipeline_id = str(made["pipeline_id"])
        removals.append(lambda: client.call("DELETE", f"2.0/pipelines/{target.pipeline_id}"))
        yield target
    finally:
        failed = []
        for remove in reversed(removals):
            try:
                remove()
            except CkptError as e:
                failed.append(str(e))
        assert not failed, f"what the contract has made could not be removed: {failed}"
