"""Requests to HDFS by WebHDFS, sent to whichever NameNode is active; its refusals in words.

fsspec's ``webhdfs`` brings the session with all that logs in (user, password, delegation token, Kerberos, TLS, proxies). Its
own requests are not used: they have no time limit, do not show which of HDFS's exceptions was the answer, and take a
DataNode's failure for the content of a file.

.. seealso:: `WebHDFS <https://hadoop.apache.org/docs/stable/hadoop-project-dist/hadoop-hdfs/WebHDFS.html>`_
"""

from __future__ import annotations

import copy
import socket
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.storage.failures import translated
from airflow_ckpt_provider.storage.write_check import NO_CHECK, WriteCheck

if TYPE_CHECKING:
    from fsspec.implementations.webhdfs import WebHDFS

#: Seconds to connect or to get rid of a part of what is written, and without a byte of an answer.
_TIMEOUT = (30.0, 60.0)
#: Another DataNode is asked for where one does not answer: the NameNode takes ten minutes to notice that it is gone.
_DATANODES = 3
#: "Not me": the NameNode is a standby, or still starting.
_NOT_ACTIVE = frozenset({"StandbyException", "RetriableException"})
_NOT_ALLOWED = "check as whom it is asked (user, Kerberos ticket or token), and the permissions of the path"
_IN_USE = "another process writes or removes this file: wait for it, then run the same command again"
_FULL = "raise the quota or free some space, then run the same command again"
_READ_ONLY = "wait until `hdfs dfsadmin -safemode get` says OFF, then run the same command again"
#: Exception of HDFS -> next step.
_HINTS = {
    "SafeModeException": _READ_ONLY,
    "AccessControlException": _NOT_ALLOWED,
    "AuthorizationException": _NOT_ALLOWED,
    "SecurityException": _NOT_ALLOWED,
    "InvalidToken": _NOT_ALLOWED,
    "AlreadyBeingCreatedException": _IN_USE,
    "LeaseExpiredException": _IN_USE,
    "RecoveryInProgressException": _IN_USE,
    "NSQuotaExceededException": _FULL,
    "DSQuotaExceededException": _FULL,
    "QuotaByStorageTypeExceededException": _FULL,
    "ParentNotDirectoryException": "a part of this path is a file: correct the address",
}
_OTHERWISE = (
    "check that its DataNodes are alive and have space (`hdfs dfsadmin -report`), then run the same command again"
)
_UNREACHABLE = (
    "check the address: it is the NameNode's HTTP address, port 9870 or with use_https 9871, not that of its RPC; for a "
    "nameservice give all of its NameNodes as host"
)
_FAILOVER = "see `hdfs haadmin -getAllServiceState`, and give all NameNodes as host; then run the same command again"


class HdfsRefusalError(StorageError):
    """HDFS answered and said no.

    :param exception: Java's simple name of the exception.
    """

    def __init__(self, message: str, *, exception: str, hint: str) -> None:
        self.exception = exception
        super().__init__(message, hint=hint)


