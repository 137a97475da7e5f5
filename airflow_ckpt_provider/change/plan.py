"""The plan of a change: what every verb adds, and what all plans have in common.

A verb contributes data: which files are removed and written, what is done to the sink, what has to be true afterwards. How that
is carried out, resumed and undone is the same for all of them, in :mod:`~airflow_ckpt_provider.change.engine`.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from airflow_ckpt_provider import markdown
from airflow_ckpt_provider.backup.content_checks import whole_content
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.kept_contents import KeptContents
from airflow_ckpt_provider.backup.pack_reads import ByPack, MovedContents
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.fail_closed_order import is_log
from airflow_ckpt_provider.change.target import Target, expect_files
from airflow_ckpt_provider.errors import RefusedError, RepositoryError, StorageError
from airflow_ckpt_provider.storage.file_set import FileSet
from airflow_ckpt_provider.storage.hadoop_checksums import hidden_checksum
from airflow_ckpt_provider.storage.location import Location, safe_paths
from airflow_ckpt_provider.verdict import Verdict

#: Paths that Markdown names of each kind; the JSON has them all.
_SHOWN = 6
_SUFFIX = "-undo"


@dataclass(frozen=True, slots=True)
class Risk:
    """What a plan would do that somebody has to accept first.

    :param word: how it is accepted, such as ``sink_duplicates``.
    :param why: what would happen, in words.
    """

    word: str
    why: str


@dataclass(frozen=True, slots=True)
class Write:
    """One file to be written.

    :param path: where, in the place that is changed.
    :param size: bytes it has then.
    :param read: returns its content.
    :param source: where the store itself can copy it from: a place, and the file there as it was listed or recorded.
    :param entry: of a backup, where it is written as the backup has it.
    """

    path: str
    size: int
    read: Callable[[], bytes]
    source: tuple[Location, str, int, str | None] | None = None
    entry: FileEntry | None = None


@dataclass(frozen=True, slots=True)
class Edits:
    """What a plan does to the files of a place, worked out from one listing of it.

    :param removes: files to delete, as they were listed. Hidden ones, such as Hadoop's checksums, may be among them.
    :param writes: makes the files to write; called more than once, so that a million of them need no memory.
    :param unchanged: paths that are there already with the right content, and are neither deleted nor written.
    :param paths: makes the paths of ``writes``, where that is less work than to make these.
    :param some: likewise makes those of ``writes`` that have one of these paths.
    """

    removes: FileSet = field(default_factory=FileSet)
    writes: Callable[[], Iterable[Write]] = tuple
    unchanged: Collection[str] = ()
    paths: Callable[[], Iterable[str]] | None = None
    some: Callable[[Collection[str]], Iterable[Write]] | None = None

    def written(self) -> Iterable[str]:
        """Paths of the files to write, in no particular order."""
        return self.paths() if self.paths else (write.path for write in self.writes())

    def writes_of(self, paths: Collection[str]) -> Iterable[Write]:
        """The files to write that have one of these paths."""
        return self.some(paths) if self.some else (write for write in self.writes() if write.path in paths)


class Plan:
    """Base of all plans. Subclasses are frozen dataclasses with the fields that are declared here as properties."""

    __slots__ = ()

    #: What is done, in a word: the ``kind`` of the plan's document and of its audit record.
    kind: ClassVar[str]

    if TYPE_CHECKING:

        @property
        def plan_id(self) -> str:
            """Its id; the seal, the audit record and the commit in a table carry it."""

        @property
        def name(self) -> str:
            """Name of the stream in the repository."""

        @property
        def checkpoint(self) -> str:
            """URI of the checkpoint."""

        @property
        def fingerprint(self) -> str:
            """Of the checkpoint when the plan was made."""

        @property
        def continued(self) -> bool:
            """Whether it was begun before, and is resumed."""

        @property
        def verdict(self) -> Verdict:
            """What the change does to the data."""

        @property
        def reasons(self) -> tuple[str, ...]:
            """Why, in words."""

        @property
        def steps(self) -> tuple[str, ...]:
            """What carrying it out does, in order."""

        @property
        def already_done(self) -> bool:
            """Whether everything is as the plan wants it."""

        @property
        def plan_fingerprint(self) -> str:
            """Changes with whatever an approval is given for."""

        @property
        def seal_reason(self) -> str:
            """What the seal says; Spark's own error shows it."""

    @property
    def risks(self) -> tuple[Risk, ...]:
        """What has to be accepted before it is carried out."""
        return ()

    @property
    def sets_aside(self) -> bool:
        """Whether what is removed is kept first. Not for an undo: what it removes, the plan that is undone had written."""
        return True

    def command_to_undo(self, repository: Repository | None = None) -> str:
        """The command that undoes it.

        :param repository: where the plan is kept; ``None``: beside the checkpoint.
        """
        return undo_command(self.checkpoint, self.plan_id, repository)

    @property
    def own_seals(self) -> frozenset[str]:
        """Ids of plans whose seal does as well, and is taken over."""
        return frozenset()

    @property
    def expects(self) -> str | None:
        """The fingerprint that the place must have before the first change; ``None`` where it does not matter."""
        return self.fingerprint

    @property
    def writes_offsets(self) -> Collection[str]:
        """Paths in ``offsets/`` that will be written; the seal is put above them."""
        return ()

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON."""
        raise NotImplementedError

    def audit_facts(self) -> dict[str, Any]:
        """What the audit record keeps of the plan."""
        return {"plan": self.to_json()}

    def prepare(self, *, workers: int) -> None:
        """See that everything that will be read is whole, before the first change.

        :param workers: requests under way at once.
        :raises RefusedError: it is not; nothing was changed.
        """

    def document(self) -> dict[str, Any]:
        """The plan with all that carrying it out needs, as it is kept in the repository."""
        raise NotImplementedError

    def edits(self, there: Target, repository: Repository) -> Edits:
        """What is to be done to the files of a place.

        :param there: the place, as a listing under the seal and behind the fence found it.
        :param repository: where contents are read from.
        """
        raise NotImplementedError

    def check(self, there: Target) -> None:
        """See that the place is what the plan wants.

        :param there: the place, after the change.
        :raises StorageError: it is not.
        """
        raise NotImplementedError

    @property
    def subject(self) -> dict[str, Any]:
        """What the plan is about, as plain JSON: as much of what is approved as stays the same while the query runs."""
        return {"checkpoint": self.checkpoint}

    @property
    def newest_batch(self) -> int:
        """The newest batch that the query has logged; it grows while the query runs. -1: none, or the plan does not say."""
        return -1

    def approval(self, repository: str) -> dict[str, Any]:
        """What somebody approves who approves this plan, as plain JSON, for :meth:`check_approval`.

        :param repository: URI of the repository that keeps the plan; empty: that of each stream.
        """
        return {
            "plan_id": self.plan_id,
            "at": datetime.now(UTC).isoformat(),
            "subject": {**self.subject, "repository": repository},
            "risks": [risk.word for risk in self.risks],
            "newest_batch": self.newest_batch,
            "already_done": self.already_done,
        }

    def check_approval(self, approved: Mapping[str, Any], repository: str) -> None:
        """See that the plan does what was approved; the query may have run on since.

        :param approved: what :meth:`approval` returned of the plan that was shown; empty: not compared.
        :param repository: as for :meth:`approval`.
        :raises RefusedError: it does something else, or has a risk that the other one did not show.
        """
        if not approved:
            return
        now, before = self.approval(repository)["subject"], approved.get("subject")
        before = before if isinstance(before, Mapping) else {}
        found = [
            f"{key} was {before.get(key)!r} and is {value!r}" for key, value in now.items() if before.get(key) != value
        ]
        if not (self.already_done or self.continued):
            shown = approved.get("risks") or ()
            found += [
                f"its risk {risk.word} was not shown ({risk.why})" for risk in self.risks if risk.word not in shown
            ]
            if approved.get("already_done"):
                found.append("there was nothing to do, and now there is")
            if self.newest_batch < (reached := int(approved.get("newest_batch", -1))):
                found.append(f"its newest batch was {reached} and is {self.newest_batch}: somebody else has changed it")
        if found:
            raise RefusedError(
                f"the {self.kind} of {self.checkpoint} is not what plan {approved.get('plan_id')} showed, which was approved: "
                f"{'; '.join(found)}; nothing was changed",
                hint="make a new plan, have it approved, and apply that",
            )

    def check_accepted(self, accept: Collection[str]) -> None:
        """See that every risk was accepted.

        :param accept: words of risks.
        :raises RefusedError: one was not.
        """
        left = [risk for risk in self.risks if risk.word not in accept]
        if left:
            words = " ".join(f"--accept {risk.word}" for risk in left)
            listed = ", ".join(repr(risk.word) for risk in left)
            raise RefusedError(
                f"the {self.kind} of {self.checkpoint} needs somebody to accept: "
                + "; ".join(f"{risk.word} ({risk.why})" for risk in left),
                hint=f"choose another target or put the cause right; or accept explicitly: {words} (accept=[{listed}])",
            )

    def check_fingerprint(self, shown: str | None, begun: str | None = None) -> None:
        """See that the plan is the one that was shown and approved. One that is resumed has changed things itself: it goes by
        the plan with which it was begun.

        :param shown: fingerprint of the plan that was shown; ``None``: not compared.
        :param begun: fingerprint of the plan with which it was begun, where it is resumed; ``None``: nobody has kept that.
        :raises RefusedError: it is another one.
        """
        if shown is None or self.already_done or shown == (begun if self.continued else self.plan_fingerprint):
            return
        if self.continued:
            if begun is None:
                return
            raise RefusedError(
                f"the {self.kind} {self.plan_id} of {self.checkpoint} was begun by a plan with the fingerprint {begun}, not "
                f"{shown}, and has not ended; nothing was changed",
                hint="resume it with that fingerprint or without one, or undo it first",
            )
        raise RefusedError(
            f"the plan that was shown ({shown}) is not the one that would be carried out now ({self.plan_fingerprint}): "
            f"{self.checkpoint} or its sink have changed since; nothing was changed",
            hint="make a new plan, and apply that",
        )


Read = TypeVar("Read", bound=Callable[..., Any])


def reads_document(read: Read) -> Read:
    """Wrap what reads the document of a plan: where that is damaged, the error names it.

    :param read: a class method, given the document.
    """

    @functools.wraps(read)
    def wrapped(cls: type, value: Mapping[str, Any]) -> Any:
        with _document_of_plan(value):
            check_paths(value)
            return read(cls, value)

    return wrapped  # type: ignore[return-value]


@contextmanager
def _document_of_plan(value: Mapping[str, Any]) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise RepositoryError(
            f"plans/{value.get('plan_id')}.json in the repository cannot be read ({type(e).__name__}: {e})",
            hint="it was damaged or forged: put it back from a copy of the repository",
        ) from e


#: What the document of a plan, of whatever verb, has paths in: names -> whether each path may have a size.
_PATHS = {
    "deletes": False,
    "before": True,
    "contents": False,
    "rewrites": False,
    "written": True,
    "writes": True,
    "moved": False,
}


def check_paths(document: Mapping[str, Any]) -> None:
    """See that no path in the document of a plan leads out of the place that is changed.

    :param document: the plan, of whatever verb, as it is kept in the repository.
    :raises RepositoryError: one does, or is none; or a size is none.
    """
    with _document_of_plan(document):
        for key, sized in _PATHS.items():
            found = document.get(key) or ()
            if isinstance(found, str):
                raise ValueError(f"{key} is {found!r}")
            sizes = found.values() if sized and isinstance(found, Mapping) else ()
            if wrong := [size for size in sizes if type(size) is not int]:
                raise ValueError(f"{key} has a file of {wrong[0]!r} bytes")
            entries = [entry for entry in found if isinstance(entry, Mapping)]
            safe_paths(path for path in found if not isinstance(path, Mapping))
            safe_paths(entry["path"] for entry in entries)
        safe_paths(entry["path"] for entry in document.get("fetches") or ())


def undo_of(plan_id: str) -> str:
    """Id of the undo of a plan, by which a second run finds the first one's seal and commit."""
    return plan_id + _SUFFIX


