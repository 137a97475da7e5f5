"""Steps that many remedies share."""

from __future__ import annotations

from airflow_ckpt_provider.advisor.condition import Step

KEEP_IT = (
    "Do not delete the checkpoint: offsets and state are gone with it, and a new query id makes exactly-once sinks write "
    "replayed rows again."
)
LOOK = Step("See what is in the checkpoint and what Spark will do at its next start.", ("inspect", "{checkpoint}"))
BACKUPS = Step("See which backups there are.", ("backups", "{repository}"))
VERIFY = Step(
    "Check that the backup is whole.",
    ("verify", "{repository}", "latest", "--name", "{name}", "--read-data"),
    "CheckpointVerifyOperator",
)
RESTORE = Step(
    "Restore the newest backup over the checkpoint; this prints the plan, with what the start will do in the sink; --apply "
    "applies it and keeps what was there.",
    ("restore", "{repository}", "latest", "{checkpoint}", "--name", "{name}", "--replace", "--sink", "{sink}"),
    "CheckpointRestoreOperator",
)
RESTORE_OLDER = Step(
    "To return to before it, restore a backup from before it: BACKUP stands for its id.",
    ("restore", "{repository}", "BACKUP", "{checkpoint}", "--name", "{name}", "--replace", "--sink", "{sink}"),
    "CheckpointRestoreOperator",
)
BACKUP = Step(
    "Back up its newest committed batch. A batch that was planned and not committed is not part of it.",
    ("backup", "{checkpoint}", "{repository}", "--reason", "before recovery"),
    "CheckpointBackupOperator",
)
SEAL = Step(
    "Keep every Spark from starting it while you look.",
    ("seal", "{checkpoint}", "--reason", "two runs on one checkpoint"),
    "CheckpointSealOperator",
)
DIAGNOSE = Step(
    "Have every fault of the checkpoint named, with what Spark does because of it.",
    ("doctor", "{checkpoint}"),
    "CheckpointDoctorOperator",
)
REPAIR = Step(
    "Plan the repair that loses least: files that a backup has are fetched from it, else the smallest cut back to a batch that "
    "is whole; --apply applies it under a seal and sets a copy aside. Without backups leave --repository and --name out.",
    ("doctor", "{checkpoint}", "--repair", "--repository", "{repository}", "--name", "{name}"),
    "CheckpointDoctorOperator",
)
RESTART = Step("Start the query again as it is.")
REVERT = Step(
    "Deploy the previous version of the query or setting; the checkpoint continues with it as if nothing had changed."
)
NEW_CHECKPOINT = Step(
    "If the change is wanted: start with a new, empty checkpoint directory, at the position of this one, and keep this one.",
    ("positions", "{checkpoint}"),
    "StartingPositionsOperator",
)
GUARD_KAFKA = Step(
    "See by partition which offsets are gone, and how long the others are left.",
    ("guard", "{checkpoint}", "--kafka-config", "{kafka_config}"),
    "KafkaRetentionGuardOperator",
)
GUARD_DELTA = Step(
    "See what of the table is gone, and how long the rest is left: 0 stands for the source, by its order in the query.",
    ("guard", "{checkpoint}", "--option", "delta.table.0={table}"),
    "DeltaRetentionGuardOperator",
)
GUARD_ICEBERG = Step(
    "See whether the table still has what the query reads next: 0 stands for the source, by its order in the query.",
    ("guard", "{checkpoint}", "--option", "iceberg.table.0={table}"),
)
GUARD = Step("See what of the source is gone, and how long the rest is left.", ("guard", "{checkpoint}"))
REWIND = Step(
    "List the batches that can be rewound to. With --to-batch N it plans the rewind of checkpoint, state and sink, and --apply "
    "applies the plan.",
    ("rewind", "{checkpoint}", "--list"),
    "CheckpointRewindOperator",
)
