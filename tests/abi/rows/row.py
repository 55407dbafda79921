"""A row of ``make abi``'s table, and where rows run."""

from __future__ import annotations

from dataclasses import dataclass, field

#: Both ends here as root; the same as nobody; an end in each of two network namespaces; this as
#: nobody, in the long form, of rows that the short form runs in each of the others.
HERE, NOBODY, CABLE, BOTH = "here", "nobody", "cable", "both"
PLACES = (HERE, NOBODY, CABLE)
#: The TCP ports on which servers wait.
PINGPONG, PERFTEST, UCX, PYPI = 18515, 18515, 13337, 18616
RPING, RCOPY, RDMA_CM, RSOCKET = 7174, 7427, 7471, 7571
FI_PINGPONG, IO_DEMO = 47592, 1337


@dataclass(frozen=True)
class Row:
    """A program, or two: a server and a client that is given the server's address.

    In the words stand ``{dev}``, ``{addr}`` and ``{addr6}`` (the server's), ``{own}`` and
    ``{own6}`` (of the end that says it), ``{work}`` (the folder of what the runner compiles and
    copies), ``{abi}`` (tests/abi, copied to a place that all may read), ``{venv}`` and ``{python}``
    (of the environment that has the row's ``wheel``), and ``{over}``, which runs what follows in
    the second namespace, with ``{over_dev}`` and ``{over_addr}``.
    """

    name: str
    transport: str
    server: str
    client: str = ""
    #: A regular expression in the output of the client, or of the only program.
    shows: str = ""
    #: Who looks at the data that came: "-c", "script"; "-" where the program has no such check.
    data: str = "-"
    #: The TCP port on which the server waits for its client; 0: the client waits by itself.
    port: int = 0
    #: Where it is run at all, and where in the short form.
    places: tuple[str, ...] = PLACES
    short: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    #: A folder that not every installation has: without it the row is skipped.
    needs: str = ""
    #: What pip installs into an environment of the row's own; without it the row is skipped.
    wheel: str = ""
    #: Options of siwarp run.
    options: str = ""
    #: Which end is killed, by SIGKILL, when it has run for a second: "server", "client", or "rank"
    #: for a process of an MPI. The other end must end by itself then, and not with status 0.
    kill: str = ""
    #: Whether that end's own words kill it, at a certain call (libs/killed_at.sh).
    itself: bool = False
    #: What the other end says that, by its own lights, ends with status 0 without its peer.
    quiet: str = ""
    #: Whether every CPU has something else to do meanwhile.
    busy: bool = False
    #: Why it may fail, with no fault of siwarp's: left out of the short form; the long one runs it,
    #: says how it went, and does not fail for it.
    known: str = ""
    seconds: float = 60
