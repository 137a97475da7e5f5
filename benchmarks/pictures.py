"""Draw docs/images/bench-*.png from the committed figures: ``python -m benchmarks.pictures``."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.counted import Counted
from benchmarks.curves import COSTS, GROWS, Curve, Points, curves
from benchmarks.results import RESULTS, Timings, all_timings, in_words
from benchmarks.steps import Step
from benchmarks.tools import (
    OursInProcess,
    PacksFromShell,
    PacksInProcess,
    PacksLocalFromShell,
    PacksLocalInProcess,
    is_local,
    is_ours,
)
from benchmarks.units import seconds, size

IMAGES = Path(__file__).parent.parent / "docs" / "images"
_OURS = "#0b6e6e"
#: Of ours: in process and from shell, the same for a local disk, and format 1.
_SHADED = (PacksInProcess, PacksFromShell, PacksLocalInProcess, PacksLocalFromShell, OursInProcess)
_SHADES = (_OURS, "#5fb3b0", "#2f8f8c", "#7fc7c2", "#e0a458", "#eec88f")
#: Of the others, dark to light, so that neighbours can be distinguished.
_GREYS = ("#4a4a4a", "#6b6b6b", "#8a8a8a", "#a6a6a6", "#bfbfbf")
_INK, _LINES = "#222222", "#dddddd"
_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": _INK,
    "axes.edgecolor": "#999999",
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}


def main() -> None:
    """Draw all of them."""
    timings, counted = all_timings(), Counted.committed()
    for timed in timings:
        draw_times(timed)
    if counted:
        draw_requests(counted)
    draw_growth(list(curves()))


def digest() -> str:
    """Of the committed figures; every picture bears that of those it was drawn from."""
    found = hashlib.sha256()
    for path in sorted(RESULTS.glob("*.json")):
        found.update(path.read_bytes())
    return found.hexdigest()


def draw_times(timed: Timings) -> None:
    """Bars of the medians with their ranges, a field for each step."""
    plt = _pyplot()
    tools = timed.tools()
    steps = [step for step in Step if any(timed.of(tool, step) for tool in tools)]
    lines = -(-len(steps) // 3)
    size_of_all = (13, (0.9 + 0.33 * len(tools)) * lines)
    figure, axes = plt.subplots(lines, 3, figsize=size_of_all, sharey=True, layout="constrained", squeeze=False)
    for axis in axes.flat[len(steps) :]:
        axis.set_visible(False)
    for axis, step in zip(axes.flat, steps, strict=False):
        found = {tool: middle for tool in tools if (middle := timed.of(tool, step))}
        longest = max((middle.most for middle in found.values()), default=1.0)
        for place, tool in enumerate(tools):
            middle = found.get(tool)
            if middle is None:
                axis.text(longest * 0.01, place, "has none", va="center", color="#999999", fontsize=8.5, style="italic")
                continue
            axis.barh(
                place,
                middle.seconds,
                height=0.66,
                color=_color(tool, tools),
                hatch=_hatch(tool, step),
                edgecolor="white",
            )
            if middle.runs > 1:
                spread = [[middle.seconds - middle.least], [middle.most - middle.seconds]]
                axis.errorbar(middle.seconds, place, xerr=spread, color=_INK, capsize=2.5, linewidth=1)
            ratio = timed.ratio(tool, step)
            said = f"{seconds(middle.seconds)}" + (f"  ({ratio:.2f} x)" if ratio is not None and is_ours(tool) else "")
            weight = "bold" if is_ours(tool) else "normal"
            axis.text(middle.most + longest * 0.02, place, said, va="center", fontsize=8.5, fontweight=weight)
        axis.set_title(step)
        axis.set_yticks(range(len(tools)), [_label(tool) for tool in tools])
        axis.set_xlim(0, longest * 1.34)
        _quiet(axis, "x")
        axis.tick_params(axis="y", length=0)
    axes[0, 0].invert_yaxis()
    for axis in axes[-1]:
        axis.set_xlabel("seconds")
    for axis in axes[:, 0]:
        for label, tool in zip(axis.get_yticklabels(), tools, strict=True):
            label.set_fontweight("bold" if is_ours(tool) else "normal")
    _title(
        figure,
        f"{in_words(timed.name)}: median seconds and range, rounds: {len(timed.rounds)};"
        " x: to the fastest other tool that does the same",
    )
    figure.supxlabel(
        "hatched: of and to a local directory",
        fontsize=8.5,
        color="#666666",
        x=0.99,
        ha="right",
    )
    _save(figure, f"bench-times-{timed.name}")


def draw_requests(counted: Counted) -> None:
    """Bars of the requests, and of the bytes through the client, for the tree that is shown in full."""
    plt = _pyplot()
    tree = counted.main_tree()
    tools = counted.tools(tree)
    figure, axes = plt.subplots(2, 3, figsize=(13, 2 * (0.9 + 0.33 * len(tools))), sharey=True, layout="constrained")
    for line, (what, of) in enumerate((("requests", _all_requests), ("bytes through the client", _all_bytes))):
        for axis, step in zip(axes[line], (Step.FIRST, Step.CHANGED, Step.RESTORE), strict=True):
            amounts = {tool: of(counted, tree, tool, step) for tool in tools}
            most = max((amount for amount in amounts.values() if amount is not None), default=1)
            for place, tool in enumerate(tools):
                amount = amounts[tool]
                if amount is None:
                    axis.text(
                        most * 0.01, place, "has none", va="center", color="#999999", fontsize=8.5, style="italic"
                    )
                    continue
                axis.barh(
                    place, amount, height=0.66, color=_color(tool, tools), hatch=_hatch(tool, step), edgecolor="white"
                )
                said = f"{amount:,}" if what == "requests" else size(amount)
                axis.text(
                    amount + most * 0.02,
                    place,
                    said,
                    va="center",
                    fontsize=8.5,
                    fontweight="bold" if is_ours(tool) else "normal",
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
                )
            if what == "requests":
                bound = counted.bound(tree, tools[0], step).total
                axis.axvline(bound, color=_OURS, linewidth=1, linestyle=(0, (3, 3)))
                axis.annotate(
                    f"lower bound of the first {bound:,}",
                    (bound, -0.62),
                    xytext=(-4 if bound > most / 2 else 4, 0),
                    textcoords="offset points",
                    ha="right" if bound > most / 2 else "left",
                    va="center",
                    fontsize=8,
                    color=_OURS,
                )
            axis.set_title(f"{step}: {what}", pad=8, fontsize=10)
            axis.set_yticks(range(len(tools)), [_label(tool) for tool in tools])
            axis.set_ylim(len(tools) - 0.45, -0.95)
            axis.set_xlim(0, most * 1.24)
            axis.xaxis.set_major_formatter(
                lambda value, _, what=what: f"{value:,.0f}" if what == "requests" else size(value)
            )
            axis.locator_params(axis="x", nbins=4)
            _quiet(axis, "x")
            axis.tick_params(axis="y", length=0)
    for label, tool in zip(axes[0, 0].get_yticklabels() + axes[1, 0].get_yticklabels(), tools * 2, strict=True):
        label.set_fontweight("bold" if is_ours(tool) else "normal")
    _title(figure, f"{in_words(tree)}: what a step asks of the server, and what passes through the client")
    _save(figure, "bench-requests")


def draw_growth(found: Sequence[Curve]) -> None:
    """Lines of what a step costs on logarithmic scales, a column for each thing that grows."""
    plt = _pyplot()
    kinds = list(dict.fromkeys(curve.grows for curve in found))
    if not kinds:
        return
    steps = [step for step in Step if any(curve.step is step for curve in found)]
    shades = dict(zip(Step, ("#0b6e6e", "#e08a1e", "#b03a5b", "#8a8a8a", "#bfa76a", "#4a4a4a", "#7fb3d5"), strict=True))
    marks = dict(zip(Step, "osXD^vP", strict=True))
    figure, axes = plt.subplots(
        len(COSTS),
        len(kinds),
        figsize=(4 * len(kinds), 3 * len(COSTS)),
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    for column, grows in enumerate(kinds):
        for line, what in enumerate(COSTS):
            axis = axes[line, column]
            ticks: set[int] = set()
            for curve in found:
                points: Points = getattr(curve, what)
                if curve.grows == grows and points:
                    x, y = zip(*points, strict=True)
                    ticks |= set(x)
                    axis.plot(
                        x,
                        y,
                        color=shades[curve.step],
                        marker=marks[curve.step],
                        markersize=5,
                        linewidth=1.6,
                        label=curve.step,
                    )
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_xticks(sorted(ticks), [f"{tick:,}" for tick in sorted(ticks)])
            axis.minorticks_off()
            axis.yaxis.set_major_formatter(lambda value, _, what=what: _amount(what, value))
            axis.set_title(f"{what}, by {GROWS[grows]}", fontsize=9.5)
            _quiet(axis, "both")
        axes[-1, column].set_xlabel(GROWS[grows])
    for line, what in enumerate(COSTS):
        axes[line, 0].set_ylabel(what)
    handles = {
        label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend([handles[step] for step in steps], steps, loc="outside lower center", ncols=len(steps), frameon=False)
    _title(figure, "airflow-ckpt, packs, in process: how costs grow (a level line does not)")
    _save(figure, "bench-growth")


def _all_requests(counted: Counted, tree: str, tool: str, step: Step) -> int | None:
    return counted.total(tree, tool, step)


def _all_bytes(counted: Counted, tree: str, tool: str, step: Step) -> int | None:
    row = counted.row(tree, tool, step)
    return row["received"] + row["sent"] if row else None


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    plt.style.use(_STYLE)
    return plt


def _color(tool: str, tools: Sequence[str]) -> str:
    alike = [name for name in tools if is_ours(name) == is_ours(tool)]
    if not is_ours(tool):
        return _GREYS[alike.index(tool) % len(_GREYS)]
    known = [kind.name for kind in _SHADED]
    return _SHADES[known.index(tool) if tool in known else -1]


def _hatch(tool: str, step: Step) -> str | None:
    return "////" if is_local(tool) and step not in (Step.VERIFY, Step.READ) else None


def _label(tool: str) -> str:
    return tool.replace("airflow-ckpt, packs, ", "packs, ").replace("airflow-ckpt, ", "format 1, ")


def _amount(what: str, value: float) -> str:
    if what in ("bytes", "memory"):
        return size(value)
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _quiet(axis: Any, which: str) -> None:
    axis.grid(axis=which, color=_LINES, linewidth=0.8)


def _title(figure: Any, text: str) -> None:
    figure.suptitle(text, x=0.01, ha="left", fontsize=12.5, fontweight="bold")


def _save(figure: Any, name: str) -> None:
    IMAGES.mkdir(exist_ok=True)
    # The same figures give the same bytes, and tell what they were drawn from.
    about: Mapping[str, str | None] = {"Software": None, "Figures": digest()}
    figure.savefig(IMAGES / f"{name}.png", dpi=110, metadata=about)
    _pyplot().close(figure)


if __name__ == "__main__":
    main()
