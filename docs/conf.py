"""Sphinx configuration of the documentation that ``make site`` builds (tools/pages/build)."""

from __future__ import annotations

from importlib.metadata import version as version_of

project = "siwarp"
author = "the authors of siwarp"
version = release = version_of("siwarp")
html_title = f"siwarp {version}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "spec/*.md"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
primary_domain = "py"
# Code blocks without a language are pictures and output.
highlight_language = "none"

smartquotes = False  # keeps the two hyphens at the start of an option
# Docstrings have single backticks around code.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
toc_object_entries = False
# siwarp.X and the X of its defining module are the same object, which has one page.
suppress_warnings = ["ref.python"]

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["filter.js"]
html_extra_path = ["extra"]
html_copy_source = False
html_show_copyright = False
html_show_sourcelink = False
html_theme_options = {"top_of_page_buttons": []}
pygments_style = "default"
