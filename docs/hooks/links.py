"""A hook of mkdocs: links of the guides to files outside docs/ lead to the site's copies of these files."""

from __future__ import annotations

import re
from typing import Any

PAGES = {
    name: f"project/{name.lower()}.md"
    for name in ("ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "RELIABILITY", "RESULTS", "SECURITY")
}


def on_page_markdown(markdown: str, *, page: Any, **context: Any) -> str:
    """Return the page's Markdown with links to root documents and pictures rewritten. Other files become plain text."""
    up = "../" * page.file.src_uri.count("/")
    for name, target in PAGES.items():
        markdown = markdown.replace(f"](../{name}.md", f"]({up}{target}")
    markdown = markdown.replace("](../../tests/", "](../tests/")  # of the pages in docs/results
    markdown = markdown.replace("](../tui/pictures/", f"]({up}pictures/")
    return re.sub(r"\[([^\]]+)\]\(\.\./(?:tests|chessreg|migrations)/[^)]*\)", r"\1", markdown)
