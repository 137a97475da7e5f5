"""How the streams stand, as HTML: made of a repository and the reports in it, never of a checkpoint; nothing is changed."""
