"""The description of new code, as ``airflow_ckpt_provider.jobs.describe_query`` writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.checkpoint.query_shape import QueryShape
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.json_text import load_json

FORMAT, VERSION = "airflow-ckpt-query-description", 1


@dataclass(frozen=True, slots=True)
class QueryDescription:
    """What code would write into a new checkpoint.

    :param build: the function it was made from, as given.
    :param spark: version of Spark it was made with.
    :param databricks_runtime: version of the Databricks Runtime; empty for none.
    :param output_mode: output mode of the query.
    :param state_format: ``stateStore.checkpointFormatVersion`` of its session.
    :param plan: the stateful parts of its logical plan, in Spark's words, the one next to the sink first; empty: not known.
    :param shape: what its first batch wrote into an empty checkpoint.
    """

    build: str
    spark: str
    databricks_runtime: str
    output_mode: str
    state_format: int
    plan: tuple[str, ...]
    shape: QueryShape

    def to_json(self) -> dict[str, Any]:
        """The description as plain JSON."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "build": self.build,
            "spark": self.spark,
            "databricks_runtime": self.databricks_runtime,
            "output_mode": self.output_mode,
            "state_format": self.state_format,
            "plan": list(self.plan),
            "shape": self.shape.to_json(),
        }


def parse_description(data: str | bytes, *, path: str) -> QueryDescription:
    """Read a description.

    :param path: where it is from, for messages.
    :raises RefusedError: it is something else, or of a version that is not known here.
    """
    try:
        value = load_json(data)
        if value["format"] != FORMAT or value["version"] != VERSION:
            raise ValueError(
                f"format {value['format']} version {value['version']}, known here: {FORMAT} version {VERSION}"
            )
        return QueryDescription(
            build=str(value["build"]),
            spark=str(value["spark"]),
            databricks_runtime=str(value["databricks_runtime"]),
            output_mode=str(value["output_mode"]),
            state_format=int(value["state_format"]),
            plan=tuple(map(str, value["plan"])),
            shape=QueryShape.from_json(value["shape"]),
        )
    except (ValueError, KeyError, TypeError) as e:
        raise RefusedError(
            f"{path} is not the description of a query ({type(e).__name__}: {e})",
            hint="make it with `spark-submit describe_query.py --build package.module:build --output URI`",
        ) from e
