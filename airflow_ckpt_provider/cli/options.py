"""Arguments of verbs: what one is, what argparse makes of its text, and those that several verbs share."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_ckpt_provider.json_text import load_json

#: A value that is read as JSON.
_JSON = re.compile(r'(-?\d+|true|false|null)$|[\[{"]')


@dataclass(frozen=True, slots=True)
class Option:
    """An argument of a verb.

    :param flags: ``("--name",)``, or ``("CHECKPOINT",)`` without dashes for an argument that goes by its position.
    :param help: what it is for.
    :param settings: what else argparse is to know.
    """

    flags: tuple[str, ...]
    help: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_positional(self) -> bool:
        """Whether it goes by its position."""
        return not self.flags[0].startswith("-")

    @property
    def arguments(self) -> tuple[tuple[str, ...], dict[str, Any]]:
        """What ``add_argument`` takes."""
        if not self.is_positional:
            return self.flags, {"help": self.help, **self.settings}
        # Named in lower case for the code, in capitals for people.
        name = self.flags[0]
        return (name.lower(),), {"help": self.help, "metavar": name, **self.settings}


def filled(text: str) -> str:
    """Take a text that is not empty: an empty one is a shell variable that was not set.

    An empty address would mean the current directory, and that is no place to restore to by mistake.
    """
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty")
    if "\0" in text:
        raise argparse.ArgumentTypeError("it has a zero byte")
    return text


def pair(text: str) -> tuple[str, str]:
    """Take ``key=value``."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not key=value")
    return key.strip(), value


def secret_pair(text: str) -> tuple[str, str]:
    """Take ``key=value`` of a store's options; the error does not show the text, which may hold a secret."""
    try:
        return pair(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError("what was given is not key=value") from None


def setting(text: str) -> tuple[str, Any]:
    """Take ``key=value`` whose value may be a whole number, ``true``, ``false``, ``null``, or JSON in brackets or quotes."""
    key, value = secret_pair(text)
    if not _JSON.match(value):
        return key, value
    try:
        return key, load_json(value)
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"the value of {key} is no JSON: {e}") from e


def setting_text(key: str, value: Any) -> str:
    """Write a setting as :func:`setting` reads it."""
    return f"{key}={value if isinstance(value, str) and not _JSON.match(value) else json.dumps(value)}"


class AllUnlessToldOtherwise(argparse.Action):
    """An option whose value may be left out; argparse's own ``const`` is unknown to Airflow's ``Arg``."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Keep the value, ``all`` where none was given."""
        setattr(namespace, self.dest, values or "all")


def length_of_time(text: str) -> float:
    """Take a length of time such as ``24h``, in seconds."""
    from airflow_ckpt_provider.errors import CkptError
    from airflow_ckpt_provider.units import parse_seconds

    try:
        return parse_seconds(text, field="it")
    except CkptError as e:
        raise argparse.ArgumentTypeError(f"{text!r} is no length of time such as 24h, 90min or 1d 12h") from e


def number_from(least: int) -> Callable[[str], int]:
    """Make a type for whole numbers."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} up")
        return value

    return number


CHECKPOINT = Option(
    ("CHECKPOINT",), "the checkpointLocation of the query: a path, or a URI such as s3://bucket/path", {"type": filled}
)
REPOSITORY = Option(("REPOSITORY",), "the place that holds the backups: a path or a URI", {"type": filled})
NAME = Option(("--name",), "name of the stream in the repository", {"type": filled, "metavar": "NAME"})
WORKERS = Option(
    ("--workers",),
    "files copied or read at the same time (default: %(default)s)",
    {"type": number_from(1), "default": 32, "metavar": "N"},
)
FLAG = {"action": "store_true"}
KAFKA_CONFIG = Option(
    ("--kafka-config",),
    "a client's configuration for the Kafka brokers: JSON or key=value lines of librdkafka's settings",
    {"type": filled, "metavar": "FILE"},
)

#: Words of risks, as :data:`airflow_ckpt_provider.change.risks.RISKS` has them; that module takes long to load.
RISKS = (
    "sink_skips",
    "sink_duplicates",
    "sink_loss",
    "sink_failure",
    "sink_unknown",
    "source_skips",
    "source_duplicates",
    "source_loss",
    "source_failure",
    "source_unknown",
    "foreign_loss",
    "other_query",
)
_OLD_VERDICTS = ("WILL_SKIP", "WILL_DUPLICATE", "WILL_LOSE", "WILL_FAIL", "UNKNOWN")


def risk(text: str) -> str:
    """Take the word of a risk, or a verdict, by which risks were accepted in version 0.1."""
    if text not in (*RISKS, *_OLD_VERDICTS):
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(RISKS)}")
    return text


class Accept(argparse.Action):
    """Collects words of risks; a verdict of version 0.1 stands for the words that it meant."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Add the word."""
        found: tuple[str, ...] = (values,)
        if values in _OLD_VERDICTS:
            from airflow_ckpt_provider.change.old_acceptance import words_of

            found = words_of(values)
            warn_of(f"{option_string} {values}", " ".join(f"--accept {word}" for word in found))
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), *found])


