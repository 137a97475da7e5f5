"""Airflow hooks: from a connection to a client of the core."""
