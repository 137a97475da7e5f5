"""Where a reset flow begins to read: given positions, and whether the deployed code has them.

A reset throws a flow's offsets away. Where it begins again is decided by the options of its reader alone
(``modifiedAfter``, ``startingOffsets``, ``startingVersion`` …), which stand in the pipeline's code; code that is to be
steered reads them from the pipeline's configuration or parameters, and there they can be compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.report import Judgement
from airflow_ckpt_provider.verdict import Verdict

_SHAPE = (
    'give {flow: {"source": name, "options": {option: value}, "carried_by": {option: key of the configuration}}}, '
    "or {flow: XCom of StartingPositionsOperator}"
)


@dataclass(frozen=True, slots=True)
class Position:
    """Where one source of a flow begins.

    :param flow: the flow.
    :param source: the source; empty where the flow has one only.
    :param options: options of its reader.
    :param carried_by: option -> key of the pipeline's configuration or parameters in which the code finds it.
    :param deployed: somebody has seen that the code has the options.
    :param verdict: what the position does, as whoever worked it out says.
    :param reasons: why.
    """

    flow: str
    source: str
    options: Mapping[str, str]
    carried_by: Mapping[str, str] = field(default_factory=dict)
    deployed: bool = False
    verdict: Verdict = Verdict.SAFE
    reasons: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The position as plain JSON."""
        return {
            "flow": self.flow,
            "source": self.source,
            "options": dict(self.options),
            "carried_by": dict(self.carried_by),
            "deployed": self.deployed,
            "verdict": self.verdict.value,
            "reasons": list(self.reasons),
        }

    @property
    def label(self) -> str:
        """``flow x, source y``."""
        return f"flow {self.flow}{f', source {self.source}' if self.source else ''}"


def positions_of(given: Any) -> tuple[Position, ...]:
    """Read positions as a user or an XCom gives them.

    :raises RefusedError: they have another shape.
    """
    if not given:
        return ()
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as e:
            raise RefusedError(f"starting_positions is {given[:80]!r}", hint=_SHAPE) from e
    if not isinstance(given, Mapping):
        raise RefusedError(f"starting_positions is {str(given)[:80]!r}", hint=_SHAPE)
    return tuple(position for flow, value in given.items() for position in _of_flow(str(flow), value))


def _of_flow(flow: str, value: Any) -> Iterable[Position]:
    if isinstance(value, Mapping) and isinstance(value.get("sources"), Sequence):
        about = {key: value[key] for key in ("carried_by", "deployed") if key in value}
        several = len(value["sources"]) > 1
        for source in value["sources"]:
            name = str(source.get("name", source.get("index", "")))
            yield _position(flow, {**about, **source, "source": name if several else ""})
    elif isinstance(value, Mapping):
        yield _position(flow, value)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for each in value:
            yield from _of_flow(flow, each)
    else:
        raise RefusedError(f"starting_positions of flow {flow} are {value!r}", hint=_SHAPE)


def _position(flow: str, value: Mapping[str, Any]) -> Position:
    options = value.get("options")
    if not isinstance(options, Mapping):
        raise RefusedError(f"the starting position of flow {flow} has no options: {dict(value)!r}", hint=_SHAPE)
    carried_by = {str(k): str(v) for k, v in (value.get("carried_by") or {}).items() if k in options}
    return Position(
        flow,
        str(value.get("source") or ""),
        {str(name): _text(option) for name, option in options.items()},
        carried_by,
        bool(value.get("deployed")),
        Verdict(value.get("verdict") or Verdict.SAFE),
        tuple(map(str, value.get("reasons") or ())),
    )


def judge_positions(
    flows: Sequence[str],
    positions: Sequence[Position],
    sources: Mapping[str, Sequence[str]],
    *,
    parameters: Mapping[str, str],
    configuration: Mapping[str, str],
) -> list[Judgement]:
    """Say what is known of where the reset flows begin.

    :param flows: the flows that are reset.
    :param positions: what was given.
    :param sources: flow -> all that it reads, where it is known; each of a join or union needs a position.
    :param parameters: parameters of the update; they come before the configuration.
    :param configuration: configuration of the pipeline.
    :raises RefusedError: a position belongs to no flow that is reset.
    """
    strange = sorted({position.flow for position in positions} - set(flows))
    if strange:
        raise RefusedError(
            f"there is a starting position for flow {strange[0]}, which is not reset", hint=f"flows: {', '.join(flows)}"
        )
    found: list[Judgement] = []
    for flow in flows:
        own = [position for position in positions if position.flow == flow]
        if not own:
            read = f" ({', '.join(sources[flow])})" if sources.get(flow) else ""
            found.append(
                Judgement(
                    Verdict.UNKNOWN,
                    f"flow {flow}: it is not known where it begins to read{read}: without modifiedAfter, startingOffsets, "
                    "startingVersion or the like in its code it reads all that its source still has and writes it again",
                )
            )
            continue
        found += _missing_sources(flow, own, sources.get(flow) or ())
        for position in own:
            found += _judge(position, parameters, configuration)
    return found


