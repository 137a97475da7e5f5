"""What needs pyiceberg: the metadata and the files of a table that a catalog names, and a commit of that catalog.

A catalog is set up as pyiceberg has it: ``.pyiceberg.yaml``, ``PYICEBERG_CATALOG__…`` in the environment, or properties that a
person gives (``sink_options``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from airflow_ckpt_provider.errors import CkptError, MissingExtraError, RefusedError, StorageError, package_with
from airflow_ckpt_provider.guards.iceberg_files import files_below
from airflow_ckpt_provider.guards.iceberg_metadata import MAIN, SCHEME
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.storage.location import Location

log = logging.getLogger(__name__)

_READERS = 16


def is_iceberg_catalog(name: str) -> bool:
    """Whether pyiceberg's own configuration has a catalog of a name."""
    try:
        from pyiceberg.utils.config import Config
    except ImportError:
        return False
    try:
        return Config().get_catalog_config(name) is not None
    except Exception as e:  # a broken file of somebody who does not use Iceberg is no reason to fail
        log.info("pyiceberg's configuration cannot be read: %s", e)
        return False


def metadata_by_name(name: str, properties: Mapping[str, str]) -> dict[str, Any]:
    """The current metadata of a table that a catalog names, as its JSON.

    :param name: ``CATALOG.NAMESPACE.TABLE``.
    :param properties: of the catalog, beside those of pyiceberg's own configuration.
    :raises RefusedError: the catalog has no such table, or the name is no name.
    :raises MissingExtraError: pyiceberg is not installed.
    :raises StorageError: the catalog did not answer.
    """
    value = load_json(_load(name, properties).metadata.model_dump_json())
    if not isinstance(value, dict):
        raise StorageError(
            f"{SCHEME}{name}: the catalog gave no metadata", hint="see whether the catalog has the table"
        )
    return value


def missing_file(
    name: str, properties: Mapping[str, str], snapshots: Sequence[int], *, most: int, whole: int | None = None
) -> str | None:
    """The first file that is missing of those that a stream reads for some snapshots: manifests, and the files that they added.

    :param name: ``CATALOG.NAMESPACE.TABLE``.
    :param properties: of the catalog.
    :param snapshots: ids of snapshots that the table has.
    :param most: data files to look for at most.
    :param whole: the one of the snapshots that is read with all its files, also those that earlier snapshots added.
    :raises RefusedError: there are more data files.
    :raises StorageError: the table or its files could not be read.
    """
    table = _load(name, properties)
    found = {id_: table.snapshot_by_id(id_) for id_ in snapshots}
    return _missing(f"{SCHEME}{name}", table.io, found, most=most, whole=whole)


def missing_file_below(
    place: Location, snapshots: Mapping[int, Mapping[str, Any]], *, most: int, whole: int | None = None
) -> str | None:
    """As :func:`missing_file`, of a table by its directory: pyiceberg parses the manifests, our store reaches the files.

    :param place: the table's directory.
    :param snapshots: id -> snapshot, as the table's metadata has it.
    :raises RefusedError: there are more data files; one does not lie in the directory, so that nobody knows how it is reached; or
        a snapshot names no list of its manifests.
    :raises MissingExtraError: pyiceberg is not installed.
    """
    _client()
    from pyiceberg.table.snapshots import Snapshot

    for id_, snapshot in snapshots.items():
        if not snapshot.get("manifest-list"):
            raise RefusedError(f"snapshot {id_} of {place} names no list of its manifests", hint="it is of format 1")
    found = {id_: Snapshot.model_validate(dict(snapshot)) for id_, snapshot in snapshots.items()}
    return _missing(str(place), files_below(place), found, most=most, whole=whole)


def _missing(what: str, io: Any, snapshots: Mapping[int, Any], *, most: int, whole: int | None) -> str | None:
    from pyiceberg.manifest import ManifestContent

    with _catalog_errors(f"{what}: its files could not be read", hint="see whether its store can be reached"):
        wanted: list[str] = []
        for id_, snapshot in snapshots.items():
            if snapshot is None:
                raise RefusedError(f"snapshot {id_} of {what} has expired meanwhile", hint="try again")
            at = snapshot.manifest_list
            try:
                for manifest in snapshot.manifests(io):
                    if manifest.added_snapshot_id == id_ or (id_ == whole and manifest.content == ManifestContent.DATA):
                        at = manifest.manifest_path
                        entries = manifest.fetch_manifest_entry(io)  # without deleted ones
                        wanted += [e.data_file.file_path for e in entries if id_ in (e.snapshot_id, whole)]
            except FileNotFoundError:
                return str(at)
            if len(wanted) > most:
                raise RefusedError(
                    f"the snapshots to be read {'have' if whole else 'added'} more than {most:,} files: none was looked for",
                    hint="nothing to do: a query that lacks one of them fails when it reads it",
                )

        def look(path: str) -> bool | Exception:
            try:
                return bool(io.new_input(path).exists())
            except Exception as e:
                return e

        for path, found in zip(wanted, in_parallel(look, wanted, workers=_READERS), strict=True):
            if isinstance(found, Exception):
                raise found
            if not found:
                return path
        return None