class NameNodes:
    """The NameNodes of one HDFS.

    :param clients: fsspec's ``webhdfs``, one for each NameNode.
    """

    def __init__(self, clients: Sequence[WebHDFS]) -> None:
        #: One for each NameNode.
        self.clients = tuple(clients)
        self._check = NO_CHECK
        self._active = self.clients[0]
        #: DataNodes that did not answer.
        self._gone: set[str] = set()
        #: ``host:port`` of each.
        self.addresses = frozenset(urlsplit(client.url).netloc.lower() for client in clients)

    def checked(self, check: WriteCheck) -> NameNodes:
        """The same NameNodes, with a check before each request that is no GET, those to DataNodes included.

        Its time-out goes for connecting and for each wait for a byte; ``requests`` has none for a whole request.
        """
        checked = copy.copy(self)
        checked._check = check
        return checked

    def ask(self, action: str, method: str, op: str, path: str, **parameters: Any) -> Any:
        """Send a request that the NameNode answers by itself; return what the answer's JSON has, ``None`` for nothing.

        :param action: what is being done to which place, to follow "could not".
        :param op: operation of WebHDFS, such as ``LISTSTATUS``.
        :param path: absolute path in HDFS.
        :raises FileNotFoundError: HDFS says so.
        :raises FileExistsError: HDFS says so.
        :raises HdfsRefusalError: HDFS refuses for another reason.
        :raises StorageError: nobody answers, or none of the NameNodes is active.
        """
        with translated(action):
            answer = self._answer(action, method, op, path, parameters)
            return answer.json() if answer.content else None

    def stream(
        self, action: str, method: str, op: str, path: str, data: bytes | None = None, **parameters: Any
    ) -> bytes:
        """Send a request that a DataNode carries out, where the NameNode says; return the answer's body.

        Parameters and errors are those of :meth:`ask`.

        :param data: content to be written.
        """
        failures: list[str] = []
        left_out = set(self._gone)
        with translated(action):
            while len(failures) < _DATANODES:
                excluded = {"excludedatanodes": ",".join(sorted(left_out))} if left_out else {}
                try:
                    answer = self._answer(action, method, op, path, parameters | excluded)
                except HdfsRefusalError:
                    if failures:
                        break  # it knows no other
                    if not left_out:
                        raise
                    self._gone.clear()  # they may be back
                    left_out.clear()
                    continue
                place = answer.headers.get("Location")
                if place is None:
                    raise StorageError(
                        f"could not {action}: {answer.url} names no DataNode", hint="give the address of a NameNode"
                    )
                node = urlsplit(place)
                try:
                    answer = self._send(self._active, method, place, data=data)
                except OSError as e:  # as all of requests' own are
                    left_out.add(_ip_of(str(node.hostname)))
                    self._gone |= left_out
                    failures.append(f"DataNode {node.netloc}: {_innermost(e)}")
                    continue
                _accept(action, answer)
                return bytes(answer.content)
            raise StorageError(
                f"could not {action}: {'; '.join(failures)}",
                hint="check that the DataNodes are alive, and reached from here by the names they go by",
            )

    def _answer(self, action: str, method: str, op: str, path: str, parameters: dict[str, Any]) -> Any:
        failures: list[str] = []
        silent = 0
        for client in self._active_first():
            where = urlsplit(client.url).netloc
            url = client.url + quote(path, safe="/")
            try:
                answer = self._send(client, method, url, params={**parameters, **client.pars, "op": op})
                _accept(action, answer)
            except HdfsRefusalError as e:
                if e.exception not in _NOT_ACTIVE:
                    self._active = client
                    raise
                failures.append(f"{where} is not active ({e.exception})")
                continue
            except (FileNotFoundError, FileExistsError):
                self._active = client
                raise
            except OSError as e:
                silent += 1
                failures.append(f"{where}: {_innermost(e)}")
                continue
            self._active = client
            return answer
        raise StorageError(
            f"could not {action}: no active NameNode: {'; '.join(failures)}",
            hint=_UNREACHABLE if silent == len(failures) else _FAILOVER,
        )

    def _active_first(self) -> Iterator[WebHDFS]:
        active = self._active
        yield active
        yield from (client for client in self.clients if client is not active)

    def _send(self, client: WebHDFS, method: str, url: str, **options: Any) -> Any:
        timeout = _TIMEOUT
        if method != "GET":
            self._check()
            timeout = self._check.limited(_TIMEOUT[0]), self._check.limited(_TIMEOUT[1])
        return client.session.request(
            method,
            client._apply_proxy(url),
            headers={"content-type": "application/octet-stream"},
            allow_redirects=False,
            timeout=timeout,
            **options,
        )


def _accept(action: str, answer: Any) -> None:
    """Raise what an answer says is wrong."""
    if answer.status_code < 400:
        return
    try:
        remote = answer.json()["RemoteException"]
        exception, message = str(remote["exception"]), str(remote["message"])
    except (ValueError, KeyError, TypeError):
        raise HdfsRefusalError(
            f"could not {action}: {answer.status_code} {answer.reason} from {answer.url.partition('?')[0]}",
            exception="",
            hint=_NOT_ALLOWED if answer.status_code in (401, 403) else _UNREACHABLE,
        ) from None
    # Java's stack trace may follow.
    message = message.partition("\n")[0].strip()
    if exception == "FileNotFoundException":
        raise FileNotFoundError(message)
    if exception == "FileAlreadyExistsException":
        raise FileExistsError(message)
    raise HdfsRefusalError(
        f"could not {action}: {message.rstrip('.')} ({exception})",
        exception=exception,
        hint=_HINTS.get(exception, _OTHERWISE),
    )


def _ip_of(host: str) -> str:
    """The name by which a NameNode finds a DataNode that is to be left out."""
    try:
        return socket.gethostbyname(host)
    except OSError:
        return host


def _innermost(error: BaseException) -> str:
    """What requests and urllib3 have wrapped."""
    while error.__context__ is not None:
        error = error.__context__
    return str(error) or type(error).__name__
