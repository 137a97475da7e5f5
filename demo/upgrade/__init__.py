"""Upgrades of a stream by the example DAG ``safe_upgrade``: a good one and a bad one (``make demo-upgrade``)."""
