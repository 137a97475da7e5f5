"""What goes wrong on purpose, request by request."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from typing import Any


@dataclass
class Fault:
    """What happens to some requests.

    :param method: empty for all.
    :param path: pattern that the path has to contain, as in ``/updates$``.
    :param nth: the first matching request it happens to, from 1.
    :param count: how many of them; None for all that follow.
    :param status: answer with this status.
    :param code: its ``error_code``.
    :param message: its message.
    :param retry_after: seconds in a ``Retry-After`` header.
    :param cut: no answer: the connection is cut.
    :param took_effect: the request is carried out all the same; only its answer is lost.
    :param delay: seconds that the answer takes.
    :param hold: the answer is held back until a test sets this event.
    :param then: called after the request was carried out, before the answer: what others do in the meantime.
    """

    method: str = ""
    path: str = ""
    nth: int = 1
    count: int | None = 1
    status: int = 0
    code: str = ""
    message: str = ""
    retry_after: float | None = None
    cut: bool = False
    took_effect: bool = False
    delay: float = 0
    hold: threading.Event | None = None
    then: Any = None
    #: Requests that matched so far.
    seen: int = 0

    def meets(self, method: str, path: str) -> bool:
        """Whether it happens to this request; counts it."""
        if self.method not in ("", method) or not re.search(self.path, path):
            return False
        self.seen += 1
        return self.seen >= self.nth and (self.count is None or self.seen < self.nth + self.count)

    @property
    def carried_out(self) -> bool:
        """Whether the request does what it asks for."""
        return self.took_effect or not (self.status or self.cut)

    def answer(self) -> tuple[int, dict[str, Any], dict[str, str]]:
        """Status, body and headers."""
        code = self.code or _CODES.get(self.status, "INTERNAL_ERROR")
        headers = {} if self.retry_after is None else {"Retry-After": f"{self.retry_after:g}"}
        return self.status, {"error_code": code, "message": self.message or _MESSAGES.get(self.status, code)}, headers


_CODES = {
    400: "INVALID_PARAMETER_VALUE",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "RESOURCE_DOES_NOT_EXIST",
    409: "CONFLICT",
    429: "RESOURCE_EXHAUSTED",
    503: "TEMPORARILY_UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_MESSAGES = {
    429: "Current request has to be throttled because it exceeds the rate limit.",
    503: "The service at this path is temporarily unavailable. Please try again later.",
    504: "Timed out waiting for the upstream server.",
}