def undo_command(place: str, plan_id: str, repository: Repository | None, sinks: Iterable[str] = ()) -> str:
    """The command that undoes a change.

    :param place: URI of the checkpoint.
    :param plan_id: the change.
    :param repository: where it is kept, which is named unless it lies beside the checkpoint, where ``undo`` finds it.
    :param sinks: URIs of the sinks that are put back with it.
    """
    words = ["airflow-ckpt", "undo", place, "--plan", plan_id]
    if repository is not None and not repository.is_beside(place):
        words += ["--repository", repository.location.uri]
    return shlex.join([*words, *(word for sink in sinks if sink for word in ("--sink", sink))])


def chain_command(action: str, of: Mapping[str, str]) -> str:
    """A command on all the streams that are changed together.

    :param action: ``undo``; or what is resumed: ``rewind`` or ``restore``.
    :param of: what a part keeps of it: ``plan_id``, ``arguments``, which name its streams in a command, and ``again``, the whole
        command that resumes it. Plans of older versions lack that.
    """
    arguments = _quoted(of["arguments"])
    if action == "undo":
        return f"airflow-ckpt chain undo {arguments} --plan {shlex.quote(str(of['plan_id']))}"
    again = _quoted(of.get("again") or "")
    return (
        again
        if again.startswith(f"airflow-ckpt chain {action} ")
        else f"airflow-ckpt chain {action} {arguments} … --apply"
    )


