"""Where a reset flow begins to read: given positions, and whether the deployed code has them.

A reset throws a flow's offsets away. Where it begins again is decided by the options of its reader alone
(``modifiedAfter``, ``startingOffsets``, ``startingVersion`` …), which are in the pipeline's code; code that is to be
steered reads them from what the update hands it, and there they can be compared. The pipeline's configuration reaches Python
(``spark.conf.get``) and SQL (``${key}``); parameters reach SQL only (``:key``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.delta_start import NO_TABLE, TABLE_READ
from airflow_ckpt_provider.guards.kafka_verdicts import NO_BROKER, NOT_ALL_PARTITIONS
from airflow_ckpt_provider.guards.report import Judgement
from airflow_ckpt_provider.json_text import load_json, load_rendered
from airflow_ckpt_provider.lakeflow.asked_sources import OFFSETS, TIMES, is_asked
from airflow_ckpt_provider.lakeflow.rewind_plan import rewind_time
from airflow_ckpt_provider.units import is_number
from airflow_ckpt_provider.verdict import Verdict

_SHAPE = (
    'give {flow: {"source": name, "options": {option: value}, "carried_by": {option: key of the configuration}, '
    '"language": "python" or "sql", "deployed": true or false, "all_sources": true or false}}, '
    "or {flow: XCom of StartingPositionsOperator}"
)


PYTHON, SQL = "python", "sql"
#: Options that a flow may need after its first start. Auto Loader may filter each listing by ``modifiedAfter``; a Delta source
#: that has found no new version has written no position yet. Kafka's source writes its first offsets down at once.
NEEDED_LATER = frozenset({"modifiedAfter", "modifiedBefore", "startingVersion", "startingTimestamp"})
WHY_LATER = (
    "files that modifiedAfter left out may be read without it, and a Delta source that has found no new version has written no "
    "position yet"
)
#: Options by which a reader ends: with an earlier value it reads less.
_ENDS = frozenset({"endingOffsets", "endingOffsetsByTimestamp", "endingVersion", "endingTimestamp", "modifiedBefore"})
#: Time zone in which Spark reads a time that has none.
_TIME_ZONE = "spark.sql.session.timeZone"


@dataclass(frozen=True, slots=True)
class Position:
    """Where one source of a flow begins.

    :param flow: the flow.
    :param source: the source; empty where the flow has one only.
    :param options: options of its reader.
    :param carried_by: option -> key of the pipeline's configuration or parameters in which the code finds it.
    :param deployed: somebody has seen that the code has the options.
    :param language: of the flow's source code, ``python`` or ``sql``; empty where nobody has said it.
    :param verdict: what the position does, as whoever worked it out says.
    :param reasons: why.
    :param all_sources: the positions of this flow are those of all that it reads: its checkpoint or its progress was read, or
        somebody says so.
    :param as_of: id of the newest update that had ended when it was found; empty: nobody has said it.
    """

    flow: str
    source: str
    options: Mapping[str, str]
    carried_by: Mapping[str, str] = field(default_factory=dict)
    deployed: bool = False
    language: str = ""
    verdict: Verdict = Verdict.SAFE
    reasons: tuple[str, ...] = ()
    all_sources: bool = False
    as_of: str = ""

    def to_json(self) -> dict[str, Any]:
        """The position as plain JSON."""
        return {
            "flow": self.flow,
            "source": self.source,
            "options": dict(self.options),
            "carried_by": dict(self.carried_by),
            "deployed": self.deployed,
            "language": self.language,
            "verdict": self.verdict.value,
            "reasons": list(self.reasons),
            **({"all_sources": True} if self.all_sources else {}),
            **({"as_of": self.as_of} if self.as_of else {}),
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
            given = load_rendered(given)
        except ValueError as e:
            raise RefusedError(f"starting_positions is {given[:80]!r}", hint=_SHAPE) from e
    if not isinstance(given, Mapping):
        raise RefusedError(f"starting_positions is {str(given)[:80]!r}", hint=_SHAPE)
    return tuple(position for flow, value in given.items() for position in _of_flow(str(flow), value))


def _of_flow(flow: str, value: Any) -> Iterable[Position]:
    if isinstance(value, Mapping) and isinstance(value.get("sources"), Sequence):
        about = {key: value[key] for key in ("carried_by", "deployed", "language") if key in value}
        about = {"all_sources": True, **about}  # a checkpoint lists all that its query reads
        several = len(value["sources"]) > 1
        for source in value["sources"]:
            if not isinstance(source, Mapping):
                raise _of_another_kind(flow, "a source", source)
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
    language = str(value.get("language") or "").lower()
    if language not in ("", PYTHON, SQL):
        raise RefusedError(f"the language of flow {flow} is {language!r}", hint="give 'python' or 'sql'")
    carried, reasons = value.get("carried_by") or {}, value.get("reasons") or ()
    if not isinstance(carried, Mapping):
        raise _of_another_kind(flow, "carried_by", carried)
    if isinstance(reasons, str) or not isinstance(reasons, Sequence):
        raise _of_another_kind(flow, "reasons", reasons)
    for name in ("deployed", "all_sources"):
        if value.get(name) not in (None, True, False):
            raise _of_another_kind(flow, name, value[name])
    verdict = value.get("verdict") or Verdict.SAFE
    if verdict not in tuple(Verdict):
        raise _of_another_kind(flow, "verdict", verdict)
    carried_by = {str(k): str(v) for k, v in carried.items() if k in options}
    return Position(
        flow,
        str(value.get("source") or ""),
        {str(name): _text(option) for name, option in options.items()},
        carried_by,
        bool(value.get("deployed")),
        language,
        Verdict(verdict),
        tuple(map(str, reasons)),
        bool(value.get("all_sources")),
        str(value.get("as_of") or ""),
    )


def _of_another_kind(flow: str, what: str, value: Any) -> RefusedError:
    return RefusedError(f"starting_positions of flow {flow}: {what} is {value!r}", hint=_SHAPE)


def judge_positions(
    flows: Sequence[str],
    positions: Sequence[Position],
    sources: Mapping[str, Sequence[str]],
    *,
    parameters: Mapping[str, str],
    configuration: Mapping[str, str],
    defaults: Mapping[str, str] | None = None,
    merged: Mapping[str, str] | None = None,
    language: str = "",
    guard_report: Any = None,
) -> list[Judgement]:
    """Say what is known of where the reset flows begin.

    :param flows: the flows that are reset.
    :param positions: what was given.
    :param sources: flow -> all that it reads, where it is known; each of a join or union needs a position.
    :param parameters: parameters of the update, over those of the pipeline.
    :param configuration: configuration of the pipeline.
    :param defaults: parameters of the pipeline, which later updates have too.
    :param merged: what is merged into it before the start.
    :param language: ``python`` or ``sql`` where all source code of the pipeline is in it.
    :param guard_report: what a guard has found of the sources, as
        :func:`~airflow_ckpt_provider.lakeflow.plan.guard_judgements` takes it; its verdict is judged besides.
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
            handed = _Handed(parameters, configuration, defaults or {}, merged or {}, language)
            names = [position.source] if position.source else list(sources.get(flow) or ())
            asked = is_asked(guard_report, flow, position.options, names if len(names) == 1 else ())
            found += [*_given(position, asked), *_judge(position, handed)]
    return found


