"""A real HDFS for tests: Hadoop's own NameNodes and DataNodes, each a JVM, ports from the OS, their data gone when they stop.

The jars (``dev/hdfs-jars.txt``) are fetched on first use.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.s3_server import _end_with_parent, _free_ports

_LISTING = Path("dev/hdfs-jars.txt")
_JARS = Path(".cache/ivy/hdfs-jars.jars").absolute()
_START_WITHIN = 90.0
_NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATANODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
#: What a NameNode says of itself.
_STATE = "jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
_SERVICE = "ckpt"


class HdfsCluster:
    """A running HDFS. A DataNode has an address (127.0.0.x) of its own, and all of them every file.

    :param directory: an empty directory for data and logs.
    :param namenodes: with two it has high availability by a shared directory, and each is a standby at first.
    :param datanodes: how many; several with one NameNode only.
    """

    def __init__(self, directory: Path, *, namenodes: int = 1, datanodes: int = 1) -> None:
        self._directory = directory
        self._datanodes = datanodes
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        ports = _free_ports(2 * namenodes)
        self.http_ports, self.rpc_ports = ports[:namenodes], ports[namenodes:]
        (directory / "conf").mkdir()
        self._configure()
        self._await_end(self._java("format", _NAMENODE, *self._of_namenode(0), "-format", "-nonInteractive"))
        for number in range(1, namenodes):  # as bootstrapStandby does it
            shutil.copytree(directory / "name0", directory / f"name{number}")

    @property
    def address(self) -> str:
        """What URIs of Spark begin with."""
        return f"hdfs://{_SERVICE if len(self.rpc_ports) > 1 else f'127.0.0.1:{self.rpc_ports[0]}'}"

    @property
    def options(self) -> dict[str, Any]:
        """``storage_options`` with which they are opened here."""
        return {"host": ",".join(f"127.0.0.1:{port}" for port in self.http_ports)}

    def client(self, number: int = 0) -> Any:
        """A new client of fsspec's own; as the cluster's superuser."""
        import getpass

        import fsspec

        user = os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
        port = self.http_ports[number]
        return fsspec.filesystem("webhdfs", host="127.0.0.1", port=port, user=user, skip_instance_cache=True)

    def start(self) -> None:
        """Start all, and wait until a file can be written; with two NameNodes until one can be made active."""
        for number in range(len(self.rpc_ports)):
            self.start_namenode(number)
        for number in range(self._datanodes):
            self.start_datanode(number)
        for number in range(len(self.rpc_ports)):
            self.await_that(lambda n=number: self.state(n).get("NumLiveDataNodes") == self._datanodes, "DataNodes")

    def start_namenode(self, number: int = 0) -> None:
        """Start one NameNode, and wait until it answers."""
        name = f"namenode{number}"
        self._processes[name] = self._java(name, _NAMENODE, *self._of_namenode(number))
        self.await_that(lambda: "FSState" in self.state(number), name)

    def start_datanode(self, number: int = 0) -> None:
        """Start one DataNode; it shows the NameNode of itself some time later."""
        name = f"datanode{number}"
        self._processes[name] = self._java(name, _DATANODE, *self._of_datanode(number))

    def kill(self, name: str) -> None:
        """End ``namenode0``, ``datanode1`` or whichever at once."""
        self._kill(self._processes.pop(name))

    def state(self, number: int = 0) -> Mapping[str, Any]:
        """What a NameNode says of itself; nothing where it does not answer."""
        url = f"http://127.0.0.1:{self.http_ports[number]}/{_STATE}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return dict(json.load(answer)["beans"][0])
        except (OSError, ValueError, IndexError):
            return {}

    def admin(self, tool: str, *arguments: str) -> None:
        """Run one of Hadoop's tools, such as ``DFSAdmin``."""
        self._await_end(self._java(tool, f"org.apache.hadoop.hdfs.tools.{tool}", *arguments))

    def await_that(self, holds: Callable[[], object], what: str) -> None:
        """Wait until something holds."""
        deadline = time.monotonic() + _START_WITHIN
        while not holds():
            ended = [name for name, process in self._processes.items() if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                raise RuntimeError(f"no {what}; ended: {ended}\n{self._logs()}")
            time.sleep(0.01)

    def stop(self) -> None:
        """End all of it."""
        for process in self._processes.values():
            self._kill(process)
        self._processes.clear()

    def _configure(self) -> None:
        several = len(self.rpc_ports) > 1
        settings = {
            "fs.defaultFS": self.address,
            "hadoop.tmp.dir": str(self._directory / "data"),
            "dfs.replication": str(self._datanodes),
            "dfs.heartbeat.interval": "1",
            "dfs.namenode.safemode.extension": "0",
            # Else a writer that is quicker than the DataNode's report waits for 0.4 s.
            "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "10",
        }
        for number, (http, rpc) in enumerate(zip(self.http_ports, self.rpc_ports, strict=True)):
            suffix = f".{_SERVICE}.nn{number}" if several else ""
            settings[f"dfs.namenode.http-address{suffix}"] = f"127.0.0.1:{http}"
            settings[f"dfs.namenode.rpc-address{suffix}"] = f"127.0.0.1:{rpc}"
        if several:
            settings |= {
                "dfs.nameservices": _SERVICE,
                f"dfs.ha.namenodes.{_SERVICE}": ",".join(f"nn{n}" for n in range(len(self.rpc_ports))),
                f"dfs.client.failover.proxy.provider.{_SERVICE}": (
                    "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
                ),
                "dfs.namenode.shared.edits.dir": (self._directory / "shared").as_uri(),
                "dfs.ha.fencing.methods": "shell(/bin/true)",
            }
        properties = "".join(f"<property><name>{k}</name><value>{v}</value></property>" for k, v in settings.items())
        for name in ("core-site.xml", "hdfs-site.xml"):
            (self._directory / "conf" / name).write_text(f"<configuration>{properties}</configuration>")

    def _of_namenode(self, number: int) -> list[str]:
        words = ["-D", f"dfs.namenode.name.dir={(self._directory / f'name{number}').as_uri()}"]
        return [*words, "-D", f"dfs.ha.namenode.id=nn{number}"] if len(self.rpc_ports) > 1 else words

    def _of_datanode(self, number: int) -> list[str]:
        host = f"127.0.0.{1 + number}"
        settings = {f"dfs.datanode.{of}": f"{host}:0" for of in ("address", "http.address", "ipc.address")}
        if number:  # the NameNode takes the address that a DataNode speaks from for its own
            settings["dfs.namenode.rpc-address"] = f"127.0.0.1:{_forwarded(self.rpc_ports[0], host)}"
        settings["dfs.datanode.hostname"] = host
        settings["dfs.datanode.data.dir"] = (self._directory / f"data{number}").as_uri()
        return [word for name, value in settings.items() for word in ("-D", f"{name}={value}")]

    def _java(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        java = shutil.which("java", path=f"{os.environ.get('JAVA_HOME', '')}/bin:{os.environ['PATH']}")
        classpath = ":".join([str(self._directory / "conf"), *_JARS.read_text().split()])
        with (self._directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [
                    java or "java",
                    "-Xmx256m",
                    "-XX:TieredStopAtLevel=1",
                    "-XX:+UseSerialGC",
                    "-cp",
                    classpath,
                    *arguments,
                ],
                cwd=self._directory,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    def _await_end(self, process: subprocess.Popen[bytes]) -> None:
        if process.wait(_START_WITHIN):
            raise RuntimeError(f"{process.args} failed\n{self._logs()}")

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()

    def _logs(self) -> str:
        return "\n".join(
            f"{log.name}: {log.read_text(errors='replace')[-2000:]}" for log in self._directory.glob("*.log")
        )


def _forwarded(port: int, host: str) -> int:
    """Open a port whose connections continue to another as if they came from ``host``."""
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        while True:
            here, _ = listener.accept()
            there = socket.create_connection(("127.0.0.1", port), source_address=(host, 0))
            for ends in ((here, there), (there, here)):
                threading.Thread(target=pump, args=ends, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return int(listener.getsockname()[1])


@contextlib.contextmanager
def running_hdfs(directory: Path, *, namenodes: int = 1, datanodes: int = 1) -> Iterator[HdfsCluster]:
    """Start an HDFS for the block, see :class:`HdfsCluster`."""
    if subprocess.run([sys.executable, "dev/fetch_jars.py", str(_LISTING)], check=False).returncode:
        raise RuntimeError("the jars of HDFS could not be fetched")
    cluster = HdfsCluster(directory, namenodes=namenodes, datanodes=datanodes)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
