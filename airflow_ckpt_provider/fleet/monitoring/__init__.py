"""Files for Prometheus and Grafana, about the gauges that :mod:`~airflow_ckpt_provider.fleet.metrics` writes."""

from __future__ import annotations

from pathlib import Path

#: Alert rules for Prometheus.
ALERTS = Path(__file__).with_name("alerts.yaml")
#: A dashboard for Grafana.
BOARD = Path(__file__).with_name("board.json")
