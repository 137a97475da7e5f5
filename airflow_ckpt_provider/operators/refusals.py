"""Which failures Airflow may try again, judged in one place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowOptionalProviderFeatureException

from airflow_ckpt_provider.errors import BackupRunningError, ChangeRunningError, MissingExtraError, RefusedError


@contextmanager
def no_retry_when_refused() -> Iterator[None]:
    """Fail the task permanently when a guardrail said no; the same question would get the same answer.

    All else is raised as it is and retried by the task's own rule: a store that was out of reach, a log file caught
    while it was being written, a lease that was lost. So is the refusal that passes by itself, another backup or change that is
    running: it may be the attempt before, on a worker that was lost. The hint of what fails names arguments instead of options.
    """
    from airflow_ckpt_provider.advisor.surface import for_operators

    try:
        yield
    except (BackupRunningError, ChangeRunningError):
        raise
    except RefusedError as e:
        raise AirflowFailException(for_operators(str(e))) from e
    except MissingExtraError as e:
        raise AirflowOptionalProviderFeatureException(str(e)) from e
