"""Conditions of ``state/``: files, schemas, operators, resources."""

from __future__ import annotations

from airflow_ckpt_provider.advisor.condition import ErrorCondition, Remedy, Step
from airflow_ckpt_provider.advisor.steps import (
    BACKUP,
    BACKUPS,
    DIAGNOSE,
    KEEP_IT,
    LOOK,
    NEW_CHECKPOINT,
    REPAIR,
    RESTART,
    RESTORE,
    RESTORE_OLDER,
    REVERT,
    REWIND,
    VERIFY,
)

_LOAD = "CANNOT_LOAD_STATE_STORE."
#: What Java raises on a file that ends too early or holds something else.
_TORN = r"(?:java\.io\.EOFException|ZipException|Stream is corrupted|Premature EOF|LZ4Exception|ZstdIOException)"
_NOT_BY_HAND = (
    "Do not delete state/ and do not copy single state files from elsewhere: state that does not fit the logs gives wrong "
    "results without an error."
)

CONDITIONS = (
    ErrorCondition(
        "STATE-FILE-MISSING",
        "A file of the state version that Spark needs is missing: a delta, changelog, snapshot or RocksDB table file was "
        "deleted (a lifecycle rule, a clean-up, a torn copy), or the checkpoint was copied while it was written.",
        _NOT_BY_HAND,
        Remedy.RESTORE,
        (DIAGNOSE, REPAIR, REWIND, RESTORE),
        names=(
            _LOAD + "CANNOT_READ_DELTA_FILE_NOT_EXISTS",
            _LOAD + "CANNOT_READ_MISSING_SNAPSHOT_FILE",
            _LOAD + "CANNOT_READ_STREAMING_STATE_FILE",
            _LOAD + "CANNOT_FIND_BASE_SNAPSHOT_CHECKPOINT",
            _LOAD + "INVALID_CHECKPOINT_LINEAGE",
            _LOAD + "AUTO_SNAPSHOT_REPAIR_FAILED",
            _LOAD + "SNAPSHOT_PARTITION_ID_NOT_FOUND",
        ),
        patterns=(
            r"Error reading (?:delta|snapshot) file \S+ of [^\n]*does not exist",
            r"Error reading streaming state file of? ?\S* does not exist",
            r"(?:FileNotFoundException|NoSuchFileException|PathNotFound\w*|NoSuchKey)[^\n]{0,300}/state/\d+/\d+/",
        ),
    ),
    ErrorCondition(
        "STATE-UNREADABLE",
        "A state file is there but is not what it should be: cut off, overwritten, or of another size or checksum.",
        _NOT_BY_HAND,
        Remedy.RESTORE,
        (DIAGNOSE, REPAIR, REWIND, VERIFY, RESTORE),
        names=(
            _LOAD + "CANNOT_READ_DELTA_FILE_KEY_SIZE",
            _LOAD + "CANNOT_READ_SNAPSHOT_FILE_KEY_SIZE",
            _LOAD + "CANNOT_READ_SNAPSHOT_FILE_VALUE_SIZE",
            _LOAD + "CANNOT_READ_CHECKPOINT",
            _LOAD + "UNEXPECTED_FILE_SIZE",
            "CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED",
            "STATE_STORE_ROW_CHECKSUM_VERIFICATION_FAILED",
            "_LEGACY_ERROR_TEMP_2259",
        ),
        patterns=(
            r"Error reading (?:delta|snapshot) file \S+ of [^\n]*(?:key|value) size cannot be",
            # In 3.5 and inside CANNOT_LOAD_STATE_STORE.UNCATEGORIZED only Java's own exceptions tell.
            rf"\b{_TORN}\b[^\n]*(?:\n[ \t]+at [^\n]*){{0,25}}?\n[ \t]+at [^\n]*streaming\.state\.",
            rf"CANNOT_LOAD_STATE_STORE\.UNCATEGORIZED\](?:[^\n]*\n){{1,80}}?Caused by: [^\n]*\b{_TORN}\b",
            r"Copied \S+ to \S+, expected \d+ bytes, found \d+ bytes",
            r"ChecksumException[^\n]*/state/",
        ),
    ),
    ErrorCondition(
        "STATE-NOT-LOADED",
        "State could not be loaded; the causes below it in the error say why.",
        KEEP_IT,
        Remedy.RESTORE,
        (DIAGNOSE, REPAIR, RESTORE),
        names=("CANNOT_LOAD_STATE_STORE", _LOAD + "UNCATEGORIZED", _LOAD + "UNEXPECTED_VERSION"),
        vague=True,
    ),
    ErrorCondition(
        "STATE-OF-NEWER-SPARK",
        "A newer Spark wrote this state.",
        KEEP_IT,
        Remedy.UPGRADE,
        (
            Step("Run the query with the Spark that wrote the state, or a newer one."),
            BACKUPS,
            RESTORE_OLDER,
        ),
        names=(_LOAD + "INVALID_CHANGE_LOG_READER_VERSION", _LOAD + "INVALID_CHANGE_LOG_WRITER_VERSION"),
        patterns=(r"change ?log reader version cannot be",),
    ),
    ErrorCondition(
        "STATE-RESOURCES",
        "Memory, a lock or a thread: state was not loaded because resources ran out, and nothing is wrong with its files.",
        "Do not touch the checkpoint: it is whole.",
        Remedy.RETRY,
        (
            RESTART,
            Step(
                "If it happens again: more memory for the executors, or fewer state partitions on each; RocksDB for big state."
            ),
        ),
        names=(
            _LOAD + "UNRELEASED_THREAD_ERROR",
            _LOAD + "HDFS_STORE_PROVIDER_OUT_OF_MEMORY",
            _LOAD + "ROCKSDB_STORE_PROVIDER_OUT_OF_MEMORY",
            "STATE_STORE_OPERATION_OUT_OF_ORDER",
            "STATE_STORE_INVALID_STAMP",
            "STATE_STORE_INVALID_STATE_MACHINE_TRANSITION",
            "STATE_STORE_UNEXPECTED_EMPTY_FILE_IN_ROCKSDB_ZIP",
        ),
        patterns=(r"RocksDB instance could not be acquired by",),
    ),
    ErrorCondition(
        "STATE-NOT-WRITTEN",
        "State could not be written: rights, space (also on the executor's own disk, where RocksDB works), quota, or a store "
        "that is down.",
        KEEP_IT,
        Remedy.FIX_STORAGE,
        (
            Step(
                "Check permissions, free space and network access of {checkpoint} from the executors, and "
                "space on their own disks (spark.local.dir)."
            ),
            Step("Then start the query again: the batch was not committed and is run again.", LOOK.command),
        ),
        names=("CANNOT_WRITE_STATE_STORE", _LOAD + "FAILED_TO_GET_CHANGELOG_WRITER"),
        patterns=(
            r"Error writing state store files",
            r"RocksDBException: [^\n]{0,500}?(?:No space left on device|Permission denied|Disk quota exceeded)",
        ),
    ),
    ErrorCondition(
        "STATE-LINEAGE",
        "A partition loaded another line of state than the newest commit names.",
        _NOT_BY_HAND,
        Remedy.RETRY,
        (RESTART, Step("If it happens again, restore.", RESTORE.command, RESTORE.operator)),
        names=("STATE_STORE_BASE_CHECKPOINT_ID_MISMATCH",),
    ),
    ErrorCondition(
        "STATE-NOT-ALL-COMMITTED",
        "Not every partition of the batch wrote its state: the function in foreachBatch did not consume the whole frame "
        "(show, limit, take, an early return).",
        KEEP_IT,
        Remedy.FIX_QUERY,
        (Step("Have the function read the whole frame, for instance write it once; then start again."),),
        names=("STATE_STORE_COMMIT_VALIDATION_FAILED",),
    ),
    ErrorCondition(
        "STATE-SCHEMA-CHANGED",
        "The query's state has other keys, values or settings than the one that wrote this checkpoint.",
        "Do not switch the schema check off (stateStore.stateSchemaCheck): old rows are then read as something they are not. "
        "And do not delete the checkpoint before you know that the change is wanted.",
        Remedy.FIX_QUERY,
        (BACKUP, REVERT, NEW_CHECKPOINT),
        names=(
            "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
            "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
            "STATE_STORE_COLUMN_FAMILY_SCHEMA_INCOMPATIBLE",
            "STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION",
            "STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE",
            "STATE_STORE_INVALID_CONFIG_AFTER_RESTART",
            "STATE_STORE_STATE_SCHEMA_FILES_THRESHOLD_EXCEEDED",
            "STATE_STORE_VALUE_SCHEMA_EVOLUTION_THRESHOLD_EXCEEDED",
            "STREAM_STREAM_JOIN_INCOMPATIBLE_STATE_STORE_CONFIGS",
        ),
        patterns=(
            r"Provided (?:(?:key|value) )?schema do(?:es)?n?(?:'t| not) match(?: to)? (?:the schema for )?existing state",
        ),
    ),
    ErrorCondition(
        "STATE-ROWS-DO-NOT-FIT",
        "Rows in the state are not of the form that the query expects: another query's checkpoint, another Spark's encoding, "
        "or damaged rows.",
        "Do not switch the check off (stateStore.formatValidation.enabled): what follows are wrong results or a crash.",
        Remedy.FIX_QUERY,
        (Step("See that this query and this checkpoint belong together.", LOOK.command), REVERT, RESTORE),
        names=(
            _LOAD + "KEY_ROW_FORMAT_VALIDATION_FAILURE",
            _LOAD + "VALUE_ROW_FORMAT_VALIDATION_FAILURE",
            "STATE_STORE_KEY_ROW_FORMAT_VALIDATION_FAILURE",
            "STATE_STORE_VALUE_ROW_FORMAT_VALIDATION_FAILURE",
        ),
        patterns=(r"streaming query failed (?:by|to validate) (?:state format invalidation|written state)",),
    ),
    ErrorCondition(
        "OPERATORS-CHANGED",
        "Stateful operators were added, removed or changed; their state cannot be carried over.",
        "Do not delete the checkpoint at once: the previous version of the query still runs on it.",
        Remedy.FIX_QUERY,
        (BACKUP, REVERT, NEW_CHECKPOINT),
        names=("STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",),
        # Databricks words the sentences after it in another way than Spark.
        patterns=(r"Streaming stateful operator name does not match",),
    ),
    ErrorCondition(
        "STATE-DIRECTORY-MISSING",
        "The query has stateful operators and the checkpoint no state: state/ was lost, or the checkpoint is that of a query "
        "without state.",
        "Do not start with an empty state/ under the old logs: totals, deduplication and joins would begin at nothing.",
        Remedy.RESTORE,
        (LOOK, RESTORE, REVERT),
        names=("STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY",),
    ),
    ErrorCondition(
        "JOIN-STATE-INCONSISTENT",
        "The stores of a stream-stream join do not fit each other: a partial copy, or a partial write.",
        "Do not make skipNullsForStreamStreamJoins the first answer: the query then runs, without the rows that are missing.",
        Remedy.REWIND,
        (DIAGNOSE, REWIND, RESTORE),
        names=("STREAM_STREAM_JOIN_INCONSISTENT_STATE",),
    ),
    ErrorCondition(
        "REPARTITION-UNFINISHED",
        "An offline repartition of the state was left half done.",
        "Do not start the query and do not remove the control batch by hand: part of the state has the new partitions.",
        Remedy.RETRY,
        (
            Step("Run the repartition again, with the same number of partitions; then start the query."),
            BACKUPS,
            RESTORE_OLDER,
        ),
        names=(
            "STREAMING_UNFINISHED_REPARTITION_DETECTED",
            "STATE_REPARTITION_INVALID_CHECKPOINT",
            "STATE_REWRITER_INVALID_CHECKPOINT",
        ),
    ),
    ErrorCondition(
        "STATE-READER",
        "The statestore reader cannot read this batch: it is not retained, not committed, or has no operator metadata. The "
        "stream itself is not concerned.",
        "Do not touch the checkpoint because of this.",
        Remedy.RETRY,
        (Step("Choose a committed batch that is still there.", LOOK.command),),
        names=(
            "STDS_COMMITTED_BATCH_UNAVAILABLE",
            "STDS_OFFSET_LOG_UNAVAILABLE",
            "STDS_OFFSET_METADATA_LOG_UNAVAILABLE",
            "STDS_NO_PARTITION_DISCOVERED_IN_STATE_STORE",
            "STDS_FAILED_TO_READ_STATE_SCHEMA",
            "STDS_FAILED_TO_READ_OPERATOR_METADATA",
            "STDS_MIXED_CHECKPOINT_FORMAT_VERSIONS_NOT_SUPPORTED",
            "STDS_INVALID_OPTION_VALUE",
            "STDS_CONFLICT_OPTIONS",
            "STDS_REQUIRED_OPTION_UNSPECIFIED",
            "STDS_INTERNAL_ERROR",
            "STATE_STORE_PROVIDER_DOES_NOT_SUPPORT_FINE_GRAINED_STATE_REPLAY",
        ),
    ),
)
