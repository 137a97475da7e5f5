"""Hiding credentials in what people read: URIs, messages, options of a store.

Every error of this package, every URI of a place, and with them plans, audit records and log lines go through here. What is
hidden: a password in front of a host, the values of query parameters, settings and options of commands that are named like
a secret (``sig``, ``X-Amz-Signature``, ``AWSAccessKeyId``, ``account_key``, ``--password``, …), what follows
``Authorization:``, and what well-known programs take as a password (``curl -u name:password``). A path is never changed: a
directory may be called ``token=abc``.

Where it cannot be determined how far a password reaches (one with a ``/`` in it that was not encoded), more is hidden
rather than less.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any
from urllib.parse import unquote

#: What is in the place of a credential.
HIDDEN = "***"

#: Of a name in lower case, letters and digits only: it has one of these in it, or is one of the others.
_PARTS = frozenset(
    {
        "secret",
        "password",
        "passwd",
        "passphrase",
        "token",
        "signature",
        "credential",
        "dsn",
        "connectionstring",
        "accesskey",
    }
    | {"accountkey", "privatekey", "apikey", "sharedkey", "googleaccessid", "keyfiledict", "authorization"}
)
_WHOLE = frozenset({"sig", "sas", "pwd", "pass", "auth"})
#: Such a name is one of a secret only among the options of a store or the parameters of a URI.
_WHOLE_AMONG_OPTIONS = frozenset({"key"})
#: Names that look like one and are none: where to get a secret, or how long it is good for.
_HARMLESS = frozenset({"signatureversion", "tokenexpiration", "continuationtoken"})

#: Schemes whose authority is a bucket, which has no port.
_WITHOUT_PORT = frozenset({"s3", "s3a", "s3n", "gs", "gcs", "abfs", "abfss", "wasb", "wasbs", "adl"})
#: Schemes in which a user without a password can be a token. In others it is a container, or the id of an Airflow connection.
_USER_IS_SECRET = frozenset({"http", "https", "git", "git+https"})
_PORTS = re.compile(r"\d{1,5}(,[^,:@]+:\d{1,5})*")

#: Services whose addresses are secrets: whoever has one of them can write there. What is hidden follows.
_WEBHOOK = re.compile(
    r"(?i)(hooks\.slack\.com/(services|workflows|triggers)/|[\w.-]+\.webhook\.office\.com/webhook\w*/"
    r"|outlook\.office(365)?\.com/webhook\w*/|([\w-]+\.)?discord(app)?\.com/api/(v\d+/)?webhooks/"
    r"|api\.telegram\.org/(file/)?bot|events(\.eu)?\.pagerduty\.com/integration/|hooks\.zapier\.com/hooks/\w+/)"
    r"(?P<secret>[^?#]+)"
)

_SCHEME = re.compile(r"(?<![\w+.-])([A-Za-z][\w+.-]*)://")
_IN_TEXT = re.compile(r"(?<![\w+.-])[A-Za-z][\w+.-]*://[^\s\"'`<>]*")
_PARAMETER = re.compile(r"([?&;#])([^=&;#?\s/]+)=([^&;#\s\"'`<>]*)")
_QUOTED = r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'"
#: ``name=value`` in a text: not behind a slash, where it is a directory of a table.
_ASSIGNED = re.compile(rf"(?<![\w/?&;#.%=-])([A-Za-z][\w.-]*)=({_QUOTED}|[^\s;&,\"'`<>)\]}}]+)")
#: ``"name": "value"`` in JSON or in what Python shows of a dictionary.
_MEMBER = re.compile(rf"([\"'])([A-Za-z][\w.-]*)\1(\s*:\s*)({_QUOTED}|-?\d[\w.+-]*)")
_HEADER = re.compile(r"(?i)(\bauthorization[\"']?\s*[:=]\s*[\"']?)((?:[a-z][\w-]*\s+)?[^\s\"',;]+)")

#: ``--name value`` of a command.
_OPTION = re.compile(rf"(?<!\S)(--?([A-Za-z][\w-]*)[= ]+)({_QUOTED}|[^\s\-\"'][^\s\"']*)")
#: Of an option: its value says where the secret is.
_SAYS_WHERE = re.compile(r"(?i)(file|path|dir|arn|name)$")
#: ``-H 'name: value'`` of a command.
_OPTION_HEADER = re.compile(r"(?<!\S)((?:-H|--header)[= ]*([\"']?)([A-Za-z][\w-]*)\s*:\s*)([^\s\"'][^\"'\n]*)")
#: Programs -> the options that they take a password by.
_PROGRAMS = (
    (
        re.compile(r"\b(?:curl|wget|https?|httpie|xh|aria2c)\b(?!:)"),
        re.compile(
            rf"(?<!\S)((?:-[A-Za-z]*?[uUa]|--user|--proxy-user|--auth)[= ]*[\"']?[^\s:\"'/]*:)({_QUOTED}|[^\s\"'/][^\s\"']*)"
        ),
    ),
    (re.compile(r"\bsshpass\b"), re.compile(rf"(?<!\S)(-p *)({_QUOTED}|[^\s\"']+)")),
    (re.compile(r"\b(?:mysql|mariadb)\w*\b"), re.compile(rf"(?<!\S)(-p)({_QUOTED}|[^\s\"']+)")),
    (re.compile(r"\bredis-cli\b"), re.compile(rf"(?<!\S)(-a +)({_QUOTED}|[^\s\"']+)")),
    (re.compile(r"\blogin\b"), re.compile(rf"(?<!\S)(-p +)({_QUOTED}|[^\s\"']+)")),
    (re.compile(r"\bldap\w+\b"), re.compile(rf"(?<!\S)(-w +)({_QUOTED}|[^\s\"']+)")),
    (re.compile(r"\bsmbclient\b"), re.compile(r"(?<!\S)((?:-U|--user)[= ]*[\"']?[^\s%\"']*%)([^\s\"']+)")),
)

_Hide = Callable[[str], str]


def is_secret_name(name: str, *, of_option: bool = False) -> bool:
    """Whether a setting or a parameter of this name holds a credential.

    :param name: the name, in any spelling.
    :param of_option: it is an option of a store or a parameter of a URI, where ``key`` is one as well.
    """
    plain = re.sub(r"[^a-z0-9]", "", unquote(name).lower())
    if plain in _HARMLESS:
        return False
    return plain in _WHOLE or (of_option and plain in _WHOLE_AMONG_OPTIONS) or any(part in plain for part in _PARTS)


def redacted(uri: str) -> str:
    """A URI without the credentials in it; a path of this machine stays as it is.

    :param uri: the whole text is taken for one URI; see :func:`redacted_text`.
    """
    return _of_uri(uri, lambda _: HIDDEN)


def has_password(uri: str) -> bool:
    """Whether a URI has a user with a password before its host.

    :param uri: a URI.
    """
    scheme, separator, rest = uri.partition("://")
    return (
        bool(separator) and scheme.lower() != "file" and _credentials_of_authority(scheme.lower(), rest)[1] is not None
    )


def redacted_text(text: str) -> str:
    """A message without the credentials in it: in its URIs, settings (``secret=…``, ``"secret": "…"``), headers and commands.

    :param text: what is to be shown.
    """
    if not any(mark in text for mark in ("=", ":", "-")):
        return text

    def assigned(match: re.Match[str]) -> str:
        return f"{match[1]}={HIDDEN}" if is_secret_name(match[1]) else match[0]

    def member(match: re.Match[str]) -> str:
        quote = match[4][0] if match[4][0] in "\"'" else ""
        return (
            f"{match[1]}{match[2]}{match[1]}{match[3]}{quote}{HIDDEN}{quote}" if is_secret_name(match[2]) else match[0]
        )

    found = _IN_TEXT.sub(lambda match: redacted(match[0]), text)
    found = _HEADER.sub(lambda match: f"{match[1]}{HIDDEN}", found)
    found = _PARAMETER.sub(lambda match: _parameter(match, lambda _: HIDDEN), found)
    return _of_command(_MEMBER.sub(member, _ASSIGNED.sub(assigned, found)))


def _of_command(text: str) -> str:
    """Without what a command takes as a secret, if the text has one in it."""

    def hidden(match: re.Match[str], name: str) -> str:
        is_secret = is_secret_name(name) and not _SAYS_WHERE.search(name)
        return f"{match[1]}{HIDDEN}" if is_secret else match[0]

    found = _OPTION.sub(lambda match: hidden(match, match[2]), text)
    found = _OPTION_HEADER.sub(lambda match: hidden(match, match[3]), found)
    for program, option in _PROGRAMS:
        if program.search(found):
            found = option.sub(lambda match: f"{match[1]}{HIDDEN}", found)
    return found


def redacted_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a store without the credentials in them, at whatever depth.

    :param options: such as ``storage_options``.
    """

    def shown(name: str, value: Any) -> Any:
        if is_secret_name(name, of_option=True):
            return HIDDEN
        if isinstance(value, Mapping):
            return redacted_options(value)
        if isinstance(value, list | tuple):
            hidden = [_secret_argument(before, each) for before, each in pairwise(("", *value))]
            return [
                each.replace(secret[0], HIDDEN) if secret else shown("", each)
                for each, secret in zip(value, hidden, strict=True)
            ]
        return redacted_text(value) if isinstance(value, str) else value

    return {name: shown(str(name), value) for name, value in options.items()}


