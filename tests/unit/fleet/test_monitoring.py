"""The alert rules and the dashboard: real PromQL about gauges that are written; each alert fires, and none without cause."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from airflow_ckpt_provider.cli.definition import VERBS
from airflow_ckpt_provider.fleet.metrics import to_openmetrics
from airflow_ckpt_provider.fleet.monitoring import ALERTS, BOARD
from tests.support.made_fleets import Scenario, scenarios

ROOT = Path(__file__).parents[3]
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
DASHBOARD: dict[str, Any] = json.loads(BOARD.read_text())
EXPRESSIONS = {
    **{rule["alert"]: rule["expr"] for rule in RULES},
    **{
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    },
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Scenario]:
    from airflow_ckpt_provider.storage.opening import open_location

    return scenarios(open_location(str(tmp_path_factory.mktemp("lake"))))


@pytest.fixture(scope="module")
def written(made: list[Scenario]) -> set[str]:
    """The gauges that the reports of all scenarios write."""
    texts = [to_openmetrics(each.fleet) for each in made if each.fleet]
    return {name for text in texts for name in re.findall(r"^# TYPE (\S+) gauge$", text, re.MULTILINE)}


def selectors(expression: Any) -> Iterator[Any]:
    """All selectors of metrics of an expression."""
    if isinstance(expression, promql_parser.VectorSelector):
        yield expression
    for part in ("expr", "lhs", "rhs", "param", "selector", "vector_selector"):
        inner = getattr(expression, part, None)
        if isinstance(inner, promql_parser.Expr):
            yield from selectors(inner)
    for inner in getattr(expression, "args", None) or ():
        yield from selectors(inner)


def gauges_of(text: str) -> set[str]:
    return {selector.name for selector in selectors(promql_parser.parse(text))}


def test_the_reader_of_expressions_finds_all_gauges() -> None:
    text = "sum by (x) (a{y='1'}) > 1 and delta(b[1h]) > 0 unless -(c) or max_over_time(d[1h:5m]) + on() topk(3, e)"
    assert gauges_of(text) == {"a", "b", "c", "d", "e"}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_expression_is_promql_about_gauges_that_are_written(name: str, written: set[str]) -> None:
    used = gauges_of(EXPRESSIONS[name])
    assert used
    assert used <= written


def test_no_gauge_is_left_out(written: set[str]) -> None:
    assert written - {gauge for text in EXPRESSIONS.values() for gauge in gauges_of(text)} == set()


def test_the_parts_that_are_matched_are_parts_that_are_written(made: list[Scenario]) -> None:
    texts = "".join(to_openmetrics(each.fleet) for each in made if each.fleet)
    labels = set(re.findall(r"[{,](\w+)=\"", texts))
    parts = set(re.findall(r'part="(\w+)"', texts))
    for text in EXPRESSIONS.values():
        for selector in selectors(promql_parser.parse(text)):
            for matcher in selector.matchers.matchers:
                assert matcher.name in labels
                assert matcher.name != "part" or set(matcher.value.split("|")) <= parts


def test_an_alert_says_what_is_wrong_and_names_commands_that_exist() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    verbs = {verb.name for verb in VERBS}
    for rule in RULES:
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert set(rule["annotations"]) == {"summary", "description"}
        for command in re.findall(r"`(airflow-ckpt [^`]+)`", rule["annotations"]["description"]):
            assert shlex.split(command)[1] in verbs, rule["alert"]


def test_every_alert_fires_in_a_scenario(made: list[Scenario]) -> None:
    assert set().union(*(each.alerts for each in made)) == {rule["alert"] for rule in RULES}


def test_the_dashboard_asks_the_chosen_data_source_and_its_panels_do_not_overlap(written: set[str]) -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    covered: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        assert {each["datasource"]["uid"] for each in (panel, *panel["targets"])} == {"${datasource}"}
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & covered, panel["title"]
        assert max(x for x, _ in cells) < 24
        covered |= cells
    source, stream = DASHBOARD["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    gauge, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", stream["query"]["query"]).groups()  # type: ignore[union-attr]
    assert gauge in written
    assert (stream["name"], label) == ("stream", "stream")


# --- by Prometheus' own promtool ---

#: When the alerts are asked, in seconds since 1970: the longest `for` is two days.
_END = 3 * 86400
_STEP = 300


def series(scenario: Scenario) -> list[dict[str, str]]:
    """What Prometheus scraped until the end."""
    now = samples(scenario, scenario.fleet)
    before = samples(scenario, scenario.before or scenario.fleet)
    last = int(scenario.since * 3600 / _STEP)
    first = _END // _STEP + 1 - last
    return [
        {
            "series": name,
            "values": " ".join(
                f"{values[name]:.3f}x{count - 1}" if name in values else f"_x{count}"
                for values, count in ((before, first), (now, last))
                if count
            ),
        }
        for name in sorted({*before, *now})
    ]


def samples(scenario: Scenario, fleet: Any) -> dict[str, float]:
    """The samples of a file, as if it had been written at the end."""
    if fleet is None:
        return {}
    found = {}
    moved = _END - fleet.looked_at.timestamp() - scenario.late * 3600
    for line in to_openmetrics(fleet).splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            found[name] = float(value) + (moved if "_timestamp_seconds" in name else 0)
    return found


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_each_alert_fires_where_it_should_and_nowhere_else(made: list[Scenario], tmp_path: Path) -> None:
    groups = [
        {
            "name": each.name,
            "interval": f"{_STEP}s",
            "input_series": series(each),
            "promql_expr_test": [
                {
                    "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                    "eval_time": f"{_END}s",
                    "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(each.alerts)],
                }
            ],
        }
        for each in made
    ]
    file = tmp_path / "tests.yaml"
    file.write_text(json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": f"{_STEP}s", "tests": groups}))
    for arguments in (["check", "rules", str(ALERTS)], ["test", "rules", str(file)]):
        done = subprocess.run(["dev/promtool.sh", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
