"""Conditions of pipelines: Lakeflow (Databricks) and Spark Declarative Pipelines.

Checkpoints of a Lakeflow pipeline lie inside it and out of reach; the way is a call to its interface.
"""

from __future__ import annotations

from airflow_ckpt_provider.advisor.condition import ErrorCondition, Remedy, Step

RESET_FLOW = Step(
    "Reset the checkpoint of this one flow; the table keeps its rows. Say in the flow's code where to read from, or it "
    "reads all of the source again.",
    operator="ResetCheckpointOperator",
    call="databricks api post /api/2.0/pipelines/{pipeline_id}/updates "
    """--json '{{"refresh_selection": ["{dataset}"], "reset_checkpoint_selection": ["{flow}"]}}'""",
)
EVENTS = Step(
    "Read the errors of the update.",
    call="databricks pipelines list-pipeline-events {pipeline_id} --filter \"level='ERROR'\"",
)
NO_FULL_REFRESH = (
    "Do not start a full refresh unless the source still has all of its history: it empties the table first, and what the "
    "source no longer holds is gone."
)

CONDITIONS = (
    ErrorCondition(
        "PIPELINE-BUSY",
        "An update of the pipeline is running; a second one is refused.",
        "Do not delete or re-create the pipeline: its checkpoints and tables go with it.",
        Remedy.RETRY,
        (
            Step(
                "Wait for the running update, or stop it.",
                operator="PipelineStopOperator",
                call="databricks pipelines stop {pipeline_id}",
            ),
            Step("Then start yours again."),
        ),
        patterns=(r"[Aa]n active update \S+ already exists for pipeline",),
    ),
    ErrorCondition(
        "PIPELINE-NOT-FOUND",
        "There is no such pipeline, or you may not see it.",
        "Do not make a new one in its place: it would begin with empty checkpoints.",
        Remedy.FIX_QUERY,
        (Step("See which there are.", call="databricks pipelines list-pipelines"),),
        patterns=(r"The specified pipeline \S+ was not found",),
    ),
    ErrorCondition(
        "PIPELINE-FLOW-NOT-FOUND",
        "The reset names a flow that the pipeline does not have under this name; nothing was reset.",
        NO_FULL_REFRESH,
        Remedy.FIX_QUERY,
        (
            Step(
                "Name the flow exactly as origin.flow_name of the event log has it: catalog.schema.table by default, an "
                "explicit flow name as it is written.",
                operator="ResetCheckpointOperator",
                call="databricks pipelines list-pipeline-events {pipeline_id}",
            ),
        ),
        patterns=(r"Reset checkpoint selection should not contain flow",),
    ),
    ErrorCondition(
        "PIPELINE-SELECTION-REFUSED",
        "The selections of the update make no sense together: a continuous pipeline takes none, a table is not found, or the "
        "table of a flow that is reset is not among those that are refreshed. Nothing was reset.",
        NO_FULL_REFRESH,
        Remedy.FIX_QUERY,
        (
            Step(
                "Change what the message names in refresh_selection or full_refresh_selection.",
                operator="ResetCheckpointOperator",
            ),
        ),
        names=("INVALID_REFRESH_SELECTION",),
        patterns=(r"Refresh selection is not supported for continuous pipelines",),
    ),
    ErrorCondition(
        "PIPELINE-REWIND-REFUSED",
        "The pipeline cannot be rewound to that point: rewinding is not enabled, not supported there, or the point is beyond "
        "what is kept.",
        NO_FULL_REFRESH,
        Remedy.RESET,
        (
            Step(
                "Choose a later point (rewind points are kept for about seven days), or enable rewinding as the message says.",
                operator="PipelineRewindOperator",
            ),
            RESET_FLOW,
        ),
        names=("UNSUPPORTED_REWIND", "UNSUPPORTED_REWIND_CONFIGURATION", "INVALID_REWIND_SPECIFICATION"),
    ),
    ErrorCondition(
        "PIPELINE-COPY-REFUSED",
        "The workspace refuses this copy of a streaming table or materialized view; nothing was changed.",
        NO_FULL_REFRESH,
        Remedy.FIX_QUERY,
        (
            Step(
                "Copy the rows by CREATE TABLE AS SELECT (backup='ctas'), or clone with WITH HISTORY and without a version.",
                operator="PipelineRefreshOperator",
            ),
        ),
        names=("DELTA_DEEP_CLONE_MV_ST_ERROR",),
        patterns=(r"not supported as source or target tables for CLONE",),
    ),
    ErrorCondition(
        "PIPELINE-NOT-RESETTABLE",
        "The table forbids its reset (pipelines.reset.allowed=false): somebody wants its rows to stay.",
        "Do not lift that without asking whoever set it: a full refresh empties the table.",
        Remedy.RESET,
        (
            RESET_FLOW,
            Step(
                "Spark Declarative Pipelines: stop the pipeline and make the flow's next directory <flow>/<n+1>, empty or with "
                "a restored checkpoint; the table keeps its rows."
            ),
        ),
        names=("TABLE_NOT_RESETTABLE",),
        patterns=(r"pipelines\.reset\.allowed",),
    ),
    ErrorCondition(
        "PIPELINE-SOURCES-CHANGED",
        "The sources of a flow changed since its checkpoint was written.",
        NO_FULL_REFRESH,
        Remedy.RESET,
        (
            Step("Return to the former sources, or give the changed query to a new flow of the same table."),
            RESET_FLOW,
            Step(
                "Spark Declarative Pipelines: make the flow's next directory <flow>/<n+1>; the full refresh that the message "
                "asks for empties the table."
            ),
        ),
        patterns=(
            r"StreamingSourcesChanged\w*",
            r"sources? (?:of|in) (?:the )?flow\b[^\n]{0,80}changed[^\n]{0,200}full refresh",
        ),
    ),
)