def _missing_sources(flow: str, own: Sequence[Position], read: Sequence[str]) -> list[Judgement]:
    if not read and not all(position.all_sources for position in own):
        return [
            Judgement(
                Verdict.UNKNOWN,
                f"flow {flow}: it is not known what it reads, for no event names its sources, and a source without a position is "
                f"read again from its beginning: give sources={{{flow!r}: [all that it reads]}}, or "
                '"all_sources": true in its position',
            )
        ]
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


@dataclass(frozen=True, slots=True)
class _Handed:
    """What the update hands to the code."""

    parameters: Mapping[str, str]
    configuration: Mapping[str, str]
    defaults: Mapping[str, str]
    merged: Mapping[str, str]
    language: str

    def language_of(self, position: Position) -> tuple[str, str]:
        """A flow's language, and how it is known."""
        if position.language:
            return position.language, "as you say"
        return self.language, "all source files of the pipeline are of that kind"

    @property
    def zone(self) -> str:
        """The time zone of the session; empty if the configuration does not have it."""
        return str({**self.configuration, **self.merged}.get(_TIME_ZONE) or "")

    def in_configuration(self, key: str) -> tuple[str, str] | None:
        """What the configuration has when the update starts, and in words where it stands."""
        if key in self.merged:
            return str(self.merged[key]), "the pipeline's configuration, into which it is merged before the start,"
        return (str(self.configuration[key]), "the pipeline's configuration") if key in self.configuration else None


