"""Seconds and bytes as page and pictures show them."""

from __future__ import annotations


def seconds(value: float) -> str:
    """Seconds with their unit."""
    return f"{plain(value)} s"


def plain(value: float) -> str:
    """Seconds, with as many digits as mean something."""
    return f"{value:.1f}" if value >= 20 else f"{value:.2f}"


def size(value: float) -> str:
    """Bytes with their unit."""
    if value >= 1_000_000:
        return f"{value / 1e6:,.1f} MB" if value >= 20e6 else f"{value / 1e6:.2f} MB"
    return f"{value / 1e3:,.1f} KB" if value >= 1000 else f"{value:,.0f} B"
