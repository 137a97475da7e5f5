"""The commands that a verb prints, with the options of its own that whoever types them needs as well.

The core names verbs, places and plans in what it says, and does not know how a store is reached. So the options are added where
a text leaves the program: each command of this program in it is found, and gets those that its verb takes. A hint that is raised
where the address is not known says ``CHECKPOINT`` or ``REPOSITORY``: the addresses that the verb was given take their place. No
credential is shown: in its place is ``***``.
"""

from __future__ import annotations

import re
import shlex
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.cli.options import Option, setting, setting_text
from airflow_ckpt_provider.redaction import redacted_options, redacted_text
from airflow_ckpt_provider.storage.location import plain_uri

if TYPE_CHECKING:
    from airflow_ckpt_provider.cli.verb import Verb

PROGRAM = "airflow-ckpt"
_COMMAND = re.compile(rf"(?<![\w./-]){PROGRAM} (?P<verb>[a-z][a-z-]*)")
_END = re.compile(rf"[`\n]|{PROGRAM} ")
#: How a repository is opened.
_OF_REPOSITORY = frozenset({"key_file", "repository_id", "signing_key_file", "trusted_key"})
#: How other places are reached, and a second repository is opened.
_REACH = frozenset({"storage_option", "sink_option", "warehouse", "spark_submit", "spark_sink"}) | frozenset(
    {"kafka_config", "target_key_file", "second_key_file"}
)
#: Verb -> a place of its own -> what other verbs call that place.
_CALLED: Mapping[str, Mapping[str, str]] = {
    "restore": {"target": "checkpoint"},
    "flows": {"storage": "checkpoint"},
    "copy": {"target": "repository"},
    "repair": {"second": "repository"},
}


#: Words that stand for a place of the verb.
_PLACEHOLDER = re.compile(r"(?<!\S)(?:CHECKPOINT|REPOSITORY)(?!\S)")
#: Verbs with two places of one kind: of which one a hint is, the hint has to say.
_TWO_PLACES = frozenset({"copy"})


@dataclass(frozen=True, slots=True)
class NextCommands:
    """Completes the commands in what a verb prints.

    :param verb: the verb.
    :param args: its arguments, as parsed; what a profile has filled in is named there as ``by_profile``.
    :param program: how the verb was called: Airflow's command takes connections as well.
    """

    verb: Verb
    args: Namespace
    program: str = PROGRAM

    def completed(self, text: str) -> str:
        """A text with its commands completed."""
        for start, end, words in reversed(list(self.edits(text))):
            text = text[:start] + words + text[end:]
        return text

    def in_document(self, value: Any) -> Any:
        """A JSON document with the commands in its texts completed."""
        if isinstance(value, str):
            return self.completed(value)
        if isinstance(value, Mapping):
            return {key: self.in_document(each) for key, each in value.items()}
        return [self.in_document(each) for each in value] if isinstance(value, list | tuple) else value

    def edits(self, text: str) -> Iterator[tuple[int, int, str]]:
        """What to put into a text, in order: from where, up to where, and the words."""
        if PROGRAM not in text:
            return
        from airflow_ckpt_provider.cli.definition import VERBS

        verbs = {verb.name: verb for verb in VERBS}
        profile = getattr(self.args, "of_profile", None)
        head = self.program + (f" --profile {shlex.quote(profile)}" if profile else "")
        for found in _COMMAND.finditer(text):
            if (verb := verbs.get(found["verb"])) is None:
                continue
            if head != PROGRAM:
                yield found.start(), found.start() + len(PROGRAM), head
            at = begins = found.end()
            end = _END.search(text, at)
            rest = text[at : end.start() if end else len(text)]
            if (word := re.match(r" ([a-z-]+)", rest)) and word[1] in _actions(verb):
                at += word.end()
            if words := [word for option in self._options(verb, rest) for word in option]:
                yield at, at, f" {shlex.join(words)}"
            for word in _PLACEHOLDER.finditer(rest):
                if place := self._place_for(word[0].lower(), verb):
                    yield begins + word.start(), begins + word.end(), shlex.quote(place)

    def _options(self, verb: Verb, rest: str) -> Iterator[list[str]]:
        """The options that a command needs besides what it has."""
        about = self._place_about("repository", verb, rest)
        for option in verb.airflow_options if self.program != PROGRAM else verb.shell_options:
            flag, name = option.flags[0], option.flags[0].lstrip("-").replace("-", "_")
            if option.is_positional or re.search(rf"(?<!\S){flag}(?![\w-])", rest):
                continue
            if name == "kafka_config" and "positions" in {verb.name, self.verb.name}:
                continue  # there it is the new cluster of a mirror
            if name in _OF_REPOSITORY:
                if not {"repository", "second"} & {*verb.places} or (name == "repository_id" and about != "repository"):
                    continue
                own = getattr(self.args, f"{about}_{name}", None)
                yield from _given(option, own or self._own(name))
            elif name == "profile" or (name in _REACH and verb.places):
                yield from _given(option, self._own(name))
            elif name.endswith("_conn_id"):
                place = self._place_about(name.removesuffix("_conn_id"), verb, rest)
                yield from _given(option, self._own(f"{place}_conn_id"))

    def _place_for(self, name: str, verb: Verb) -> str:
        """The address that the verb was given; empty where it has none, or several, or the command asks for another one."""
        uri = getattr(self.args, name, None)
        if not isinstance(uri, str) or name not in self.verb.places or self.verb.name in _TWO_PLACES:
            return ""
        if (verb.name, name) == ("status", "repository"):
            return ""  # where a change is that this repository does not know
        return redacted_text(uri)

    def _own(self, name: str) -> Any:
        return None if name in getattr(self.args, "by_profile", ()) else getattr(self.args, name, None)

    def _place_about(self, place: str, verb: Verb, rest: str) -> str:
        """What the arguments call a place of another command."""
        for own, called in _CALLED.get(self.verb.name, {}).items():
            uri = getattr(self.args, own, None)
            if called == place and own not in verb.places and uri and _names(rest, uri):
                return own
        return place


def _actions(verb: Verb) -> tuple[str, ...]:
    first = verb.options[0] if verb.options else None
    return tuple(first.settings.get("choices", ())) if first and first.is_positional else ()


def _names(rest: str, uri: str) -> bool:
    try:
        words = shlex.split(rest)
    except ValueError:  # words follow that are no part of it
        words = rest.split()
    wanted = plain_uri(uri)
    return any(plain_uri(word) == wanted for word in words)


def _given(option: Option, value: Any) -> Iterator[list[str]]:
    """An option as it was given; not at all if it was not."""
    for each in value if isinstance(value, list) else [value] if value else []:
        if isinstance(each, tuple):
            key, said = each[0], redacted_options(dict([each]))[each[0]]
            yield [option.flags[0], setting_text(key, said) if option.settings["type"] is setting else f"{key}={said}"]
        else:
            yield [option.flags[0], redacted_text(str(each))]
