"""Every error this package raises on purpose, under one base.

A message names the thing, the reason and, after ``HINT:``, the next step. Facts a caller may want to act on are
attributes, so that nobody has to parse text.
"""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.redaction import redacted_text

if TYPE_CHECKING:
    from collections.abc import Collection


def package_with(extra: str) -> str:
    """Our distribution that is installed, with an extra: the provider for Airflow, else the core. For ``pip install``.

    :param extra: name of the extra; both have it.
    """
    name = "airflow-ckpt-provider" if find_spec("airflow_ckpt_provider.operators") else "airflow-ckpt-core"
    return f"{name}[{extra}]"


def command(*words: object) -> str:
    """A command of ``airflow-ckpt`` for a hint, quoted for a shell: paths have blanks, and a seal names whatever id it likes.

    :param words: the verb and its arguments.
    """
    return shlex.join(("airflow-ckpt", *map(str, words)))


class CkptError(Exception):
    """Base of all errors of this package. Credentials in what it says are hidden, see :mod:`~airflow_ckpt_provider.redaction`.

    :param message: what is wrong with which thing, and why.
    :param hint: the next step for the person who reads it; shown after ``HINT:``.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = redacted_text(message)
        self.hint = redacted_text(hint) if hint else hint
        super().__init__(f"{self.message}\nHINT: {self.hint}" if hint else self.message)

    def __reduce__(self) -> tuple[Any, ...]:
        # As an exception is pickled by default, it is created again from its message alone: some of these need more than that.
        return _restored, (type(self), self.args, self.__dict__)

    def add_subject(self, what: str) -> None:
        """Say which of several things it is about.

        :param what: such as the name of a stream.
        """
        self.message = redacted_text(f"{what}: {self.message}")
        self.args = (f"{self.message}\nHINT: {self.hint}" if self.hint else self.message,)

    def add_hint(self, more: str) -> None:
        """Add a next step that only a caller further up knows.

        :param more: what else can be done.
        """
        self.hint = redacted_text(f"{self.hint}; {more}" if self.hint else more)
        self.args = (f"{self.message}\nHINT: {self.hint}",)


def _restored(kind: type[CkptError], args: tuple[Any, ...], facts: dict[str, Any]) -> CkptError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(facts)
    return error


class RefusedError(CkptError):
    """A guardrail said no. Nothing was changed; trying again without a change of input will be refused again."""


class NotJudgedError(RefusedError):
    """The compression of a file cannot be undone here; the file may be whole all the same."""


class NoSourceOfKindError(RefusedError):
    """A query is known to read nothing of the kind that was asked about."""


class NotACheckpointError(RefusedError):
    """The place is empty, missing, or holds something that is not a checkpoint."""


class UnreadableLogError(CkptError):
    """A log file of a checkpoint could not be parsed.

    :param path: path of the file, relative to the checkpoint.
    :param batch_id: the batch it belongs to, where it has one.
    """

    def __init__(self, message: str, *, path: str, batch_id: int | None = None, hint: str | None = None) -> None:
        self.path = path
        self.batch_id = batch_id
        super().__init__(message, hint=hint)


class MissingFileError(CkptError):
    """A file that Spark needs is missing.

    :param path: path of the missing file (or a pattern where several would do), relative to the checkpoint.
    """

    def __init__(self, message: str, *, path: str, hint: str | None = None) -> None:
        self.path = path
        super().__init__(message, hint=hint)


class HistoryRewrittenError(CkptError):
    """The checkpoint's past changed while it was being read: somebody rewound, restored or replaced it."""


class SealedError(RefusedError):
    """The checkpoint carries a seal that somebody else set."""


class QueryNotStoppedError(RefusedError):
    """It is not known that the query of a checkpoint is stopped, and a change needs to know.

    :param needed: seconds without a change that would show it; ``None`` where no silence does.
    """

    def __init__(self, message: str, *, needed: float | None = None, hint: str | None = None) -> None:
        self.needed = needed
        super().__init__(message, hint=hint)


class RepositoryError(RefusedError):
    """The repository is missing, of an unknown format, or in the wrong place."""


class NoSuchBackupError(RepositoryError):
    """The repository holds no such backup."""


