"""A gate before the S3 server: passes requests on, notes each, and can be slow, refuse, or break connections."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.s3_server import ADMIN, Identity, S3Server

SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>SlowDown</Code>'
    b"<Message>Please reduce your request rate.</Message></Error>"
)

FORBIDDEN = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>AccessDenied</Code>'
    b"<Message>Access Denied by the gate.</Message></Error>"
)


@dataclass(frozen=True)
class Request:
    """A request that came through the gate.

    :param kind: ``LIST`` or the HTTP method; ``COPY`` for a PUT that names a source.
    :param path: path of the URL, bucket included.
    :param query: the rest of the URL.
    :param began: when it came, by the monotonic clock.
    :param ended: when the answer was sent.
    :param status: of the answer; 0 where there was none.
    :param at_once: how many were under way when it came, itself included.
    :param received: bytes of its body.
    :param sent: bytes of the answer's body.
    """

    kind: str
    path: str
    query: str
    began: float
    ended: float
    status: int
    at_once: int
    received: int = 0
    sent: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.path} {self.query}".strip()

    @property
    def is_next_page(self) -> bool:
        """Whether it continues with a listing that another request began."""
        return "continuation-token" in self.query or "start-after" in self.query


#: Told kind and path, says with which status to refuse; ``None`` to pass it on, 0 to break the connection.
Refuse = Callable[[str, str], int | None]
#: Told kind, path and headers, says whether a policy forbids the request, which is then refused with 403.
Forbid = Callable[[str, str, Message], bool]


class Gate:
    """Passes requests on to the S3 server and notes each.

    It keeps the ``Host`` that the client has signed, so that the server takes its requests for its own.

    :param server: the server.
    :param delay: seconds that every request takes longer, as on a distant store.
    :param refuse: which requests are refused.
    :param forbid: which requests are forbidden.
    """

    def __init__(
        self, server: S3Server, *, delay: float = 0.0, refuse: Refuse | None = None, forbid: Forbid | None = None
    ) -> None:
        gate = self
        self.delay = delay
        self.refuse = refuse
        self.forbid = forbid
        self.requests: list[Request] = []
        self._at_once = 0
        self._lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = -1  # head and body of an answer in one packet
            inner: http.client.HTTPConnection | None = None
            sent = 0

            def do_GET(self) -> None:
                url = urlsplit(self.path)
                kind = self.command
                if parse_qs(url.query).get("prefix", [None])[0] is not None or "list-type=2" in url.query:
                    kind = "LIST"
                elif self.headers.get("x-amz-copy-source"):
                    kind = "COPY"
                began, self.sent = time.monotonic(), 0
                with gate._lock:
                    gate._at_once += 1
                    at_once = gate._at_once
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status = gate.refuse(kind, url.path) if gate.refuse else None
                forbidden = gate.forbid is not None and gate.forbid(kind, url.path, self.headers)
                status = 403 if forbidden else status
                if gate.delay:
                    time.sleep(gate.delay)
                try:
                    if status is None:
                        status = self.pass_on(body)
                    elif status == 0:
                        self.close_connection = True
                        self.connection.shutdown(socket.SHUT_RDWR)
                    else:
                        body = FORBIDDEN if forbidden else SLOW_DOWN
                        self.answer(status, [("Content-Type", "application/xml")], body)
                finally:
                    ended = time.monotonic()
                    counts = status or 0, at_once, len(body), self.sent
                    request = Request(kind, url.path, url.query, began, ended, *counts)
                    with gate._lock:
                        gate._at_once -= 1
                        gate.requests.append(request)

            do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

            def handle_expect_100(self) -> bool:
                go_on = super().handle_expect_100()
                self.wfile.flush()  # the client sends no body before it has read this
                return go_on

            def pass_on(self, body: bytes) -> int:
                answer = self.ask(body)
                content = answer.read()
                kept = [
                    (name, value)
                    for name, value in answer.getheaders()
                    if name.lower() not in ("transfer-encoding", "content-length", "connection")
                ]
                size = answer.getheader("Content-Length") if self.command == "HEAD" else None
                self.answer(answer.status, kept, content, size)
                return answer.status

            def ask(self, body: bytes) -> http.client.HTTPResponse:
                for attempt in (1, 2):
                    if self.inner is None:
                        self.inner = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
                    try:
                        self.inner.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                        for name, value in self.headers.items():
                            self.inner.putheader(name, value)
                        self.inner.endheaders(body or None)
                        return self.inner.getresponse()
                    except (http.client.HTTPException, OSError):  # the server has closed an idle connection
                        self.inner.close()
                        self.inner = None
                        if attempt == 2:
                            raise
                raise AssertionError

            def answer(
                self, status: int, headers: list[tuple[str, str]], content: bytes, size: str | None = None
            ) -> None:
                self.send_response(status)
                for name, value in headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", size or str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)
                    self.sent = len(content)
                self.wfile.flush()

            def finish(self) -> None:
                if self.inner is not None:
                    self.inner.close()
                with suppress(OSError):
                    super().finish()

            def log_message(self, *_: object) -> None:
                pass

        class Http(ThreadingHTTPServer):
            request_queue_size = 256
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """A client that goes away in the middle is no news."""

        self._http = Http(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._http.server_port}"
        self._server = server
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def options(self, identity: Identity = ADMIN) -> dict[str, Any]:
        """``storage_options`` with which a client comes through here."""
        return self._server.options(identity) | {"endpoint_url": self.endpoint}

    def environment(self) -> dict[str, str]:
        """Variables with which a child process comes through here."""
        return self._server.environment() | {"AWS_ENDPOINT_URL": self.endpoint}

    @property
    def seen(self) -> list[str]:
        """All requests, in words."""
        return [str(request) for request in self.requests]

    def close(self) -> None:
        """Answer nobody any more."""
        self._http.shutdown()
        self._http.server_close()

    @contextmanager
    def counted(self) -> Iterator[list[str]]:
        """The requests made inside the block, pages of one listing as one."""
        before = len(self.requests)
        found: list[str] = []
        yield found
        self._settle()
        found += [str(r) for r in self.requests[before:] if not r.is_next_page]

    @contextmanager
    def watched(self) -> Iterator[list[Request]]:
        """The requests made inside the block, in the order in which they came."""
        self._settle()
        before = len(self.requests)
        found: list[Request] = []
        yield found
        self._settle()
        found += sorted(self.requests[before:], key=lambda request: request.began)

    def _settle(self) -> None:
        """An answer is sent before its request is noted."""
        while True:
            with self._lock:
                if not self._at_once:
                    return
            time.sleep(0.0005)


def by_kind(requests: list[Request]) -> Counter[str]:
    """How many requests of each kind."""
    return Counter(request.kind for request in requests)


def longest_chain(requests: list[Request]) -> int:
    """The most requests of which each was begun after the one before had ended: what latency is paid for."""
    length, free = 0, float("-inf")
    for request in sorted(requests, key=lambda r: r.ended):
        if request.began >= free:
            length, free = length + 1, request.ended
    return length


class PerSecond:
    """Refuses what goes beyond a number of requests in any second, as S3 does for a prefix.

    :param most: how many it takes.
    :param status: of a refusal.
    """

    def __init__(self, most: int, *, status: int = 503) -> None:
        self.most = most
        self.status = status
        self.refused = 0
        self._taken: deque[float] = deque()
        self._lock = threading.Lock()

    def __call__(self, kind: str, path: str) -> int | None:
        now = time.monotonic()
        with self._lock:
            while self._taken and self._taken[0] < now - 1:
                self._taken.popleft()
            if len(self._taken) < self.most:
                self._taken.append(now)
                return None
            self.refused += 1
            return self.status
