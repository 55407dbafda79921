"""What runs the blocks of pages."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import doc_block  # noqa: E402


def block(page: str, name: str) -> str:
    """Return the text of a block that ``<!-- tried: NAME -->`` names, of a page of this tree."""
    return doc_block.block(ROOT / page, name)
