"""Makes the process of these tests a simulated one; siwarp.verbs must not be imported before."""

import siwarp.sim  # noqa: F401