def _missing_sources(flow: str, own: Sequence[Position], read: Sequence[str]) -> list[Judgement]:
    have = {position.source for position in own}
    missing = [source for source in read if source not in have]
    if not missing or (len(read) == 1 and len(own) == 1):
        return []
    return [
        Judgement(
            Verdict.UNKNOWN,
            f"flow {flow} joins or unions {', '.join(read)}: there is no starting position for {', '.join(missing)}, and the "
            "reset makes all of them begin again",
        )
    ]


def _judge(position: Position, parameters: Mapping[str, str], configuration: Mapping[str, str]) -> Iterable[Judgement]:
    shown = ", ".join(f"{name}={value}" for name, value in position.options.items()) or "no option"
    if position.verdict is not Verdict.SAFE:
        why = "; ".join(position.reasons) or "as whoever worked it out says"
        yield Judgement(position.verdict, f"{position.label}: {shown}: {why}")
    if position.deployed:
        yield Judgement(Verdict.SAFE, f"{position.label}: begins at {shown}; you say that the deployed code has it")
        return
    unseen = {name: value for name, value in position.options.items() if name not in position.carried_by}
    if unseen or not position.options:
        yield Judgement(
            Verdict.UNKNOWN,
            f"{position.label}: it cannot be seen whether the deployed code has {shown}: name the key of the configuration "
            "that the code reads it from (carried_by), or say that it is deployed (deployed: true)",
        )
    for option, key in position.carried_by.items():
        yield _compare(position, option, key, parameters, configuration)


def _compare(
    position: Position, option: str, key: str, parameters: Mapping[str, str], configuration: Mapping[str, str]
) -> Judgement:
    wanted = position.options[option]
    where = "the update's parameters" if key in parameters else "the pipeline's configuration"
    there = parameters.get(key, configuration.get(key))
    what = f"{position.label}: {option} has to be {wanted}"
    if there is None:
        return Judgement(
            Verdict.WILL_DUPLICATE,
            f"{what}, but neither the update's parameters nor the pipeline's configuration has {key}: the flow would read all of "
            f"its source again; give parameters={{{key!r}: {wanted!r}}}, or deploy it",
        )
    if _same(wanted, str(there)):
        return Judgement(Verdict.SAFE, f"{position.label}: {option}={wanted} stands in {where} as {key}")
    order = _order(wanted, str(there))
    verdict, effect = {
        None: (Verdict.UNKNOWN, "which cannot be compared with it"),
        -1: (Verdict.WILL_DUPLICATE, "which is earlier: what lies between is written again"),
        1: (Verdict.WILL_LOSE, "which is later: what lies between is never read"),
    }[order]
    return Judgement(verdict, f"{what}, but {where} has {key}={there}, {effect}")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _same(a: str, b: str) -> bool:
    return a == b or (_value(a) is not None and _value(a) == _value(b))


def _value(text: str) -> Any:
    """A position as something that can be compared: a number, a time, JSON of offsets."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _order(wanted: str, there: str) -> int | None:
    """-1 where what is there comes earlier, 1 where it comes later (of offsets: anywhere), ``None`` where nobody knows."""
    a, b = _value(wanted), _value(there)
    if isinstance(a, dict) and isinstance(b, dict):
        pairs = _offsets(a, b)
        if not pairs:
            return None
        return 1 if any(there > wanted for wanted, there in pairs) else -1
    if type(a) is not type(b) or not isinstance(a, int | float | datetime) or isinstance(a, bool):
        return None
    return -1 if b < a else 1


def _offsets(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Offsets of the same partitions; none where one of them is a word of Kafka's (-1, -2) or missing."""
    pairs = []
    for topic, partitions in a.items():
        for partition, offset in (partitions if isinstance(partitions, dict) else {}).items():
            other = (b.get(topic) or {}).get(partition) if isinstance(b.get(topic), dict) else None
            if not isinstance(offset, int) or not isinstance(other, int) or min(offset, other) < 0:
                return []
            pairs.append((offset, other))
    return pairs
