"""The packages as seen interactively: dir(), help(), completion."""

from __future__ import annotations

import importlib
import pydoc

import pytest

PACKAGES = ("siwarp", "siwarp.aio", "siwarp.cm", "siwarp.inspect", "siwarp.testing", "siwarp.verbs")


@pytest.mark.parametrize("name", PACKAGES)
def test_dir_shows_the_public_names_and_each_is_there(name: str) -> None:
    package = importlib.import_module(name)
    assert dir(package) == sorted(package.__all__)
    for public in package.__all__:
        assert getattr(package, public) is not None


def test_help_shows_the_classes_that_are_imported_when_they_are_used() -> None:
    page = pydoc.render_doc("siwarp", renderer=pydoc.plaintext)
    for line in ("class RemoteBuffer(", "class PeerGone(", "connect(address", "faults(plan"):
        assert line in page
    assert "importlib" not in page


def test_help_of_the_verbs_has_no_name_of_a_module_of_ours() -> None:
    page = pydoc.render_doc("siwarp.verbs", renderer=pydoc.plaintext)
    assert "class QP(" in page
    assert "def reap" not in page
