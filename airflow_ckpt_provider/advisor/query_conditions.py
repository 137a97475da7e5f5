"""Conditions of the query itself: what runs on a checkpoint, and what wraps its errors."""

from __future__ import annotations

from airflow_ckpt_provider.advisor.condition import ErrorCondition, Remedy, Step
from airflow_ckpt_provider.advisor.steps import BACKUP, KEEP_IT, LOOK, NEW_CHECKPOINT, RESTART, REVERT

#: Conditions that only pass on what happened inside.
WRAPPERS = (
    "STREAM_FAILED",
    "FOREACH_BATCH_USER_FUNCTION_ERROR",
    "FOREACH_USER_FUNCTION_ERROR",
    "TASK_WRITE_FAILED",
    "FAILED_EXECUTE_UDF",
)

CONDITIONS = (
    ErrorCondition(
        "SOURCES-CHANGED",
        "The query has another number of sources than the checkpoint: one was added or removed.",
        "Do not add or remove lines in offsets/: sources go by their position, and one would start at another's offset.",
        Remedy.FIX_QUERY,
        (BACKUP, REVERT, NEW_CHECKPOINT),
        patterns=(r"There are \[\d+\] sources in the checkpoint offsets and now there are \[\d+\] sources",),
    ),
    ErrorCondition(
        "SOURCE-PLACE-CHANGED",
        "A file source reads another directory than the one whose files the checkpoint names, or the sources are in another "
        "order.",
        "Do not edit the paths in sources/ or the order of lines in offsets/: files would be read twice, or never.",
        Remedy.FIX_QUERY,
        (BACKUP, REVERT, NEW_CHECKPOINT),
        patterns=(r"Wrong basePath .+ for the root path",),
    ),
    ErrorCondition(
        "NAMES-CHANGED",
        "Sources or sinks are named (source or sink evolution), and the names or the setting do not fit the checkpoint.",
        "Do not delete the checkpoint: with the former names or setting it continues.",
        Remedy.FIX_QUERY,
        (Step("Return to the former names, or the former value of the setting that the message names."), REVERT),
        names=("STREAMING_QUERY_EVOLUTION_ERROR",),
    ),
    ErrorCondition(
        "REAL-TIME-MODE",
        "Real-time mode cannot run on this checkpoint or with this setting.",
        "Do not delete the checkpoint: in micro-batch mode the query still continues from it.",
        Remedy.FIX_QUERY,
        (Step("Return to a micro-batch trigger, or give real-time mode a new, empty checkpoint directory."), LOOK),
        names=("STREAMING_REAL_TIME_MODE",),
    ),
    ErrorCondition(
        "USER-FUNCTION",
        "The function given to foreachBatch, foreach or a stateful processor failed; the reason is its own, in the error.",
        "Do not touch the checkpoint: the batch was not committed and is run again, with the same rows.",
        Remedy.FIX_QUERY,
        (
            Step("Repair the function, or what it reads and writes; then start the query again.", LOOK.command),
            Step("See that it may run twice for one batch id: what it wrote before it failed is written again."),
        ),
        names=(
            "FOREACH_BATCH_USER_FUNCTION_ERROR",
            "FOREACH_USER_FUNCTION_ERROR",
            "TRANSFORM_WITH_STATE_USER_FUNCTION_ERROR",
        ),
        patterns=(r"An exception was raised by the Python Proxy", r"PythonForeachBatchFunction|PythonForeachWriter"),
        vague=True,
    ),
    ErrorCondition(
        "RESOURCES",
        "An executor or the driver ran out of memory, was lost, or was taken away.",
        "Do not touch the checkpoint: what was not committed is run again.",
        Remedy.RETRY,
        (
            RESTART,
            Step(
                "If every start runs out of memory in the same batch: more memory. A smaller limit alone (maxOffsetsPerTrigger, "
                "maxFilesPerTrigger) is for later batches: Spark runs the batch that it has logged again up to its logged end. "
                "Set the limit, and have the logged batch planned again with it: this shows the plan, --apply applies it.",
                ("rewind", "{checkpoint}", "--to-latest", "--sink", "{sink}"),
                "CheckpointRewindOperator",
            ),
        ),
        patterns=(
            r"java\.lang\.OutOfMemoryError",
            r"ExecutorLostFailure",
            r"Container killed by YARN for exceeding",
            r"OOMKilled",
        ),
        vague=True,
    ),
    ErrorCondition(
        "STORAGE-REFUSED",
        "A store refused a request (rights, an expired credential, too many requests), or a disk is full. The error does not "
        "say whether it is the place of the checkpoint, a source, the sink or a local disk.",
        KEEP_IT,
        Remedy.FIX_STORAGE,
        (
            Step("Find the place that the error names, and fix its rights, credentials, space or quota."),
            Step("Then start the query again: a batch that was not committed is run again.", LOOK.command),
        ),
        patterns=(
            r"No space left on device|Disk quota exceeded|DSQuotaExceededException|NSQuotaExceededException",
            r"org\.apache\.hadoop\.security\.AccessControlException|Permission denied: user=\S+, access=[A-Z_]+",
            r"AccessDeniedException: (?:s3a?|abfss?|gs|hdfs|dbfs)://",
            r"\(Service: (?:Amazon )?S3[;,] Status Code: (?:403|503)\b",
            r"Error Code: (?:AccessDenied|SlowDown|ExpiredToken)|Please reduce your request rate",
            r"The (?:provided|security) token (?:has expired|included in the request is expired)|\bExpiredToken(?:Exception)?\b",
            r"GoogleJsonResponseException: (?:401|403|429|503)\b",
            r"does not have storage\.[\w.]+ access to the Google Cloud Storage",
            r'Operation failed: "[^"\n]{0,300}", (?:401|403|429|503), (?:GET|HEAD|PUT|PATCH|POST|DELETE)\b',
        ),
        vague=True,
    ),
)
