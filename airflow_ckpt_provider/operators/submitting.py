"""What the operators have in common that run applications by ``spark-submit``: such an application ends with its task."""

from __future__ import annotations

import logging
from typing import Any

from airflow_ckpt_provider.operators.masking import MaskingOperator

log = logging.getLogger(__name__)


class SubmittingOperator(MaskingOperator):
    """Base of the operators that run applications by ``spark-submit``.

    Airflow calls ``on_kill`` of a task that is killed or timed out. A worker that is lost calls nothing: its ``spark-submit`` may
    still run.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        #: The hooks of applications that run now.
        self._submitted: list[Any] = []

    def on_kill(self) -> None:
        """End the applications."""
        super().on_kill()
        for hook in tuple(self._submitted):
            end_application(hook)


def end_application(hook: Any) -> None:
    """End what a hook has submitted. Never fails, for that would hide why it is ended.

    :param hook: the ``SparkSubmitHook``.
    """
    try:
        hook.on_kill()
    except Exception:
        log.exception("the application of Spark could not be ended")
