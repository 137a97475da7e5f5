"""What the operators have in common whose reads and writes executors of Spark can carry out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_ckpt_provider.operators.fields import mapping, one_of, required, texts, whole_number
from airflow_ckpt_provider.operators.submitting import SubmittingOperator

LOCAL, SPARK, AUTO = "local", "spark", "auto"
#: From how much on work is worth a cluster: what one process copies in about ten minutes where the store copies by itself.
SPARK_FROM_FILES = 200_000
SPARK_FROM_BYTES = 1024**4


class ExecutorsOperator(SubmittingOperator):
    """Base of the operators that let executors of Spark read or write many files.

    :param engine: who does it: ``local``: this task; ``spark``: the executors of a cluster, for millions of files or terabytes;
        ``auto``: the cluster where much is to be done, this task otherwise. The result is the same whoever does it. (templated)
    :param spark_conn_id: Airflow connection of type ``spark``: the cluster. Its driver and executors reach all places with
        credentials of their own; the connections of places stay here. (templated)
    :param spark_settings: what else ``SparkSubmitHook`` is given, such as ``conf`` and ``num_executors``. (templated)
    :param spark_arguments: further arguments of the application, such as ``["--key-file", "/run/secrets/ckpt"]`` for an
        encrypted repository. (templated)
    :param spark_from_files: with ``auto``: from this number of files on. (templated)
    :param spark_from_bytes: with ``auto``: from this number of bytes on. (templated)
    """

    template_fields: Sequence[str] = (
        "engine",
        "spark_conn_id",
        "spark_settings",
        "spark_arguments",
        "spark_from_files",
        "spark_from_bytes",
    )

    def __init__(
        self,
        *,
        engine: str = LOCAL,
        spark_conn_id: str = "spark_default",
        spark_settings: dict[str, Any] | None = None,
        spark_arguments: Sequence[str] = (),
        spark_from_files: int | str = SPARK_FROM_FILES,
        spark_from_bytes: int | str = SPARK_FROM_BYTES,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.engine = engine
        self.spark_conn_id = spark_conn_id
        self.spark_settings = spark_settings
        self.spark_arguments = spark_arguments
        self.spark_from_files = spark_from_files
        self.spark_from_bytes = spark_from_bytes

    def _engine(self) -> str:
        return one_of(self.engine, "engine", (LOCAL, SPARK, AUTO))

    def _limits(self) -> dict[str, int]:
        """From how much on ``auto`` takes the cluster."""
        return {
            "files": whole_number(self.spark_from_files, "spark_from_files", least=1) or SPARK_FROM_FILES,
            "size": whole_number(self.spark_from_bytes, "spark_from_bytes", least=1) or SPARK_FROM_BYTES,
        }

    def _run_on_spark(self, application: str, arguments: Sequence[str]) -> None:
        """Run an application by ``spark-submit`` as the connection says, and wait for its end.

        :raises StorageError: it failed.
        """
        from airflow_ckpt_provider.operators.spark_restore import run_by_connection

        conn_id = required(self.spark_conn_id, "spark_conn_id")
        settings = mapping(self.spark_settings, "spark_settings")
        run = run_by_connection(conn_id, what="read and write", under_way=self._submitted, **settings)
        run(application, [*arguments, *texts(self.spark_arguments, "spark_arguments")])