def secrets_in(given: object) -> tuple[str, ...]:
    """The credentials that :func:`redacted_options` hides, for whoever has to hide them elsewhere too.

    :param given: options such as ``storage_options``, a URI or several with commas between, or a list of these; the list may be
        the arguments of a command.
    """
    found: dict[str, None] = {}

    def look(name: str, value: object) -> None:
        if isinstance(value, Mapping):
            for inner, each in value.items():
                look(name if is_secret_name(name, of_option=True) else str(inner), each)
        elif isinstance(value, list | tuple):
            for before, each in pairwise(("", *value)):
                look(name, each)
                found.update(dict.fromkeys(_secret_argument(before, each)))
        elif is_secret_name(name, of_option=True):
            found.update({str(value): None} if value not in (None, "", True, False) else {})
        elif isinstance(value, str):
            found.update(dict.fromkeys(each for uri in {value, *value.split(",")} for each in credentials_in(uri)))

    look("", given)
    return tuple(found)


def _secret_argument(before: object, value: object) -> tuple[str, ...]:
    """What of an argument of a command is a secret: ``--name=value``, or ``value`` behind ``--name``."""
    if not isinstance(value, str) or not isinstance(before, str):
        return ()
    option, _, secret = value.partition("=") if value.startswith("-") else (before, "", value)
    is_secret = option.startswith("-") and is_secret_name(option) and not _SAYS_WHERE.search(option)
    return (secret,) if is_secret and secret else ()


