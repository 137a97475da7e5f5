"""The command line of ``airflow-ckpt``: the verbs without Airflow and without its start-up time."""

from __future__ import annotations

import argparse
import io
import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_ckpt_provider import __version__
from airflow_ckpt_provider.cli.by_stream import names_stream, takes_stream, without_addresses
from airflow_ckpt_provider.cli.definition import EXIT_CODES, GROUPS, MORE, SUMMARY, VERBS
from airflow_ckpt_provider.cli.definition.examples import examples_of
from airflow_ckpt_provider.redaction import redacted_text
from airflow_ckpt_provider.storage.clocks import Clocks

if TYPE_CHECKING:
    from airflow_ckpt_provider.storage.location import Location
    from airflow_ckpt_provider.streams.streams import Streams

PROGRAM = "airflow-ckpt"
#: Before the verb; some verbs have an option of this name, for a profile of Databricks.
_PROFILE = "--profile"
#: How argparse begins to say that arguments are missing.
_MISSING = "the following arguments are required: "


class _Layout(argparse.HelpFormatter):
    """Fills each paragraph, but leaves commands as they are typed."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n\n".join(
            part if part.startswith("examples:\n") else fill(part, width, indent) for part in text.split("\n\n")
        )


class _Parser(argparse.ArgumentParser):
    """Names the nearest word for a wrong one, and shows no credential that stands among wrong arguments."""

    #: Whether wrong usage is a document as well.
    as_json = False

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the arguments, and what a missing one may be."""
        if message.startswith(_MISSING):
            for action in self._actions:
                if action.choices and not action.option_strings and isinstance(action.metavar, str):
                    known = f"{action.metavar} ({', '.join(action.choices)})"
                    message = re.sub(rf"\b{re.escape(action.metavar)}\b", known, message)
        message = redacted_text(message)
        if self.as_json:
            from airflow_ckpt_provider.cli.calling import error_document, say

            what, _, hint = message.partition("\nHINT: ")
            say(error_document("UsageError", what, hint or None), sys.stdout)
        super().error(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """As argparse, which would list all verbs."""
        if action.choices is not None and value not in action.choices:
            from airflow_ckpt_provider.errors import did_you_mean

            is_verb = isinstance(action, argparse._SubParsersAction)
            said = (
                f"there is no {'verb ' if is_verb else ''}{value!r}; {did_you_mean(str(value), list(action.choices))}"
            )
            raise argparse.ArgumentError(None if is_verb else action, said)

    def unknown(self, words: Sequence[str]) -> NoReturn:
        """Say which arguments nobody takes, and the nearest option."""
        from difflib import get_close_matches

        options = [word.partition("=")[0] for word in words if word.startswith("--")]
        known = [flag for action in self._actions if action.help != argparse.SUPPRESS for flag in action.option_strings]
        near = next((found[0] for word in options if (found := get_close_matches(word, known, n=1))), None)
        hint = f"did you mean {near}?" if near else f"`{self.prog} --help` lists what there is"
        self.error(f"unrecognized arguments: {' '.join(words)}\nHINT: {hint}")


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


class _Program(_Parser):
    """The whole command line, with its verbs in groups."""

    verbs: Mapping[str, _Parser]

    def format_help(self) -> str:
        """Lay out the help; argparse has no groups of verbs."""
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        shown = [(self._optionals.title, self._optionals._group_actions)]
        shown += [(title, [_Shown([], verb.name, help=verb.help) for verb in verbs]) for title, verbs in GROUPS.items()]
        for title, actions in shown:
            formatter.start_section(title)
            formatter.add_arguments(actions)
            formatter.end_section()
        formatter.add_text(MORE)
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; what is unknown is reported by the verb that it was given to."""
        before = list(takewhile(lambda word: word.startswith("-"), args or ()))
        if strange := [word for word in before if word.partition("=")[0] not in self._option_string_actions]:
            self.unknown(strange)
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.verbs[found.verb].unknown(unknown)
        return found


class _Shown(argparse.Action):
    """A line of the help."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: it is never parsed."""


class _Completion(argparse.Action):
    """Prints what a shell evaluates to complete the command line, as ``--version`` prints the version."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        """Print it and end."""
        completion = _argcomplete()
        if completion is None:
            parser.error("completion needs the package argcomplete; pip install argcomplete")
        print(completion.shellcode([PROGRAM], shell=values))
        parser.exit()


def _argcomplete() -> Any:
    try:
        import argcomplete
    except ImportError:  # installed without Airflow, which brings it
        return None
    return argcomplete


class _WithoutCredentials(logging.Formatter):
    """Shows no credential, and nothing that a terminal would obey, in whatever a library logs."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record, its traceback too."""
        from airflow_ckpt_provider.cli.calling import printable

        return printable(redacted_text(super().format(record)))


def build_parser(
    *, only: str | None = None, by_stream: bool = False, in_any_order: bool = True, as_json: bool = False
) -> argparse.ArgumentParser:
    """Build the parser of ``airflow-ckpt``.

    :param only: the verb that is to be parsed; the others are left out then, which makes it 15 times as fast. If no verb
        has this name, the parser has all, without options, to name them.
    :param by_stream: the command line names a stream.
    :param in_any_order: take options between the arguments that go by position; completion cannot.
    :param as_json: print a document also of wrong usage.
    """
    parser = _Program(prog=PROGRAM, description=SUMMARY, epilog=EXIT_CODES, allow_abbrev=False)
    parser.as_json = as_json
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    parser.add_argument(
        "--completion",
        action=_Completion,
        choices=("bash", "zsh", "fish"),
        metavar="SHELL",
        help='print what completes commands: eval "$(airflow-ckpt --completion bash)"; or zsh, fish',
    )
    of_verbs = _InAnyOrder if in_any_order else _Parser
    parser.add_argument(
        _PROFILE,
        dest="of_profile",
        metavar="NAME",
        help="profile of ~/.config/airflow-ckpt/profiles.ini (default: AIRFLOW_CKPT_PROFILE of the environment, else [default])",
    )
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", dest="verb", required=True, parser_class=of_verbs)
    for verb in [verb for verb in VERBS if verb.name == only] or VERBS:
        of_verb = verbs.add_parser(
            verb.name,
            help=verb.help,
            description=f"{verb.help}.",
            epilog=f"{examples_of(verb.name, PROGRAM)}\n\n{EXIT_CODES}",
            formatter_class=_Layout,
            allow_abbrev=False,
        )
        of_verb.as_json = as_json
        options = verb.shell_options if only in (None, verb.name) else ()
        for option in without_addresses(verb, options) if by_stream else options:
            flags, settings = option.arguments
            action = of_verb.add_argument(*flags, **settings)
            if option.flags == ("--stream",) and takes_stream(verb):
                action.completer = _names_of_streams  # type: ignore[attr-defined]  # argcomplete asks it
        of_verb.set_defaults(carries_out=verb)
    parser.verbs = verbs.choices
    return parser


def _names_of_streams(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """The streams that are declared, for completion; none where they cannot be read."""
    from airflow_ckpt_provider.cli.profile import profile_of
    from airflow_ckpt_provider.errors import CkptError

    try:
        profile = profile_of(getattr(parsed_args, "of_profile", None))
        return list(_streams(getattr(parsed_args, "streams", None), profile))
    except CkptError:
        return []


def run(argv: Sequence[str] | None) -> int:
    """Run a command line.

    :param argv: the arguments; ``None``: those of the process.
    :return: the exit code.
    """
    began = Clocks.of_process() if argv is None else Clocks()
    words = sys.argv[1:] if argv is None else argv
    _have_streams()
    return _run(words, began, as_json=wants_json(words))


def wants_json(words: Sequence[str]) -> bool:
    """Whether a command line asks for a document."""
    return "--json" in takewhile(lambda word: word != "--", words)


def _have_streams() -> None:
    """Open the standard streams that the caller has closed, and let the others show any text."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # until the process ends
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that is no UTF-8, or a terminal that has no ✗, is no reason to fail at the end of a change.
        sys.stdout.reconfigure(errors="backslashreplace")


def _run(words: Sequence[str], began: Clocks, *, as_json: bool) -> int:
    if "_ARGCOMPLETE" in os.environ and (completion := _argcomplete()):
        completion.autocomplete(
            build_parser(in_any_order=False, by_stream=names_stream(os.environ["COMP_LINE"].split()))
        )
    if not words:
        build_parser(only="").print_help(sys.stderr)
        return 2  # as of any wrong usage
    only = _verb(words)
    args = build_parser(only=only, by_stream=names_stream(words), as_json=as_json).parse_args(words)
    # After the parser, for --help and wrong usage need nothing of it.
    from airflow_ckpt_provider.cli.calling import carry_out, complain
    from airflow_ckpt_provider.cli.profile import fill_in_profile, profile_of
    from airflow_ckpt_provider.errors import CkptError

    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_WithoutCredentials("%(levelname)s: %(message)s"))
    if args.debug:
        logging.getLogger("airflow_ckpt_provider").setLevel(logging.DEBUG)

    try:
        profile = profile_of(args.of_profile)
        fill_in_profile(args, profile)
    except CkptError as e:
        return complain(e, args, sys.stdout)

    def open_place(uri: str, *, role: str, conn_id: str | None = None) -> Location:
        from airflow_ckpt_provider.cli.repository_id import with_repository_id
        from airflow_ckpt_provider.cli.repository_key import with_key
        from airflow_ckpt_provider.cli.signing import with_signing
        from airflow_ckpt_provider.storage.opening import open_location

        place = with_key(open_location(uri, storage_options=dict(args.storage_option)), args, role=role)
        return with_signing(with_repository_id(place, args, role=role), args)

    def streams(file: str | None) -> Streams:
        return _streams(file, profile)

    return carry_out(args.carries_out, args, open_place, streams, out=sys.stdout, began=began)


def _verb(words: Sequence[str]) -> str:
    """The verb of a command line; empty if there is none."""
    rest = iter(words)
    for word in rest:
        if word == _PROFILE:
            next(rest, None)
        elif not word.startswith("-"):
            return word
    return ""


def _streams(file: str | None, profile: Mapping[str, str]) -> Streams:
    from airflow_ckpt_provider.cli.profile import with_profile
    from airflow_ckpt_provider.streams.settings import streams_of_environment

    return streams_of_environment(file, with_profile(profile))
