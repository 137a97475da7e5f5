"""Flows of Spark Declarative Pipelines on open Spark."""
