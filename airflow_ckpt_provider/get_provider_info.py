"""What Airflow asks a provider about itself, through the entry point ``apache_airflow_provider``."""

from __future__ import annotations

from typing import Any

#: What Airflow does with URIs that begin with ``ckpt://``.
_ASSETS = {
    "schemes": ["ckpt"],
    "handler": "airflow_ckpt_provider.assets.sanitize_uri",
    "factory": "airflow_ckpt_provider.assets.create_asset",
    "to_openlineage_converter": "airflow_ckpt_provider.assets.convert_asset_to_openlineage",
}


def get_provider_info() -> dict[str, Any]:
    """Describe this provider to Airflow.

    Every Airflow process calls this at its start, so it only names things and imports none of them.
    """
    return {
        "package-name": "airflow-ckpt-provider",
        "name": "Spark checkpoints",
        "description": "Back up, verify, restore, guard, rewind and reset checkpoints of Spark Structured Streaming.",
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
                    "airflow_ckpt_provider.operators.chain",
                    "airflow_ckpt_provider.operators.compatibility",
                    "airflow_ckpt_provider.operators.delta_retention_guard",
                    "airflow_ckpt_provider.operators.doctor",
                    "airflow_ckpt_provider.operators.expire",
                    "airflow_ckpt_provider.operators.file_source_guard",
                    "airflow_ckpt_provider.operators.fleet",
                    "airflow_ckpt_provider.operators.kafka_retention_guard",
                    "airflow_ckpt_provider.operators.pipeline_positions",
                    "airflow_ckpt_provider.operators.pipeline_refresh",
                    "airflow_ckpt_provider.operators.pipeline_rewind",
                    "airflow_ckpt_provider.operators.migrate",
                    "airflow_ckpt_provider.operators.pipeline_configuration",
                    "airflow_ckpt_provider.operators.pipeline_stop",
                    "airflow_ckpt_provider.operators.preflight",
                    "airflow_ckpt_provider.operators.repository",
                    "airflow_ckpt_provider.operators.replay_proof",
                    "airflow_ckpt_provider.operators.reset",
                    "airflow_ckpt_provider.operators.reset_checkpoint",
                    "airflow_ckpt_provider.operators.reset_flow",
                    "airflow_ckpt_provider.operators.restore",
                    "airflow_ckpt_provider.operators.rewind",
                    "airflow_ckpt_provider.operators.rewind_report",
                    "airflow_ckpt_provider.operators.seal",
                    "airflow_ckpt_provider.operators.starting_positions",
                    "airflow_ckpt_provider.operators.stream_action",
                    "airflow_ckpt_provider.operators.table_check",
                    "airflow_ckpt_provider.operators.undo",
                    "airflow_ckpt_provider.operators.upgrade",
                    "airflow_ckpt_provider.operators.upgrade_switch",
                    "airflow_ckpt_provider.operators.verify",
                ],
            }
        ],
        "sensors": [
            {
                "integration-name": "Spark checkpoints",
                "python-modules": [
                    "airflow_ckpt_provider.sensors.commit_gap",
                    "airflow_ckpt_provider.sensors.kafka_time_to_loss",
                    "airflow_ckpt_provider.sensors.pipeline_update",
                    "airflow_ckpt_provider.sensors.stream_health",
                ],
            }
        ],
        "triggers": [
            {
                "integration-name": "Spark checkpoints",
                "python-modules": [
                    "airflow_ckpt_provider.triggers.commit_gap",
                    "airflow_ckpt_provider.triggers.kafka_time_to_loss",
                    "airflow_ckpt_provider.triggers.pipeline_update",
                    "airflow_ckpt_provider.triggers.stream_action",
                    "airflow_ckpt_provider.triggers.stream_event",
                ],
            }
        ],
        "hooks": [
            {
                "integration-name": "Spark checkpoints",
                "python-modules": [
                    "airflow_ckpt_provider.hooks.ckpt_repository",
                    "airflow_ckpt_provider.hooks.databricks_pipelines",
                    "airflow_ckpt_provider.hooks.kafka",
                ],
            }
        ],
        "plugins": [{"name": "ckpt", "plugin-class": "airflow_ckpt_provider.plugins.page.CheckpointPagePlugin"}],
        "extra-links": [
            "airflow_ckpt_provider.links.manifest.BackupManifestLink",
            "airflow_ckpt_provider.links.page.CheckpointsPageLink",
            "airflow_ckpt_provider.links.pipeline_update.PipelineUpdateLink",
        ],
        "notifications": ["airflow_ckpt_provider.notifications.recovery_advice.RecoveryAdviceNotifier"],
        "asset-uris": [_ASSETS],
        "dataset-uris": [_ASSETS],  # the name of the key in Airflow 2, which its tools still read
        "config": {"ckpt": _config()},
        "connection-types": [
            {
                "connection-type": "ckpt_repository",
                "hook-class-name": "airflow_ckpt_provider.hooks.ckpt_repository.CkptRepositoryHook",
                "hook-name": "Checkpoint repository",
                "ui-field-behaviour": {
                    "hidden-fields": ["host", "schema", "login", "password", "port"],
                    "relabeling": {},
                    "placeholders": {"description": "Backups of Spark checkpoints"},
                },
                "conn-fields": _fields_of_repository(),
            }
        ],
        "cli": ["airflow_ckpt_provider.cli.definition.get_cli_commands"],
    }


