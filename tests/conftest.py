"""What holds for every test: an Airflow of their own, the Python of the tests in Spark, and nobody's real credentials."""

from __future__ import annotations

import tests.throwaway_airflow  # isort: skip  # noqa: F401

import os
import sys

#: What would lead a client to a real account, or to an address other than the test's own.
_REAL_ACCOUNTS = ("AWS_", "AZURE_", "GOOGLE_APPLICATION_", "DATABRICKS_", "AIRFLOW_CONN_", "AIRFLOW_VAR_", "CKPT_")

#: ``make contract`` asks a real workspace, with its user's own login; nothing else does.
_KEPT = (
    "AWS_CA_BUNDLE",
    *(name for name in os.environ if name.startswith("DATABRICKS_") and "CONTRACT_HOST" in os.environ),
)

for name in list(os.environ):
    if name.startswith(_REAL_ACCOUNTS) and name not in _KEPT:
        del os.environ[name]

os.environ.update(
    {
        "AWS_EC2_METADATA_DISABLED": "true",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
)
