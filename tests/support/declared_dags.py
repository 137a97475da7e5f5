"""The DAGs that `stream_dags` makes of a `streams.yaml`, loaded as Airflow does."""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG

from tests.support.airflow_runs import load_dags

DECLARED = """
defaults:
  repository: s3://backups/streams
  storage_conn_id: aws_lake
streams:
  orders:
    checkpoint: s3://lake/checkpoints/orders
    sources: {kafka: {conn_id: kafka_prod}}
    stop: ./stop.sh
    start: ./start.sh
    deploy: ./deploy.sh
    roll_back: ./roll_back.sh
    objectives: {rpo: 1h}
    retention: {daily: 30}
    drill: {build: "orders.stream:build", scratch: s3a://lake/scratch}
    tags: gold
    owner: team-orders
  clicks: {checkpoint: s3://lake/checkpoints/clicks, owner: team-clicks}
  views: {checkpoint: s3://lake/checkpoints/views, backup: {schedule: 30 2 * * *}}
"""


def write(place: Path, text: str = DECLARED) -> str:
    """Write a declaration into a directory; returns its path."""
    (place / "streams.yaml").write_text(text)
    return str(place / "streams.yaml")


def declare_in(directory: Path, text: str) -> dict[str, DAG]:
    """Write `dags/streams.yaml` with a file of DAGs beside it, and load that; ids -> DAGs.

    :param directory: that gets a directory `dags`.
    :param text: of the declaration.
    """
    folder = directory / "dags"
    folder.mkdir(exist_ok=True)
    (folder / "streams.yaml").write_text(text)
    (folder / "streams.py").write_text(
        "from airflow_ckpt_provider.dag_factory.stream_dags import stream_dags\n\n"
        'stream_dags("streams.yaml", default_args={"retries": 0})\n'
    )
    return load_dags(folder)
