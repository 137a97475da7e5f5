"""Streams as text, such as ``bronze=s3://lake/checkpoints/bronze,sink=s3://lake/tables/bronze``."""

from __future__ import annotations

from collections.abc import Callable

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.recovery.chains.stream import ChainStream
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink, named_sinks
from airflow_ckpt_provider.storage.location import Location

_FORM = "NAME=CHECKPOINT,sink=SINK"
_KEYS = ("sink", "txn-app-id", "policy")
_POLICIES = {"rollback": SinkPolicy.ROLLBACK, "keep": None}


def stream_of(
    text: str,
    *,
    open_checkpoint: Callable[[str], Location],
    named_sink: Callable[[str, str | None], Sink],
    repository: Location | None,
) -> ChainStream:
    """Read a stream.

    :param text: name, checkpoint, and for each sink ``sink=…``, followed by its ``txn-app-id=…`` and ``policy=keep`` where it
        has them.
    :param open_checkpoint: opens a checkpoint.
    :param named_sink: makes a sink of its name and its ``txnAppId``.
    :param repository: keeps what is removed; ``None``: beside the checkpoint.
    :raises RefusedError: it is not such a text.
    """
    name, equals, rest = text.partition("=")
    checkpoint, *words = [word.strip() for word in rest.split(",")]
    if not (equals and name.strip() and checkpoint):
        raise RefusedError(f"{text!r} is not {_FORM}", hint="give a name, the checkpoint, and what the query writes to")
    sinks: list[dict[str, str]] = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not value or key not in _KEYS:
            raise RefusedError(f"{word!r} in {text!r} is none of {', '.join(f'{key}=…' for key in _KEYS)}", hint=_FORM)
        if key == "sink":
            sinks.append({"sink": value})
            continue
        if not sinks or key in sinks[-1]:
            raise RefusedError(f"{word!r} in {text!r} does not follow a sink of its own", hint=f"{_FORM},{word}")
        sinks[-1][key] = value
    policies = [each.get("policy", "rollback") for each in sinks] or ["keep"]
    if wrong := [policy for policy in policies if policy not in _POLICIES]:
        raise RefusedError(f"policy={wrong[0]} in {text!r}", hint=f"choose one of {', '.join(_POLICIES)}")
    return ChainStream(
        name.strip(),
        open_checkpoint(checkpoint),
        named_sinks([named_sink(each["sink"], each.get("txn-app-id")) for each in sinks]),
        tuple(_POLICIES[policy] for policy in policies),
        repository,
    )