def commit_by_name(
    name: str,
    properties: Mapping[str, str],
    *,
    uuid: str,
    head: int,
    snapshot: int,
    tag: str,
    tag_age_ms: int,
    unless: str = "",
    check_lease: Callable[[], None] = lambda: None,
) -> None:
    """Set branch main to a snapshot and tag the former one, in one commit that requires the former one to be current.

    :param name: ``CATALOG.NAMESPACE.TABLE``.
    :param properties: of the catalog.
    :param uuid: the id that the table has to have.
    :param head: the snapshot that main has to have before.
    :param snapshot: the one it is to have.
    :param tag: keeps ``head`` from expiry; it must not exist yet.
    :param tag_age_ms: for how long the tag keeps it.
    :param unless: another tag that must not exist; empty: there is none.
    :param check_lease: raises where the caller may not write any more; called right before the catalog is asked.
    :raises RefusedError: the catalog refused, as somebody committed before; nothing was changed.
    :raises StorageError: the catalog did not answer; the commit may have happened.
    """
    _client()
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, SetSnapshotRefUpdate

    table = _load(name, properties)
    with _catalog_errors(
        f"{SCHEME}{name}: the catalog did not confirm the commit",
        hint="run the same command again: it finds the commit where it happened",
    ):
        absent = [AssertRefSnapshotId.model_validate({"ref": ref, "snapshot-id": None}) for ref in (tag, unless) if ref]
        check_lease()
        try:
            table.catalog.commit_table(
                table,
                (
                    AssertTableUUID.model_validate({"uuid": uuid}),
                    *absent,
                    AssertRefSnapshotId.model_validate({"ref": MAIN, "snapshot-id": head}),
                ),
                (
                    SetSnapshotRefUpdate.model_validate(
                        {"ref-name": tag, "type": "tag", "snapshot-id": head, "max-ref-age-ms": tag_age_ms}
                    ),
                    SetSnapshotRefUpdate.model_validate(
                        {"ref-name": MAIN, "type": "branch", "snapshot-id": snapshot, **_retention(table)}
                    ),
                ),
            )
        except CommitFailedException as e:
            raise RefusedError(
                f"{SCHEME}{name} was written to at the same moment ({e}); the table was not changed",
                hint="see who else writes into the table, then make a new plan",
            ) from e


def _retention(table: Any) -> dict[str, int]:
    """What branch main keeps of its snapshots, which a commit without it would remove."""
    main = table.metadata.refs.get(MAIN)
    names = ("max_ref_age_ms", "max_snapshot_age_ms", "min_snapshots_to_keep")
    found = {name: getattr(main, name, None) for name in names}
    return {name.replace("_", "-"): value for name, value in found.items() if value is not None}


def _load(name: str, properties: Mapping[str, str]) -> Any:
    catalog_name, _, identifier = name.partition(".")
    if not identifier.count("."):
        raise RefusedError(
            f"{SCHEME}{name} does not name a table",
            hint="give CATALOG.NAMESPACE.TABLE, such as iceberg:prod.sales.orders",
        )
    _client()
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    with _catalog_errors(
        f"{SCHEME}{name} could not be loaded",
        hint="set the catalog up: .pyiceberg.yaml, PYICEBERG_CATALOG__… or its properties (sink_options / --sink-option)",
    ):
        try:
            return load_catalog(catalog_name, **dict(properties)).load_table(identifier)
        except (NoSuchTableError, NoSuchNamespaceError) as e:
            raise RefusedError(
                f"catalog {catalog_name} has no table {identifier} ({e})",
                hint="give the name that the catalog has in Spark too: a SQL catalog keeps its tables under that name",
            ) from e


@contextmanager
def _catalog_errors(message: str, *, hint: str) -> Iterator[None]:
    """What a catalog raises, as an error of ours: every catalog has the errors of its own client."""
    try:
        yield
    except (CkptError, MemoryError):
        raise
    except Exception as e:
        raise StorageError(f"{message} ({type(e).__name__}: {e}); pyiceberg {_client().__version__}", hint=hint) from e


def _client() -> ModuleType:
    try:
        import pyiceberg
    except ImportError as e:
        raise MissingExtraError(
            f"an Iceberg catalog, and the files of a table, need pyiceberg, which is not installed ({e})",
            hint=f"pip install '{package_with('iceberg')}'",
        ) from e
    return pyiceberg
