"""The lineage has no Airflow in it; the operators that note it have."""

from __future__ import annotations

from tests.support.operator_runs import checkpoint as checkpoint
from tests.support.operator_runs import repository as repository
from tests.support.operator_runs import run as run

import tests.support.throwaway_airflow  # isort: skip  # noqa: F401