def _given(position: Position, asked: bool) -> Iterable[Judgement]:
    """What a position does, as whoever worked it out says.

    Of Kafka only a broker knows, of Delta only the table: ``SAFE`` needs the report of a guard that has asked for it, or a reason
    that the table was read.

    :param asked: a guard has asked for what the position begins with.
    """
    verdict, reasons = position.verdict, position.reasons
    of_kafka = any(position.options.get(name, "").lstrip().startswith("{") for name in (OFFSETS, TIMES))
    table_read = any(reason.startswith(TABLE_READ) for reason in reasons)
    if verdict is Verdict.SAFE and not asked and (of_kafka or (_of_delta(position) and not table_read)):
        verdict, reasons = Verdict.UNKNOWN, (*reasons, NO_BROKER if of_kafka else NO_TABLE)
    if verdict is Verdict.UNKNOWN and asked and (NO_BROKER in reasons or NO_TABLE in reasons):
        reasons = tuple(reason for reason in reasons if reason not in (NO_BROKER, NO_TABLE, NOT_ALL_PARTITIONS))
        if not reasons:
            return
    if verdict is not Verdict.SAFE:
        why = "; ".join(reasons) or "as whoever worked it out says"
        yield Judgement(verdict, f"{position.label}: {_shown(position)}: {why}")


def _of_delta(position: Position) -> bool:
    """Whether it begins at a version, or at a time as Delta has it; Kafka's ``startingTimestamp`` is a number."""
    time = position.options.get("startingTimestamp", "").strip()
    return is_number(position.options.get("startingVersion", "").strip()) or bool(time and not is_number(time))


def _shown(position: Position) -> str:
    return ", ".join(f"{name}={value}" for name, value in position.options.items()) or "no option"


def _judge(position: Position, handed: _Handed) -> Iterable[Judgement]:
    shown = _shown(position)
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
        yield from _carried(position, option, key, handed)


def _carried(position: Position, option: str, key: str, handed: _Handed) -> Iterable[Judgement]:
    """Judge one option by the ways in which its value reaches the code."""
    language, known_by = handed.language_of(position)
    what = f"{position.label}: {option} has to be {position.options[option]}"
    configured = handed.in_configuration(key)
    remedy = f"give configuration={{{key!r}: {position.options[option]!r}}}, or deploy it"
    if configured:
        how = "which Python reads by spark.conf.get and SQL as ${key}"
        yield _compare(position, option, key, *configured, how, handed.zone)
    elif key not in handed.parameters:
        yield Judgement(
            Verdict.WILL_DUPLICATE,
            f"{what}, but neither the update's parameters nor the pipeline's configuration has {key}: the flow would read all of "
            f"its source again; {remedy}",
        )
    if key not in handed.parameters or language == PYTHON:
        if key in handed.parameters and not configured:
            yield Judgement(
                Verdict.WILL_DUPLICATE,
                f"{what}, but only the update's parameters have {key}, and parameters do not reach Python code (the flow is "
                f"Python: {known_by}): it would read all of its source again; {remedy}",
            )
        return
    how = f"which SQL reads as :{key}"
    compared = _compare(position, option, key, str(handed.parameters[key]), "the update's parameters", how, handed.zone)
    if language == SQL:
        yield Judgement(compared.verdict, f"{compared.reason} (the flow is SQL: {known_by})")
        kept = str(configured[0] if configured else handed.defaults.get(key, ""))
        if option in NEEDED_LATER and not _same(position.options[option], kept, handed.zone):
            yield Judgement(
                Verdict.UNKNOWN,
                f"{position.label}: only this update has the parameter {key}, and it is not established that the flow needs "
                f"{option} no longer after it: {WHY_LATER}; let the code read it as ${{{key}}}, and {remedy}",
            )
        return
    yield (
        compared
        if compared.verdict is not Verdict.SAFE or configured
        else Judgement(
            Verdict.UNKNOWN,
            f"{what}, and only the update's parameters have {key}: parameters reach SQL code and not Python, and it is not known "
            f"which the flow is written in; say so (language: sql), or {remedy}",
        )
    )