class OtherStreamError(RefusedError):
    """The backups of a name are of another stream than the checkpoint.

    :param other: neither the query nor the place is the same; else it may be the same stream, and somebody has to say so.
    """

    def __init__(self, message: str, *, other: bool, hint: str | None = None) -> None:
        self.other = other
        super().__init__(message, hint=hint)


class BackupRunningError(RefusedError):
    """Another backup of the same stream into the same repository is running."""


class ChangeRunningError(RefusedError):
    """Another attempt is changing the same checkpoint or pipeline; it passes by itself, so a retry may succeed."""


class DamagedBackupError(RefusedError):
    """Objects of a backup are missing or not what its manifest says.

    :param findings: one line for each damaged file.
    """

    def __init__(self, message: str, *, findings: tuple[str, ...] = (), hint: str | None = None) -> None:
        self.findings = findings
        super().__init__(message, hint=hint)


class TooLargeError(RefusedError):
    """A document is larger than any that this package writes: it was not read."""


class StorageError(CkptError):
    """The store could not be read or written: credentials, missing bucket, read-only, full, unreachable."""


class DamagedFileError(StorageError):
    """The store gave a file out, and the file itself shows that it was changed or cut off since it was written."""


class UntrustedError(DamagedFileError):
    """A document of a repository is not signed by a trusted key.

    :param data: the document, for whoever can use it without trust.
    """

    def __init__(self, message: str, *, data: bytes, hint: str | None = None) -> None:
        self.data = data
        super().__init__(message, hint=hint)


class LeaseLostError(StorageError):
    """An attempt at a change may not write any more: its lease has run out, or another attempt took over."""


class FileChangedError(StorageError):
    """A file is not the one that was listed: somebody replaced or removed it since. It was left as it is.

    :param path: path of the file in its store.
    :param listed: size and identity that were listed, in words.
    :param found: size and identity that are there now, in words; ``None``: the file is missing.
    """

    def __init__(self, message: str, *, path: str, listed: str, found: str | None, hint: str | None = None) -> None:
        self.path = path
        self.listed = listed
        self.found = found
        super().__init__(message, hint=hint)


class SourceError(StorageError):
    """The system that a stream reads from (a Kafka broker, a table's store) could not be asked."""


class SourceUnreachableError(SourceError):
    """Nobody answered in time: wrong address, no network, the service is down."""


class SourceProtocolError(SourceError):
    """Somebody answered, but in another protocol: TLS where plain text was expected, or the other way round."""


class SourceForbiddenError(SourceError):
    """It answered and said no: wrong credentials, or a right (ACL) that is missing."""


class MissingExtraError(StorageError):
    """An optional package is needed for this and is not installed."""


class WorkspaceError(CkptError):
    """A Databricks workspace could not be asked, or its answer cannot be used.

    :param status: HTTP status, where there was an answer.
    :param error_code: the workspace's own word for it.
    :param retry_after: seconds that the workspace asks to wait.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        error_code: str = "",
        retry_after: float = 0.0,
        hint: str | None = None,
    ) -> None:
        self.status = status
        self.error_code = error_code
        self.retry_after = retry_after
        super().__init__(message, hint=hint)


class WorkspaceForbiddenError(WorkspaceError):
    """The workspace answered and said no: an expired token, or a permission that is missing."""


class UnknownStartError(WorkspaceError):
    """The answer to a start was lost: nobody knows yet whether an update was started."""


class NoSuchPipelineError(RefusedError):
    """There is no such pipeline or update, or more than one of that name."""


class ActiveUpdateError(RefusedError):
    """Another update of the pipeline is active.

    :param update_id: its id, where it is known.
    """

    def __init__(self, message: str, *, update_id: str = "", hint: str | None = None) -> None:
        self.update_id = update_id
        super().__init__(message, hint=hint)


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Make the hint for a word that is not known.

    :param word: what was written.
    :param known: the words that there are.
    """
    import difflib  # only where something is wrong

    if close := difflib.get_close_matches(word, known, n=1, cutoff=0.6):
        return f"did you mean {close[0]!r}?"
    shown = sorted(known)
    return f"known: {', '.join(shown[:12])}{', …' if len(shown) > 12 else ''}" if shown else "there are none"
