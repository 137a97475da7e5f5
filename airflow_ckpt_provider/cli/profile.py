"""Profiles: what a person would otherwise type with every command, by name, in a file of their own.

An INI file with a section for each profile, such as one of each environment. ``default`` is taken if none is named.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.streams.settings import SETTINGS, STREAMS, variable

#: The setting that names the profile, and the one that names another file.
PROFILE, PROFILES = "profile", "profiles"
_DEFAULT = "default"
_MOST = 1024**2
#: Options of verbs that a profile can have -> whether one line is one of several values.
_OPTIONS: Mapping[str, bool] = {
    "storage_option": True,
    "key_file": False,
    "repository_id": False,
    "signing_key_file": False,
    "trusted_key": True,
    "kafka_config": False,
}
_FILES = (STREAMS, "key_file", "signing_key_file", "kafka_config")


def profiles_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where the profiles are.

    :param environment: the environment.
    """
    if named := environment.get(variable(PROFILES)):
        return Path(named)
    # In a container whose user has no name there may be no home; then there is no such file.
    config = environment.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(config) / "airflow-ckpt" / "profiles.ini"


def profile_of(name: str | None, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Read a profile: its settings by their names, with ``_`` for ``-``.

    :param name: the profile; ``None``: that of ``AIRFLOW_CKPT_PROFILE``, else ``default``, which may be missing.
    :param environment: the environment.
    :raises RefusedError: the file cannot be read, has no such profile, or a setting that does not exist.
    """
    from airflow_ckpt_provider.errors import did_you_mean

    file, wanted = profiles_file(environment), name or environment.get(variable(PROFILE))
    sections = _sections(file, needed=wanted is not None)
    chosen = wanted or _DEFAULT
    if chosen not in sections:
        if wanted is None:
            return {}
        raise RefusedError(f"{file} has no profile {chosen!r}", hint=did_you_mean(chosen, list(sections)))
    known = (STREAMS, *SETTINGS, *_OPTIONS)
    found = {key.replace("-", "_"): value for key, value in sections[chosen].items()}
    for key in found:
        if key not in known:
            raise RefusedError(f"{file}: [{chosen}] has no setting {key!r}", hint=did_you_mean(key, known))
    # A path is relative to the file: the current directory is another one tomorrow.
    return {
        key: str(file.absolute().parent / os.path.expanduser(value)) if key in _FILES else value
        for key, value in found.items()
        if value.strip()
    }


def fill_in_profile(args: Namespace, profile: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> None:
    """Set what a profile says and the command does not.

    :param args: the arguments of a verb, as parsed; their ``by_profile`` says which of them were set.
    :param profile: what :func:`profile_of` returned.
    :param environment: the environment, which comes before the profile.
    :raises RefusedError: a setting of a store is not ``key=value``.
    """
    import argparse

    from airflow_ckpt_provider.cli.options import setting
    from airflow_ckpt_provider.cli.repository_id import VARIABLE

    args.by_profile = set()
    for key, several in _OPTIONS.items():
        value = profile.get(key)
        if value is None or getattr(args, key, True) or (key == "repository_id" and environment.get(VARIABLE)):
            continue  # also where the verb has no such option
        if key == "kafka_config" and not getattr(args, "mirrored_from", True):
            continue  # for `positions` it is the new cluster of a mirror
        lines = [line.strip() for line in value.splitlines() if line.strip()]
        try:
            given = [setting(line) for line in lines] if key == "storage_option" else lines
        except argparse.ArgumentTypeError as e:
            raise RefusedError(f"{profiles_file(environment)}: {key}: {e}", hint="write key=value in each line") from e
        setattr(args, key, given if several else lines[0])
        args.by_profile.add(key)


def with_profile(profile: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment with what a profile says where the environment says nothing.

    :param profile: what :func:`profile_of` returned.
    :param environment: the environment.
    """
    said = {variable(key): value for key, value in profile.items() if key == STREAMS or key in SETTINGS}
    return {**said, **{key: value for key, value in environment.items() if value or key not in said}}


def _sections(file: Path, *, needed: bool) -> dict[str, dict[str, str]]:
    import configparser

    # A value is what was written: no % stands for another one, and no section gives values to the others.
    parser = configparser.ConfigParser(interpolation=None, default_section="", strict=True)
    try:
        if file.stat().st_size > _MOST:
            raise RefusedError(f"{file} is too large for profiles", hint="is this the file?")
        parser.read_string(file.read_text(encoding="utf-8"), source=str(file))
    except FileNotFoundError:
        if not needed:
            return {}
        raise RefusedError(
            f"there is no file of profiles: {file}",
            hint=f"make it with a section [NAME], or name another one: {variable(PROFILES)}",
        ) from None
    except (OSError, UnicodeDecodeError, configparser.Error) as e:
        said = " ".join(str(e).split())
        raise RefusedError(f"{file} cannot be read: {said}", hint="write sections [NAME] with lines key = value") from e
    return {name: dict(parser[name]) for name in parser.sections()}
