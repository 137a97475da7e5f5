"""Whether a stream falls behind: what its sources had not read yet, as the progress lines of its driver tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow_ckpt_provider.checkpoint.health import Check
from airflow_ckpt_provider.checkpoint.progress_events import PROGRESS, DriverEvent, Lag


def batches_of(events: Iterable[DriverEvent], query_id: str | None) -> dict[int, DriverEvent]:
    """The newest progress of each batch of a query, by batch id. A batch that was run again has several."""
    return {e.batch_id: e for e in events if e.kind == PROGRESS and query_id in (None, e.query_id)}


def largest_lags(progress: Mapping[int, DriverEvent], *, first: int, last: int) -> dict[str, float]:
    """The largest lag of each source within some batches."""
    found: dict[str, float] = {}
    for batch, event in progress.items():
        if first <= batch <= last:
            for source, lag in event.lags.items():
                found[source] = max(lag.value, found.get(source, 0.0))
    return found


def compare_lags(
    progress: Mapping[int, DriverEvent], *, before: Mapping[str, float] | None, after: int, last: int, within: float
) -> list[Check]:
    """See that no source's lag grows over the new batches.

    The lag of the newest batch may be the larger one of that before the deployment and that of the first new batch (it has the
    time of the deployment to catch up on), and ``within`` percent more; or what one batch reads.

    :param progress: what :func:`batches_of` found.
    :param before: number of the source -> lag before the deployment; ``None`` if it is not known.
    :param after: the newest batch of before the deployment.
    :param last: the newest batch that is compared.
    :param within: percent.
    :return: a check for each source that reports its lag; one that says "unknown" where none does.
    """
    new = sorted(batch for batch in progress if after < batch <= last)
    if not new:
        return [Check("lag", None, None, None, within, None)]
    first, newest = progress[new[0]], progress[new[-1]]
    checks = []
    for source in sorted({*newest.lags, *(before or {})}):
        now = newest.lags.get(source)
        known = [x for x in ((before or {}).get(source), _value(first.lags.get(source))) if x is not None]
        what = f"{now.metric if now else 'lag'} of source {source}"
        if now is None or not known:
            checks.append(Check(what, max(known, default=None), _value(now), None, within, None))
            continue
        limit = max(known)
        change = round(100 * (now.value - limit) / limit, 1) if limit else None
        ok = now.value <= limit * (1 + within / 100) or now.value <= now.one_batch
        checks.append(Check(what, limit, now.value, change, within, ok))
    return checks or [Check("lag", None, None, None, within, None)]


def _value(lag: Lag | None) -> float | None:
    return lag.value if lag else None