def _fields_of_repository() -> dict[str, Any]:
    """The form of a connection of type ``ckpt_repository``."""
    fields = {
        "repository": ("Repository", "URI of the repository, such as s3://backups/streams", None),
        "storage_conn_id": (
            "Storage connection",
            "connection that reaches the store; empty: the environment's own",
            None,
        ),
        "ckpt_repository_id": ("Repository id", "id that the repository has to have; empty: any", None),
        "ckpt_repository_secret_key": ("Key", "of an encrypted repository: 32 bytes in base64", "password"),
        "ckpt_signing_secret_key": ("Signing key", "signs what is written: 32 bytes in base64", "password"),
        "ckpt_trusted_keys": (
            "Trusted keys",
            "public keys, one of which has to have signed; with commas between",
            None,
        ),
    }
    return {
        name: {
            "label": label,
            "description": text,
            "schema": {"type": ["string", "null"], **({"format": form} if form else {})},
        }
        for name, (label, text, form) in fields.items()
    }


def _config() -> dict[str, Any]:
    """The section ``[ckpt]``."""
    options = {
        "streams": (
            "File that declares the streams; in Airflow a relative path begins at the folder of the DAGs.",
            None,
        ),
        "repository": ("URI of the repository that the page reads, and of the streams that declare none.", None),
        "storage_conn_id": ("Connection to reach the stores of the streams that declare none.", None),
        "checkpoint_conn_id": (
            "Connection to reach the checkpoints of the streams that declare none; the forms of the page send it.",
            None,
        ),
        "repository_conn_id": (
            "Connection to reach the repository of the page, and those of the streams that declare none.",
            None,
        ),
        "kafka_conn_id": ("Connection of type kafka of the streams that declare none.", None),
        "spark_conn_id": ("Connection of type spark of the streams that declare none.", None),
        "databricks_conn_id": ("Connection of type databricks of the streams that declare none.", None),
        "page_dag_id": ("DAG of the fleet report: whoever may read it sees the page.", "fleet"),
        "dag_prefix": (
            "What the ids of the DAGs begin with that stream_dags makes; the page's forms look for them.",
            "ckpt",
        ),
        "restore_dag_id": (
            "DAG that the page's form for a restore starts, of a stream that is not declared or has no such DAG.",
            "restore_checkpoint",
        ),
        "rewind_dag_id": (
            "DAG that the page's form for a rewind starts, of a stream that is not declared or has no such DAG.",
            "rewind_replay",
        ),
    }
    return {
        "description": "Recovery of Spark Structured Streaming.",
        "options": {
            name: {"description": text, "version_added": "0.2.0", "type": "string", "example": None, "default": default}
            for name, (text, default) in options.items()
        },
    }
