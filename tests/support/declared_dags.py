"""The DAGs that `stream_dags` makes of a `streams.yaml`, loaded as Airflow does."""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG

from tests.support.airflow_runs import load_dags


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
