"""A place whose files are encrypted before they leave this process; nothing above it knows.

Every file is one AES-256-GCM message of the ``cryptography`` package: a random nonce of 96 bits, and the path of the file
below the place as associated data, so that a file that was changed, cut off, or put in another's place is an error and never a
content. The key of a place is random and lies beside the files, wrapped (RFC 3394) with the key that its owner
has; so that one can be changed without writing the files again.

Not hidden: names of streams, sizes and times of files, and the SHA-256 of contents in the names of objects.

.. seealso:: :doc:`/howto/encryption`
"""

from __future__ import annotations

import base64
import copy
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.errors import MissingExtraError, RefusedError, RepositoryError, StorageError
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.store import Listing, Store, StoredFile

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_CIPHER = "AES-256-GCM"
_KEY_BYTES = 32
#: What a file begins with: this, the nonce, and at its end the tag.
_MAGIC = b"ACKPT\x00\x01\n"
_NONCE = 12
_OVERHEAD = len(_MAGIC) + _NONCE + 16


def parse_key(text: str, *, name: str) -> bytes:
    """Read the key of a repository: 32 bytes in base64, as ``openssl rand -base64 32`` makes them.

    :param text: what a file or connection has.
    :param name: what to call it in messages; the key itself is in none.
    :raises RepositoryError: it is none.
    """
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise RepositoryError(
            f"{name} is no key: a key is {_KEY_BYTES} bytes in base64", hint="make one: openssl rand -base64 32"
        )
    return key


def read_key(file: str) -> bytes:
    """Read the key of a repository from a file.

    :param file: path on this machine, as given to ``--key-file``.
    :raises RefusedError: it cannot be read.
    :raises RepositoryError: it holds no key.
    """
    try:
        text = Path(file).read_text()
    except (OSError, ValueError) as e:
        raise RefusedError(f"--key-file {file} cannot be read: {e}", hint="give a file on this machine") from e
    return parse_key(text, name=file)


def new_encryption(key: bytes) -> dict[str, Any]:
    """Make what stands in ``repository.json`` of a new encrypted repository.

    :param key: the owner's key.
    :raises MissingExtraError: the ``cryptography`` package is not installed.
    """
    wrapped = _key_wrap().aes_key_wrap(key, os.urandom(_KEY_BYTES))
    return {"cipher": _CIPHER, "wrapped_key": base64.b64encode(wrapped).decode()}


def decrypted(location: Location, encryption: Mapping[str, Any] | None) -> Location:
    """The same place, with its files as they are before encryption.

    :param location: the place, with the owner's key.
    :param encryption: from ``repository.json``; ``None``: it is not encrypted.
    :raises RepositoryError: a key is missing, wrong, or given for a place that is not encrypted.
    :raises MissingExtraError: the ``cryptography`` package is not installed.
    """
    key = location.key
    if encryption is None:
        if key is not None:
            raise RepositoryError(
                f"{location} is not encrypted, and a key was given for it: whoever gave it expects otherwise",
                hint="leave the key out, or use another place and `airflow-ckpt copy` the backups there",
            )
        return location
    if key is None:
        raise RepositoryError(
            f"{location} is encrypted, and no key was given",
            hint="give --key-file, or ckpt_repository_key in the extra of the repository's connection",
        )
    wrap = _key_wrap()
    try:
        if encryption["cipher"] != _CIPHER:
            raise RepositoryError(
                f"{location} is encrypted by {encryption['cipher']}, known here: {_CIPHER}",
                hint="upgrade airflow-ckpt-provider",
            )
        data_key = wrap.aes_key_unwrap(key, base64.b64decode(encryption["wrapped_key"]))
    except (wrap.InvalidUnwrap, ValueError, KeyError) as e:
        raise RepositoryError(
            f"{location} is encrypted with another key than the one given", hint="find the key it was made with"
        ) from e
    return Location(EncryptedStore(location.store, location.root, data_key), location.root)


def _key_wrap() -> Any:
    try:
        from cryptography.hazmat.primitives import keywrap
    except ImportError as e:
        raise MissingExtraError(
            f"encrypted repositories need the package cryptography ({e})",
            hint="pip install 'airflow-ckpt-provider[encryption]'",
        ) from e
    return keywrap


