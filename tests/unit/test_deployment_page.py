"""docs/deployment.md names what there is: services, extras, variables, links; and an AWS connection is read as it says."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.support.compose import EXTRAS, SERVICES, is_one_shot

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deployment.md").read_text()


def table(heading: str) -> list[list[str]]:
    """The rows of the first table below a heading whose first column has this title."""
    [found] = re.findall(rf"^\| {re.escape(heading)} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in found.splitlines()]


def test_the_page_names_every_service() -> None:
    named = {name for row in table("service") for name in re.findall(r"`([a-z0-9-]+)`", row[0])}
    assert named == {name for name in SERVICES if not is_one_shot(name)}


def test_the_page_names_every_extra_with_what_it_brings() -> None:
    rows = {row[0].strip("`"): row[1] for row in table("extra")}
    assert set(rows) == set(EXTRAS)
    for extra, lines in EXTRAS.items():
        for line in lines:
            package = re.match(r"[a-z0-9-]+", line)[0]  # type: ignore[index]
            words = package.removeprefix("apache-airflow-providers-").removeprefix("apache-").removeprefix("microsoft-")
            assert words in rows[extra].lower(), (extra, package)


def test_the_page_names_every_variable_of_the_environment_that_a_dag_reads() -> None:
    read = {
        found: file.stem
        for file in (ROOT / "dags").glob("*.py")
        for found in re.findall(r'"(CKPT_[A-Z_]+)"', file.read_text())
    }
    named = {name for row in table("variable") for name in re.findall(r"`(CKPT_[A-Z_]+)`", row[0])}
    assert named == set(read)


@pytest.mark.parametrize(
    ("fields", "endpoint", "region", "key"),
    [
        ({"login": "k", "password": "s", "extra": {"endpoint_url": "http://h:1"}}, "http://h:1", "us-east-1", "k"),
        ({"extra": {"aws_access_key_id": "k", "aws_secret_access_key": "s"}}, None, "us-east-1", "k"),
        ({"login": "k", "password": "s", "extra": {"region_name": "eu-central-1"}}, None, "eu-central-1", "k"),
        (
            {"login": "k", "password": "s", "extra": {"service_config": {"s3": {"endpoint_url": "http://h:2"}}}},
            "http://h:2",
            "us-east-1",
            "k",
        ),
    ],
)
def test_an_aws_connection_is_read_as_the_page_says(
    fields: dict[str, Any], endpoint: str | None, region: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_ckpt_provider.places import open_place
    from airflow_ckpt_provider.storage.s3_store import S3Store

    # A name of its own each: Airflow keeps one filesystem for each connection id.
    name = f"page_{zlib.crc32(json.dumps(fields).encode())}"
    monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps({"conn_type": "aws", **fields}))
    for bundle in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(bundle, raising=False)  # with one of them it is s3fs that goes there
    store = open_place("s3a://lake/checkpoints", name).store
    assert isinstance(store, S3Store)
    assert (store.settings.endpoint, store.settings.region) == (endpoint, region)
    assert store.settings.credentials is not None
    assert store.settings.credentials()["access_key_id"] == key


def test_what_the_page_links_to_is_there() -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
