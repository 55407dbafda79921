"""The packages as shown by dir() and help()."""

from __future__ import annotations

import importlib
import pydoc

from table import run_test_for_each_row

import siwarp.verbs  # noqa: F401  the process of these tests is real

PACKAGES = (
    "siwarp.verbs",
    "siwarp",
    "siwarp.aio",
    "siwarp.cm",
    "siwarp.inspect",
    "siwarp.sim",
    "siwarp.testing",
    "siwarp.verbs.arrays",
)


@run_test_for_each_row("name", PACKAGES)
def test_dir_of_a_package_lists_its_public_names_and_each_name_exists(name: str) -> None:
    package = importlib.import_module(name)
    assert dir(package) == sorted(package.__all__)
    for public in package.__all__:
        assert getattr(package, public) is not None


def test_help_of_siwarp_shows_lazily_imported_classes() -> None:
    page = pydoc.render_doc("siwarp", renderer=pydoc.plaintext)
    for line in ("class RemoteBuffer(", "class PeerGone(", "connect(address", "faults(plan"):
        assert line in page
    assert "importlib" not in page


def test_help_of_siwarp_verbs_shows_no_internal_names() -> None:
    page = pydoc.render_doc("siwarp.verbs", renderer=pydoc.plaintext)
    assert "class QP(" in page
    assert "def reap" not in page
