"""PyPI's peercache, which is linked to libibverbs.so.1: one-sided reads and writes of its engine.

peercache_exchange.py DEVICE [SERVER [endless]]; with "endless" the client reads until a read fails.
"""

import ctypes
import sys

from common import Control, data_pattern, device_name
from peercache import _peercache
from peercache.config import PeerCacheConfig
from peercache.transport import RdmaTransport

PAGE, PAGES = 60_000, 64

assert _peercache.HAS_RDMA, "this wheel was built without RDMA"
control = Control()
config = PeerCacheConfig(
    discovery_addr=f"{control.here}:1",
    device_name=device_name(),
    gid_index=0,
    local_hostname=control.here,
)
transport = RdmaTransport(config)
memory = ctypes.create_string_buffer(PAGE * PAGES)
address = ctypes.addressof(memory)
mr = transport.register_mr(address, PAGE * PAGES)
if control.server:
    memory.raw = data_pattern(PAGE * PAGES, 1)
other = control.exchange_values(addr=address, rkey=mr.rkey, endpoint=transport.local_endpoint())
pages = range(0, PAGE * PAGES, PAGE)
there = [other["addr"] + at for at in pages]
mine = [address + at for at in pages]
words = [other["endpoint"]] * PAGES, mine, there, [other["rkey"]] * PAGES, [PAGE] * PAGES
if control.server:
    control.exchange_values(lent=1)
    assert memory.raw[:-1] == data_pattern(PAGE * PAGES, 2)[:-1], "the peer's writes"
elif "endless" in sys.argv:
    while all(transport.batch_read_v(*words)):
        pass
    sys.exit("peercache: a read failed")
else:
    assert all(transport.batch_read_v(*words))
    assert memory.raw == data_pattern(PAGE * PAGES, 1), "reads"
    memory.raw = data_pattern(PAGE * PAGES, 2)
    assert all(transport.batch_write_v(*words))
    # A read with an rkey that was never issued must fail.
    assert not any(
        transport.batch_read_v(*(one[:1] for one in words[:3]), [other["rkey"] ^ 0x5500], [8])
    )
    control.exchange_values(lent=1)
control.exchange_values(done=1)
print("peercache: correct")
sys.stdout.flush()
