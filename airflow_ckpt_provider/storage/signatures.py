"""Signatures of a repository's documents, so that one that somebody without the signing key has written is noticed.

::

    signatures/<path of the document>/<SHA-256 of the document>-<key id>.json

Each is an Ed25519 signature (``cryptography``) over :func:`signed_text`, and is written before its document: a document without
one was not written by us. It is bound to the repository and to the path, so that no document can take the place of another one.
Signed are the documents of :data:`SIGNED`; objects are not, for signed manifests have their hashes.

.. seealso:: :doc:`/howto/signing`
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.errors import (
    DamagedFileError,
    MissingExtraError,
    RefusedError,
    TooLargeError,
    UntrustedError,
    package_with,
)
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.storage.keys import parse_key, read_key

if TYPE_CHECKING:
    from airflow_ckpt_provider.storage.location import Location

SIGNATURES = "signatures"
#: Directories of a repository whose documents are signed.
SIGNED = ("audit/", "backups/", "damaged/", "drills/", "holds/", "moved/", "prune/", "read/", "verified/")
_FORMAT = "airflow-ckpt-signature"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Signing:
    """What signs the documents of a repository that are written, and what those have to be signed by that are read.

    :param secret: the private key, 32 bytes; ``None``: nothing is signed.
    :param trusted: public keys of 32 bytes, one of which has to have signed what is read; none: nothing is checked.
    :param repository_id: id of the repository; empty until it is opened.
    """

    secret: bytes | None = field(default=None, repr=False)
    trusted: tuple[bytes, ...] = ()
    repository_id: str = ""

    @classmethod
    def of(cls, secret: bytes | None, trusted: Iterable[str]) -> Signing:
        """Take keys as they are configured.

        :param secret: the private key, or ``None``.
        :param trusted: public keys in base64.
        :raises RepositoryError: one of them is no key.
        :raises RefusedError: the public key of the private one is not trusted, so nobody could read what is written.
        """
        keys = tuple(parse_key(text, name=f"the trusted key {text!r}", signs=True) for text in trusted)
        if secret is not None and keys and (own := public_key(secret)) not in keys:
            raise RefusedError(
                f"the signing key {key_id(own)} is none of the trusted keys ({', '.join(map(key_id, keys))})",
                hint=f"add its public key, {base64.b64encode(own).decode()}, to the trusted keys (--trusted-key, "
                "ckpt_trusted_keys of the connection)",
            )
        return cls(secret, keys)

    @classmethod
    def read(cls, file: str | None, trusted: Iterable[str]) -> Signing | None:
        """Take keys as options have them; ``None``: none is given.

        :param file: ``--signing-key-file``, or ``None``.
        :param trusted: ``--trusted-key``, repeated.
        :raises RefusedError: the file cannot be read, or others than its owner can read it; or see :meth:`of`.
        :raises RepositoryError: see :meth:`of`.
        """
        keys = tuple(trusted)
        if not file and not keys:
            return None
        return cls.of(read_key(file, option="--signing-key-file", signs=True) if file else None, keys)

    def refuse_unsigned(self) -> None:
        """See that what is written can be signed, where only what is signed is trusted.

        :raises RefusedError: there are trusted keys, and no signing key.
        """
        if self.trusted and self.secret is None:
            raise RefusedError(
                "only signed documents are trusted here, and there is no key to sign new ones with",
                hint="give --signing-key-file FILE, or ckpt_signing_secret_key in the extra of the repository's connection",
            )

    def sign(self, place: Location, path: str, data: bytes) -> None:
        """Write the signature of a document that is about to be written.

        :param place: the repository's place.
        :param path: of the document.
        :param data: the document.
        :raises RefusedError: see :meth:`refuse_unsigned`; or somebody else has written a file of that name.
        """
        if not is_signed(path):
            return
        self.refuse_unsigned()
        if self.secret is None:
            return
        public, sha256 = public_key(self.secret), hashlib.sha256(data).hexdigest()
        document = {
            "format": _FORMAT,
            "version": _VERSION,
            "path": path,
            "sha256": sha256,
            "repository_id": self.repository_id,
            "key_id": key_id(public),
            "signature": base64.b64encode(_private(self.secret).sign(self._text(path, sha256))).decode(),
        }
        file = signature_path(path, sha256, public)
        try:
            place.create(file, json.dumps(document).encode())
        except FileExistsError:
            if not self._is_signed(place, path, sha256, public):
                raise RefusedError(
                    f"{place}/{file} exists, and is not the signature that belongs there",
                    hint="somebody has written it: find out who, then delete it",
                ) from None

    def checked(self, place: Location, path: str, data: bytes) -> bytes:
        """Return a document that was read, if a trusted key has signed it or no keys are configured.

        :raises UntrustedError: none has.
        """
        if self.trusted and is_signed(path) and self.signed_by(place, path, data) is None:
            raise UntrustedError(
                f"{path} is not signed by a trusted key",
                data=data,
                hint="somebody without the signing key has written it, or it is older than the key: "
                "`airflow-ckpt check REPOSITORY --trust` shows all such files",
            )
        return data

    def signed_by(self, place: Location, path: str, data: bytes) -> str | None:
        """Id of the trusted key that has signed a document; ``None``: none has."""
        sha256 = hashlib.sha256(data).hexdigest()
        return next((key_id(key) for key in self.trusted if self._is_signed(place, path, sha256, key)), None)

    def _is_signed(self, place: Location, path: str, sha256: str, public: bytes) -> bool:
        ed25519, invalid = _ed25519()
        try:
            value = load_json(place.read_document(signature_path(path, sha256, public)))
            signature = base64.b64decode(value["signature"], validate=True)
            ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, self._text(path, sha256))
        except (FileNotFoundError, DamagedFileError, TooLargeError, ValueError, KeyError, TypeError, invalid):
            return False
        return True

    def _text(self, path: str, sha256: str) -> bytes:
        return signed_text(self.repository_id, path, sha256)


def signed_text(repository_id: str, path: str, sha256: str) -> bytes:
    """What is signed of a document."""
    return f"{_FORMAT} v{_VERSION}\n{repository_id}\n{path}\n{sha256}".encode()


def is_signed(path: str) -> bool:
    """Whether the document of a path in a repository is one that is signed. Of prunes that have ended only the name is read."""
    return path.startswith(SIGNED) and path.endswith(".json") and not path.endswith(".done.json")


def signature_path(path: str, sha256: str, public: bytes) -> str:
    """Path of a signature."""
    return f"{SIGNATURES}/{path}/{sha256}-{key_id(public)}.json"


def key_id(public: bytes) -> str:
    """What people call a key by."""
    return hashlib.sha256(public).hexdigest()[:12]


def new_signing_key() -> bytes:
    """Make a private key."""
    made: bytes = _ed25519()[0].Ed25519PrivateKey.generate().private_bytes_raw()
    return made


def public_key(secret: bytes) -> bytes:
    """The public key of a private one."""
    made: bytes = _private(secret).public_key().public_bytes_raw()
    return made


def _private(secret: bytes) -> Any:
    return _ed25519()[0].Ed25519PrivateKey.from_private_bytes(secret)


def _ed25519() -> tuple[Any, type[Exception]]:
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as e:
        raise MissingExtraError(
            f"signatures need the package cryptography ({e})", hint=f"pip install '{package_with('encryption')}'"
        ) from e
    return ed25519, InvalidSignature
