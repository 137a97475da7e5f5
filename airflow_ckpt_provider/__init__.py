"""Backup, restore and recovery of Spark Structured Streaming checkpoints, as an Apache Airflow provider."""

__version__ = "0.2.0"
