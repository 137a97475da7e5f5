"""A fleet as metrics: gauges for Airflow's own metrics, and a text that Prometheus and OpenMetrics both read.

The text goes to a file that a node exporter's textfile collector reads. It holds moments and not ages, so that it does not
lie when it is old itself: ``time() - ckpt_stream_last_good_backup_timestamp_seconds`` is the age. What is not known has no
sample, and stands as 1 in ``ckpt_stream_unknown``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from airflow_ckpt_provider.fleet.fleet import Fleet
from airflow_ckpt_provider.fleet.objectives import Met
from airflow_ckpt_provider.fleet.stream import Stream
from airflow_ckpt_provider.recovery.status import UNFINISHED


@dataclass(frozen=True, slots=True)
class Gauge:
    """One number of one stream.

    :param name: the metric, without a prefix.
    :param labels: what distinguishes it from the others of its name.
    :param value: the number.
    """

    name: str
    labels: Mapping[str, str]
    value: float


_HELP = {
    "has_good_backup": "1 if there is a backup that is not known to be damaged; absent before the first committed batch.",
    "last_good_backup_timestamp_seconds": "When the newest backup that is not known to be damaged read its position.",
    "backup_age_seconds": "Age of the newest backup that is not known to be damaged, when it was looked.",
    "backup_verified": "1 if that backup was verified and found whole.",
    "backup_bytes": "Size of that backup.",
    "backup_files": "Number of files of that backup.",
    "batches_behind": "Batches committed since that backup.",
    "gap_batches": "Newest logged minus newest committed batch.",
    "latest_committed_batch": "Newest committed batch.",
    "checkpoint_bytes": "Size of the checkpoint.",
    "time_to_loss_seconds": "For how long the sources will have what the next start reads, at least; absent without limit.",
    "last_drill_timestamp_seconds": "When a backup was last restored and run on.",
    "checkpoint_missing": "1 for a checkpoint that has backups, and that is missing below a place that was searched.",
    "sealed": "1 while the checkpoint is sealed.",
    "change_unfinished": "1 while a change of the checkpoint is half-way.",
    "rpo_seconds": "For how long commits were not in a good backup when the report was made, at most; absent without rpo.",
    "rpo_objective_seconds": "The declared rpo.",
    "rpo_met": "1 if the rpo was met when the report was made; absent where that is not known.",
    "rto_seconds": "How long the last drill took; absent without rto.",
    "rto_objective_seconds": "The declared rto.",
    "rto_met": "1 if the last drill met the rto; absent where that is not known.",
    "problems": "Number of things that are wrong.",
    "unknown": "1 for what could not be found out.",
}
#: In Airflow's metrics only, which are taken at the moment they are of.
_OF_NOW = frozenset({"backup_age_seconds"})


def gauges(fleet: Fleet) -> list[Gauge]:
    """All numbers of all streams that are known, and of those whose checkpoint is missing that it is."""
    known = [gauge for stream in fleet.streams for gauge in _of_stream(stream, fleet)]
    gone = [Gauge("checkpoint_missing", {"stream": each.name, "checkpoint": each.uri}, 1) for each in fleet.missing]
    return [*known, *gone]


def to_openmetrics(fleet: Fleet) -> str:
    """The text: gauges by name, ended as OpenMetrics wants it, which Prometheus' older format takes for a comment."""
    found = gauges(fleet)
    lines = []
    for name, text in _HELP.items():
        samples = [g for g in found if g.name == name and name not in _OF_NOW]
        if samples:
            lines += [f"# TYPE ckpt_stream_{name} gauge", f"# HELP ckpt_stream_{name} {text}"]
            lines += [f"ckpt_stream_{name}{_labels(g.labels)} {_number(g.value)}" for g in samples]
    for name, text, value in (
        ("streams", "Number of streams.", len(fleet.streams)),
        ("unread_directories", "Directories that could not be listed: streams may be missing.", len(fleet.unread)),
        ("looked_at_timestamp_seconds", "When the report was made.", fleet.looked_at.timestamp()),
    ):
        lines += [f"# TYPE ckpt_fleet_{name} gauge", f"# HELP ckpt_fleet_{name} {text}"]
        lines.append(f"ckpt_fleet_{name} {_number(value)}")
    return "\n".join([*lines, "# EOF"]) + "\n"


def _of_stream(s: Stream, fleet: Fleet) -> Iterator[Gauge]:
    of = {"stream": s.name, "checkpoint": s.found.place.uri}
    progress = s.found.progress
    needs_one = "backup" not in s.unknown and (s.backup is not None or not s.has_no_batch)
    values: dict[str, float | None] = {
        "has_good_backup": float(s.backup is not None) if needs_one else None,
        "last_good_backup_timestamp_seconds": s.backup.as_of.timestamp()
        if s.backup and s.backup_age is not None
        else None,
        "backup_age_seconds": s.backup_age,
        "backup_verified": float(s.backup.verified is not None) if s.backup else None,
        "backup_bytes": s.backup.size if s.backup else None,
        "backup_files": s.backup.files if s.backup else None,
        "batches_behind": s.batches_behind,
        "gap_batches": s.gap,
        "latest_committed_batch": progress.latest_committed if progress else None,
        "checkpoint_bytes": s.size,
        "time_to_loss_seconds": s.time_to_loss.seconds,
        "last_drill_timestamp_seconds": s.drill.at.timestamp() if s.drill and s.drill_age is not None else None,
        "sealed": float(progress.seal is not None) if progress else None,
        "change_unfinished": float(s.situation.kind in UNFINISHED) if s.situation else None,
        "problems": len(s.problems(fleet.limits_of(s))),
    }
    objectives = s.standing(fleet.objectives_of(s))
    judged = {name: each for name, each in (("rpo", objectives.rpo), ("rto", objectives.rto)) if each}
    for name, each in judged.items():
        values[f"{name}_seconds"] = each.seconds
        values[f"{name}_objective_seconds"] = each.objective
        values[f"{name}_met"] = None if each.met is Met.UNKNOWN else float(each.met is Met.YES)
    yield from (Gauge(name, of, value) for name, value in values.items() if value is not None)
    # A moment in the future would keep an alert about its age silent until then.
    ahead = {"backup": s.backup and s.backup_age is None, "drill": s.drill and s.drill_age is None}
    unknown = [*s.unknown, *(part for part, is_so in ahead.items() if is_so)]
    unknown += [*([] if progress else ["checkpoint"]), *([] if s.time_to_loss.known else ["time_to_loss"])]
    unknown += [name for name, each in judged.items() if each.met is Met.UNKNOWN]
    yield from (Gauge("unknown", {**of, "part": part}, 1) for part in unknown)


def _labels(labels: Mapping[str, str]) -> str:
    def escaped(text: str) -> str:
        # A name of a file may be no UTF-8.
        text = text.encode(errors="backslashreplace").decode()
        return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    return "{" + ",".join(f'{key}="{escaped(value)}"' for key, value in labels.items()) + "}"


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
