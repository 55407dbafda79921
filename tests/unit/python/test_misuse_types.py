"""Arguments of a wrong type, which raise a TypeError that names the right type."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from table import run_test_for_each_row

import siwarp
from siwarp import aio
from siwarp.testing import End, pair
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    AHAttr,
    Context,
    QPAttr,
    QPInitAttr,
    QPType,
    RecvWR,
    SendWR,
    WROpcode,
    source_toward,
)

ADDRESS = r"an address is \(host, port\), for example \('127\.0\.0\.1', 4791\), not "
SG = r"sg is a list of elements, for example \[mr\.sge\(0, 64\)\], not "
HANDLE = r"ah is an address handle, for example AH\(pd, \(host, port\)\), not "

#: Invalid values that users pass as an address.
INVALID_ADDRESSES = (
    "127.0.0.1",
    "127.0.0.1:4791",
    ["127.0.0.1", 4791],
    ("127.0.0.1", "4791"),
    (b"127.0.0.1", 4791),
    ("127.0.0.1",),
    (None, 4791),
    4791,
)


async def send_one_octet(to: object, opening: Callable[[], aio.conn.AwaitableOpening]) -> None:
    async with opening() as endpoint:
        await endpoint.send(b"x", to)


CALLS_WITH_ADDRESS: dict[str, Callable[[End, object], object]] = {
    "connect": lambda end, wrong: siwarp.connect(wrong),
    "listen": lambda end, wrong: siwarp.listen(wrong),
    "aio.connect": lambda end, wrong: aio.connect(wrong),
    "aio.listen": lambda end, wrong: aio.listen(wrong),
    "aio.open_ud": lambda end, wrong: aio.open_ud(wrong),
    "aio.open_rd": lambda end, wrong: aio.open_rd(wrong),
    "UD of aio": lambda end, wrong: asyncio.run(send_one_octet(wrong, aio.open_ud)),
    "RD of aio": lambda end, wrong: asyncio.run(send_one_octet(wrong, aio.open_rd)),
    "Context.toward": lambda end, wrong: Context.toward(wrong),
    "source_toward": lambda end, wrong: source_toward(wrong),
    "AH": lambda end, wrong: AH(end.pd, wrong),
    "QPInitAttr.addr": lambda end, wrong: QP(end.pd, QPInitAttr(scq=end.cq, addr=wrong)),
    "QPAttr.ah_attr": lambda end, wrong: QP(end.pd, QPInitAttr(QPType.UC, scq=end.cq)).to_rts(
        QPAttr(ah_attr=wrong)
    ),
}

CALLS_WITH_WRONG_TYPE: dict[str, tuple[Callable[[End], object], str]] = {
    "no device by number": (lambda end: Context(5), "a device name is a string"),
    "no PD on a name": (lambda end: PD("siw_lo"), r"for example PD\(Context\(\)\), not 'siw_lo'"),
    "no CQ on a PD": (lambda end: CQ(end.pd), "a CQ is created on an open device"),
    "no MR on a device": (lambda end: MR(end.device, 64), "memory is registered in a PD"),
    "no MR of text": (lambda end: MR(end.pd, "text"), r"call its encode\(\) first"),
    "no QP on a device": (lambda end: QP(end.device, QPInitAttr()), "a QP is created in a PD"),
    "no QP of a type": (lambda end: QP(end.pd, QPType.UD), "a QP is created from a QPInitAttr"),
    "no AH on a device": (lambda end: AH(end.device, end.qp.addr), "an AH is created in a PD"),
    "no AH to a QP": (lambda end: AH(end.pd, end.qp), ADDRESS + "<QP"),
    "no AH to a port's name": (lambda end: AH(end.pd, AHAttr("::1", "http")), ADDRESS),
    "no AH from an address as wc": (
        lambda end: AH(end.pd, wc=("::1", 9)),
        "wc is the completion of a UD receive",
    ),
    "no AH from a number": (
        lambda end: AH(end.pd, end.qp.addr, source=5),
        "source is an address of the device",
    ),
    "no request to an address": (lambda end: SendWR(ah=("::1", 9)), HANDLE),
    "no request to an AHAttr": (lambda end: SendWR(ah=AHAttr("::1", 9)), HANDLE),
    "no request to a QP": (lambda end: SendWR(ah=end.qp), HANDLE),
    "no request to packed memory": (
        lambda end: SendWR(opcode=WROpcode.RDMA_READ, remote=end.mr.remote().pack()),
        r"remote is a RemoteBuffer, for example from RemoteBuffer\.unpack\(\)",
    ),
    "no group with a port": (
        lambda end: end.qp.attach_mcast(("239.1.1.1", 0)),
        "a group is an IP address",
    ),
    "an MR is no sg list": (lambda end: SendWR(sg=end.mr), SG),
    "a list of MRs is no sg list": (lambda end: SendWR(sg=[end.mr]), SG),
    "an element is no sg list": (lambda end: RecvWR(1, sg=end.mr.sge()), SG),
    "octets are no sg list": (lambda end: SendWR(sg=b"octets"), SG),
    "a list of octets is no sg list": (lambda end: SendWR(sg=[b"octets"]), SG),
    "tuples are no elements": (lambda end: SendWR(sg=[(end.mr.addr, 4, end.mr.lkey)]), SG),
    "nothing is no sg list": (lambda end: RecvWR(1, sg=None), SG),
    "an sg list is no count": (lambda end: RecvWR(1, [end.mr.sge()]), "num_sge is an int"),
}


@pytest.fixture(scope="module")
def ud_endpoint():
    with pair("ud") as (a, _):
        yield a


@run_test_for_each_row("wrong", INVALID_ADDRESSES, ids=repr)
@run_test_for_each_row("call", CALLS_WITH_ADDRESS.values(), ids=CALLS_WITH_ADDRESS)
def test_an_invalid_address_raises_a_type_error_with_an_example_address(
    ud_endpoint: End, call: Callable[[End, object], object], wrong: object
) -> None:
    with pytest.raises(TypeError, match=ADDRESS):
        call(ud_endpoint, wrong)


@run_test_for_each_row(("call", "hint"), CALLS_WITH_WRONG_TYPE.values(), ids=CALLS_WITH_WRONG_TYPE)
def test_an_argument_of_a_wrong_type_raises_a_type_error_that_names_the_right_type(
    ud_endpoint: End, call: Callable[[End], object], hint: str
) -> None:
    with pytest.raises(TypeError, match=hint):
        call(ud_endpoint)


def test_long_values_are_shortened_in_error_messages() -> None:
    with pytest.raises(TypeError) as raised:
        SendWR(sg=bytes(10_000))
    assert len(str(raised.value)) < 200
    assert str(raised.value).endswith("...")
