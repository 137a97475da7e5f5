"""Keys of encrypted repositories: reading the owner's key, and the repository's own key wrapped by it (RFC 3394).

The files of a repository are encrypted with its *data key*, which is random and never changes. An owner's key only wraps it. So a
repository can have several owner's keys, and one can be replaced without writing the files again.
"""

from __future__ import annotations

import base64
import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.errors import MissingExtraError, RefusedError, RepositoryError, package_with

_KEY_BYTES = 32
#: Of a data key of 32 bytes, wrapped.
_WRAPPED_BYTES = 40
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


#: Any 32 bytes encrypt. Those that sign belong together with their public key.
_TO_ENCRYPT = "make one: openssl rand -base64 32"
_TO_SIGN = "`airflow-ckpt new-signing-key FILE` makes a pair and prints the public key"


def parse_key(text: str, *, name: str, signs: bool = False) -> bytes:
    """Read the key of a repository: 32 bytes in base64, as ``openssl rand -base64 32`` makes them.

    :param text: what a file or connection has.
    :param name: what to call it in messages; the key itself is in none.
    :param signs: it signs, or is the public key of one that does.
    :raises RepositoryError: it is none.
    """
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise RepositoryError(
            f"{name} is no key: a key is {_KEY_BYTES} bytes in base64", hint=_TO_SIGN if signs else _TO_ENCRYPT
        )
    return key


def read_key(file: str, *, option: str = "--key-file", signs: bool = False) -> bytes:
    """Read the key of a repository from a file that only its owner can read.

    :param file: path on this machine.
    :param option: the option that named it, for messages.
    :param signs: it is a key to sign with.
    :raises RefusedError: it cannot be read, or others than its owner can read or change it.
    :raises RepositoryError: it holds no key.
    """
    try:
        with open(file) as opened:
            mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
            text = opened.read()
    except (OSError, ValueError) as e:
        # Not the error itself: what cannot be decoded is shown in it.
        why = e.strerror if isinstance(e, OSError) else "it is no text"
        raise RefusedError(f"{option} {file} cannot be read: {why}", hint="give a file on this machine") from None
    if os.name == "posix" and mode & _OTHERS:
        raise RefusedError(
            f"{option} {file} has mode {mode:04o}: others than its owner can read or change it",
            hint=f"chmod 600 {file} (of a Kubernetes secret: defaultMode 0400, without fsGroup); make a new key if somebody may "
            "have read this one",
        )
    return parse_key(text, name=file, signs=signs)


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """The data key of a repository, wrapped by one owner's key. There is no secret in it for who has not that key.

    :param wrapped: the wrapped key.
    :param added_at: when it was added, ISO 8601; empty where it was made with the repository.
    :param added_by: the run or user that added it.
    :param note: what it is for.
    """

    wrapped: bytes
    added_at: str = ""
    added_by: str = ""
    note: str = ""

    @classmethod
    def make(cls, key: bytes, data_key: bytes, *, added_at: str = "", added_by: str = "", note: str = "") -> WrappedKey:
        """Wrap a data key.

        :param key: the owner's key.
        :param data_key: the repository's.
        :raises MissingExtraError: the ``cryptography`` package is not installed.
        """
        return cls(_key_wrap().aes_key_wrap(key, data_key), added_at, added_by, note)

    @property
    def id(self) -> str:
        """What people call it by; it shows nothing of either key."""
        return hashlib.sha256(self.wrapped).hexdigest()[:12]

    def unwrapped(self, key: bytes) -> bytes | None:
        """The data key; ``None`` where another key wrapped it.

        :param key: the owner's key.
        :raises MissingExtraError: the ``cryptography`` package is not installed.
        """
        wrap = _key_wrap()
        try:
            data_key: bytes = wrap.aes_key_unwrap(key, self.wrapped)
        except (wrap.InvalidUnwrap, ValueError):
            return None
        return data_key

    def to_json(self) -> dict[str, str]:
        """As it is stored; :meth:`from_json` reads it."""
        more = {"added_at": self.added_at, "added_by": self.added_by, "note": self.note}
        return {"wrapped_key": base64.b64encode(self.wrapped).decode(), **{k: v for k, v in more.items() if v}}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> WrappedKey:
        """Read what :meth:`to_json` made; unknown keys are ignored.

        :raises ValueError: it is none.
        """
        wrapped, *more = (value.get(name, "") for name in ("wrapped_key", "added_at", "added_by", "note"))
        if not all(isinstance(each, str) for each in (wrapped, *more)):
            raise ValueError("a wrapped key is no text")
        decoded = base64.b64decode(wrapped, validate=True)
        if len(decoded) != _WRAPPED_BYTES:
            raise ValueError(f"a wrapped key of {len(decoded)} bytes, not {_WRAPPED_BYTES}")
        return cls(decoded, *more)


def new_data_key() -> bytes:
    """Make the key of a new repository."""
    return os.urandom(_KEY_BYTES)


def _key_wrap() -> Any:
    try:
        from cryptography.hazmat.primitives import keywrap
    except ImportError as e:
        raise MissingExtraError(
            f"encrypted repositories need the package cryptography ({e})",
            hint=f"pip install '{package_with('encryption')}'",
        ) from e
    return keywrap
