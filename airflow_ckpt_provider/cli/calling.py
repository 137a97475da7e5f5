"""Carrying one verb out: its answer as JSON or for people, its errors in two lines, its exit code."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import re
import socket
import sys
import traceback
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from airflow_ckpt_provider.cli.by_stream import fill_in, takes_stream
from airflow_ckpt_provider.cli.next_commands import PROGRAM, NextCommands
from airflow_ckpt_provider.errors import CkptError, StorageError, WorkspaceError
from airflow_ckpt_provider.redaction import redacted_text
from airflow_ckpt_provider.storage.clocks import Clocks

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_ckpt_provider.cli.by_stream import LoadStreams
    from airflow_ckpt_provider.cli.verb import Verb
    from airflow_ckpt_provider.storage.location import Location

#: All but tabs and ends of lines.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Exit(IntEnum):
    """What a shell learns."""

    FINE = 0
    FINDINGS = 1
    USAGE = 2
    STORAGE = 3
    #: As shells have it for Ctrl-C.
    INTERRUPTED = 130


class UsageError(CkptError):
    """The arguments do not fit together."""


class Places(Protocol):
    """Opens the places that arguments name."""

    def __call__(self, uri: str, *, role: str, conn_id: str | None = None) -> Location:
        """Open a place.

        :param uri: its address.
        :param role: ``checkpoint``, ``repository`` or ``target``; Airflow has a connection for each.
        :param conn_id: the connection that a stream declares, where the command gives none.
        """


@dataclass(frozen=True, slots=True)
class Call:
    """A verb with its arguments.

    :param args: as parsed.
    :param places: opens the places they name.
    :param screen: where to print for people; ``None`` with ``--json``.
    :param began: since when somebody waits for it.
    :param streams: reads the streams that are declared.
    """

    args: argparse.Namespace
    places: Places
    screen: Console | None
    began: Clocks
    streams: LoadStreams

    @property
    def made_by(self) -> str:
        """Who does it, for manifests, seals and audit records."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # a container whose user has no name
            user = str(os.getuid())
        return f"{user}@{socket.gethostname()}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a verb found or did.

    :param document: the same as JSON, with the keys that ``docs/cli.md`` promises.
    :param findings: whether something is wrong, which is exit code 1.
    """

    document: dict[str, Any]
    findings: bool = False


def carry_out(
    verb: Verb,
    args: argparse.Namespace,
    places: Places,
    streams: LoadStreams,
    *,
    out: TextIO,
    began: Clocks | None = None,
    program: str = PROGRAM,
) -> int:
    """Run a verb and return the exit code.

    :param verb: the verb.
    :param args: its arguments, as parsed.
    :param places: opens the places they name.
    :param streams: reads the streams that are declared.
    :param out: where the answer goes. Errors go to standard error.
    :param began: since when somebody waits for it; by default since now.
    :param program: how the verb was called.
    """
    commands = NextCommands(verb, args, program)
    try:
        if takes_stream(verb) and getattr(args, "stream", None):
            fill_in(verb, args, streams)
        call = Call(args, places, None if args.json else _screen(out, commands), began or Clocks(), streams)
        answer = verb.load()(call)
        if args.json:
            say(json.dumps(commands.in_document(answer.document), indent=2), out)
        return Exit.FINDINGS if answer.findings else Exit.FINE
    except KeyboardInterrupt:
        return interrupted(out, as_json=args.json)
    except Exception as e:
        return complain(e, args, out, commands)


def printable(text: str) -> str:
    """A text without what a terminal would obey: names and reasons in a repository are of whoever can write there.

    :param text: what is to be shown.
    """
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def say(text: str, out: TextIO) -> None:
    """Write a line that appears at once, if anybody still reads.

    :param text: the line, or several.
    :param out: where to.
    """
    try:
        print(printable(text), file=out, flush=True)
    except BrokenPipeError:
        without_reader(out)
    except OSError as e:
        error = unwritten(e, out)
        if out is not sys.stderr:
            raise error from e


def without_reader(out: TextIO) -> None:
    """Drop what is written from now on: whoever read it, ``head`` for example, has had enough.

    What the verb was asked for is done all the same: after a plan comes its change.

    :param out: the stream whose pipe has no reader.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, out.fileno())
    os.close(nowhere)


def unwritten(error: OSError, out: TextIO) -> StorageError:
    """Make the error of an answer that cannot be written, as on a full disk, and drop what is written from now on.

    :param error: what the system said.
    :param out: where the answer was to go.
    """
    without_reader(out)
    hint = "see where it is redirected to, then run the same command again"
    return StorageError(f"standard output could not be written: {error.strerror}", hint=hint)


def interrupted(out: TextIO, *, as_json: bool) -> int:
    """Say that it was Ctrl-C, and return the exit code.

    :param out: where the document goes.
    :param as_json: whether there is one.
    """
    hint = "the same command again continues from here"
    say(f"\ninterrupted; {hint}", sys.stderr)
    if as_json:
        say(error_document("KeyboardInterrupt", "interrupted", hint), out)
    return Exit.INTERRUPTED


def error_document(kind: str, message: str, hint: str | None) -> str:
    """What ``--json`` prints of an error.

    :param kind: class of the error.
    :param message: what is wrong.
    :param hint: what to do about it.
    """
    return json.dumps({"error": {"type": kind, "message": message, "hint": hint}}, indent=2)


def _screen(out: TextIO, commands: NextCommands) -> Console:
    from airflow_ckpt_provider.cli.terminal import screen

    return screen(out, commands)


def complain(error: Exception, args: argparse.Namespace, out: TextIO, commands: NextCommands | None = None) -> int:
    """Say what went wrong, and return the exit code.

    :param error: what was raised.
    :param args: the arguments of the verb, as parsed.
    :param out: where the document goes with ``--json``.
    :param commands: completes the commands in what is said.
    """
    if args.debug:
        say(redacted_text("".join(traceback.format_exception(error))).removesuffix("\n"), sys.stderr)
    message, hint, code = _explained(error)
    message = redacted_text(message)
    if commands:
        message, hint = commands.completed(message), hint and commands.completed(hint)
    say(f"error: {message}\nHINT: {hint}" if hint else f"error: {message}", sys.stderr)
    if args.json:
        say(error_document(type(error).__name__, message, hint), out)
    return code


def _explained(error: Exception) -> tuple[str, str | None, Exit]:
    if isinstance(error, CkptError):
        code = Exit.FINDINGS
        if isinstance(error, StorageError | WorkspaceError):
            code = Exit.STORAGE
        elif isinstance(error, UsageError):
            code = Exit.USAGE
        return error.message, error.hint, code
    if isinstance(error, OSError):
        return f"{type(error).__name__}: {error}", "check the address, the rights and the space there", Exit.STORAGE
    return (
        f"unexpected {type(error).__name__}: {error}",
        "this is a defect; run it again with --debug and report what it prints",
        Exit.STORAGE,
    )
