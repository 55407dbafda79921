"""PyPI's mooncake-transfer-engine-non-cuda: Writes and Reads of its engine with protocol rdma.

mooncake_exchange.py DEVICE [SERVER]
"""

import ctypes
import sys

from common import Control, data_pattern, device_name
from mooncake.engine import TransferEngine

PAGE, PAGES = 65536, 64

control = Control()
engine = TransferEngine()
# The two engines exchange the addresses of their memory through a port that each engine opens.
assert engine.initialize(control.here, "P2PHANDSHAKE", "rdma", device_name()) == 0
memory = ctypes.create_string_buffer(PAGE * PAGES)
address = ctypes.addressof(memory)
assert engine.register_memory(address, PAGE * PAGES) == 0
if control.server:
    memory.raw = data_pattern(PAGE * PAGES, 1)
other = control.exchange_values(addr=address, name=f"{control.here}:{engine.get_rpc_port()}")
name, there = other["name"], other["addr"]
pages = range(0, PAGE * PAGES, PAGE)
lists = [address + at for at in pages], [there + at for at in pages], [PAGE] * PAGES
if control.server:
    control.exchange_values(lent=1)
    assert memory.raw == data_pattern(PAGE * PAGES, 3), "the peer's Writes"
else:
    assert engine.transfer_sync_read(name, address, there, PAGE * PAGES) == 0
    assert memory.raw == data_pattern(PAGE * PAGES, 1), "a Read"
    memory.raw = data_pattern(PAGE * PAGES, 2)
    assert engine.transfer_sync_write(name, address, there, PAGE * PAGES) == 0
    memory.raw = bytes(PAGE * PAGES)
    assert engine.batch_transfer_sync_read(name, *lists) == 0
    assert memory.raw == data_pattern(PAGE * PAGES, 2), "Reads in one batch, of what was written"
    memory.raw = data_pattern(PAGE * PAGES, 3)
    assert engine.batch_transfer_sync_write(name, *lists) == 0
    control.exchange_values(lent=1)
control.exchange_values(done=1)
print("mooncake: correct")
sys.stdout.flush()
