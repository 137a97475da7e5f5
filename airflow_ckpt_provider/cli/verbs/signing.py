"""``new-signing-key`` and ``sign``: keys that sign what is written into repositories."""

from __future__ import annotations

import base64
import os

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.trust import sign_all
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.storage import signatures


def new_signing_key(call: Call) -> Answer:
    """Write a private key to a file that only its owner can read, and show the public one."""
    secret, file = signatures.new_signing_key(), call.args.file
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            opened.write(base64.b64encode(secret).decode() + "\n")
    except OSError as e:
        raise RefusedError(f"{file} could not be written: {e.strerror}", hint="give a new file on this machine") from e
    public = signatures.public_key(secret)
    document = {"file": file, "key_id": signatures.key_id(public), "public_key": base64.b64encode(public).decode()}
    if call.screen:
        call.screen.print(terminal.facts([(key.replace("_", " "), value) for key, value in document.items()]))
    return Answer(document)


def sign(call: Call) -> Answer:
    """Sign what is not signed."""
    repository = Repository.open(call.places(call.args.repository, role="repository"))
    signed = sign_all(repository)
    if call.screen:
        call.screen.print(f"Signed {terminal.count(len(signed), 'document')}")
    return Answer({"repository": repository.location.uri, "signed": list(signed)})