def _quoted(words: str) -> str:
    """Words of a command that a document has, quoted again: whoever wrote it, a shell runs one command."""
    try:
        return shlex.join(shlex.split(words))
    except ValueError:
        return shlex.quote(words)


def undone_by(plan_id: str) -> str:
    """Id of the plan that an undo is of; any other id is returned as it is."""
    return plan_id.removesuffix(_SUFFIX)


def listed_files(there: Target, paths: Iterable[str]) -> FileSet:
    """Those of the paths that are there, as they were listed, with Hadoop's own checksums of them.

    :param there: the place.
    :param paths: paths of visible files.
    """
    found = FileSet()
    for path in paths:
        for name in (path, hidden_checksum(path)):
            file = there.files.get(name)
            if file is not None:
                found.add(file)
    return found


def literal_writes(contents: Mapping[str, bytes]) -> Iterator[Write]:
    """Files whose content is known."""
    for path, content in contents.items():
        yield Write(path, len(content), lambda content=content: content)  # type: ignore[misc]


def expect_edited(
    there: Target, before: Mapping[str, int], removed: Collection[str], written: Mapping[str, int], *, plan_id: str
) -> None:
    """See that exactly the planned files are there.

    :param there: the place, after the change.
    :param before: path -> size of the visible files before it.
    :param removed: paths that were removed.
    :param written: path -> size of the files that were written.
    :param plan_id: the plan.
    :raises StorageError: they are not.
    """
    gone = set(removed)
    kept = {path: size for path, size in before.items() if path not in gone}
    expect_files(there, {**kept, **written}.items(), plan_id=plan_id)


