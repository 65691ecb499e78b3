"""How Sphinx builds the pages in this folder: `make docs`, with warnings as errors."""

import my_ops

project = "my_ops"
author = "the my_ops authors"
release = version = my_ops.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

# Google's style in the sources; types stand in the signatures, once.
napoleon_numpy_docstring = False
napoleon_use_rtype = False
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80

# Offline, torch's names are no links; an unknown one of ours is an error.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(torch|collections|typing)\..*|Tensor|.*Iterable|.*Mapping")]

myst_heading_anchors = 3
myst_enable_extensions = ["deflist"]
html_theme = "furo"
html_title = f"my_ops {release}"
