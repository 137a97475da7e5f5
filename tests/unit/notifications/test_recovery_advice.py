"""The notifier and the callback: the advice is in the log, and they never fail."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from airflow.exceptions import AirflowException

from airflow_ckpt_provider.get_provider_info import get_provider_info
from airflow_ckpt_provider.notifications.recovery_advice import RecoveryAdviceNotifier, recovery_advice
from tests.samples.failing import recorded

NO_DELTA = recorded("4.0.0")["no_delta"]
#: As SparkSubmitOperator raises it.
SUBMITTED = AirflowException(
    "Cannot execute: spark-submit --master local[2] job.py. Error code is: 1.\nLast spark-submit output:\n"
    + NO_DELTA["message"]
)


def logged(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(
        record.getMessage() for record in caplog.records if record.name.startswith("airflow_ckpt_provider")
    )


@pytest.mark.parametrize("call", [RecoveryAdviceNotifier(), recovery_advice], ids=["notifier", "callback"])
def test_the_advice_is_in_the_log(call, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO):
        call({"exception": SUBMITTED})
    said = logged(caplog)
    assert "STATE-FILE-MISSING (CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA_FILE_NOT_EXISTS)" in said
    assert "$ airflow-ckpt doctor /srv/streams/no_delta/ck" in said


def test_an_exception_that_says_nothing_has_the_log_looked_at(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    log = tmp_path / "driver.log"
    log.write_text(NO_DELTA["trace"])
    RecoveryAdviceNotifier(log_file=str(tmp_path / "{{ name }}.log"))(
        {"exception": AirflowException("Error code is: 1."), "name": "driver"}
    )
    assert "STATE-FILE-MISSING" in logged(caplog)


def test_a_log_that_is_not_there_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    RecoveryAdviceNotifier(log_file=str(tmp_path / "none"))({"exception": AirflowException("Error code is: 1.")})
    assert "could not be read" in logged(caplog)
    assert "UNKNOWN: nothing in this text" in logged(caplog)


def test_unknown_errors_can_be_left_out(caplog: pytest.LogCaptureFixture):
    RecoveryAdviceNotifier(unknown=False)({"exception": AirflowException("no such customer")})
    assert logged(caplog) == ""


@pytest.mark.parametrize("context", [{}, {"exception": None}, {"exception": "[MALFORMED_LOG_FILE] as a text"}])
def test_whatever_the_context_has(context: dict[str, object], caplog: pytest.LogCaptureFixture):
    RecoveryAdviceNotifier()(dict(context))
    assert ("LOG-MALFORMED" in logged(caplog)) is bool(context.get("exception"))


def test_airflow_is_told_of_the_notifier():
    notifier = RecoveryAdviceNotifier
    assert f"{notifier.__module__}.{notifier.__name__}" in get_provider_info()["notifications"]
