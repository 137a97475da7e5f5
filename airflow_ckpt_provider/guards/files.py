"""The guard of file sources: whether the files that the next batch will read are still there, as they were listed.

The source logs the files of a batch (``sources/<n>``) before Spark plans it, so whatever is logged beyond the resume point is
read next, by name. Run on Spark 4.0.0: a file that is gone by then is **left out silently**, whatever the options say.
The log shows path and modification time and no size, so a file that was replaced shows by its time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sized
from urllib.parse import unquote

from airflow_ckpt_provider.checkpoint.file_source_log import (
    SEEDED,
    FileSourceLog,
    LoggedFile,
    first_read,
    read_file_log,
)
from airflow_ckpt_provider.checkpoint.source_offsets import FileOffset
from airflow_ckpt_provider.guards.registry import GuardedSource, GuardSettings, not_guarded
from airflow_ckpt_provider.guards.report import Judgement, PartReport, SourceReport
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.source_settings import SourceSettings
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.storage.store import StoredFile
from airflow_ckpt_provider.verdict import Verdict

KIND = FileOffset.kind
_READERS = 16
_SHOWN = 3


class FileGuard:
    """Judges file sources.

    :param settings: its own options, under ``file``: ``open`` (opens the directory that a URI names; by default with the
        environment's own credentials), ``options`` (source -> options of the query's reader: ``cleanSource`` and
        ``sourceArchiveDir`` are read). From a shell: ``option.<source>.<name>``.
    """

    kind = KIND

    def __init__(self, settings: GuardSettings) -> None:
        told = SourceSettings(KIND, settings.options.get(KIND, {}), single=("open",), mappings=("options",))
        self._open: Callable[[str], Location] = told.get("open") or open_location
        self._options = told.reader_options()

    def recognises(self, source: GuardedSource) -> bool:
        """Whether its offsets are those of the file source."""
        return isinstance(source.start.offset or source.end, FileOffset)

    def judge(self, source: GuardedSource) -> SourceReport:
        """Look for the files.

        :raises CkptError: a directory could not be listed.
        """
        if source.log is None:
            return not_guarded(source, "the source's own log is not at hand: which files it has read is not known")
        start, end = source.start.offset, source.end
        last = start.log_offset if isinstance(start, FileOffset) else -1
        # Of a batch that was planned the offset says how far it reads; what is logged beyond is read after it.
        planned_to = end.log_offset if isinstance(end, FileOffset) else None
        log = _read(source.log, last, planned_to, directory=f"sources/{source.name}")
        planned = [f for f in log.beyond if planned_to is None or f.log_id <= planned_to]
        later = [f for f in log.beyond if planned_to is not None and f.log_id > planned_to]
        listings = _Listings(self._open, [*log.read, *log.beyond])
        parts, judgements = self._judge_logged(source.name, planned, listings, "of the next batch")
        if later:
            text = f"{_count(later, 'logged beyond the planned batch')} read after it"
            more, of_later = self._judge_logged(source.name, later, listings, "logged beyond the next batch")
            parts += more
            judgements += [Judgement(Verdict.SAFE, text), *of_later]
        judgements += _judge_log(log)
        if not source.is_target:
            judgements += _judge_cleaning(self._options.get(source.name, {}), log, listings)
        facts = {
            "planned_files": len(planned),
            "read_files": len(log.read),
            "missing_files": sum(p.verdict is Verdict.WILL_LOSE for p in parts),
            "read_files_gone": sum(listings.find(f) is None for f in log.read),
        }
        # A file's rows are not known before it is read.
        lost = None if facts["missing_files"] else 0
        return SourceReport(source.name, KIND, tuple(judgements), tuple(parts), lost=lost, facts=facts)

    def _judge_logged(
        self, source: str, files: list[LoggedFile], listings: _Listings, which: str
    ) -> tuple[list[PartReport], list[Judgement]]:
        parts, gone, changed = [], [], []
        for file in files:
            found = listings.find(file)
            if found is None:
                gone.append(file)
                archived = self._archived(source, file)
                parts.append(PartReport(file.path, Verdict.WILL_LOSE, {"found": "gone", "archived": archived}))
            elif (
                found.modified is not None
                and int(found.modified.timestamp() * 1000) // 1000 != file.modified_ms // 1000
            ):
                changed.append(file)
                facts = {"found": "modified since", "modified": found.modified.isoformat(), "size": found.size}
                parts.append(PartReport(file.path, Verdict.UNKNOWN, facts))
            else:
                parts.append(PartReport(file.path, Verdict.SAFE, {"found": "as listed", "size": found.size}))
        judgements = []
        if gone:
            back = [p.facts["archived"] for p in parts if p.facts.get("archived")]
            are = "is" if len(back) == 1 else "are"
            way = f"; {len(back):,} of them {are} in the archive: move {_them(back)} back first" if back else ""
            judgements.append(
                Judgement(
                    Verdict.WILL_LOSE,
                    f"{_count(gone, which)} gone ({_some(gone)}): Spark leaves {_them(gone)} out silently{way}",
                )
            )
        if changed:
            judgements.append(
                Judgement(
                    Verdict.UNKNOWN,
                    f"{_count(changed, which)} changed since the listing ({_some(changed)}): Spark reads what is in "
                    f"{_them(changed)} now",
                )
            )
        return parts, judgements

    def _archived(self, source: str, file: LoggedFile) -> str | None:
        """Where ``cleanSource=archive`` put a file: below the archive, under its whole old path."""
        options = {key.lower(): value for key, value in self._options.get(source, {}).items()}
        archive = options.get("sourcearchivedir")
        if options.get("cleansource", "").lower() != "archive" or not archive:
            return None
        _, _, path = _split(file.path)
        place = f"{archive.rstrip('/')}/{path.lstrip('/')}"
        directory, _, name = place.rpartition("/")
        names = {f.path.rpartition("/")[2] for f in self._open(directory).list().files}
        return place if name in names else None


class _Listings:
    """The directories of the logged files, each listed once."""

    def __init__(self, opens: Callable[[str], Location], files: Iterable[LoggedFile]) -> None:
        directories = sorted({_split(file.path)[0] for file in files})
        listed = in_parallel(lambda directory: opens(directory).list().files, directories, workers=_READERS)
        self._files = {
            directory: {file.path.rpartition("/")[2]: file for file in found}
            for directory, found in zip(directories, listed, strict=True)
        }

    def find(self, file: LoggedFile) -> StoredFile | None:
        """The file as it is now; ``None`` where it is gone."""
        directory, name, _ = _split(file.path)
        return self._files[directory].get(name)


def _split(uri: str) -> tuple[str, str, str]:
    """A logged path as directory, name, and the path without the scheme, decoded."""
    decoded = unquote(uri)
    directory, _, name = decoded.rpartition("/")
    _, separator, rest = decoded.partition("://")
    path = rest[rest.find("/") :] if separator else decoded.removeprefix("file:")
    return directory, name, path


def _read(place: Location, last: int, planned_to: int | None, *, directory: str) -> FileSourceLog:
    names = [file.path.rpartition("/")[2] for file in place.list().files]

    def asked(name: str) -> bytes | Exception:
        try:
            return place.read(name)
        except Exception as e:
            return e

    first = tuple(first_read(names))
    found = dict(zip(first, in_parallel(asked, first, workers=_READERS), strict=True))

    def read(name: str) -> bytes:
        content = found[name] if name in found else place.read(name)
        if isinstance(content, Exception):
            raise content
        return content

    return read_file_log(names, read, last, directory=directory, planned_to=-1 if planned_to is None else planned_to)


def _judge_log(log: FileSourceLog) -> list[Judgement]:
    """A log that lacks an entry makes Spark fail: its start reads all of them from the newest compacted one on."""
    if not log.unread:
        return []
    named = "; ".join(f"{path}: {reason.removeprefix(f'{path}: ')}" for path, reason in log.unread[:_SHOWN])
    return [Judgement(Verdict.WILL_FAIL, f"the source's log is damaged where the start reads it ({named})")]


def _judge_cleaning(options: Mapping[str, str], log: FileSourceLog, listings: _Listings) -> list[Judgement]:
    cleaning = next((v.lower() for key, v in options.items() if key.lower() == "cleansource"), "off")
    read = [file for file in log.read if file.log_id != SEEDED]
    gone = sum(listings.find(file) is None for file in read)
    if cleaning in ("archive", "delete"):
        what = "archives" if cleaning == "archive" else "deletes"
        return [
            Judgement(
                Verdict.SAFE,
                f"cleanSource={cleaning} {what} files that were read: {gone:,} of {len(read):,} are out of the "
                "input directory, and a "
                "rewind or a new checkpoint will not find them there",
            )
        ]
    if gone:
        return [
            Judgement(
                Verdict.SAFE,
                f"{gone:,} of {len(read):,} files that were read {'is' if gone == 1 else 'are'} gone: a rewind would lose "
                f"{'it' if gone == 1 else 'them'}",
            )
        ]
    return []


def _them(files: Sized) -> str:
    return "it" if len(files) == 1 else "them"


def _count(files: list[LoggedFile], which: str) -> str:
    return f"1 file {which} is" if len(files) == 1 else f"{len(files):,} files {which} are"


def _some(files: list[LoggedFile]) -> str:
    names = ", ".join(unquote(file.path.rpartition("/")[2]) for file in files[:_SHOWN])
    return f"{names}, …" if len(files) > _SHOWN else names