def credentials_in(uri: str) -> tuple[str, ...]:
    """The credentials that :func:`redacted` hides, for whoever has to hide them elsewhere too; as written and decoded.

    :param uri: a URI.
    """
    found: dict[str, None] = {}

    def note(value: str) -> str:
        found.update(dict.fromkeys(each for each in (value, unquote(value)) if each and each != HIDDEN))
        return HIDDEN

    _of_uri(uri, note)
    return tuple(found)


def _of_uri(uri: str, hide: _Hide) -> str:
    scheme = _SCHEME.search(uri)
    if scheme is None or scheme[1].lower() == "file":
        return uri
    head, rest = uri[: scheme.end()], uri[scheme.end() :]
    user, behind = _credentials_of_authority(scheme[1].lower(), rest)
    if behind is not None:
        name, colon, password = user.partition(":")
        head += f"{name}:{hide(password)}@" if colon else f"{hide(user)}@"
        rest = behind
    if webhook := _WEBHOOK.match(rest):
        head += rest[: webhook.start("secret")] + hide(webhook["secret"])
        rest = rest[webhook.end() :]
    # A URI may have another one in it: `filecache::s3://…`, `?endpoint=http://…`.
    return head + _PARAMETER.sub(lambda match: _parameter(match, hide), _of_uri(rest, hide))


def _credentials_of_authority(scheme: str, rest: str) -> tuple[str, str | None]:
    """What stands before the host, and what is behind it; ``None`` where it holds no credentials."""
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in authority:
        user = authority.rpartition("@")[0]
        if ":" in user:
            return _split_at_last(rest)
        return (user, rest[len(user) + 1 :]) if scheme in _USER_IS_SECRET else ("", None)
    _, colon, after = authority.partition(":")
    if "@" not in rest or not colon or authority.startswith("["):
        return "", None
    if scheme not in _WITHOUT_PORT and _PORTS.fullmatch(after):
        return "", None
    # A password with a slash, as keys of AWS have one, that was not encoded.
    return _split_at_last(rest)


def _split_at_last(rest: str) -> tuple[str, str]:
    user, _, behind = rest.rpartition("@")
    return user, behind


def _parameter(match: re.Match[str], hide: _Hide) -> str:
    lead, name, value = match[1], match[2], match[3]
    if not value or not is_secret_name(name, of_option=True):
        return match[0]
    return f"{lead}{name}={hide(value)}"
