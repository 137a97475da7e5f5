from __future__ import annotations

import tests.throwaway_airflow  # isort: skip  # noqa: F401
