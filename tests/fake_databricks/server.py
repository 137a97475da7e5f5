"""HTTP: authorization, faults, the log of requests, answers."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from tests.fake_databricks import routes
from tests.fake_databricks.errors import ApiError, invalid

if TYPE_CHECKING:
    from tests.fake_databricks.faults import Fault
    from tests.fake_databricks.workspace import FakeWorkspace


@dataclass
class Request:
    """A request that arrived.

    :param status: what it was answered with; 0 where the connection was cut.
    :param answer: the body of the answer.
    """

    method: str
    path: str
    query: dict[str, str]
    body: dict[str, Any]
    authorization: str
    user_agent: str
    status: int = 0
    answer: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        query = "?" + "&".join(f"{key}={value}" for key, value in self.query.items()) if self.query else ""
        body = " " + json.dumps(self.body, sort_keys=True) if self.body else ""
        return f"{self.method} {self.path}{query}{body}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    workspace: FakeWorkspace

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are in the workspace's own log."""

    def _serve(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query, keep_blank_values=True).items()}
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = Request(
            self.command,
            url.path,
            query,
            {},
            self.headers.get("Authorization", ""),
            self.headers.get("User-Agent", ""),
        )
        workspace = self.workspace
        with workspace.lock:
            if not url.path.startswith("/.well-known/"):
                workspace.requests.append(request)
            fault = next((fault for fault in workspace.faults if fault.meets(request.method, request.path)), None)
            headers: dict[str, str] = {}
            try:
                request.body = _body(sent)
                workspace.authorize(request)
                carry_out = fault is None or fault.carried_out
                payload = routes.answer(workspace, self.command, url.path, query, request.body) if carry_out else {}
                status = 200
            except ApiError as e:
                status, payload, headers = e.status, e.body, e.headers
            raw = json.dumps(payload).encode()
            request.answer = json.loads(raw)
        if fault is not None:
            if not _suffer(fault):
                self._cut()
                return
            if fault.status:
                status, payload, headers = fault.answer()
                raw = json.dumps(payload).encode()
        request.status = status
        self._reply(status, raw, headers)

    def _reply(self, status: int, raw: bytes, headers: dict[str, str]) -> None:
        try:
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)
        except OSError:  # the client did not wait
            self.close_connection = True

    def _cut(self) -> None:
        """End the connection without an answer, with a reset."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815


def _body(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw) if raw else {}
    except ValueError as e:
        raise ApiError(400, "MALFORMED_REQUEST", f"Could not parse request object: {e}") from e
    if not isinstance(body, dict):
        raise invalid("The body has to be a JSON object.")
    return body


def _suffer(fault: Fault) -> bool:
    """Wait as long as the fault says; False where the connection is then to be cut."""
    if fault.then is not None:
        fault.then()
    if fault.delay:
        time.sleep(fault.delay)
    if fault.hold is not None:
        fault.hold.wait(60)
    return not fault.cut


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up, or a connection that was cut on purpose; anything else is a fault of the fake."""
        import sys

        if not isinstance(sys.exc_info()[1], OSError | ValueError):
            super().handle_error(request, client_address)


@contextmanager
def serving(workspace: FakeWorkspace, port: int = 0, address: str = "127.0.0.1") -> Iterator[int]:
    """Serve until the block ends.

    :param port: 0 takes one that is free.
    :param address: where it listens.
    :returns: the port.
    """
    handler = type("Handler", (_Handler,), {"workspace": workspace})
    server = _Server((address, port), handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