def warn_of(old: str, new: str) -> None:
    """Say on standard error that an option has a new name.

    :param old: what was given.
    :param new: what to give instead.
    """
    print(f"warning: {old} is deprecated and will be removed in the next release; give {new}", file=sys.stderr)


def deprecated(old: str, new: str, *, sets: str, to: Any = None, adds: tuple[str, ...] = ()) -> Option:
    """An option of version 0.1, which works for one more release and is neither in the help nor on the page.

    :param old: the option.
    :param new: what to give instead, for the warning.
    :param sets: the argument that it sets.
    :param to: the value; ``None``: the one that is given.
    :param adds: words that are added to the argument instead.
    """

    class Deprecated(argparse.Action):
        def __call__(
            self,
            parser: argparse.ArgumentParser,
            namespace: argparse.Namespace,
            values: Any,
            option_string: str | None = None,
        ) -> None:
            warn_of(old, new)
            given = values if to is None else to
            now = getattr(namespace, sets, None)
            setattr(namespace, sets, [*(now or ()), *(adds or (given,))] if isinstance(now, list) else given)

    settings: dict[str, Any] = {"action": Deprecated, "dest": sets, "default": argparse.SUPPRESS}
    takes_value = to is None and not adds
    return Option((old,), argparse.SUPPRESS, settings | ({"type": filled} if takes_value else {"nargs": 0}))


SINK_OPTION = Option(
    ("--sink-option",),
    "setting of the table's store as deltalake names it, such as AWS_REGION=eu-central-1, or of an Iceberg catalog as "
    "pyiceberg names it; repeatable",
    {"type": secret_pair, "action": "append", "default": [], "metavar": "KEY=VALUE"},
)
_WRITES_TO = (
    "what the query writes to: the directory of a Delta table, an Iceberg table or a file sink, a table by its name "
    "(CATALOG.SCHEMA.TABLE, or with unity:, iceberg: or spark: in front), or foreachBatch, foreach, kafka"
)
#: For a verb that takes one sink; and for one that takes all of a query.
ONE_SINK = (
    Option(("--sink",), _WRITES_TO, {"type": filled, "action": "append", "default": [], "metavar": "SINK"}),
    Option(
        ("--txn-app-id",),
        "txnAppId with which foreachBatch writes to the Delta table, or an older id of the query that no record names "
        "(default: the query id); of several sinks one for all, or one for each in their order, '' for none",
        {"type": str, "action": "append", "default": [], "metavar": "ID"},
    ),
    SINK_OPTION,
    Option(
        ("--warehouse",),
        "SQL warehouse of Databricks, which describes and restores a table of Unity Catalog whose log cannot be read from here",
        {"type": filled, "metavar": "ID"},
    ),
    Option(
        ("--profile",),
        "profile of ~/.databrickscfg to look tables of Unity Catalog up (default: as the Databricks SDK finds a login)",
        {"type": filled, "metavar": "NAME"},
    ),
)
SINK = (replace(ONE_SINK[0], help=f"{_WRITES_TO}; repeatable, for a query that writes to several"), *ONE_SINK[1:])

