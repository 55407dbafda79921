# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The exceptions of pyverbs."""

from __future__ import annotations

import os

__all__ = ["PyverbsError", "PyverbsRDMAError", "PyverbsUserError"]


class PyverbsError(Exception):
    """Base class of the exceptions of pyverbs."""

    def __init__(self, msg: str, error_code: int = -1) -> None:
        if error_code != -1:
            msg = f"{msg}. Errno: {error_code}, {os.strerror(error_code)}"
        super().__init__(msg)


class PyverbsRDMAError(PyverbsError):
    """Exception for a failed call of verbs or rdma_cm, with the errno value ``error_code``."""

    def __init__(self, msg: str, error_code: int = -1) -> None:
        super().__init__(msg, error_code)
        self._error_code = error_code

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_error, (str(self), self._error_code)

    @property
    def error_code(self) -> int:
        """The errno value of the failed call, or -1."""
        return self._error_code


def _rebuild_error(text: str, error_code: int) -> PyverbsRDMAError:
    """Return an exception with a complete text, when an exception is unpickled."""
    error = PyverbsRDMAError(text)
    error._error_code = error_code
    return error


class PyverbsUserError(PyverbsError):
    """Exception for incorrect use of pyverbs by the program."""

    def __init__(self, msg: str) -> None:
        super().__init__(msg)
