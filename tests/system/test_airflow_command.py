"""``airflow ckpt``: the same answers as ``airflow-ckpt``, with Airflow's connections, and its logs kept out of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from airflow.models.connection import Connection
from airflow.utils.session import create_session

from tests.support.command_line import Finished, run
from tests.support.s3_server import S3Server

pytestmark = pytest.mark.airflow


def airflow(*argv: object) -> Finished:
    """Run ``airflow`` in a process of its own."""
    program = Path(sys.executable).with_name("airflow")
    finished = subprocess.run([program, *map(str, argv)], capture_output=True, text=True, timeout=240, check=False)
    return Finished(finished.returncode, finished.stdout, finished.stderr)


def test_the_answer_is_that_of_the_other_command(checkpoint: Path):
    finished = airflow("ckpt", "inspect", checkpoint, "--json")
    assert (finished.code, finished.document) == (0, run("inspect", checkpoint, "--json").document)


def test_a_refusal(tmp_path: Path):
    finished = airflow("ckpt", "backup", tmp_path, tmp_path / "backups")
    assert (finished.code, finished.out) == (1, "")
    # It names Airflow's own command, which can use its connections.
    said = run("backup", tmp_path, tmp_path / "backups").err
    assert "`airflow-ckpt init " in said
    assert finished.err.endswith(said.replace("airflow-ckpt", "airflow ckpt"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_connection_of_the_database(metadata_database: None, s3_server: S3Server, checkpoint: Path, repository: Path):
    """Airflow's own hooks log what they do: nothing of that is in the answer."""
    bucket = s3_server.make_bucket()
    s3_server.filesystem().put(f"{checkpoint}/", f"{bucket}/orders/", recursive=True)
    with create_session() as session:
        session.add(Connection.from_json(s3_server.airflow_connection(), conn_id="lake"))

    of_repository = ("--repository-conn-id", "lake")
    assert airflow("ckpt", "init", f"s3://{bucket}/backups", *of_repository).code == 0
    taken = airflow(
        *("ckpt", "backup", f"s3://{bucket}/orders", f"s3://{bucket}/backups", "--json"),
        *("--checkpoint-conn-id", "lake", *of_repository),
    )
    assert taken.code == 0, taken.err
    assert "lake" in taken.err, "the hook's log went where it belongs"
    assert taken.document["checkpoint"] == f"s3://{bucket}/orders"
    assert taken.document["copied_files"] == taken.document["files"]
