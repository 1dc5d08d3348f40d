"""What mkdocs calls while it builds the site: generated parts of pages, and the pages whose source lies outside of docs/.

A line ``<!-- generated: NAME -->`` of a page becomes what `docs.tables.TABLES` has under that name.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from docs.tables import TABLES

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page
    from mkdocs.utils.templates import TemplateContext

REPOSITORY = Path(__file__).resolve().parents[1]
OUTSIDE = {"architecture.md": "ARCHITECTURE.md", "changelog.md": "CHANGELOG.md"}
"""Pages whose source is at the top of the repository."""
_MARKER = re.compile(r"^<!-- generated: ([\w-]+) -->$", re.MULTILINE)
_LINK = re.compile(r"\]\((?:docs/)([^)]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside of docs/, with links that are relative to it."""
    for page, source in OUTSIDE.items():
        text = (REPOSITORY / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_LINK.sub(r"](\1)", text)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return a page's text with its generated parts."""
    del config, files
    return filled(markdown, page.file.src_uri)


def on_template_context(
    context: TemplateContext, template_name: str, config: MkDocsConfig
) -> TemplateContext:
    """Return what the page for wrong addresses is made of: with relative links where nobody says what is published where.

    All pages lie in one folder, so that they lead somewhere from every wrong name in it; links from the root of a host, mkdocs'
    own, do so only where the site is the whole host.
    """
    if template_name == "404.html" and not config.site_url:
        context["base_url"] = "."
    return context


def filled(markdown: str, name: str) -> str:
    """Return the text of a page with its generated parts.

    Raises:
        PluginError: The page names a part that does not exist.
    """

    def part(match: re.Match[str]) -> str:
        table = TABLES.get(match[1])
        if table is None:
            raise PluginError(
                f"{name} asks for the generated part {match[1]!r}; there are {', '.join(TABLES)}"
            )
        return table()

    return _MARKER.sub(part, markdown)
