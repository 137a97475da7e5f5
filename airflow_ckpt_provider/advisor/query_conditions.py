"""Conditions of the query itself: what runs on a checkpoint, and what wraps its errors."""

from __future__ import annotations

from airflow_ckpt_provider.advisor.condition import ErrorCondition, Remedy, Step
from airflow_ckpt_provider.advisor.steps import BACKUP, LOOK, NEW_CHECKPOINT, RESTART, REVERT

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
            Step("If it happens again: more memory, smaller batches (maxOffsetsPerTrigger, maxFilesPerTrigger)."),
        ),
        patterns=(
            r"java\.lang\.OutOfMemoryError",
            r"ExecutorLostFailure",
            r"Container killed by YARN for exceeding",
            r"OOMKilled",
        ),
        vague=True,
    ),
)
