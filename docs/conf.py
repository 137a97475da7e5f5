"""Builds the documentation with Sphinx, as Airflow's providers do: ``make docs``."""

import os
import tempfile

from airflow_ckpt_provider import __version__

# Airflow is imported for the reference of the operators, with settings of its own.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="airflow-home-")

project = "airflow-ckpt-provider"
author = "the maintainers"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["policies"]
# Headings of four levels can be linked to, by the names that GitHub gives them.
myst_heading_anchors = 4
myst_enable_extensions = ["fieldlist"]
# Generated pages begin with a comment; examples leave things out with "…".
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
html_theme = "furo"
html_title = f"{project} {__version__}"
html_copy_source = False
html_show_sphinx = False
