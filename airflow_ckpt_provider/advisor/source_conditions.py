"""Conditions of sources and sinks: Kafka, Delta, Iceberg, files."""

from __future__ import annotations

from airflow_ckpt_provider.advisor.condition import ErrorCondition, Remedy, Step
from airflow_ckpt_provider.advisor.steps import (
    BACKUP,
    DIAGNOSE,
    GUARD,
    GUARD_DELTA,
    GUARD_ICEBERG,
    GUARD_KAFKA,
    LOOK,
    NEW_CHECKPOINT,
    RESTART,
    RESTORE,
)

_LOSS = "KAFKA_DATA_LOSS."
_KAFKA_ONCE = Step(
    "If the missing rows are accepted, and the topic was not recreated (then see KAFKA-TOPIC-REMADE): start once with "
    "failOnDataLoss=false, let one batch commit, then take it out again."
)
_DELTA_NEW = Step(
    "Start with a new checkpoint directory and startingVersion set to the oldest version that is left; what was deleted before "
    "it has to be backfilled.",
    NEW_CHECKPOINT.command,
    NEW_CHECKPOINT.operator,
)

CONDITIONS = (
    ErrorCondition(
        "KAFKA-OFFSETS-GONE",
        "Kafka no longer has the offsets from which the query continues: retention deleted them while it was down or behind, or "
        "the topic was recreated.",
        "Do not delete the checkpoint and do not leave failOnDataLoss=false in place: the first loses the position of every "
        "other partition, the second hides every later loss.",
        Remedy.RAISE_RETENTION,
        (
            Step(
                "See the topic's present retention; -1 keeps all.",
                call="kafka-configs.sh --bootstrap-server BROKER --describe --all --entity-type topics --entity-name {topic}",
            ),
            Step(
                "Raise it above the present value, so that no more is lost meanwhile. A smaller value deletes more at once.",
                call="kafka-configs.sh --bootstrap-server BROKER --alter --entity-type topics --entity-name {topic} "
                "--add-config retention.ms=MILLISECONDS",
            ),
            GUARD_KAFKA,
            BACKUP,
            _KAFKA_ONCE,
            Step("Where another copy of the rows exists (an archive, a mirror), backfill the sink from it."),
        ),
        names=(
            _LOSS + "START_OFFSET_RESET",
            _LOSS + "COULD_NOT_READ_OFFSET_RANGE",
            _LOSS + "ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO",
        ),
        patterns=(
            r"Cannot fetch offset \d+",
            r"OffsetOutOfRangeException|OFFSET_OUT_OF_RANGE",
            r"Starting offset for \S+ was \d+ but consumer reset to \d+",
        ),
    ),
    ErrorCondition(
        "KAFKA-DATA-LOSS",
        "Kafka does not have what the query continues with: retention deleted it, or the topic was recreated.",
        "Do not delete the checkpoint and do not leave failOnDataLoss=false in place: it hides every later loss.",
        Remedy.RAISE_RETENTION,
        (
            Step(
                "See from which offsets the query continues; compare with the topic's earliest and latest ones.",
                LOOK.command,
            ),
            Step("Earliest ones beyond them: retention. Latest ones before them: another topic of the same name."),
            BACKUP,
            _KAFKA_ONCE,
        ),
        names=("KAFKA_DATA_LOSS",),
        patterns=(
            r"Some data may have been lost because they are not available in Kafka any\s?more",
            r"some data may have been missed",
        ),
        vague=True,
    ),
    ErrorCondition(
        "KAFKA-TOPIC-REMADE",
        "The topic is not the one that the checkpoint knows: partitions are gone, or their offsets decreased. It was deleted and "
        "recreated, or the query was pointed at another cluster, where offsets mean other rows.",
        "Do not set failOnDataLoss=false: the query would continue at old numbers in a new topic and skip its first rows.",
        Remedy.RESET,
        (
            Step(
                "Point the query back at the cluster and topic the checkpoint was written with, if that still exists. A broker "
                "whose metadata is stale also says UnknownTopicOrPartition: see that the topic is there, and start again."
            ),
            BACKUP,
            Step(
                "Else start with a new, empty checkpoint directory and startingOffsets chosen for the new topic, with those of "
                "the other topics as they are; keep the old one.",
                NEW_CHECKPOINT.command,
                NEW_CHECKPOINT.operator,
            ),
        ),
        names=(
            _LOSS + "PARTITIONS_DELETED",
            _LOSS + "PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT",
            _LOSS + "PARTITION_OFFSET_CHANGED",
            _LOSS + "INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS",
        ),
        patterns=(
            r"Partition \S+ offset was changed from \d+ to \d+",
            r"Set\([^)]*\) are gone\b",
            r"UnknownTopicOrPartitionException",
        ),
    ),
    ErrorCondition(
        "KAFKA-POSITIONS",
        "The starting positions do not fit the topic's partitions, or the end lies before the start.",
        "Do not edit offsets/ by hand while the query may start.",
        Remedy.FIX_QUERY,
        (Step("Name every partition in startingOffsets, and only those there are; then start again.", LOOK.command),),
        names=(
            "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED",
            "KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED",
            "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
        ),
        patterns=(
            r"you must specify all TopicPartitions",
            r"Partitions specified for Kafka (?:start|timestamp)",
        ),
    ),
    ErrorCondition(
        "KAFKA-MOVED-MEANWHILE",
        "Partitions or offsets changed while an availableNow run was under way.",
        "Do not touch the checkpoint: the batch was not committed.",
        Remedy.RETRY,
        (RESTART,),
        names=(
            "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_END_OFFSET_AND_PREFETCHED",
            "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_PREFETCHED",
            "LOST_TOPIC_PARTITIONS_IN_END_OFFSET_WITH_TRIGGER_AVAILABLENOW",
            "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_LATEST_WITH_TRIGGER_AVAILABLENOW",
        ),
    ),
    ErrorCondition(
        "KAFKA-UNREACHABLE",
        "The broker did not answer in time, or refused the login.",
        "Do not touch the checkpoint: offsets in Kafka and in the checkpoint are as they were.",
        Remedy.RETRY,
        (Step("See to the broker, the network and the credentials; then start again."),),
        patterns=(
            r"kafka\.common\.errors\.(?:TimeoutException|SaslAuthenticationException|TopicAuthorizationException"
            r"|GroupAuthorizationException|SslAuthenticationException|BrokerNotAvailableException)",
            r"No resolvable bootstrap urls",
        ),
    ),
    ErrorCondition(
        "DELTA-OTHER-TABLE",
        "The source table is another one than the checkpoint knows: it was dropped and recreated, or the path or name now "
        "leads elsewhere. Versions of the one mean nothing in the other.",
        "Do not edit the table id in offsets/: versions differ, rows would be skipped or read twice.",
        Remedy.RESET,
        (
            Step("If the old table can be brought back (UNDROP, a restored directory), do that and start again."),
            BACKUP,
            Step(
                "Else start with a new checkpoint directory and a startingVersion that fits the new table. Without "
                "one, all rows of it are read again.",
                NEW_CHECKPOINT.command,
                NEW_CHECKPOINT.operator,
            ),
        ),
        names=(
            "DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE",
            "DELTA_STREAMING_SCHEMA_LOG_INCOMPATIBLE_DELTA_TABLE_ID",
        ),
        patterns=(r"reading from an unexpected Delta table",),
    ),
    ErrorCondition(
        "DELTA-VERSIONS-GONE",
        "Versions or files of the source table that the query has not read yet are gone: log retention or VACUUM removed them "
        "while it was down or behind.",
        "Do not delete the checkpoint at once, whatever the message says: it holds the last version that was read.",
        Remedy.RAISE_RETENTION,
        (
            Step(
                "Keep more of the table from now on: DAYS are more than SHOW TBLPROPERTIES names now (defaults: 30 and 7).",
                call="ALTER TABLE {table} SET TBLPROPERTIES ('delta.logRetentionDuration' = 'interval DAYS days', "
                "'delta.deletedFileRetentionDuration' = 'interval DAYS days')",
            ),
            GUARD_DELTA,
            Step("Where a copy of the table has those versions, point the query there once."),
            BACKUP,
            _DELTA_NEW,
        ),
        names=(
            "DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE",
            "DELTA_LOG_FILE_NOT_FOUND",
            "DELTA_FILE_NOT_FOUND",
            "DELTA_FILE_NOT_FOUND_DETAILED",
            "DELTA_MISSING_FILES_UNEXPECTED_VERSION",
            "DELTA_STREAMING_TRAILING_COMMIT_MISSING",
            "DELTA_TRUNCATED_TRANSACTION_LOG",
            "DELTA_STATE_RECOVER_ERROR",
            "DELTA_VERSION_NOT_FOUND",
            "DELTA_TIMESTAMP_EARLIER_THAN_COMMIT_RETENTION",
            "DELTA_MISSING_CHANGE_DATA",
            "DELTA_STREAMING_CHECK_COLUMN_MAPPING_NO_SNAPSHOT",
        ),
        patterns=(
            r"The stream from your Delta table was expecting process data from version",
            r"it's likely your query is lagging behind",
            r"startVersion not available",
            r"referenced in the transaction log cannot be found",
        ),
    ),
    ErrorCondition(
        "ICEBERG-HISTORY-GONE",
        "The snapshot of the source table that the query has read up to has expired, or the table was dropped and recreated: "
        "the offset names a snapshot that the table does not have.",
        "Do not set streaming-skip-… options: they do not bring the snapshot back.",
        Remedy.RAISE_RETENTION,
        (
            Step("Stop whatever expires snapshots (expire_snapshots) until the stream reads again."),
            Step(
                "Keep more snapshots from now on: more than SHOW TBLPROPERTIES names now (default: 5 days, 432000000). An "
                "older_than of the job that expires them takes precedence.",
                call="ALTER TABLE {table} SET TBLPROPERTIES ('history.expire.max-snapshot-age-ms' = 'MILLISECONDS')",
            ),
            GUARD_ICEBERG,
            BACKUP,
            Step(
                "Start with a new checkpoint directory and stream-from-timestamp; what the expired snapshots added before it has "
                "to be backfilled from the table.",
                NEW_CHECKPOINT.command,
                NEW_CHECKPOINT.operator,
            ),
        ),
        patterns=(
            r"Cannot load current offset at snapshot -?\d+, the snapshot was expired or removed",
            r"Cannot find next snapshot: as Snapshot -?\d+ expired",
        ),
    ),
    ErrorCondition(
        "ICEBERG-ROLLED-BACK",
        "The source table was rolled back below the snapshot that the query has read up to: that snapshot is no ancestor of the "
        "current one any more.",
        "Do not expire snapshots now: the former one is needed.",
        Remedy.REWIND,
        (
            Step(
                "If the rollback was wrong, set the former snapshot again.",
                call="CALL {catalog}.system.set_current_snapshot('{table}', SNAPSHOT_ID)",
            ),
            Step("If it was right, rewind this stream and its sink too, to a batch before the rollback."),
            BACKUP,
        ),
        patterns=(
            r"Cannot find snapshot after -?\d+: not an ancestor of table's current snapshot",
            r'because the return value of "org\.apache\.iceberg\.Snapshot\.parentId\(\)" is null',
        ),
    ),
    ErrorCondition(
        "ICEBERG-ROWS-CHANGED",
        "Rows of the source table were overwritten or deleted; a streaming read of Iceberg takes appended rows only.",
        "Do not set the skip options without thought: the rows of such snapshots are then never read.",
        Remedy.FIX_QUERY,
        (
            Step(
                "To pass such snapshots over: options streaming-skip-overwrite-snapshots=true and "
                "streaming-skip-delete-snapshots=true."
            ),
        ),
        patterns=(r"Cannot process (?:overwrite|delete) snapshot: -?\d+",),
    ),
    ErrorCondition(
        "DELTA-ROWS-CHANGED",
        "Rows of the source table were updated, deleted or restored; a streaming read takes appended rows only.",
        "Do not set ignoreChanges without thought: whole rewritten files are then read again.",
        Remedy.FIX_QUERY,
        (
            Step("To pass such commits over: option skipChangeCommits=true (ignoreDeletes=true for whole partitions)."),
            Step("To take them in: read the change data feed (readChangeFeed=true), with a new checkpoint directory."),
        ),
        names=("DELTA_SOURCE_TABLE_IGNORE_CHANGES", "DELTA_SOURCE_IGNORE_DELETE"),
        patterns=(
            r"Detected (?:a data update|deleted data) \(for example [^)]*\) (?:in the source table|from streaming source)",
        ),
    ),
    ErrorCondition(
        "DELTA-SCHEMA-EVOLVED",
        "The source table's schema changed and the stream has noted it; the next start continues with the new one.",
        "Do not delete the checkpoint.",
        Remedy.RETRY,
        (
            RESTART,
            Step(
                "If it happens again without progress: the change cannot be read through (renamed, dropped, other type). Set "
                "schemaTrackingLocation below the checkpoint, or begin with a new checkpoint directory."
            ),
        ),
        names=(
            "DELTA_STREAMING_METADATA_EVOLUTION",
            "DELTA_SCHEMA_CHANGED",
            "DELTA_SCHEMA_CHANGED_WITH_VERSION",
            "DELTA_SCHEMA_CHANGED_WITH_STARTING_OPTIONS",
            "DELTA_STREAMING_SCHEMA_MISMATCH_ON_RESTART",
            "UNKNOWN_FIELD_EXCEPTION",
        ),
        patterns=(r"Detected schema change(?: in version \d+)?:",),
    ),
    ErrorCondition(
        "DELTA-SCHEMA-INCOMPATIBLE",
        "The source table's schema changed in a way that a streaming read cannot follow by itself.",
        "Do not delete the checkpoint: the rows before the change were read already.",
        Remedy.FIX_QUERY,
        (
            Step(
                "Set schemaTrackingLocation below the checkpoint and allow the change as the message says; then start again."
            ),
            BACKUP,
            _DELTA_NEW,
        ),
        names=(
            "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE",
            "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE_USE_SCHEMA_LOG",
            "DELTA_STREAMING_CANNOT_CONTINUE_PROCESSING_POST_SCHEMA_EVOLUTION",
            "DELTA_STREAMING_SCHEMA_LOG_INIT_FAILED_INCOMPATIBLE_METADATA",
            "DELTA_STREAMING_SCHEMA_LOG_INCOMPATIBLE_PARTITION_SCHEMA",
            "DELTA_STREAMING_SCHEMA_LOCATION_CONFLICT",
            "DELTA_STREAMING_SCHEMA_LOCATION_NOT_UNDER_CHECKPOINT",
        ),
    ),
    ErrorCondition(
        "DELTA-SCHEMA-LOG-DAMAGED",
        "Delta's schema log below the checkpoint (_schema_log_…) cannot be read.",
        "Do not delete it alone: the query would read old versions with the newest schema.",
        Remedy.RESTORE,
        (RESTORE, Step("Or name a new schemaTrackingLocation below the checkpoint.")),
        names=("DELTA_STREAMING_SCHEMA_LOG_DESERIALIZE_FAILED", "DELTA_STREAMING_SCHEMA_LOG_PARSE_SCHEMA_FAILED"),
    ),
    ErrorCondition(
        "SOURCE-OFFSET-MALFORMED",
        "The offset of a source in offsets/ is not of the form that the source writes: another source is in its place, a "
        "newer connector wrote it, or somebody edited it.",
        "Do not edit by hand any more: a wrong position loses or repeats rows silently.",
        Remedy.RESTORE,
        (Step("See that this query and this checkpoint belong together.", LOOK.command), DIAGNOSE, RESTORE),
        names=(
            "DELTA_INVALID_SOURCE_OFFSET_FORMAT",
            "MALFORMED_STATE_IN_RATE_PER_MICRO_BATCH_SOURCE",
            "INCORRECT_END_OFFSET",
        ),
        patterns=(r"Expected e\.g\. \{\"topicA\":", r"Invalid (?:Delta source|offset) (?:offset|format)"),
    ),
    ErrorCondition(
        "SINK-CONFLICT",
        "Another writer changed the Delta table at the same moment.",
        "Do not touch the checkpoint: the batch was not committed and is run again, exactly once.",
        Remedy.RETRY,
        (RESTART, Step("If it happens often: partition the writers, or have one of them write at a time.")),
        names=(
            "DELTA_CONCURRENT_APPEND",
            "DELTA_CONCURRENT_DELETE_READ",
            "DELTA_CONCURRENT_DELETE_DELETE",
            "DELTA_CONCURRENT_WRITE",
            "DELTA_METADATA_CHANGED",
            "DELTA_PROTOCOL_CHANGED",
            "DELTA_MAX_COMMIT_RETRIES_EXCEEDED",
        ),
    ),
    ErrorCondition(
        "SOURCE-FILE-GONE",
        "An input file that is noted as one to read does not exist any more: cleaned away, moved or compacted before its batch "
        "was done, or removed by VACUUM of a Delta table while the query was behind.",
        "Do not delete sources/ or the checkpoint: every file would be new again.",
        Remedy.FIX_STORAGE,
        (
            Step("Put the file back under the same name (a version of the bucket, a backup); then start again."),
            GUARD,
            Step("If the query reads a Delta table, name the table.", GUARD_DELTA.command, GUARD_DELTA.operator),
            Step("If its rows are accepted as lost: set spark.sql.files.ignoreMissingFiles=true for one start."),
            Step(
                "Of a Delta table keep more from now on: DAYS are more than SHOW TBLPROPERTIES names now (default: 7).",
                call="ALTER TABLE {table} SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = 'interval DAYS days')",
            ),
            NEW_CHECKPOINT,
        ),
        names=("FAILED_READ_FILE.FILE_NOT_EXIST",),
        patterns=(
            r"FileNotFoundException[^\n]*\n?[^\n]*(?:It is possible the underlying files have been updated|does not exist)"
            r"(?![^\n]*/(?:state|offsets|commits)/)",
        ),
        vague=True,
    ),
)
