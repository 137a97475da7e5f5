"""The checkpoint: a directory, and the questions one can ask it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.closure import Closure, resolve_closure
from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.progress import Progress, read_progress
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE
from airflow_ckpt_provider.checkpoint.resume import ResumePoint, read_resume_point
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import CkptError
from airflow_ckpt_provider.parallel import side_by_side
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import location_of

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    from airflow_ckpt_provider.checkpoint.doctor.undecided import Undecided
    from airflow_ckpt_provider.checkpoint.findings import Finding
    from airflow_ckpt_provider.checkpoint.inspection import Inspection

#: How often a stream that purges what was just listed is read again.
_LOOKS = 5


class Checkpoint:
    """A Structured Streaming checkpoint. Reads only; nothing is read before a question is asked.

    What only some questions need is imported by them: every command of the shell pays for what is imported above.

    :param fs: the filesystem that holds it, already authenticated.
    :param root: the directory given as ``checkpointLocation``, as a path of ``fs``.
    """

    def __init__(self, fs: AbstractFileSystem, root: str) -> None:
        self.location = location_of(fs, root)

    @classmethod
    def at(cls, location: Location) -> Checkpoint:
        """The checkpoint at a location that is open already."""
        checkpoint = cls.__new__(cls)
        checkpoint.location = location
        return checkpoint

    def __repr__(self) -> str:
        return f"Checkpoint({self.location.uri!r})"

    def tree(self, *, like: Tree | None = None) -> Tree:
        """List all files, each directory once."""
        return Tree.of(self.location, like=like)

    def progress(self) -> Progress:
        """How far the stream is: 2 listings and at most 3 small reads.

        :raises NotACheckpointError: there is no checkpoint here.
        :raises UnreadableLogError: the newest entry cannot be parsed.
        """
        return read_progress(self.location)

    def resume_point(self) -> ResumePoint:
        """What Spark will do at its next start.

        :raises NotACheckpointError: there is no checkpoint here.
        :raises UnreadableLogError: an entry that Spark will read cannot be parsed.
        """
        return self._resume_point(self.progress())[1]

    def _resume_point(self, progress: Progress) -> tuple[Progress, ResumePoint]:
        """The resume point, and the look it was found by: another one where the stream has purged what was listed."""
        for _ in range(_LOOKS - 1):
            try:
                return progress, read_resume_point(self.location, progress)
            except FileNotFoundError:
                progress = self.progress()
        return progress, read_resume_point(self.location, progress)

    def closure(self, batch_id: int) -> Closure:
        """The smallest set of files that Spark needs to continue after a committed batch.

        :raises RefusedError: the batch is not committed.
        :raises MissingFileError: a needed file is missing.
        """
        return resolve_closure(self.tree(), batch_id)

    def diagnose(self, *, contents: bool = True) -> tuple[Finding, ...]:
        """Everything that is wrong with it, worst first; see :mod:`airflow_ckpt_provider.checkpoint.doctor`.

        :param contents: read state files to find damage in them.
        :raises NotACheckpointError: there is no checkpoint here.
        :raises HistoryRewrittenError: it changes faster than it can be examined.
        """
        from airflow_ckpt_provider.checkpoint.doctor import diagnose

        return diagnose(self.location, contents=contents)

    def undecided(self) -> tuple[Undecided, ...]:
        """What is damage or not, and its files do not show; see :mod:`airflow_ckpt_provider.checkpoint.doctor.undecided`.

        :raises NotACheckpointError: there is no checkpoint here.
        """
        from airflow_ckpt_provider.checkpoint.doctor.undecided import undecided

        return undecided(self.location)

    def advise(self, *, target: str | None = None, trigger_seconds: float | None = None) -> tuple[Finding, ...]:
        """What works and will hurt later; see :mod:`airflow_ckpt_provider.checkpoint.advice`.

        :param target: name or path of the table that the query writes to, if known.
        :param trigger_seconds: interval of its trigger in seconds, if known.
        :raises NotACheckpointError: there is no checkpoint here.
        :raises UnreadableLogError: the newest entry cannot be parsed.
        """
        from airflow_ckpt_provider.checkpoint.advice import advise

        return advise(self.tree(), self.progress(), target=target, trigger_seconds=trigger_seconds)

    def inspect(self) -> Inspection:
        """All of it from one listing.

        :raises NotACheckpointError: there is no checkpoint here.
        :raises UnreadableLogError: an entry that Spark will read cannot be parsed.
        """
        from airflow_ckpt_provider.checkpoint.inspection import Inspection, operators_of
        from airflow_ckpt_provider.checkpoint.usage import directory_usage, partition_usage

        read = self.progress()
        tree, (progress, resume) = side_by_side(self.tree, lambda: self._resume_point(read))
        findings = list(resume.reasons)
        # As the files were listed, which may be some batches earlier or later than what was read.
        logged = set(tree.batches(OFFSETS))
        committed = [batch for batch in tree.batches(COMMITS) if batch in logged]
        closure = None
        if committed:
            try:
                closure = resolve_closure(tree, committed[-1])
            except CkptError as e:
                # A missing query id is among the reasons already.
                if progress.query_id is not None or getattr(e, "path", None) != METADATA_FILE:
                    findings.append(e.message)
        files = list(tree.below(""))
        return Inspection(
            progress=progress,
            resume=resume,
            operators=operators_of(tree, progress.newest),
            files=len(files),
            bytes=sum(file.size for file in files),
            findings=tuple(findings),
            directories=directory_usage(tree),
            partitions=partition_usage(tree, closure),
        )
