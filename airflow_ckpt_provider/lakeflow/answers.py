"""What a workspace's refusals mean, in this package's errors, whichever client received them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from airflow_ckpt_provider.errors import (
    ActiveUpdateError,
    CkptError,
    NoSuchPipelineError,
    RefusedError,
    WorkspaceError,
    WorkspaceForbiddenError,
)
from airflow_ckpt_provider.json_text import load_json

#: The longest that ``Retry-After`` makes one wait wait, in seconds.
LONGEST = 300.0
_ACTIVE = re.compile(r"[Aa]n active update (?P<id>\S+) already exists")


def error_of(subject: str, status: int, body: str) -> CkptError:
    """Return the error that an answer means.

    :param subject: what was asked about, in words.
    :param status: of the answer.
    :param body: of the answer.
    """
    code, message = _code_and_message(body)
    said = f"{subject}: {message} ({status}{f' {code}' if code else ''})"
    active = _ACTIVE.search(message)
    if status == 409 or (status == 400 and "active update" in message.lower()):
        return ActiveUpdateError(
            said,
            update_id=active["id"].strip("'\".") if active else "",
            hint="wait for it (on_active_update='wait'), stop it (on_active_update='stop'), or try again later",
        )
    if status == 401:
        return WorkspaceForbiddenError(
            said,
            status=status,
            error_code=code,
            hint="the token of the connection is wrong or expired: give it a new one",
        )
    if status == 403:
        return WorkspaceForbiddenError(
            said,
            status=status,
            error_code=code,
            hint="the connection's user needs the permission CAN RUN (CAN VIEW to plan)",
        )
    if status == 404:
        return NoSuchPipelineError(said, hint="check the id and the workspace of the connection")
    if 400 <= status < 500 and status not in (408, 429) and code != "COULD_NOT_ACQUIRE_LOCK":
        return RefusedError(said, hint="the workspace refuses the request as it is: change what the message names")
    return WorkspaceError(said, status=status, error_code=code, hint="try again")


def retry_after_of(headers: Mapping[str, str]) -> float:
    """Return the seconds that the workspace asks to wait; 0 where it asks for nothing that can be read."""
    asked = str(headers.get("Retry-After") or 0)
    try:
        return max(0.0, min(float(asked), LONGEST))
    except ValueError:
        pass
    try:  # a date; where the answer has its own time, that clock is the one to compare it with
        now = parsedate_to_datetime(headers["Date"]) if headers.get("Date") else datetime.now(UTC)
        return max(0.0, min((parsedate_to_datetime(asked) - now).total_seconds(), LONGEST))
    except (ValueError, TypeError):
        return 0.0


def _code_and_message(body: str) -> tuple[str, str]:
    try:
        loaded = load_json(body)
    except ValueError:
        return "", body[:300]
    if not isinstance(loaded, dict):
        return "", body[:300]
    return str(loaded.get("error_code") or ""), str(loaded.get("message") or body[:300])
