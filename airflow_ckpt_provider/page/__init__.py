"""The status of the streams, as HTML: made of a repository and the reports in it, never of a checkpoint; nothing is changed."""
