"""Guards and sinks of other packages, by their entry points."""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points


def entry_points_of(group: str) -> tuple[EntryPoint, ...]:
    """What installed packages name in a group, by name.

    The metadata of all packages are read once for each path of modules: several hundred files in an Airflow.

    :param group: such as ``airflow_ckpt_provider.sinks``.
    """
    return _read(group, tuple(sys.path))


@lru_cache(maxsize=8)
def _read(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    return tuple(sorted(entry_points(group=group), key=lambda entry: entry.name))


#: Have packages found that were installed since.
forget = _read.cache_clear
