"""A place whose files are encrypted before they leave this process; nothing above it knows.

Every file is one AES-256-GCM message of the ``cryptography`` package: a random nonce of 96 bits, and the path of the file
below the place as associated data, so that a file that was changed, cut off, or put in another's place is an error and never a
content. The key of a place is random and lies beside the files, wrapped with the keys that its owners have, see
:mod:`~airflow_ckpt_provider.storage.key_sets`.

Not hidden: names of streams, sizes and times of files, and the SHA-256 of contents in the names of objects.

.. seealso:: :doc:`/howto/encryption`
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from io import BytesIO
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.errors import DamagedFileError, RepositoryError
from airflow_ckpt_provider.storage.key_sets import CIPHER, data_key_of
from airflow_ckpt_provider.storage.keys import WrappedKey, new_data_key
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.store import Listing, Store, StoredFile

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

#: What a file begins with: this, the nonce, and at its end the tag.
_MAGIC = b"ACKPT\x00\x01\n"
_NONCE = 12
_OVERHEAD = len(_MAGIC) + _NONCE + 16
#: Bytes that are encrypted at once.
_PIECE = 1024**2


def new_encryption(key: bytes) -> dict[str, Any]:
    """Make what is in ``repository.json`` of a new encrypted repository.

    :param key: the owner's key.
    :raises MissingExtraError: the ``cryptography`` package is not installed.
    """
    return {"cipher": CIPHER, **WrappedKey.make(key, new_data_key()).to_json()}


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
                f"{location} is not encrypted, and a key was given for it",
                hint="leave the key out, or use another place and `airflow-ckpt copy` the backups there",
            )
        return location
    if not isinstance(encryption, Mapping):
        raise RepositoryError(
            f"{location}: what repository.json says of its encryption cannot be read",
            hint="put it back from an export: airflow-ckpt key import REPOSITORY --file EXPORT",
        )
    if key is None:
        raise RepositoryError(
            f"{location} is encrypted, and no key was given",
            hint="give --key-file (--target-key-file for the target of a copy, --second-key-file for the second repository of a "
            "repair), or ckpt_repository_secret_key in the extra of the repository's connection",
        )
    data_key = data_key_of(location, encryption, key)
    return Location(EncryptedStore(location.store, location.root, data_key), location.root)


class EncryptedStore(Store):
    """Encrypts and decrypts what passes through it.

    :param inner: the store that has the files.
    :param root: the place; paths below it are bound to their files.
    :param data_key: the key of the place.
    """

    copies_in_memory = 2

    def __init__(self, inner: Store, root: str, data_key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._inner = inner
        self._root = root.rstrip("/")
        self._key = data_key
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

        :raises DamagedFileError: it was changed, cut off, or belongs elsewhere.
        """
        return self._plain_of(path, self._inner.read(path))

    def read_at_most(self, path: str, most: int) -> bytes:
        """Return the content of a file that may have so many bytes; see :meth:`read`."""
        return self._plain_of(path, self._inner.read_at_most(path, most + _OVERHEAD))

    def _plain_of(self, path: str, data: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        start = len(_MAGIC) + _NONCE
        try:
            if not data.startswith(_MAGIC):
                raise InvalidTag
            return self._cipher.decrypt(data[len(_MAGIC) : start], memoryview(data)[start:], self._bound(path))
        except (InvalidTag, ValueError) as e:
            raise DamagedFileError(
                f"could not decrypt {path}: it was changed, cut off, or is not of this place",
                hint="`airflow-ckpt verify --read-data` shows which backups are whole",
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

    def why_no_locks(self, path: str) -> str | None:
        """Why files below ``path`` cannot be locked."""
        return self._inner.why_no_locks(path)

    def lock(self, path: str, until: datetime) -> None:
        """Lock a file until a time."""
        self._inner.lock(path, until)

    def locked_until(self, path: str) -> datetime | None:
        """Until when a file is locked."""
        return self._inner.locked_until(path)

    @property
    def plain(self) -> Store:
        """The store that this one lies in."""
        return self._inner

    def canonical(self, path: str) -> str:
        """Return the one name of a place that can have several."""
        return self._inner.canonical(path)

    def same_as(self, other: Store) -> bool:
        """Whether ``other`` reaches the same place, encrypted or not."""
        return self._inner.same_as(other._inner if isinstance(other, EncryptedStore) else other)

    def fenced(self, check: Callable[[], None], *, request_timeout: float | None) -> Store:
        """The same store with a check before each request that changes it."""
        fenced = copy.copy(self)
        fenced._inner = self._inner.fenced(check, request_timeout=request_timeout)
        return fenced

    def _encrypted(self, path: str, data: bytes) -> bytes:
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import AES
        from cryptography.hazmat.primitives.ciphers.modes import GCM

        nonce = os.urandom(_NONCE)
        encryptor = Cipher(AES(self._key), GCM(nonce)).encryptor()
        encryptor.authenticate_additional_data(self._bound(path))
        message, view = BytesIO(bytes(_OVERHEAD + len(data))), memoryview(data)
        message.write(_MAGIC + nonce)
        for start in range(0, len(data), _PIECE):  # AESGCM holds the message twice
            message.write(encryptor.update(view[start : start + _PIECE]))
        encryptor.finalize()
        message.write(encryptor.tag)
        return message.getvalue()

    def _bound(self, path: str) -> bytes:
        # Relative, so that a repository may be moved as a whole.
        return path.removeprefix(self._root).strip("/").encode()


def _plain(file: StoredFile) -> StoredFile:
    # Of the store's checksum nobody can make use: it is that of the encrypted file. A size below zero is that of a file
    # which is none of ours, or was cut off.
    return StoredFile(file.path, max(file.size - _OVERHEAD, -1), file.identity, None, file.modified)


def _encrypted_file(file: StoredFile) -> StoredFile:
    return file._replace(size=file.size + _OVERHEAD)
