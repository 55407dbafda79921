"""Shared by the PyPI scripts: the control connection, and test data that identifies positions."""

import json
import socket
import sys

PORT = 18616


def data_pattern(size, seed):
    """Return octets of which no two pages are equal."""
    return bytes((i * 7 + (i >> 8) * 13 + seed) & 0xFF for i in range(size))


class Control:
    """A TCP connection between both ends, which exchange one line of JSON at a time."""

    def __init__(self):
        if len(sys.argv) > 2:
            self.server = False
            connection = socket.create_connection((sys.argv[2], PORT), timeout=30)
        else:
            self.server = True
            # A client that finds this port open can rely on the device being open.
            connection = socket.create_server(("0.0.0.0", PORT)).accept()[0]
        connection.settimeout(30)
        self.here = connection.getsockname()[0]
        # Two file objects: a text file in mode "r+" would discard buffered input at each write.
        self.read, self.write = connection.makefile("r"), connection.makefile("w")

    def exchange_values(self, **mine):
        """Send values to the other end, and return the values that the other end sends."""
        self.write.write(json.dumps(mine) + "\n")
        self.write.flush()
        line = self.read.readline()
        assert line, "the peer process has ended"
        return json.loads(line)


def device_name():
    """Return the name of the RDMA device, the first argument of the script."""
    return sys.argv[1]