class EncryptedStore(Store):
    """Encrypts and decrypts what passes through it.

    :param inner: the store that has the files.
    :param root: the place; paths below it are bound to their files.
    :param data_key: the key of the place.
    """

    def __init__(self, inner: Store, root: str, data_key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._inner = inner
        self._root = root.rstrip("/")
        self._cipher: AESGCM = AESGCM(data_key)
        self.creates_if_absent = inner.creates_if_absent
        self.deletes_if_same = inner.deletes_if_same

    @property
    def protocol(self) -> str:
        """Scheme of the store's URIs."""
        return self._inner.protocol

    def list(self, path: str) -> Listing:
        """List one directory, with the sizes before encryption."""
        found = self._inner.list(path)
        return Listing(tuple(_plain(file) for file in found.files), found.directories)

    def walk(self, path: str) -> Iterable[StoredFile]:
        """List all files below ``path``, with the sizes before encryption."""
        return (_plain(file) for file in self._inner.walk(path))

    def read(self, path: str) -> bytes:
        """Return the content of a file.

        :raises StorageError: it was changed, cut off, or belongs elsewhere.
        """
        from cryptography.exceptions import InvalidTag

        data = self._inner.read(path)
        start = len(_MAGIC) + _NONCE
        try:
            if not data.startswith(_MAGIC):
                raise InvalidTag
            return self._cipher.decrypt(data[len(_MAGIC) : start], data[start:], self._bound(path))
        except (InvalidTag, ValueError) as e:
            raise StorageError(
                f"could not decrypt {path}: it was changed, cut off, or is not of this place",
                hint="`airflow-ckpt verify --read-data` tells which backups are whole",
            ) from e

    def find(self, path: str) -> StoredFile | None:
        """Return one file as a listing shows it now."""
        found = self._inner.find(path)
        return _plain(found) if found else None

    def create(self, path: str, data: bytes) -> None:
        """Write a new file."""
        self._inner.create(path, self._encrypted(path, data))

    def replace(self, path: str, data: bytes) -> None:
        """Write a file over whatever is there."""
        self._inner.replace(path, self._encrypted(path, data))

    def delete(self, path: str) -> None:
        """Delete a file; a missing one is fine."""
        self._inner.delete(path)

    def delete_listed(self, file: StoredFile) -> None:
        """Delete a file if it is still the one that was listed."""
        self._inner.delete_listed(_encrypted_file(file))

    def replace_listed(self, file: StoredFile, data: bytes) -> StoredFile | None:
        """Write a file over the one that was listed."""
        written = self._inner.replace_listed(_encrypted_file(file), self._encrypted(file.path, data))
        return _plain(written) if written else None

    def remove_empty_directories(self, path: str) -> None:
        """Remove directories that hold nothing."""
        self._inner.remove_empty_directories(path)

    def copy(self, source: str, target: str, size: int) -> None:
        """Not offered: a file is bound to its path."""
        raise NotImplementedError("EncryptedStore.copies_within is false")

    def canonical(self, path: str) -> str:
        """Return the one name of a place that can have several."""
        return self._inner.canonical(path)

    def same_as(self, other: Store) -> bool:
        """Whether ``other`` reaches the same place, encrypted or not."""
        return self._inner.same_as(other._inner if isinstance(other, EncryptedStore) else other)

    def fenced(self, check: Callable[[], None], *, request_timeout: float) -> Store:
        """The same store with a check before each request that changes it."""
        fenced = copy.copy(self)
        fenced._inner = self._inner.fenced(check, request_timeout=request_timeout)
        return fenced

    def _encrypted(self, path: str, data: bytes) -> bytes:
        nonce = os.urandom(_NONCE)
        return _MAGIC + nonce + self._cipher.encrypt(nonce, data, self._bound(path))

    def _bound(self, path: str) -> bytes:
        # Relative, so that a repository may be moved as a whole.
        return path.removeprefix(self._root).strip("/").encode()


def _plain(file: StoredFile) -> StoredFile:
    # Of the store's checksum nobody can make use: it is that of the encrypted file. A size below zero is that of a file
    # which is none of ours, or was cut off.
    return StoredFile(file.path, max(file.size - _OVERHEAD, -1), file.identity, None, file.modified)


def _encrypted_file(file: StoredFile) -> StoredFile:
    return replace(file, size=file.size + _OVERHEAD)
