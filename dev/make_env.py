"""Write .env for docker-compose.yml: every name of .env.example with a secret of its own. Needs nothing but Python."""

from __future__ import annotations

import base64
import os
import re
import secrets
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def secret(name: str) -> str:
    """A value for a name of .env.example.

    :param name: such as ``POSTGRES_PASSWORD``.
    """
    if name.endswith("_USER"):
        return "admin"
    if name.endswith("FERNET_KEY"):
        return base64.urlsafe_b64encode(os.urandom(32)).decode()
    if name.endswith("ADMIN_PASSWORD"):
        return secrets.token_urlsafe(16)
    if name == "S3_ACCESS_KEY":
        return secrets.token_hex(10)
    return secrets.token_urlsafe(64)


def filled_in(example: str) -> str:
    """The text of .env.example with a value behind each name.

    :param example: the text.
    """
    return re.sub(r"^([A-Z0-9_]+)=$", lambda found: f"{found[1]}={secret(found[1])}", example, flags=re.MULTILINE)


def main(root: Path = ROOT) -> int:
    """Write the file, unless there is one.

    :param root: the checkout.
    :return: exit code: 1 if there is one.
    """
    target = root / ".env"
    try:
        file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        print(
            f"{target} exists and was not changed. HINT: its passwords are in use; delete it to make new ones",
            file=sys.stderr,
        )
        return 1
    text = filled_in((root / ".env.example").read_text())
    with os.fdopen(file, "w") as writer:
        writer.write(text)
    user, password = (re.search(rf"^AIRFLOW_ADMIN_{of}=(.*)$", text, re.MULTILINE) for of in ("USER", "PASSWORD"))
    print(
        f"{target} has a secret for each part. Airflow's user: {user and user[1]}, password: {password and password[1]}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
