"""Source code of pipelines that is imported into the workspace, as far as the contract's own pipeline needs it.

One statement a table: ``CREATE OR REFRESH STREAMING TABLE name AS SELECT * FROM STREAM(table)``, with ``startingVersion`` of
``STREAM … WITH ('startingVersion' = '${key}')`` where the configuration gives it.
"""

from __future__ import annotations

import re

from tests.fake_databricks.errors import invalid
from tests.fake_databricks.flows import Dataset, Flow

_TABLE = re.compile(
    r"CREATE\s+OR\s+REFRESH\s+STREAMING\s+TABLE\s+(?P<name>\w+)\s+AS\s+SELECT\s+\*\s+FROM\s+STREAM\s*\(?\s*(?P<source>[\w.]+)\s*\)?",
    re.IGNORECASE,
)


def compiled(code: str, columns: dict[str, dict[str, str]]) -> tuple[list[Dataset], list[Flow]]:
    """Datasets and flows of source code.

    :param code: SQL.
    :param columns: of the tables that it may read.
    :raises ApiError: 400, it is none of what this workspace can read.
    """
    datasets, flows = [], []
    for statement in filter(str.strip, code.split(";")):
        match = _TABLE.fullmatch(statement.strip())
        if match is None:
            raise invalid(f"This workspace cannot read: {statement.strip()[:100]}")
        name, source = match["name"], match["source"]
        datasets.append(Dataset(name, columns.get(source, {})))
        flows.append(Flow(name, name, (source,), language="sql", explicit_name=False))
    return datasets, flows
