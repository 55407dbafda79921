# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The key that ``siwarp cp`` and ``siwarp serve`` use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from siwarp.ulp.adts import Key

__all__ = ["VARIABLE", "find_adts_key", "parse_channel_list"]

#: The environment variable with the text of the key. Other users cannot read a process's
#: environment, but they can read its command line.
VARIABLE = "ADTS_KEY"


def find_adts_key(file: str | None) -> Key | None:
    """Return the key in a file or in the environment; None if neither is given.

    Raises:
        KeyFileError: the file cannot be used.
        BadParameter: the variable does not have a key.

    """
    from siwarp.ulp.adts import Key, read_key_file

    if file is not None:
        return read_key_file(Path(file))
    text = os.environ.get(VARIABLE)
    if text is None:
        return None
    try:
        return Key.from_text(text)
    except ValueError as e:
        raise typer.BadParameter(f"{VARIABLE}: {e}", param_hint="--key") from None


def parse_channel_list(text: str) -> list[str]:
    """Return the names in a list of channels, separated by commas.

    Raises:
        BadParameter: a name is unknown.

    """
    from siwarp.ulp.adts.handshake import parse_channels

    names = [name.strip() for name in text.split(",") if name.strip()]
    try:
        parse_channels(names)
    except ValueError as e:
        raise typer.BadParameter(str(e), param_hint="--channel") from None
    return names
