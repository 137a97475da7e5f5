"""The exit codes of the Spark applications: as those of ``airflow-ckpt``."""

from __future__ import annotations

import sys
from collections.abc import Callable

from airflow_ckpt_provider.errors import CkptError, StorageError


def exit_code_of(work: Callable[[], int]) -> int:
    """Run an application; an error is printed, with its hint.

    :param work: returns the exit code.
    :return: that, or 1 where it was refused, 3 where it could not read or write.
    """
    try:
        return work()
    except StorageError as e:
        print(e, file=sys.stderr)
        return 3
    except CkptError as e:
        print(e, file=sys.stderr)
        return 1
