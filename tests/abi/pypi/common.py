"""What the scripts share: the server's control connection, and data that tells its place."""

import json
import socket
import sys

PORT = 18616


def pattern(size, seed):
    """Octets of which no two pages are alike."""
    return bytes((i * 7 + (i >> 8) * 13 + seed) & 0xFF for i in range(size))


class Control:
    """A TCP connection between the two ends, for a line of JSON each way at a time."""

    def __init__(self):
        if len(sys.argv) > 2:
            self.server = False
            connection = socket.create_connection((sys.argv[2], PORT), timeout=30)
        else:
            self.server = True
            # A client that finds the port open finds the device open, too.
            connection = socket.create_server(("0.0.0.0", PORT)).accept()[0]
        connection.settimeout(30)
        self.here = connection.getsockname()[0]
        # Two files: one for both ways would forget what it had read ahead.
        self.read, self.write = connection.makefile("r"), connection.makefile("w")

    def swap(self, **mine):
        """Tell the other end something, and return what it tells."""
        self.write.write(json.dumps(mine) + "\n")
        self.write.flush()
        line = self.read.readline()
        assert line, "the other end is gone"
        return json.loads(line)


def device():
    """The name of the device to use."""
    return sys.argv[1]
