"""The document of a plan, as a repository keeps it: what reads it trusts no path in it, and names it where it is damaged."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from airflow_ckpt_provider.errors import RepositoryError
from airflow_ckpt_provider.storage.location import safe_paths

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


@contextmanager
def _document_of_plan(value: Mapping[str, Any]) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise RepositoryError(
            f"plans/{value.get('plan_id')}.json in the repository cannot be read ({type(e).__name__}: {e})",
            hint="it was damaged or forged: put it back from a copy of the repository",
        ) from e
