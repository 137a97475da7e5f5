"""What Airflow asks a provider about itself, through the entry point ``apache_airflow_provider``."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Describe this provider to Airflow.

    Every Airflow process calls this at its start, so it only names things and imports none of them.
    """
    return {
        "package-name": "airflow-ckpt-provider",
        "name": "Spark checkpoints",
        "description": "Back up, verify, restore and seal checkpoints of Spark Structured Streaming.",
        "integrations": [
            {
                "integration-name": "Spark checkpoints",
                "external-doc-url": (
                    "https://spark.apache.org/docs/latest/streaming/structured-streaming-programming-guide.html"
                ),
                "tags": ["software"],
            }
        ],
        "operators": [
            {
                "integration-name": "Spark checkpoints",
                "python-modules": [
                    "airflow_ckpt_provider.operators.backup",
                    "airflow_ckpt_provider.operators.restore",
                    "airflow_ckpt_provider.operators.seal",
                    "airflow_ckpt_provider.operators.verify",
                ],
            }
        ],
        "extra-links": ["airflow_ckpt_provider.links.manifest.BackupManifestLink"],
        "cli": ["airflow_ckpt_provider.cli.definition.get_cli_commands"],
    }
