"""Tables of Spark's catalogs: described and restored by applications that ``spark-submit`` runs. Who runs them lies above."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from airflow_ckpt_provider.errors import RefusedError, StorageError
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.sinks.named_tables import SPARK, Described, NamedTable, TableEngine, quoted
from airflow_ckpt_provider.sinks.spark_restore import APPLICATION

#: The application that describes a table, as a file: it runs alone.
DESCRIBE = str(Path(__file__).parents[1] / "jobs" / "describe_table.py")

#: Runs an application with its arguments. Raises ``RefusedError`` where it refused, ``StorageError`` where it failed.
RunApplication = Callable[[str, list[str]], None]


@dataclass(frozen=True, slots=True)
class SparkTables(TableEngine):
    """One of :class:`~airflow_ckpt_provider.sinks.named_tables.TableEngine`.

    :param run: runs an application; its driver has to see the files of this machine.
    """

    run: RunApplication
    kind: str = SPARK
    words: str = "Spark"

    def resolve(self, name: str) -> NamedTable:
        """Where Spark says that the table lies."""
        detail = self.describe(name).detail
        if str(detail.get("format") or "").lower() != "delta":
            raise RefusedError(
                f"{name} is a table of the format {detail.get('format') or 'unknown'}, not delta",
                hint="name a Delta table, or an Iceberg table as iceberg:CATALOG.NAMESPACE.TABLE",
            )
        location = str(detail.get("location") or "")
        return NamedTable(name, location.removeprefix("file:") if location.startswith("file:/") else location)

    def describe(self, name: str) -> Described:
        """Run the application that describes it."""
        with TemporaryDirectory() as directory:
            out = Path(directory) / "table.json"
            self.run(DESCRIBE, ["--table", quoted(name), "--out", str(out)])
            try:
                found = load_json(out.read_text())
            except (OSError, ValueError) as e:
                raise StorageError(
                    f"Spark left no description of {name} on this machine ({e})",
                    hint="run Spark in client mode: its driver has to write a file here",
                ) from e
        if refused := found.get("refused"):
            raise RefusedError(
                f"Spark does not describe {name}: {refused}",
                hint="give the name of a Delta table as Spark has it; a view has none of its own: name the table that the query "
                "writes to",
            )
        return Described(found["detail"], found["history"])

    def restore(self, name: str, version: int, *, plan_id: str) -> None:
        """Run the application that restores it."""
        self.run(APPLICATION, ["--name", quoted(name), "--version", str(version), "--plan", plan_id])
