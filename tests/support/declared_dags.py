"""The DAGs that `stream_dags` makes of a `streams.yaml`, loaded as Airflow does."""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG


def declare_in(directory: Path, text: str) -> dict[str, DAG]:
    """Write `dags/streams.yaml` with a file of DAGs beside it, and load that; ids -> DAGs.

    :param directory: that gets a directory `dags`.
    :param text: of the declaration.
    """
    from airflow.dag_processing.dagbag import DagBag

    folder = directory / "dags"
    folder.mkdir(exist_ok=True)
    (folder / "streams.yaml").write_text(text)
    (folder / "streams.py").write_text(
        "from airflow_ckpt_provider.dag_factory.stream_dags import stream_dags\n\n"
        'stream_dags("streams.yaml", default_args={"retries": 0})\n'
    )
    bag = DagBag(dag_folder=str(folder))
    assert bag.import_errors == {}
    return dict(bag.dags)
