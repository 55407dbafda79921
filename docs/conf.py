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
# Code blocks without a language are pictures or output of commands, and are not highlighted.
highlight_language = "none"

smartquotes = False  # smart quotes would turn the two hyphens at the start of an option into a dash
# Docstrings have single backticks around code.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
toc_object_entries = False
# A link to siwarp.X matches both siwarp.X and the X of its defining module, which are the same
# object and have one page: Sphinx would warn about such links.
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
