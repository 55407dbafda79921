"""The C module, made by cffi from the public headers; its names are those of <siwarp/siw.h>."""

from typing import Any

ffi: Any
lib: Any
