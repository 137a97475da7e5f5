"""A real MirrorMaker 2 for tests: Apache Kafka 4.1.1, one JVM, between two of :mod:`tests.support.kafka_broker`.

The jars (``dev/mirror-jars.txt``) are fetched on first use.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.kafka_broker import KafkaBroker, end_with_parent

_LISTING = Path("dev/mirror-jars.txt")
_JARS = Path(".cache/ivy/mirror-jars.jars")
_PROPERTIES = """\
clusters=old,new
old.bootstrap.servers={old}
new.bootstrap.servers={new}
old->new.enabled=true
old->new.topics={topics}
new->old.enabled=false
tasks.max=1
replication.factor=1
offset-syncs.topic.replication.factor=1
checkpoints.topic.replication.factor=1
heartbeats.topic.replication.factor=1
config.storage.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
emit.heartbeats.enabled=false
emit.checkpoints.enabled=false
sync.topic.acls.enabled=false
refresh.topics.interval.seconds=1
new.offset.flush.interval.ms=1000
old.offset.flush.interval.ms=1000
offset-syncs.topic.location={location}
{more}
"""


class MirrorMaker:
    """MirrorMaker from a cluster with the alias ``old`` to one with the alias ``new``.

    :param directory: an empty directory for its settings and its log.
    :param topics: regular expression of the topics that it copies.
    :param location: ``offset-syncs.topic.location``.
    :param more: further settings.
    """

    def __init__(
        self,
        directory: Path,
        old: KafkaBroker,
        new: KafkaBroker,
        *,
        topics: str,
        location: str = "source",
        more: tuple[str, ...] = (),
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        text = _PROPERTIES.format(
            old=old.address, new=new.address, topics=topics, location=location, more="\n".join(more)
        )
        (directory / "mm2.properties").write_text(text)

    def start(self) -> None:
        """Start it; the caller waits for what it copies."""
        if subprocess.run([sys.executable, "dev/fetch_jars.py", str(_LISTING)], check=False).returncode:
            raise RuntimeError("the jars of MirrorMaker could not be fetched")
        java = shutil.which("java", path=f"{os.environ.get('JAVA_HOME', '')}/bin:{os.environ['PATH']}")
        command = [java or "java", "-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        command += ["-cp", ":".join(_JARS.read_text().split())]
        command += ["org.apache.kafka.connect.mirror.MirrorMaker", "mm2.properties"]
        with (self._directory / "mm2.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self._directory,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    def kill(self) -> None:
        """End it at once, as a crash does."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    @property
    def said(self) -> str:
        """The end of its log."""
        return (self._directory / "mm2.log").read_text()[-4000:]


@contextlib.contextmanager
def running_mirror_maker(
    directory: Path,
    old: KafkaBroker,
    new: KafkaBroker,
    *,
    topics: str,
    location: str = "source",
    more: tuple[str, ...] = (),
) -> Iterator[MirrorMaker]:
    """Run it until the block ends; see :class:`MirrorMaker`."""
    mirror = MirrorMaker(directory, old, new, topics=topics, location=location, more=more)
    mirror.start()
    try:
        yield mirror
    finally:
        mirror.kill()
