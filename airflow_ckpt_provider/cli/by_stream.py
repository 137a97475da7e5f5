"""``--stream orders``: what a verb is not given, it takes from the declaration of the stream."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.cli.options import Option, filled
from airflow_ckpt_provider.errors import RefusedError

if TYPE_CHECKING:
    from airflow_ckpt_provider.cli.verb import Verb
    from airflow_ckpt_provider.streams.stream import Stream
    from airflow_ckpt_provider.streams.streams import Streams

    #: Reads the streams that are declared, of a file or of the one that is configured.
    LoadStreams = Callable[[str | None], Streams]

BY_STREAM = (
    Option(
        ("--stream",),
        "name of a declared stream, in the place of CHECKPOINT, REPOSITORY, name, sinks and logs; options given in "
        "addition, such as --checkpoint and --repository, override the declaration",
        {"type": filled, "metavar": "STREAM"},
    ),
    Option(
        ("--streams",),
        "the file that declares it (default: AIRFLOW_CKPT_STREAMS of the environment, else ./streams.yaml; in Airflow `streams` "
        "in the section [ckpt])",
        {"type": filled, "metavar": "FILE"},
    ),
)
#: Places that a stream has.
_PLACES = ("checkpoint", "repository")
#: Argument -> what the stream calls it, where that is something else.
_OTHER_NAMES = {"sink_option": "sink_options", "spark_api": "spark_api_url"}
#: What a command takes once for all sinks -> what the declaration calls it.
_FOR_ALL_SINKS = {"sink_options": "options", "sink_conn_id": "conn_id"}
#: Verb -> the same for its own arguments.
_OF_VERB = {"restore": {"target": "checkpoint", "target_conn_id": "checkpoint_conn_id"}}
_FILLED = (
    *(
        "checkpoint",
        "repository",
        "name",
        "sink",
        "txn_app_id",
        "sink_option",
        "progress_log",
        "spark_api",
        "max_downtime",
    ),
    *("restorable_batches", "immutable_for", "read_data", "checkpoint_conn_id", "repository_conn_id", "sink_conn_id"),
    "progress_log_conn_id",
)


def takes_stream(verb: Verb) -> bool:
    """Whether a verb is about a place of one stream; ``chain`` has a ``--stream`` of its own."""
    own = {flag for option in verb.options for flag in option.flags}
    return "--stream" not in own and any(place in _PLACES for place in verb.places)


def names_stream(argv: Sequence[str]) -> bool:
    """Whether a command line names a stream: then the addresses need not be given.

    :param argv: the arguments.
    """
    options = argv[: argv.index("--")] if "--" in argv else argv
    return any(each == "--stream" or each.startswith("--stream=") for each in options)


def without_addresses(verb: Verb, options: Sequence[Option]) -> tuple[Option, ...]:
    """The arguments of a verb beside ``--stream``: addresses that a stream has are options then.

    :param verb: the verb.
    :param options: its arguments.
    """
    return tuple(
        replace(option, flags=(f"--{name}",), settings={**_without(option.settings, "nargs"), "metavar": "URI"})
        if option.is_positional
        and ((name := option.flags[0].lower()) in _PLACES or name in _OF_VERB.get(verb.name, {}))
        else option
        for option in options
    )


def fill_in(verb: Verb, args: argparse.Namespace, load: LoadStreams) -> None:
    """Set what the stream of a command says and the command does not.

    :param verb: the verb.
    :param args: its arguments, as parsed.
    :param load: reads the streams.
    :raises UsageError: a place is missing that the stream does not have.
    :raises RefusedError: there is no such stream, the file has problems, or its sinks differ in what a command takes once.
    """
    from airflow_ckpt_provider.cli.calling import UsageError
    from airflow_ckpt_provider.streams.parameters import COMPANIONS, parameters_of

    stream = load(args.streams).named(args.stream)
    said = parameters_of(stream)
    named = {**{name: _OTHER_NAMES.get(name, name) for name in _FILLED}, **_OF_VERB.get(verb.name, {})}
    left_out = _left_out(verb, args)
    here = {name: parameter for name, parameter in named.items() if hasattr(args, name) and name not in left_out}
    defaults = {option.flags[0].lstrip("-").replace("-", "_"): option.settings for option in verb.airflow_options}
    unset = {name for name in here if getattr(args, name) in (None, [])}
    for place, companions in COMPANIONS.items():
        if place in here and place not in unset:
            unset -= {name for name, parameter in here.items() if name in companions or parameter in companions}
    for name in unset:
        if here[name] in said:
            value = _as_argument(stream, here[name], said[here[name]])
            setattr(args, name, _typed(value, defaults.get(name, {}).get("type")))
    _keep(verb, args, stream.retention)
    for option in verb.options:
        name = option.flags[0].lower()
        if (
            option.is_positional
            and name in here
            and option.settings.get("nargs") != "?"
            and getattr(args, name) is None
        ):
            raise UsageError(f"{stream} declares no {here[name]}", hint=f"give --{name}, or declare {here[name]}")


def _left_out(verb: Verb, args: argparse.Namespace) -> frozenset[str]:
    """What a verb does not take from the stream, because its other arguments give it no meaning, or exclude it."""
    repository = frozenset({"repository", "repository_conn_id", "name"})
    if (verb.name == "doctor" and not args.repair) or (verb.name == "unseal" and not args.for_start):
        return repository
    if verb.name == "positions":
        of_backup = args.repository or args.backup_id or args.name
        return frozenset({"checkpoint", "checkpoint_conn_id"}) if of_backup else repository
    return frozenset()


def _as_argument(stream: Stream, parameter: str, value: Any) -> Any:
    """What a stream says of a parameter, as the command line has it: lists of sinks, and pairs of options.

    :raises RefusedError: its sinks differ in what a command takes once for all of them.
    """
    if parameter in ("sink", "txn_app_id"):
        return [each or "" for each in _list(value)]
    if parameter in _FOR_ALL_SINKS:
        from airflow_ckpt_provider.sinks.report import WITHOUT_MEMORY  # words that name no place: nothing is opened

        given = zip(stream.sinks, _list(value), strict=True)
        values = [each for sink, each in given if sink.sink not in WITHOUT_MEMORY]
        if any(each != values[0] for each in values):
            raise RefusedError(
                f"the sinks of {stream} differ in `{_FOR_ALL_SINKS[parameter]}`, and a command takes one for all: it would look "
                "for a table at another place than its own",
                hint="run the operator in Airflow, which takes those of each; or name sinks that have the same (--sink)",
            )
        first = next(iter(values), None)
        return list(first.items()) if isinstance(first, Mapping) else first
    return value


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _typed(value: Any, of: Any) -> Any:
    return of(value) if of is not None and isinstance(value, str) else value


def _keep(verb: Verb, args: argparse.Namespace, rules: Mapping[str, Any]) -> None:
    """The rules of the retention policy, where the command gives none."""
    names = [
        option.flags[0].lstrip("-").replace("-", "_")
        for option in verb.options
        if option.flags[0].startswith("--keep-")
    ]
    if any(getattr(args, name) for name in names):
        return
    for rule, value in rules.items() if names else ():
        name = "keep_" + rule.replace("-", "_").removeprefix("keep_")
        if name not in names:
            raise RefusedError(f"retention: there is no rule {rule!r}", hint=f"rules: {', '.join(names)}")
        setattr(args, name, _list(value) if name == "keep_tag" else str(value))


def _without(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key != name}
