"""Sphinx reads this: one theme, Markdown, nothing from the network."""

project = "termwise"
author = "the termwise authors"
copyright = "the termwise authors, Apache-2.0"
language = "en"
root_doc = "index"
extensions = ["myst_parser"]
myst_heading_anchors = 4
highlight_language = "text"
smartquotes = False
html_theme = "furo"
html_title = "termwise"
html_show_search_summary = False  # would be fetched, which a page opened as a file may not
html_show_sourcelink = False
html_copy_source = False
html_last_updated_fmt = None
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"top_of_page_buttons": []}
nitpicky = True


def _say_language(app, pagename, templatename, context, doctree):
    """Browsers choose the shapes of Chinese characters by the language of the page."""
    if pagename.endswith(".ja"):
        context["language"] = "ja"


def setup(app):
    app.connect("html-page-context", _say_language)
