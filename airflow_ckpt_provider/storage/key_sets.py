"""The wrapped keys of an encrypted repository, as they lie in it.

The first one is in ``repository.json`` (``encryption.wrapped_key``). Once keys are added or removed, ``keys/<nnnnnn>.json``
holds all of them. The highest number is valid. Each number is written once and only if it is absent, so two changes at the same
moment cannot take each other's keys away. A repository is opened by any key that is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.errors import RepositoryError, TooLargeError
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.storage.keys import WrappedKey
from airflow_ckpt_provider.storage.location import Location

CIPHER = "AES-256-GCM"
KEYS = "keys"
_FORMAT, _VERSION = "airflow-ckpt-keys", 1
_NAME = re.compile(r"(\d{6,})\.json")


@dataclass(frozen=True, slots=True)
class KeySet:
    """One file of wrapped keys.

    :param number: its number.
    :param keys: the keys; ``None`` where the file is damaged.
    :param problem: what is wrong with it.
    """

    number: int
    keys: tuple[WrappedKey, ...] | None
    problem: str = ""

    @property
    def path(self) -> str:
        """Its path in the repository."""
        return key_set_path(self.number)


def key_set_path(number: int) -> str:
    """Path of a file of wrapped keys.

    :param number: from 1 up.
    """
    return f"{KEYS}/{number:06d}.json"


def first_key(encryption: Mapping[str, Any]) -> WrappedKey | None:
    """The key in ``repository.json``; ``None`` where it was removed, or is none.

    :param encryption: from that file.
    """
    try:
        return WrappedKey.from_json({"wrapped_key": encryption["wrapped_key"]})
    except (KeyError, ValueError):
        return None


def key_sets(location: Location) -> list[KeySet]:
    """The files of wrapped keys, newest first.

    :param location: the repository, as it is stored.
    """
    names = (_NAME.fullmatch(file.path.rpartition("/")[2]) for file in location.list(KEYS).files)
    return [read_key_set(location, number) for number in sorted((int(name[1]) for name in names if name), reverse=True)]


def read_key_set(location: Location, number: int) -> KeySet:
    """Read one file of wrapped keys.

    :param location: the repository, as it is stored.
    """
    try:
        content = load_json(location.read_document(key_set_path(number)))
        if content["format"] != _FORMAT:
            raise ValueError(f"its format is {content['format']!r}")
        if content["version"] != _VERSION:
            raise ValueError(f"its version is {content['version']!r}, known here: {_VERSION}")
        keys = tuple(WrappedKey.from_json(each) for each in content["keys"])
        if not keys:
            raise ValueError("it holds no key")
    except FileNotFoundError:
        return KeySet(number, None, "it is missing")
    except (TooLargeError, ValueError, KeyError, TypeError, AttributeError) as e:
        return KeySet(number, None, f"{type(e).__name__}: {e}")
    return KeySet(number, keys)


def key_set_document(keys: tuple[WrappedKey, ...]) -> dict[str, Any]:
    """What a file of wrapped keys holds.

    :param keys: all of them.
    """
    return {"format": _FORMAT, "version": _VERSION, "keys": [key.to_json() for key in keys]}


def data_key_of(location: Location, encryption: Mapping[str, Any], key: bytes) -> bytes:
    """Unwrap the data key of a repository.

    :param location: the repository, as it is stored.
    :param encryption: from ``repository.json``.
    :param key: the owner's key.
    :raises RepositoryError: another cipher, or the key is none of the repository's.
    :raises MissingExtraError: the ``cryptography`` package is not installed.
    """
    if encryption.get("cipher") != CIPHER:
        raise RepositoryError(
            f"{location} is encrypted by {encryption.get('cipher')}, known here: {CIPHER}",
            hint="upgrade airflow-ckpt-provider",
        )
    problems: list[str] = []

    def wrapped() -> Iterator[WrappedKey]:
        if first := first_key(encryption):
            yield first
        for each in key_sets(location):
            yield from each.keys or ()
            if each.keys is None:
                problems.append(f"{each.path} cannot be read: {each.problem}")

    seen = False
    for each in wrapped():
        seen = True
        if (data_key := each.unwrapped(key)) is not None:
            return data_key
    why = f" ({'; '.join(problems)})" if problems else ""
    if not seen:
        raise RepositoryError(
            f"{location} is encrypted, and its wrapped keys are gone{why}",
            hint="put them back from an export: airflow-ckpt key import REPOSITORY --file EXPORT",
        )
    raise RepositoryError(
        f"{location} is encrypted with another key than the one given{why}",
        hint="find a key of it; `airflow-ckpt key list REPOSITORY` shows which there are, and when they were added",
    )