def plan_page(
    title: str, plan_id: str, rows: Sequence[tuple[str, str]], reasons: Iterable[str], *parts: str, steps: Iterable[str]
) -> str:
    """A plan for people: the log, an approval form, a terminal.

    :param title: what is planned.
    :param rows: name and value of each fact.
    :param reasons: why the verdict is what it is.
    :param parts: more Markdown, before the steps.
    :param steps: what carrying it out does.
    """
    head = f"### {title}, plan {plan_id}"
    blocks = [head, markdown.facts(rows), markdown.bullets(reasons), *parts, markdown.steps(steps)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def accept_block(risks: Sequence[Risk]) -> str:
    """What a person has to accept before a plan is carried out, with the exact words to give; empty where there is nothing."""
    if not risks:
        return ""
    lines = markdown.bullets(f"`{risk.word}`: {risk.why}" for risk in risks)
    words = " ".join(f"--accept {risk.word}" for risk in risks)
    listed = ", ".join(f'"{risk.word}"' for risk in risks)
    return (
        f"To be accepted before it is carried out:\n\n{lines}\n\nThe words to give: `{words}`, or `accept=[{listed}]`."
    )


def some(paths: Sequence[str]) -> str:
    """The first few of many paths, and how many more there are."""
    more = f", and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(paths[:_SHOWN]) + more


def entry_writes(
    repository: Repository,
    entries: Iterable[FileEntry],
    *,
    right_when: str,
    moved: MovedContents | None = None,
    kept: KeptContents | None = None,
) -> Iterator[Write]:
    """Files of backups.

    :param repository: the repository that holds their objects.
    :param entries: their entries in manifests.
    :param right_when: when they were found whole, in words.
    :param moved: where their contents have been moved to, if that is known.
    :param kept: contents that are in memory already; all others are read.
    """
    place, packed, logs = repository.location, ByPack(repository, moved), ByPack(repository, moved)
    for entry in entries:
        # Logs are written before and after all others, and are few: where they cannot be read alone they are kept alone.
        # Nor can one whose object was put into a pack: if the object is still there, only its new place may be whole.
        alone = is_log(entry.path) and entry.is_packed and place.store.reads_parts
        if alone or not (logs if is_log(entry.path) else packed).add(entry):
            source = (place, entry.object, entry.size, entry.checksum) if entry.checksum is not None else None
            yield Write(
                entry.path,
                entry.size,
                _reader(entry, partial(place.read, entry.object), right_when, kept),
                source,
                entry,
            )
    for span in chain(logs.spans(), packed.spans()):  # what is read at once is written one behind the other
        for entry in span.entries:
            yield Write(
                entry.path, entry.size, _reader(entry, partial(span.read, entry), right_when, kept), None, entry
            )


def _reader(
    entry: FileEntry, read: Callable[[], bytes], right_when: str, kept: KeptContents | None
) -> Callable[[], bytes]:
    def whole() -> bytes:
        if kept is not None and (content := kept.get(entry)) is not None:
            return content
        try:
            return whole_content(entry, read(), right_when=right_when)
        except FileNotFoundError as e:
            raise StorageError(
                f"{entry.path}: its object {entry.object} is missing; it was there when {right_when}",
                hint="the seal stays; a prune that takes a slow restore for dead may have deleted it: choose another backup",
            ) from e

    return whole
