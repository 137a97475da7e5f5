"""The lineage has no Airflow in it; the operators that note it have."""

from __future__ import annotations

import tests.support.throwaway_airflow  # isort: skip  # noqa: F401

from tests.unit.operators.conftest import checkpoint, repository, run  # noqa: F401
