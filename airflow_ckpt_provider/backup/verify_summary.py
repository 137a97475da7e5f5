"""What a verify has found, for whoever waits for it in another process: the report and what is said of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from airflow_ckpt_provider.backup.damaged import VERIFIED
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import VerifyReport
from airflow_ckpt_provider.backup.verify_repository import VerifiedRepository
from airflow_ckpt_provider.errors import RepositoryError, StorageError
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.storage.location import LARGE


@dataclass(frozen=True, slots=True)
class VerifySummary:
    """What a verify of one backup, or of many, has found.

    :param report: as plain JSON.
    :param is_damaged: whether something is damaged; what could not be read may be whole.
    :param findings: in words.
    :param coverage: how much was read within some days, in words; a line for each stream.
    """

    report: dict[str, Any]
    is_damaged: bool
    findings: list[str]
    coverage: list[str]

    @property
    def ok(self) -> bool:
        """Whether nothing was found, and all that was to be read could be read."""
        return not self.findings

    @property
    def exit_code(self) -> int:
        """Of a command or an application."""
        return 0 if self.ok else 1 if self.is_damaged else 3

    @classmethod
    def of_backup(cls, report: VerifyReport) -> VerifySummary:
        """That of one backup."""
        findings = [finding.message for finding in report.findings]
        return cls(report.to_json(), report.damaged, findings, [str(report.coverage)] if report.coverage else [])

    @classmethod
    def of_repository(cls, report: VerifiedRepository) -> VerifySummary:
        """That of all backups of some streams."""
        coverage = [f"{stream.name}: {stream.coverage}" for stream in report.streams if stream.coverage]
        return cls(report.to_json(), bool(report.damaged), list(report.findings), coverage)

    @classmethod
    def together(cls, parts: Sequence[VerifySummary], repository: str) -> VerifySummary:
        """That of all backups, where one stream after the other was verified.

        :param repository: URI of the repository.
        """
        if len(parts) == 1:
            return parts[0]
        streams = [stream for part in parts for stream in part.report["streams"]]
        return cls(
            {"repository": repository, "ok": all(part.ok for part in parts), "streams": streams},
            any(part.is_damaged for part in parts),
            [words for part in parts for words in part.findings],
            [words for part in parts for words in part.coverage],
        )

    def leave(self, repository: Repository, report_id: str) -> None:
        """Write it into the repository, for the one who waits for it.

        :raises StorageError: these credentials may not write there.
        """
        repository.location.create(_path(report_id), json.dumps(asdict(self)).encode())

    @classmethod
    def take(cls, repository: Repository, report_id: str) -> VerifySummary:
        """Read what another process has left, and delete it.

        :raises FileNotFoundError: it has left nothing.
        :raises RepositoryError: it cannot be read.
        """
        path = _path(report_id)
        try:
            value = load_json(repository.location.read_document(path, most=LARGE))
            found = cls(
                dict(value["report"]), bool(value["is_damaged"]), list(value["findings"]), list(value["coverage"])
            )
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise RepositoryError(
                f"{path} in the repository cannot be read ({type(e).__name__}: {e})", hint="verify again"
            ) from e
        with suppress(StorageError):  # it is in nobody's way where these credentials may not delete
            repository.location.delete(path)
        return found


def _path(report_id: str) -> str:
    # A file beside the directories of the streams, which nobody else reads.
    return f"{VERIFIED}/{report_id}.json"
