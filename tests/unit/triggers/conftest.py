from __future__ import annotations

import tests.support.throwaway_airflow  # isort: skip  # noqa: F401
