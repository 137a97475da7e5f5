"""``airflow-ckpt``: the verbs without Airflow and without its start-up time."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider import __version__
from airflow_ckpt_provider.cli.definition import EXIT_CODES, SUMMARY, VERBS
from airflow_ckpt_provider.storage.clocks import Clocks

if TYPE_CHECKING:
    from airflow_ckpt_provider.storage.location import Location

PROGRAM = "airflow-ckpt"


class _InAnyOrder(argparse.ArgumentParser):
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


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of ``airflow-ckpt``."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description=SUMMARY, epilog=EXIT_CODES, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", dest="verb", required=True, parser_class=_InAnyOrder)
    for verb in VERBS:
        of_verb = verbs.add_parser(
            verb.name, help=verb.help, description=f"{verb.help}.", epilog=EXIT_CODES, allow_abbrev=False
        )
        for option in verb.shell_options:
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
    args = build_parser().parse_args(argv)
    # After the parser, for --help and wrong usage need nothing of it.
    from airflow_ckpt_provider.cli.calling import carry_out

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    if args.debug:
        logging.getLogger("airflow_ckpt_provider").setLevel(logging.DEBUG)

    def open_place(uri: str, *, role: str) -> Location:
        from airflow_ckpt_provider.cli.repository_key import with_key
        from airflow_ckpt_provider.storage.opening import open_location

        return with_key(open_location(uri, storage_options=dict(args.storage_option)), args, role=role)

    return carry_out(args.carries_out, args, open_place, out=sys.stdout, began=began)


if __name__ == "__main__":
    sys.exit(main())
