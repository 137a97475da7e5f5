"""The one place that talks to Spark's REST interface: a driver's user interface, or a history server."""

from __future__ import annotations

import logging
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.parse import quote, urlsplit

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.json_text import load_json

log = logging.getLogger(__name__)

#: Seconds for one answer, and bytes of it.
TIMEOUT = 10.0
_MOST = 4 * 1024 * 1024
_ADDRESS = re.compile(r"(?P<base>https?://[^/?#]+(?:/[^?#]*?)?)/api/v1/applications/(?P<id>[^/?#]+)(?:[/?#].*)?")


@dataclass(frozen=True, slots=True)
class SparkApplicationEnded:
    """Whether a Spark application has ended, by its newest attempt.

    A history server reports an end. The interface of a driver ends with its driver, and a driver that does not answer is not
    one that has ended: it may be out of reach.

    :param base: address before ``/api/v1``: ``http://driver:4040``, ``https://history:18080``.
    :param application_id: id of the application.
    :param timeout: seconds for an answer.
    """

    base: str
    application_id: str
    timeout: float = TIMEOUT

    @classmethod
    def at(cls, address: str) -> SparkApplicationEnded:
        """Take an address such as ``http://history:18080/api/v1/applications/app-20261121083000-0007``.

        :raises RefusedError: it is none.
        """
        match = _ADDRESS.fullmatch(address.strip())
        if match is None or "@" in urlsplit(address).netloc:
            raise RefusedError(
                f"{address!r} is not the address of an application in Spark's REST interface",
                hint="give http(s)://<host>:<port>/api/v1/applications/<application id>, without a password",
            )
        return cls(match["base"], match["id"])

    def ended(self) -> str | None:
        """Return which attempt has ended when; ``None`` where that is not known.

        :raises RefusedError: the application runs.
        """
        attempt = self._newest_attempt()
        if attempt is None:
            return None
        if attempt.get("completed") is True:
            return f"Spark's REST interface at {self.base} says that {self._name(attempt)} ended at {attempt.get('endTime')}"
        if attempt.get("completed") is False:
            raise RefusedError(
                f"Spark's REST interface at {self.base} says that {self._name(attempt)} runs since {attempt.get('startTime')}",
                hint="stop it. A history server says so for ever of a driver that was killed: leave this probe out then",
            )
        return None

    def _name(self, attempt: Mapping[str, Any]) -> str:
        number = attempt.get("attemptId")
        return f"application {self.application_id}" + (f", attempt {number}," if number else "")

    def _newest_attempt(self) -> dict[str, Any] | None:
        answer = self._get(f"{self.base}/api/v1/applications/{quote(self.application_id, safe='')}")
        if not isinstance(answer, dict) or answer.get("id") != self.application_id:
            return None
        attempts = [each for each in answer.get("attempts") or () if isinstance(each, dict)]
        try:
            return max(attempts, key=lambda each: int(each["startTimeEpoch"]), default=None)
        except (KeyError, TypeError, ValueError):
            return None

    def _get(self, address: str) -> Any:
        request = urllib.request.Request(address, headers={"Accept": "application/json"})  # noqa: S310  # http or https, see _ADDRESS
        try:
            with _OPENER.open(request, timeout=self.timeout) as answer:
                return load_json(answer.read(_MOST))
        except (OSError, HTTPException, ValueError) as e:  # urllib's errors are OSErrors
            log.warning("%s does not show whether the application has ended: %s", address, e)
            return None


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Follows redirects within one host, as of a proxy in front of it, and nowhere else."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Return the request that follows, if it goes to the same scheme, host and port."""
        before, after = urlsplit(req.full_url), urlsplit(newurl)
        if (before.scheme, before.netloc) != (after.scheme, after.netloc):
            raise urllib.error.HTTPError(newurl, code, "a redirect to another host is not followed", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_OPENER = urllib.request.build_opener(_SameHost)
