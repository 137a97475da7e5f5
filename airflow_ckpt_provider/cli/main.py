"""``airflow-ckpt``: the verbs without Airflow and without its start-up time."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_ckpt_provider import __version__
from airflow_ckpt_provider.cli.by_stream import names_stream, without_addresses
from airflow_ckpt_provider.cli.definition import EXIT_CODES, SUMMARY, VERBS
from airflow_ckpt_provider.redaction import redacted_text
from airflow_ckpt_provider.storage.clocks import Clocks

if TYPE_CHECKING:
    from airflow_ckpt_provider.storage.location import Location
    from airflow_ckpt_provider.streams.streams import Streams

PROGRAM = "airflow-ckpt"


class _Parser(argparse.ArgumentParser):
    """Shows no credential that stands among wrong arguments."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the arguments."""
        super().error(redacted_text(message))


class _InAnyOrder(_Parser):
    """Takes options between and before the arguments that go by position, as in ``verify REPOSITORY --read-data=1/8 ID``.

    argparse can do so only when asked for the whole command line, and here it is asked for the part after the verb.
    """

    _inside = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse what follows the verb."""
        if self._inside:  # argparse calls this for each half of the work
            return super().parse_known_args(args, namespace)
        self._inside = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._inside = False


class _WithoutCredentials(logging.Formatter):
    """Shows no credential, in whatever a library logs."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record, its traceback too."""
        return redacted_text(super().format(record))


def build_parser(*, only: str | None = None, by_stream: bool = False) -> argparse.ArgumentParser:
    """Build the parser of ``airflow-ckpt``.

    :param only: the verb that is to be parsed; the others get no options then, which makes it three times as fast.
    :param by_stream: the command line names a stream.
    """
    parser = _Parser(prog=PROGRAM, description=SUMMARY, epilog=EXIT_CODES, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", dest="verb", required=True, parser_class=_InAnyOrder)
    for verb in VERBS:
        of_verb = verbs.add_parser(
            verb.name, help=verb.help, description=f"{verb.help}.", epilog=EXIT_CODES, allow_abbrev=False
        )
        options = verb.shell_options if only in (None, verb.name) else ()
        for option in without_addresses(verb, options) if by_stream else options:
            flags, settings = option.arguments
            of_verb.add_argument(*flags, **settings)
        of_verb.set_defaults(carries_out=verb)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``airflow-ckpt``.

    :param argv: the arguments; by default those of the process.
    :return: the exit code.
    """
    began = Clocks.of_process() if argv is None else Clocks()
    words = sys.argv[1:] if argv is None else argv
    only = next((word for word in words if not word.startswith("-")), "")
    args = build_parser(only=only, by_stream=names_stream(words)).parse_args(argv)
    # After the parser, for --help and wrong usage need nothing of it.
    from airflow_ckpt_provider.cli.calling import carry_out

    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_WithoutCredentials("%(levelname)s: %(message)s"))
    if args.debug:
        logging.getLogger("airflow_ckpt_provider").setLevel(logging.DEBUG)

    def open_place(uri: str, *, role: str, conn_id: str | None = None) -> Location:
        from airflow_ckpt_provider.cli.repository_id import with_repository_id
        from airflow_ckpt_provider.cli.repository_key import with_key
        from airflow_ckpt_provider.cli.signing import with_signing
        from airflow_ckpt_provider.storage.opening import open_location

        place = with_key(open_location(uri, storage_options=dict(args.storage_option)), args, role=role)
        return with_signing(with_repository_id(place, args, role=role), args)

    return carry_out(args.carries_out, args, open_place, _streams, out=sys.stdout, began=began)


def _streams(file: str | None) -> Streams:
    from airflow_ckpt_provider.streams.settings import streams_of_environment

    return streams_of_environment(file)


if __name__ == "__main__":
    sys.exit(main())
