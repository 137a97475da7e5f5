"""An Airflow of its own for the tests: own home, SQLite, no examples, everybody is admin.

Airflow reads its environment when it is first imported, so this module has to be imported before it: by the ``conftest.py``
of every folder whose tests import Airflow, in its first lines. It overrules what the environment says, because the
other Airflow may be somebody's real one.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

if "airflow" in sys.modules:
    raise RuntimeError(
        "tests.support.throwaway_airflow has to be imported before airflow: import it in tests/conftest.py"
    )

_directory = tempfile.TemporaryDirectory(prefix="airflow-home-", ignore_cleanup_errors=True)
HOME = Path(_directory.name)
(HOME / "dags").mkdir()

os.environ.update(
    {
        "AIRFLOW_HOME": str(HOME),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(HOME / "dags"),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{HOME}/airflow.db",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(HOME / "logs"),
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
        "AIRFLOW__API_AUTH__JWT_SECRET": "a secret of the tests, long enough for the algorithm: " + "x" * 64,
    }
)
