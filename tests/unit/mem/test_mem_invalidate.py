"""Invalidation of STags by a peer: only STags of its stream, with the access right, and once."""

from __future__ import annotations

import errno
import threading
import time

import pytest
from _siwarp_layers import ffi, lib
from unit.ddp.ddp_harness import DdpPoller, Stream

RIGHT = lib.SIW_MEM_REMOTE_INVALIDATE
WRITE = lib.SIW_MEM_REMOTE_WRITE
ALL = RIGHT | WRITE | lib.SIW_MEM_LOCAL_READ
INVALID = (lib.SIW_LAYER_DDP, lib.SIW_DDP_TAGGED_BUFFER, lib.SIW_DDP_INVALID_STAG)
MIN_WAITING_INDEXES = 256  # minimum number of freed indexes that wait before one is reused


def peer_may_invalidate_stag(layer_poller: DdpPoller, stag: int, stream: Stream) -> bool:
    return bool(lib.siw_mem_peer_may_invalidate_stag(layer_poller.mem, stag, stream.handle))


def invalidate_stag(layer_poller: DdpPoller, stag: int, stream: Stream) -> int:
    return int(lib.siw_mem_stag_invalidate(layer_poller.mem, stag, stream.handle))


def test_an_invalidated_stag_is_refused_and_cannot_be_invalidated_again(
    layer_poller: DdpPoller,
) -> None:
    stream = layer_poller.create_receiver()
    m = layer_poller.register_new_memory(100, rights=ALL, stream=stream)
    assert layer_poller.look_up_stag(m.stag, WRITE, 0, 100, stream=stream) == [(m.addr, 100)]
    assert peer_may_invalidate_stag(layer_poller, m.stag, stream)
    assert invalidate_stag(layer_poller, m.stag, stream) == 0
    assert layer_poller.look_up_stag(m.stag, WRITE, 0, 100, stream=stream) == INVALID
    assert not peer_may_invalidate_stag(layer_poller, m.stag, stream)
    assert invalidate_stag(layer_poller, m.stag, stream) == -errno.EACCES
    assert layer_poller.free_stag(m.stag) == 0
    assert layer_poller.free_stag(m.stag) == -errno.ENOENT


@pytest.mark.parametrize("which", ["no right", "domain", "other stream", "freed", "never"])
def test_an_stag_that_the_peer_may_not_invalidate_stays_unchanged(
    layer_poller: DdpPoller, which: str
) -> None:
    stream, other = layer_poller.create_receiver(), layer_poller.create_receiver()
    rights = WRITE if which == "no right" else ALL
    owner = {"domain": None, "other stream": other}.get(which, stream)
    m = layer_poller.register_new_memory(100, rights=rights, stream=owner)
    if which == "freed":
        layer_poller.free_stag(m.stag)
    stag = m.stag ^ 0x100 if which == "never" else m.stag
    assert not peer_may_invalidate_stag(layer_poller, stag, stream)
    assert invalidate_stag(layer_poller, stag, stream) == -errno.EACCES
    if which in ("no right", "domain", "other stream", "never"):
        assert layer_poller.look_up_stag(m.stag, WRITE, 0, 1, stream=owner) == [(m.addr, 1)]


def test_an_invalidated_stag_is_not_reused_before_it_is_freed(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_receiver()
    m = layer_poller.register_new_memory(10, rights=ALL, stream=stream)
    assert invalidate_stag(layer_poller, m.stag, stream) == 0
    dead = m.stag
    for _ in range(3 * MIN_WAITING_INDEXES):  # far more STags than there are waiting indexes
        layer_poller.free_stag(layer_poller.assign_stag_to_memory(m))
    assert layer_poller.look_up_stag(dead, WRITE, 0, 1, stream=stream) == INVALID
    assert layer_poller.free_stag(dead) == 0


def test_changing_a_streams_identity_does_not_change_the_binding_of_its_stags(
    layer_poller: DdpPoller,
) -> None:
    stream = layer_poller.create_receiver()
    m = layer_poller.register_new_memory(10, rights=ALL, stream=stream)
    identity = ffi.cast("void *", 4711)
    lib.siw_ddp_stream_set_stag_identity(stream.handle, identity)
    assert lib.siw_ddp_stream_get_stag_identity(stream.handle) == identity
    assert lib.siw_mem_stag_invalidate(layer_poller.mem, m.stag, identity) == -errno.EACCES
    assert invalidate_stag(layer_poller, m.stag, stream) == 0


def test_invalidating_an_stag_waits_for_a_placement_in_progress(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_receiver()
    m = layer_poller.register_new_memory(100, rights=ALL, stream=stream)
    iov, err = ffi.new("struct iovec[1]"), ffi.new("struct siw_wire_err *")
    assert (
        lib.siw_mem_stag_acquire(
            layer_poller.mem, m.stag, 7, stream.handle, WRITE, 0, 10, iov, 1, err
        )
        == 1
    )
    done = threading.Event()

    def invalidate_stag_in_thread() -> None:
        assert invalidate_stag(layer_poller, m.stag, stream) == 0
        done.set()

    thread = threading.Thread(target=invalidate_stag_in_thread)
    thread.start()
    while layer_poller.look_up_stag(m.stag, WRITE, 0, 1, stream=stream) != INVALID:
        pass
    assert not done.wait(0.02)
    lib.siw_mem_stag_release(layer_poller.mem, m.stag)
    assert done.wait(10)
    thread.join()


def test_an_stag_may_be_invalidated_and_freed_at_the_same_time(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_receiver()
    m = layer_poller.register_new_memory(10, rights=ALL, stream=stream)
    layer_poller.free_stag(m.stag)
    rounds = 300
    stags = [0] * rounds
    given = [threading.Event() for _ in range(rounds)]
    ended: list[int] = []

    def invalidate_each_stag() -> None:
        for i in range(rounds):
            given[i].wait(10)
            ended.append(invalidate_stag(layer_poller, stags[i], stream))

    thread = threading.Thread(target=invalidate_each_stag)
    thread.start()
    for i in range(rounds):
        stags[i] = layer_poller.assign_stag_to_memory(m, ALL, stream=stream)
        given[i].set()
        if i % 3:
            time.sleep(0)
        assert layer_poller.free_stag(stags[i]) == 0
    thread.join(30)
    assert len(ended) == rounds and set(ended) <= {0, -errno.EACCES}