def _compare(position: Position, option: str, key: str, there: str, where: str, read: str, zone: str) -> Judgement:
    """Compare what an option has to be with what stands somewhere.

    :param there: what is there.
    :param where: in words.
    :param read: how code reads it, in words.
    :param zone: time zone of times that have none; empty: not known.
    """
    wanted = position.options[option]
    if _same(wanted, there, zone):
        return Judgement(Verdict.SAFE, f"{position.label}: {option}={wanted} is in {where} as {key}, {read}")
    order = _order(wanted, there, zone)
    read_again = (Verdict.WILL_DUPLICATE, "what lies between is written again")
    not_read = (Verdict.WILL_LOSE, "what lies between is never read")
    verdict, effect = {
        None: (Verdict.UNKNOWN, _why_not(wanted, there, zone)),
        -1: not_read if option in _ENDS else read_again,
        1: read_again if option in _ENDS else not_read,
    }[order]
    effect = {-1: f"which is earlier: {effect}", 1: f"which is later: {effect}"}.get(order or 0, effect)
    what = f"{position.label}: {option} has to be {wanted}"
    return Judgement(verdict, f"{what}, but {where} has {key}={there}, {effect}")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _why_not(wanted: str, there: str, zone: str) -> str:
    values = _value(wanted), _value(there)
    if all(isinstance(value, dict) for value in values):
        return "which names other partitions, or words in place of offsets: it cannot be compared with it"
    times = [value for value in values if isinstance(value, datetime)]
    if len(times) < 2:
        return "which cannot be compared with it"
    known = f"{_TIME_ZONE} is {zone}" if zone else f"the configuration has no {_TIME_ZONE}"
    return (
        "which cannot be compared with it: Spark reads a time without a zone in that of its session, and "
        f"{known}; give both with a zone, such as 2026-08-20T05:00:00Z"
    )


def _same(a: str, b: str, zone: str) -> bool:
    if a == b:
        return True
    first, second = _pair(a, b, zone)
    return first is not None and first == second and isinstance(first, bool) == isinstance(second, bool)


def _pair(a: str, b: str, zone: str) -> tuple[Any, Any]:
    """Two positions as they can be compared; two ``None`` where they cannot."""
    first, second = _value(a), _value(b)
    if isinstance(first, datetime) and isinstance(second, datetime) and bool(first.tzinfo) != bool(second.tzinfo):
        try:
            return rewind_time(first.isoformat(), zone or None), rewind_time(second.isoformat(), zone or None)
        except RefusedError:  # the zone is not known, or the clocks were changed then
            return None, None
    return first, second


def _value(text: str) -> Any:
    """A position as something that can be compared: a number, a time, JSON of offsets."""
    try:
        return load_json(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        return None


def _order(wanted: str, there: str, zone: str) -> int | None:
    """-1 where what is there comes earlier, 1 where it comes later (of offsets: anywhere), ``None`` where nobody knows."""
    a, b = _pair(wanted, there, zone)
    if isinstance(a, dict) and isinstance(b, dict):
        pairs = _offsets(a, b)
        if not pairs:
            return None
        return 1 if any(there > wanted for wanted, there in pairs) else -1
    if type(a) is not type(b) or not isinstance(a, int | float | datetime) or isinstance(a, bool):
        return None
    return -1 if b < a else 1


def _offsets(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Offsets of the same partitions; none where one of them is a word of Kafka's (-1, -2), or only one side has it."""
    first, second = _by_partition(a), _by_partition(b)
    if first.keys() != second.keys():
        return []
    pairs = [(offset, second[key]) for key, offset in first.items()]
    known = all(isinstance(each, int) and each >= 0 for pair in pairs for each in pair)
    return pairs if known else []


def _by_partition(offsets: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """Offset of each topic and partition; what has another form is under the topic alone."""
    found: dict[tuple[str, str], Any] = {}
    for topic, partitions in offsets.items():
        each = partitions if isinstance(partitions, dict) else {"": None}
        found |= {(topic, partition): offset for partition, offset in each.items()}
    return found