ACCEPT = Option(
    ("--accept",),
    "accept a risk by its name, as the plan prints it, such as sink_duplicates; repeatable",
    {"type": risk, "action": Accept, "default": [], "metavar": "WORD"},
)
#: How the query is known to be stopped, for every verb that changes a checkpoint.
STOPPED = (
    Option(("--query-is-stopped",), "you say that the query is stopped; the audit record names you", FLAG),
    Option(
        ("--progress-log",),
        "the driver's progress lines, a probe: a change proceeds only if they show the end of the query",
        {"type": filled, "metavar": "URI"},
    ),
    Option(
        ("--spark-api",),
        "the query's application in Spark's REST interface, a probe: http://HOST:PORT/api/v1/applications/ID",
        {"type": filled, "metavar": "URL"},
    ),
    Option(
        ("--stopped-if",),
        "command that knows, a probe: exit code 0, the query has ended; 1, it runs; anything else, not known",
        {"type": filled, "metavar": "COMMAND"},
    ),
    Option(
        ("--quiet-for",),
        "how long nobody may write, to confirm your statement or that of a probe (default: %(default)s)",
        {"type": length_of_time, "default": 5.0, "metavar": "SECONDS"},
    ),
    Option(
        ("--wait-at-most",),
        "how long to wait for silence, or for a query that is being stopped (default: %(default)s)",
        {"type": length_of_time, "default": 600.0, "metavar": "SECONDS"},
    ),
)
CONTINUE_NUMBERS = Option(
    ("--continue-numbers",),
    "the new checkpoint continues with the old batch numbers, which file sinks want; for queries without state",
    FLAG,
)
REASON = Option(("--reason",), "why, for the audit record", {"default": "", "metavar": "TEXT"})
APPLY = Option(("--apply",), "apply the plan", FLAG)
STOP_RUNNING = Option(
    ("--stop-running",), "stop a query that still runs: it is sealed, and ends at its batch boundary", FLAG
)
BACKUP_ID = Option(("--backup-id",), "id of the backup (default: latest)", {"type": filled, "metavar": "ID"})
OLD_BACKUP = deprecated("--backup", "--backup-id", sets="backup_id")
RESTORABLE_BATCH = Option(
    ("--batch",),
    "batch to rewind to, one of the backup's restorable ones (default: its newest)",
    {"type": number_from(0), "metavar": "N"},
)
PARTITIONS = Option(
    ("--partitions",),
    "how many partitions a Kafka topic has now, so that added ones are read too; repeatable",
    {"type": pair, "action": "append", "default": [], "metavar": "TOPIC=N"},
)
#: The Kafka topics are on another cluster now, where MirrorMaker 2 copied them.
MIRROR = (
    Option(
        ("--mirrored-from",),
        "the Kafka topics moved to another cluster: the alias of the old one in MirrorMaker 2; needs --kafka-config",
        {"type": filled, "metavar": "ALIAS"},
    ),
    Option(
        ("--kafka-config",),
        "with --mirrored-from: a client's configuration for the new cluster, JSON or key=value lines of librdkafka's settings",
        {"type": filled, "metavar": "FILE"},
    ),
    Option(
        ("--old-kafka-config",),
        "the same for the old cluster, which has the offset syncs by default",
        {"type": filled, "metavar": "FILE"},
    ),
    Option(
        ("--mirrored-to",),
        "alias of the new cluster in MirrorMaker 2; without it, syncs on the old one prove nothing",
        {"type": filled, "metavar": "ALIAS"},
    ),
    Option(
        ("--offset-syncs-location",),
        "offset-syncs.topic.location of MirrorMaker 2 (default: %(default)s, the old cluster)",
        {"choices": ("source", "target"), "default": "source"},
    ),
    Option(
        ("--replication-policy",),
        "how MirrorMaker 2 names the copies: the alias in front, or the same name (default: %(default)s)",
        {"choices": ("default", "identity"), "default": "default"},
    ),
    Option(
        ("--replication-separator",),
        "replication.policy.separator of MirrorMaker 2 (default: %(default)s)",
        {"type": filled, "default": ".", "metavar": "TEXT"},
    ),
    Option(
        ("--timestamp-margin",),
        "how much earlier than the last record read a partition starts where no sync shows (default: %(default)s)",
        {"type": length_of_time, "default": "10min", "metavar": "TIME"},
    ),
)

OF_EVERY_VERB = (
    Option(
        ("--storage-option",),
        "setting of the fsspec filesystem of stores other than local disks, such as endpoint_url=http://host:9000; repeatable",
        {"type": setting, "action": "append", "default": [], "metavar": "KEY=VALUE"},
    ),
    Option(
        ("--key-file",),
        "key of an encrypted repository: 32 bytes in base64; a new repository is encrypted with it",
        {"type": filled, "metavar": "FILE"},
    ),
    Option(
        ("--repository-id",),
        "id that REPOSITORY has to have; another one is refused (default: CKPT_REPOSITORY_ID of the environment)",
        {"type": filled, "metavar": "ID"},
    ),
    Option(
        ("--signing-key-file",),
        "private key that signs what is written into the repository: 32 bytes in base64 (new-signing-key makes one)",
        {"type": filled, "metavar": "FILE"},
    ),
    Option(
        ("--trusted-key",),
        "public key that documents of the repository have to be signed by; repeatable, one of them is enough",
        {"type": filled, "action": "append", "default": [], "metavar": "KEY"},
    ),
    Option(("--json",), "print one JSON document on stdout, and nothing else there", FLAG),
    Option(("--debug",), "show what is done, and the traceback of an error, on stderr", FLAG),
)
