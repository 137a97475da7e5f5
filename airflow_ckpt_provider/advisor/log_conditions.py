"""Conditions of ``offsets/``, ``commits/``, ``sources/`` and ``metadata``."""

from __future__ import annotations

from airflow_ckpt_provider.advisor.condition import ErrorCondition, Remedy, Step
from airflow_ckpt_provider.advisor.steps import (
    BACKUPS,
    DIAGNOSE,
    KEEP_IT,
    LOOK,
    NEW_CHECKPOINT,
    REPAIR,
    RESTART,
    RESTORE,
    RESTORE_OLDER,
    SEAL,
)

CONDITIONS = (
    ErrorCondition(
        "SEALED",
        "The checkpoint is sealed: somebody keeps every Spark from starting it until they are done.",
        "Do not delete the file: it is what protects a recovery that is under way.",
        Remedy.UNSEAL,
        (
            Step("See who sealed it, why and since when.", ("inspect", "{checkpoint}")),
            Step(
                "If it is the seal of a restore, rewind, reset or repair that was stopped half-way, finish or undo that; the "
                "repository is the one that it was carried out with.",
                ("status", "{checkpoint}", "--repository", "{repository}"),
            ),
            Step(
                "If it is the seal of a person or a DAG whose work is finished, lift it.",
                ("unseal", "{checkpoint}", "--plan", "{plan}"),
                "CheckpointUnsealOperator",
            ),
        ),
        patterns=(r"airflow-ckpt: sealed by plan",),
    ),
    ErrorCondition(
        "METADATA-MISSING",
        "The file metadata, which holds the query's id, is gone while the logs are there.",
        "Do not start it with an older Spark or without the check: it makes a new id, and exactly-once sinks such as Delta "
        "then take replayed batches for new ones and write them twice.",
        Remedy.REPAIR,
        (
            DIAGNOSE,
            REPAIR,
            Step(
                "Without a backup: write metadata by hand, one line with the same id. Where rows were written to Delta, it "
                'is the appId in the txn entries of the table\'s log ("queryId" in its history), unless foreachBatch has a '
                "txnAppId of its own. After a reset there are several: take that of the newest commit of this query.",
            ),
        ),
        names=(
            "STREAMING_CHECKPOINT_MISSING_METADATA_FILE",
            "STREAMING_CHECKPOINT_METADATA_ERROR.MISSING_METADATA_FILE",
        ),
    ),
    ErrorCondition(
        "CHECKPOINT-NOT-EMPTY",
        "Spark wants to begin with batch 0, but the directory holds state or commits: offsets were lost, or a restore or a "
        "reset was left half done.",
        "Do not delete only what is in the way, and do not switch the check off: a first batch beside old state gives wrong "
        "results without an error.",
        Remedy.RESTORE,
        (LOOK, RESTORE, Step("Or, where starting over is meant: give the query a new, empty directory.")),
        names=("STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY",),
    ),
    ErrorCondition(
        "BATCH-MISSING",
        "An entry that Spark reads at its start is gone: the batch's file in offsets/, or an entry of a file source's log in "
        "sources/. The same happens when a checkpoint written with async progress tracking is started without it.",
        "Do not delete commits/ or the neighbouring files by hand: Spark then skips batches and only logs a warning.",
        Remedy.REPAIR,
        (
            DIAGNOSE,
            REPAIR,
            RESTORE,
            Step("If the query ran with asyncProgressTrackingEnabled, start it again with that option."),
        ),
        names=("BATCH_METADATA_NOT_FOUND",),
        patterns=(
            r"\bbatch -?\d+ doesn't exist",
            r"Previous batch -?\d+ not found in offset log",
            r"Unable to find batch \S+/(?:offsets|commits|sources)/",
        ),
    ),
    ErrorCondition(
        "TWO-WRITERS",
        "The entry of a batch exists already when Spark wants to write it: a second run of the query is on the same "
        "checkpoint, or offsets were removed without their commits.",
        "Do not delete the entry and do not just start again: with two writers, rows are written twice and state gets mixed up.",
        Remedy.STOP_OTHER_RUN,
        (
            Step("Find the other run (scheduler, cluster manager, a retried job, an evicted driver that still runs)."),
            SEAL,
            Step(
                "If there is no other run, the logs do not fit: have the doctor look, and cut to the newest whole batch.",
                ("doctor", "{checkpoint}", "--repair"),
                "CheckpointDoctorOperator",
            ),
        ),
        names=("CONCURRENT_STREAM_LOG_UPDATE", "CONCURRENT_QUERY", "DELTA_CONCURRENT_TRANSACTION"),
        patterns=(
            r"Multiple streaming queries are concurrently using",
            r"Multiple streaming jobs detected for",
            r"Cannot start query with (?:id|name) \S+ as (?:another|a) query with (?:same|that) (?:id|name) is already",
            r"Concurrent update to the (?:commit |offset )?log",
        ),
    ),
    ErrorCondition(
        "LOG-OF-NEWER-SPARK",
        "A newer Spark wrote this log: its version is not known to the one that reads it.",
        "Do not edit the version in the file: what follows it differs too.",
        Remedy.UPGRADE,
        (
            Step("Run the query with the Spark that wrote the checkpoint, or a newer one."),
            BACKUPS,
            RESTORE_OLDER,
        ),
        names=("INVALID_LOG_VERSION",),
        patterns=(
            r"UnsupportedLogVersion",
            r"[Mm]aximum supported log version is v\d+, but encountered v\d+",
        ),
    ),
    ErrorCondition(
        "LOG-VERSION-NOT-THE-ONE",
        "The commit log has another version than the one that this query writes: the format of its state checkpoints was "
        "changed, or another Spark wrote it.",
        "Do not edit the version in the file: the state lies in files of the same format.",
        Remedy.FIX_QUERY,
        (
            Step(
                "Set spark.sql.streaming.stateStore.checkpointFormatVersion to what the checkpoint was begun with: 1 where the "
                "log that the message names begins with v1, 2 where it begins with v2."
            ),
            Step("Where it begins with v3 or more: run the query with the Spark that wrote it, or a newer one."),
            NEW_CHECKPOINT,
        ),
        names=("INVALID_LOG_VERSION.EXACT_MATCH_VERSION",),
        patterns=(r"only supported log version is v\d+, but encountered v\d+",),
    ),
    ErrorCondition(
        "LOG-MALFORMED",
        "A log file does not begin with a version: it was cut off, overwritten, or is no log file at all.",
        "Do not delete files at random: with a wrong one gone, Spark skips batches or runs them twice.",
        Remedy.REPAIR,
        (DIAGNOSE, REPAIR, RESTORE),
        names=("MALFORMED_LOG_FILE",),
        patterns=(r"[Ll]og file was malformed",),
    ),
    ErrorCondition(
        "LOG-INCOMPLETE",
        "A log file is empty or cut off: its writer was stopped half-way, or the copy it comes from was torn.",
        "Do not delete anything but that one file, and only if it is the newest of its log.",
        Remedy.REPAIR,
        (DIAGNOSE, REPAIR, RESTORE),
        patterns=(
            r"Incomplete log file",
            r"Failed to read log file \S+?/(?:offsets|commits|sources)/",
            # Of the JSON in an entry Spark says neither which file nor that it was one.
            r"(?:terminated with exception|StreamingQueryException): Unexpected (?:end-of-input|character)",
        ),
    ),
    ErrorCondition(
        "LOG-NOT-WRITTEN",
        "An entry of offsets/ or commits/ could not be written, or the checkpoint's file system could not be opened: rights, "
        "space, quota, a store that is down, a missing connector.",
        KEEP_IT,
        Remedy.FIX_STORAGE,
        (
            Step("Check permissions, free space and network access of {checkpoint} from the driver and the executors."),
            Step("Then start the query again: a batch that was not committed is run again.", LOOK.command),
        ),
        names=("STREAMING_CHECKPOINT_LOG_WRITE_FAILURE", "CANNOT_LOAD_CHECKPOINT_FILE_MANAGER"),
        patterns=(
            r"(?:Permission denied|AccessDenied\w*|AccessControlException).{0,300}/(?:offsets|commits|state|sources)\b",
            r"/(?:offsets|commits)/\.?\d[^\s()]{0,200} \(Permission denied\)",
            r"/(?:state|sources)/\d+/[^\s()]{1,200} \(Permission denied\)",
            r"(?:No space left on device|DSQuotaExceededException|NSQuotaExceededException|Status Code: (?:403|503)"
            r"|GoogleJsonResponseException: (?:401|403|429|503)|The provided token has expired|ExpiredToken"
            r'|Operation failed: "[^"\n]{0,300}", (?:401|403|429|503))(?s:.{0,3000}?)'
            r"(?:CheckpointFileManager|HDFSMetadataLog)",
        ),
    ),
    ErrorCondition(
        "ASYNC-WRITE-FAILED",
        "A log entry that is written in the background (async progress tracking) could not be written.",
        KEEP_IT,
        Remedy.RETRY,
        (RESTART, Step("If it happens again, see to the store; the cause is in the same error.", LOOK.command)),
        names=("STREAMING_ASYNC_OPERATION_FAILED",),
    ),
    ErrorCondition(
        "PATH-ESCAPED",
        "A Spark before 3.0 wrote this checkpoint, or the file sink's _spark_metadata, to a directory whose name has %20 and "
        "the like in place of special characters; this Spark looks under the real name.",
        "Do not switch the check off before the directory is moved: the query would start from the beginning.",
        Remedy.FIX_STORAGE,
        (Step("Stop the query, move the escaped directory that the error names to the real name, start it again."),),
        names=("_LEGACY_ERROR_TEMP_2263", "_LEGACY_ERROR_TEMP_2200"),
        patterns=(r"we detected a possible problem with the location of your (?:checkpoint|\"_spark_metadata\")",),
    ),
)
