"""The registry: every pattern of damage that the doctor knows, with what Spark does because of it.

``docs/diagnosis.md`` is made from it (``dev/reference_pages.py``); ``tests/integration/test_doctor_against_spark.py`` has real
Spark show each reaction.
"""

from __future__ import annotations

from airflow_ckpt_provider.checkpoint.findings import FindingKind, Severity

LOG_FILE_TORN = FindingKind(
    "LOG-FILE-TORN",
    Severity.ERROR,
    "A file in `offsets/` or `commits/` that Spark reads at its start is empty or cut off.",
    "Fails at every start: `Incomplete log file`, `MALFORMED_LOG_FILE` or `Unexpected end-of-input`. An older entry is not read.",
    "Fetch the file from a backup (`--repair --repository`). Without one, `--repair` removes the newest entry: its batch is "
    "planned, or run, again.",
)
OFFSETS_HOLE = FindingKind(
    "OFFSETS-HOLE",
    Severity.WARNING,
    "Entries are missing between older ones in `offsets/`, though the query is synchronous.",
    "Starts: it reads only the newest entry and the one before. No rewind can reach a batch beside the hole.",
    "Fetch the entries from a backup (`--repair --repository`), or let them grow old: Spark purges them in time.",
)
OFFSETS_NO_PREVIOUS = FindingKind(
    "OFFSETS-NO-PREVIOUS",
    Severity.ERROR,
    "The entry before the newest one in `offsets/` is missing.",
    "Fails at every start: `batch N doesn't exist`.",
    "Fetch it from a backup, which loses nothing; else `--repair` cuts back to the newest batch that has both entries.",
)
COMMITS_BEYOND_OFFSETS = FindingKind(
    "COMMITS-BEYOND-OFFSETS",
    Severity.SILENT,
    "`commits/` reaches further than `offsets/`: offset log entries were deleted or lost.",
    "Runs a batch again that was done, its rows reach the sink a second time; then it fails with "
    "`CONCURRENT_STREAM_LOG_UPDATE`, because the commit exists. With every restart it repeats that.",
    "`--repair` removes commits, state and source log entries beyond the newest whole batch.",
)
BATCHES_SKIPPED = FindingKind(
    "BATCHES-SKIPPED",
    Severity.SILENT,
    "Several logged batches have no commit: commits were deleted or lost.",
    "Runs only the newest logged batch again. Those between it and the newest commit are never run; it logs a warning at most. "
    "With state checkpoint format 2 it fails instead: `CANNOT_LOAD_STATE_STORE.*`.",
    "`--repair` cuts back to the newest commit, so that all of them run; the first with exactly the offsets it had. With a "
    "backup that holds the commits (`--repository`) it fetches them: the batches count as done, and are not run again. If you "
    "deleted the commits to run the batches again, and rolled the table back, use `rewind --to-batch N` instead.",
)
QUERY_ID_MISSING = FindingKind(
    "QUERY-ID-MISSING",
    Severity.SILENT,
    "`metadata`, which holds the query id, is missing, while there are logs.",
    "Before 4.2 it takes a new id silently, and exactly-once sinks (Delta) do not know the query any more: what is "
    "replayed is written twice. Since 4.2 it refuses: `STREAMING_CHECKPOINT_MISSING_METADATA_FILE`.",
    "`--repair` with a backup of the same query, or with the id from the logs of a former run (`--query-id`).",
)
TEMPORARY_FILES = FindingKind(
    "TEMPORARY-FILES",
    Severity.WARNING,
    "Temporary files were left by a writer that was killed.",
    "Ignores them, and never deletes them.",
    "Harmless; `--repair` removes them.",
)
STATE_INCOMPLETE = FindingKind(
    "STATE-INCOMPLETE",
    Severity.ERROR,
    "The state that the next batch reads cannot be put together: a delta, changelog, snapshot, table file or schema file is "
    "missing or damaged.",
    "Fails in the next batch: `CANNOT_LOAD_STATE_STORE.*`, with every restart.",
    "Fetch the file from a backup, which loses nothing; else `--repair` cuts back to the newest batch whose state is whole.",
)
STATE_STALE_VERSIONS = FindingKind(
    "STATE-STALE-VERSIONS",
    Severity.SILENT,
    "There are state files of versions that no logged batch can have written: somebody rewound without removing them.",
    "Loads a stale snapshot as soon as it gets to its version and starts from the beginning: wrong results, no error.",
    "`--repair` deletes them. A query that has run since may hold wrong state already: compare its results.",
)
SNAPSHOT_DAMAGED = FindingKind(
    "SNAPSHOT-DAMAGED",
    Severity.ERROR,
    "A snapshot of the state is damaged or incomplete, but an older one and all changes since it are there.",
    "Fails before 4.2 (`CANNOT_LOAD_STATE_STORE.*`). Since 4.2 it passes over the snapshot by itself "
    "(`stateStore.autoSnapshotRepair.enabled`).",
    "`--repair` removes the damaged snapshot; Spark then starts from the older one. Nothing is lost.",
)
CHECKSUM_MISMATCH = FindingKind(
    "CHECKSUM-MISMATCH",
    Severity.ERROR,
    "A checksum file (`<file>.crc`, Spark 4.1 and later) does not match its state file, which is whole by its own checksums.",
    "Fails when it reads the file: `CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED`.",
    "`--repair` removes the checksum file; Spark works without it.",
)
SOURCE_LOG_INCOMPLETE = FindingKind(
    "SOURCE-LOG-INCOMPLETE",
    Severity.ERROR,
    "The log of a file source (`sources/<n>/`) is missing, or does not reach as far as the offsets.",
    "Fails at every start (`batch N doesn't exist`).",
    "Fetch it from a backup, which loses nothing; else `--repair` cuts back to the newest batch that it covers.",
)
STATE_WITHOUT_LOGS = FindingKind(
    "STATE-WITHOUT-LOGS",
    Severity.SILENT,
    "There is state, but `offsets/` and `commits/` are empty.",
    "Before 4.1 it begins with batch 0 beside the old state, and may load stale snapshots of it. Since 4.1 it refuses: "
    "`STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY`.",
    "No repair: where the stream was is not recorded anywhere. Restore a backup, or reset: delete all of it.",
)
STATE_PARTITION_MISSING = FindingKind(
    "STATE-PARTITION-MISSING",
    Severity.ERROR,
    "An operator, a partition or a store of the state is missing altogether, as after a copy that was not finished.",
    "Fails in the next batch: `CANNOT_LOAD_STATE_STORE.*`, or `STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY` since 4.2.",
    "Fetch it from a backup. Without one only a reset is left: no older batch has that partition either.",
)
REPARTITION_UNFINISHED = FindingKind(
    "REPARTITION-UNFINISHED",
    Severity.ERROR,
    "An offline repartition of the state (Spark 4.2 and later) was begun and not committed.",
    "Refuses to start: `STREAMING_UNFINISHED_REPARTITION_DETECTED`.",
    "Run the repartition again with the same number; or give it up: `--repair` removes its batch and the state it wrote.",
)
STATE_FOREIGN_PATHS = FindingKind(
    "STATE-FOREIGN-PATHS",
    Severity.ERROR,
    "Operator metadata (transformWithState, join state formats 3 and 4) names schema files at another place: the checkpoint was "
    "copied or moved.",
    "Fails if that place is gone (`File … does not exist`). If it still exists, it reads the schema files of the other "
    "checkpoint and says nothing.",
    "`--repair` rewrites the paths; `airflow-ckpt restore` does so by itself.",
)
TWO_WRITERS = FindingKind(
    "TWO-WRITERS",
    Severity.SILENT,
    "The logs cannot come from one query: time, watermark or offsets decrease, or sources or pinned settings change from one "
    "batch to the next.",
    "Believes the newest files, wherever they come from: rows are skipped or repeated, state is of the other query. It says "
    "nothing.",
    "No repair: which files are right is not recorded. Stop both queries, then restore a backup from before, or reset.",
)
FORMAT_UNKNOWN = FindingKind(
    "FORMAT-UNKNOWN",
    Severity.ERROR,
    "A log is in a version that is newer than any known here.",
    "A Spark that is older than the file fails: `INVALID_LOG_VERSION.*` or `MALFORMED_LOG_FILE`.",
    "Start it with the Spark that wrote it; upgrade airflow-ckpt-provider to have it examined.",
)

#: All of them, in the order of the documentation.
KINDS = (
    LOG_FILE_TORN,
    OFFSETS_HOLE,
    OFFSETS_NO_PREVIOUS,
    COMMITS_BEYOND_OFFSETS,
    BATCHES_SKIPPED,
    QUERY_ID_MISSING,
    TEMPORARY_FILES,
    STATE_INCOMPLETE,
    STATE_STALE_VERSIONS,
    SNAPSHOT_DAMAGED,
    CHECKSUM_MISMATCH,
    SOURCE_LOG_INCOMPLETE,
    STATE_WITHOUT_LOGS,
    STATE_PARTITION_MISSING,
    REPARTITION_UNFINISHED,
    STATE_FOREIGN_PATHS,
    TWO_WRITERS,
    FORMAT_UNKNOWN,
)
