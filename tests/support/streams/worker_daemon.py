"""Spark's daemon of Python workers with pandas loaded before it forks: half a second less for each worker."""

from __future__ import annotations

import pandas  # noqa: F401
import pyarrow  # noqa: F401
from pyspark.daemon import manager

if __name__ == "__main__":
    manager()
