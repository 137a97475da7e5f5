"""Recovery of Lakeflow pipelines (Databricks): reset of checkpoints, rewind, full refresh, and the choice between them."""
