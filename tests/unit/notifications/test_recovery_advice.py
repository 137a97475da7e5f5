"""The notifier and the callback: the advice is in the log, and they never fail."""

from __future__ import annotations

import json
import logging
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import Message
from pathlib import Path

import pytest
from airflow.exceptions import AirflowException
from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk import DAG, BaseNotifier
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.get_provider_info import get_provider_info
from airflow_ckpt_provider.notifications.recovery_advice import RecoveryAdviceNotifier, recovery_advice
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
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
    # A task first, for it is read in Airflow; the command too, for whoever has a shell.
    task, command = (said.index(text) for text in ("in a DAG: CheckpointDoctorOperator(", "$ airflow-ckpt doctor"))
    assert task < command
    assert 'CheckpointDoctorOperator(checkpoint="/srv/streams/no_delta/ck")' in said
    assert "--apply carries" not in said


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


class Unspeakable(Exception):
    """An error whose message cannot be made."""

    def __str__(self) -> str:
        raise AttributeError("response")


def test_an_error_whose_message_cannot_be_made_is_told_by_its_class(caplog: pytest.LogCaptureFixture):
    sent: list[str] = []
    error = AirflowException("the job failed")
    error.__cause__ = Unspeakable()
    for each in (Unspeakable(), error):
        RecoveryAdviceNotifier(Recorded("{{ recovery_advice.error }}", sent))({"exception": each})
    assert sent == ["its message cannot be shown: Unspeakable.__str__ raised AttributeError", "the job failed"]


class Recorded(BaseNotifier):
    """A notifier as any other, which keeps what it would have sent."""

    template_fields = ("message",)

    def __init__(self, message: str, sent: list[str]) -> None:
        super().__init__()
        self.message = message
        self.sent = sent

    def notify(self, context) -> None:
        self.sent.append(self.message)


class Broken(BaseNotifier):
    def notify(self, context) -> None:
        raise OSError("no route to the pager")


ALL = "{{ recovery_advice.code }}|{{ recovery_advice.known }}|{{ recovery_advice.summary }}|{{ ti }}"


def test_other_notifiers_are_told_and_one_that_fails_does_not_silence_the_next(caplog: pytest.LogCaptureFixture):
    sent: list[str] = []
    notifier = RecoveryAdviceNotifier(Broken(), Recorded(ALL, sent))
    notifier({"exception": SUBMITTED, "ti": "orders.stream"})
    notifier({"exception": AirflowException("no such customer"), "ti": "orders.load"})
    assert sent[0].startswith("STATE-FILE-MISSING|True|STATE-FILE-MISSING: ")
    assert sent[0].endswith("|orders.stream")
    assert "\n" not in sent[0]
    # The templates of the second failure are those of the notifier, not what the first has made of them.
    assert sent[1].startswith("UNKNOWN|False|")
    assert sent[1].endswith("|orders.load")
    assert "Broken could not send the recovery advice" in logged(caplog)


def test_what_is_not_known_is_sent_only_where_that_is_wanted():
    sent: list[str] = []
    RecoveryAdviceNotifier(Recorded(ALL, sent), unknown=False)({"exception": AirflowException("no"), "ti": ""})
    RecoveryAdviceNotifier(Recorded(ALL, sent), unknown=False)({"ti": ""})
    assert sent == []
    RecoveryAdviceNotifier(Recorded(ALL, sent))({"reason": "task_failure", "ti": ""})  # as of a DAG
    assert sent == ["UNKNOWN|False|UNKNOWN: task_failure|"]


def test_what_this_package_refuses_says_itself_what_to_do():
    sent: list[str] = []
    with pytest.raises(AirflowFailException) as raised, no_retry_when_refused():
        raise RefusedError("/ck is damaged", hint="`--repair` is rewound")
    RecoveryAdviceNotifier(Recorded("{{ recovery_advice.text }}|{{ recovery_advice.steps[0].text }}", sent))(
        {"exception": raised.value}
    )
    assert sent == ["/ck is damaged\nHINT: `repair=True` is rewound|`repair=True` is rewound"]


def test_nothing_of_an_error_is_markup_in_a_mail_and_no_password_is_sent():
    sent: list[str] = []
    error = AirflowException("<script>alert(1)</script> at s3://key:secret-word@b/ck\nHINT: look")
    RecoveryAdviceNotifier(Recorded("{{ recovery_advice.html }}|{{ recovery_advice.error }}", sent))(
        {"exception": error}
    )
    assert "<script>" not in sent[0].partition("|")[0]
    assert "&lt;script&gt;" in sent[0]
    assert "secret-word" not in sent[0]


def test_no_step_has_the_password_of_an_address():
    sent: list[list[dict[str, str]]] = []

    class Steps(BaseNotifier):
        def notify(self, context):
            sent.append(context["recovery_advice"]["steps"])

    error = AirflowException("IllegalStateException: s3a://key:secret-word@b/ck/orders/offsets/3 does not exist")
    RecoveryAdviceNotifier(Steps())({"exception": error})
    assert any("s3a://key:***@b/ck/orders" in (step.get("command") or "") for step in sent[0])
    assert "secret-word" not in str(sent)


def test_the_advice_arrives_by_airflows_own_mail(monkeypatch: pytest.MonkeyPatch):
    with mail_server() as (port, received):
        extra = {"disable_ssl": True, "disable_tls": True}
        conn = {"conn_type": "smtp", "host": "127.0.0.1", "port": port, "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_SMTP_CKPT", json.dumps(conn))
        # [START howto_alerting_mail]
        notifier = RecoveryAdviceNotifier(
            SmtpNotifier(
                smtp_conn_id="smtp_ckpt",
                from_email="airflow@example.com",
                to="oncall@example.com",
                subject="{{ dag.dag_id }}: {{ recovery_advice.summary }}",
                html_content="{{ recovery_advice.html }}",
            )
        )
        # [END howto_alerting_mail]
        notifier({"exception": SUBMITTED, "dag": DAG("orders", schedule=None)})
    [message] = received
    assert message["Subject"].startswith("orders: STATE-FILE-MISSING: ")
    assert "CheckpointDoctorOperator" in message.get_payload()[0].get_payload(decode=True).decode()


@contextmanager
def mail_server() -> Iterator[tuple[int, list[Message]]]:
    """As much of an SMTP server (RFC 5321) as it takes to receive a mail without login."""
    received: list[Message] = []

    class Session(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 test\r\n")
            while line := self.rfile.readline().strip().upper():
                if line == b"DATA":
                    self.wfile.write(b"354 continue\r\n")
                    text = b"".join(iter(self.rfile.readline, b".\r\n"))
                    received.append(message_from_bytes(text, policy=policy.default))
                self.wfile.write(b"221 bye\r\n" if line == b"QUIT" else b"250 ok\r\n")
                if line == b"QUIT":
                    return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Session) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_address[1], received
        finally:
            server.shutdown()
            thread.join()


def test_airflow_is_told_of_the_notifier():
    notifier = RecoveryAdviceNotifier
    assert f"{notifier.__module__}.{notifier.__name__}" in get_provider_info()["notifications"]
