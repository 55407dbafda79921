# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Checks that every internal link of the site has a target: ``python tools/pages/links.py HTML``.

Sphinx checks only the links that it resolves; this script checks the HTML output: each ``href`` and
``src`` without a host must refer to a file of the site, and its fragment to an id in the file. The
external links are not followed; ``external-links.txt``, beside the folder HTML, lists them.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    """The ids of a page, and the targets of its links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record the ids and the link targets of an HTML tag."""
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.ids.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)


def _read_pages(site: Path) -> dict[Path, _Page]:
    return {path: _Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}


def _external_links(pages: dict[Path, _Page]) -> list[str]:
    """Return the links of all pages to other hosts, sorted."""
    return sorted({n for page in pages.values() for n in page.links if urlsplit(n).netloc})


def _broken_links(site: Path, pages: dict[Path, _Page]) -> list[str]:
    """Return an error message for each internal link of the site without a target."""
    found = []
    for path, page in pages.items():
        for link in dict.fromkeys(page.links):
            if wrong := _describe_link_error(link, path, pages):
                found.append(f"{path.relative_to(site)}: {link}: {wrong}")
    return found


def _describe_link_error(link: str, path: Path, pages: dict[Path, _Page]) -> str:
    """Return the error of a link on a page, or "" for a valid or external link."""
    url = urlsplit(link)
    if url.scheme or url.netloc:
        return ""
    target = (path.parent / unquote(url.path)).resolve() if url.path else path
    if not target.exists():
        return "there is no such file"
    fragment = unquote(url.fragment)
    if fragment and target in pages and fragment not in pages[target].ids:
        return "the page has no such id"
    return ""


def main() -> int:
    """Write the list of external links, print the broken links; return 1 if any, or no pages."""
    site = Path(sys.argv[1]).resolve()
    pages = _read_pages(site)
    external = _external_links(pages)
    listed = site.parent / "external-links.txt"
    listed.write_text("".join(f"{link}\n" for link in external), "utf-8")
    print(f"{len(external)} external links, which are not checked: {listed}")
    wrong = _broken_links(site, pages)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong or not (site / "index.html").is_file() else 0


if __name__ == "__main__":
    sys.exit(main())
