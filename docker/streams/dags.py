"""The DAGs of the stream of docker-compose.yml."""

from airflow_ckpt_provider.dag_factory.stream_dags import stream_dags

stream_dags("streams.yaml")
