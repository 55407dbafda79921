"""The row type of ``make abi``'s table, and the places where rows run."""

from __future__ import annotations

from dataclasses import dataclass, field

#: HERE: both ends on this host as root. NOBODY: both ends on this host as user nobody. CABLE: one
#: end in each of two network namespaces. BOTH: two namespaces and user nobody; the long form of
#: `make abi` also uses BOTH for rows that the short form runs in all other places.
HERE, NOBODY, CABLE, BOTH = "here", "nobody", "cable", "both"
PLACES = (HERE, NOBODY, CABLE)
#: The TCP ports on which the servers of the rows listen.
PINGPONG, PERFTEST, UCX, PYPI = 18515, 18515, 13337, 18616
RPING, RCOPY, RDMA_CM, RSOCKET = 7174, 7427, 7471, 7571
FI_PINGPONG, IO_DEMO = 47592, 1337


@dataclass(frozen=True)
class Row:
    """A row of the table: a single program, or a server and a client with the server's address.

    The command lines may contain ``{dev}``, ``{addr}`` and ``{addr6}`` (addresses of the server),
    ``{own}`` and ``{own6}`` (addresses of the end that runs the command), ``{work}`` (the folder
    with compiled and copied files), ``{abi}`` (tests/abi, copied to a place that every user can
    read), ``{venv}`` and ``{python}`` (of the environment with the row's ``wheel``), and
    ``{over}``, which runs its arguments in the second namespace, with ``{over_dev}`` and
    ``{over_addr}``.
    """

    name: str
    transport: str
    server: str
    client: str = ""
    #: A regular expression that must match the output of the client, or of the only program.
    shows: str = ""
    #: How received data is checked, for example "-c" or "script"; "-" if the program has no check.
    data: str = "-"
    #: The TCP port on which the server waits for its client; 0: the client itself waits for the
    #: server.
    port: int = 0
    #: Where the row may run, and where it runs in the short form of `make abi`.
    places: tuple[str, ...] = PLACES
    short: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    #: A folder that does not exist on every system; without the folder the row is skipped.
    needs: str = ""
    #: The packages that pip installs into a separate environment for the row; if the installation
    #: fails, the row is skipped.
    wheel: str = ""
    #: Options of the command siwarp run.
    options: str = ""
    #: The end that is killed with SIGKILL after one second: "server", "client", or "rank" for a
    #: process of an MPI. The other end must then end by itself, with an exit status other than 0.
    kill: str = ""
    #: Whether the command of the end that is killed runs gdb, which kills the program after a
    #: certain call (libs/killed_at.sh), so that `make abi` need not kill it.
    itself: bool = False
    #: Expected output of a surviving end that exits with status 0 without its peer, by design.
    quiet: str = ""
    #: Whether other processes keep every CPU busy while the row runs.
    busy: bool = False
    #: Why the row may fail without a fault of siwarp. The short form of `make abi` omits a row with
    #: a reason; the long form runs it and prints the result, but does not count a failure.
    known: str = ""
    seconds: float = 60
