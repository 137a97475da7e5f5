"""``key``: the keys of an encrypted repository."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_ckpt_provider.backup import keys
from airflow_ckpt_provider.backup.keys import RepositoryKey
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call, UsageError
from airflow_ckpt_provider.errors import RefusedError, command
from airflow_ckpt_provider.storage.keys import read_key
from airflow_ckpt_provider.units import shown_time

if TYPE_CHECKING:
    from airflow_ckpt_provider.storage.location import Location

#: Action -> the option that it needs.
_NEEDS = {"add": "new_key_file", "rotate": "new_key_file", "remove": "id", "export": "file", "import": "file"}


def key(call: Call) -> Answer:
    """Carry out one action on the keys of a repository."""
    args = call.args
    needed = _NEEDS.get(args.action)
    for option in ("new_key_file", "id", "file"):
        given = getattr(args, option) is not None
        if given != (option == needed):
            name = f"--{option.replace('_', '-')}"
            raise UsageError(
                f"key {args.action} {'takes no' if given else 'needs'} {name}", hint="see: airflow-ckpt key --help"
            )
    place = call.places(args.repository, role="repository")
    if args.action == "list":
        return _listed(call, keys.list_keys(place))
    if args.action == "remove":
        return _said(call, "Removed", keys.remove_key(place, args.id, made_by=call.made_by))
    if args.action == "export":
        return _exported(call, place)
    if args.action == "import":
        return _listed(call, keys.import_keys(place, _read(args.file), made_by=call.made_by))
    new = read_key(args.new_key_file, option="--new-key-file")
    if args.action == "add":
        return _said(call, "Added", keys.add_key(place, new, note=args.note, made_by=call.made_by))
    found = keys.rotate_key(place, new, note=args.note, made_by=call.made_by)
    return _said(call, "The key is now", found, "--key-file", args.new_key_file)


def _listed(call: Call, found: list[RepositoryKey]) -> Answer:
    if call.screen:
        shown = terminal.table("id!", "added!", "by", "note", "")
        for each in found:
            shown.add_row(
                each.id,
                shown_time(each.added_at) if each.added_at else "with the repository",
                each.added_by,
                each.note,
                "given" if each.is_given else "",
            )
        call.screen.print(shown)
    return Answer({"keys": [each.to_json() for each in found]})


def _said(call: Call, what: str, found: RepositoryKey, *opened_by: str) -> Answer:
    """What was done, and the next command.

    :param opened_by: the option that names the key, where the one that was given does not open the repository any more.
    """
    if call.screen:
        call.screen.print(f"{what} key {found.id}{f' ({found.note})' if found.note else ''}")
        again = command("key", "export", call.args.repository, *opened_by, "--file", "FILE")
        terminal.next_command(call.screen, "Export the keys again", again)
    return Answer({"key": found.to_json()})


def _exported(call: Call, place: Location) -> Answer:
    document = keys.export_keys(place)
    file = call.args.file
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            opened.write(json.dumps(document, indent=2) + "\n")
    except OSError as e:
        raise RefusedError(f"{file} could not be written: {e.strerror}", hint="give a new file on this machine") from e
    if call.screen:
        count = terminal.count(len(document["keys"]), "wrapped key")
        call.screen.print(f"Exported {count} to {file}: keep it outside the repository, apart from the key itself")
    return Answer({"file": file, "repository_id": document["marker"]["id"], "keys": len(document["keys"])})


def _read(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as e:
        raise RefusedError(f"--file {file} cannot be read: {e.strerror}", hint="give a file on this machine") from e
