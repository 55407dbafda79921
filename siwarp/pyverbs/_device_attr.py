# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Attributes of a device and its port, as read-only values."""

from __future__ import annotations

from siwarp.pyverbs import enums as e
from siwarp.pyverbs._field import Shown, UInt, attribute_lines, set_read_only_attributes
from siwarp.pyverbs.addr import GID
from siwarp.pyverbs.base import PyverbsObject
from siwarp.pyverbs.utils import gid_str, gid_text

_DEVICE_CAPS = (
    e.IBV_DEVICE_CURR_QP_STATE_MOD
    | e.IBV_DEVICE_PORT_ACTIVE_EVENT
    | e.IBV_DEVICE_SYS_IMAGE_GUID
    | e.IBV_DEVICE_RC_RNR_NAK_GEN
    | e.IBV_DEVICE_SRQ_RESIZE
    | e.IBV_DEVICE_MEM_WINDOW
    | e.IBV_DEVICE_MEM_MGT_EXTENSIONS
    | e.IBV_DEVICE_MEM_WINDOW_TYPE_2B
)
#: A vendor id that no vendor uses; 0 would look as if the query had failed.
_NO_VENDOR = 0xFFFFFF
_ODP_UD = e.IBV_ODP_SUPPORT_SEND | e.IBV_ODP_SUPPORT_RECV | e.IBV_ODP_SUPPORT_SRQ_RECV
_ODP_UC = e.IBV_ODP_SUPPORT_SEND | e.IBV_ODP_SUPPORT_RECV | e.IBV_ODP_SUPPORT_WRITE
_ODP_RC = _ODP_UD | _ODP_UC | e.IBV_ODP_SUPPORT_READ | e.IBV_ODP_SUPPORT_ATOMIC


class DeviceAttr(PyverbsObject):
    """A device's limits (``struct ibv_device_attr``); 0: the device does not have such objects."""

    fw_version = Shown("")
    node_guid = Shown(0)
    sys_image_guid = Shown(0)
    max_mr_size = Shown(0)
    page_size_cap = Shown(~0xFFF & 0xFFFFFFFFFFFFFFFF)
    vendor_id = Shown(_NO_VENDOR)
    vendor_part_id = Shown(0)
    hw_ver = Shown(1)
    max_qp = Shown(0)
    max_qp_wr = Shown(0)
    device_cap_flags = Shown(_DEVICE_CAPS)
    max_sge = Shown(0)
    max_sge_rd = Shown(0)
    max_cq = Shown(0)
    max_cqe = Shown(0)
    max_mr = Shown(0)
    max_pd = Shown(0)
    max_qp_rd_atom = Shown(0)
    max_ee_rd_atom = Shown(0)
    max_res_rd_atom = Shown(0)
    max_qp_init_rd_atom = Shown(0)
    max_ee_init_rd_atom = Shown(0)
    atomic_caps = Shown(0)
    max_ee = Shown(0)
    max_rdd = Shown(0)
    max_mw = Shown(0)
    max_raw_ipv6_qps = Shown(0)
    max_raw_ethy_qp = Shown(0)
    max_mcast_grp = Shown(0)
    max_mcast_qp_attach = Shown(0)
    max_ah = Shown(0)
    max_fmr = Shown(0)
    max_map_per_fmr = Shown(0)
    max_srq = Shown(0)
    max_srq_wr = Shown(0)
    max_srq_sge = Shown(0)
    max_pkeys = Shown(1)
    local_ca_ack_delay = Shown(0)
    phys_port_cnt = Shown(1)

    def __str__(self) -> str:
        return attribute_lines(
            self, *(name for name, of in vars(DeviceAttr).items() if type(of) is Shown)
        )


class QueryDeviceExInput(PyverbsObject):
    """Input of ``query_device_ex``; no bit of its mask is defined yet."""

    comp_mask = UInt(32)

    def __init__(self, comp_mask: int) -> None:
        self.comp_mask = comp_mask


class ODPCaps(PyverbsObject):
    """On-demand paging: supported for all regions, as nothing is pinned; no implicit regions."""

    general_caps = Shown(int(e.IBV_ODP_SUPPORT))
    rc_odp_caps = Shown(int(_ODP_RC))
    uc_odp_caps = Shown(int(_ODP_UC))
    ud_odp_caps = Shown(int(_ODP_UD))
    xrc_odp_caps = Shown(0)

    def __str__(self) -> str:
        return attribute_lines(
            self, "general_caps", "rc_odp_caps", "uc_odp_caps", "ud_odp_caps", "xrc_odp_caps"
        )


class PCIAtomicCaps(PyverbsObject):
    """Atomics over PCI: not supported, because the device is software."""

    fetch_add = Shown(0)
    swap = Shown(0)
    compare_swap = Shown(0)


class TSOCaps(PyverbsObject):
    """TCP segmentation offload: not supported."""

    max_tso = Shown(0)
    supported_qpts = Shown(0)


class RSSCaps(PyverbsObject):
    """Receive side scaling: not supported."""

    supported_qpts = Shown(0)
    max_rwq_indirection_tables = Shown(0)
    max_rwq_indirection_table_size = Shown(0)
    rx_hash_fields_mask = Shown(0)
    rx_hash_function = Shown(0)


class PacketPacingCaps(PyverbsObject):
    """Limits of a queue pair's rate, in kbit/s; supported for UD and UC."""

    qp_rate_limit_min = Shown(1)
    qp_rate_limit_max = Shown(0xFFFFFFFF)
    supported_qpts = Shown(1 << e.IBV_QPT_UD | 1 << e.IBV_QPT_UC)


class TMCaps(PyverbsObject):
    """Tag matching: not supported."""

    max_rndv_hdr_size = Shown(0)
    max_num_tags = Shown(0)
    flags = Shown(0)
    max_ops = Shown(0)
    max_sge = Shown(0)


class CQModerationCaps(PyverbsObject):
    """Event moderation: not supported, each completion raises its event at once."""

    max_cq_count = Shown(0)
    max_cq_period = Shown(0)


class DeviceAttrEx(PyverbsObject):
    """A device's limits and unsupported features (``struct ibv_device_attr_ex``)."""

    orig_attr = Shown(DeviceAttr())
    comp_mask = Shown(0)
    odp_caps = Shown(ODPCaps())
    completion_timestamp_mask = Shown(0xFFFFFFFFFFFFFFFF)
    #: Frequency of the time stamp clock in kHz: it counts nanoseconds.
    hca_core_clock = Shown(1_000_000)
    device_cap_flags_ex = Shown(_DEVICE_CAPS)
    tso_caps = Shown(TSOCaps())
    pci_atomic_caps = Shown(PCIAtomicCaps())
    rss_caps = Shown(RSSCaps())
    max_wq_type_rq = Shown(0)
    packet_pacing_caps = Shown(PacketPacingCaps())
    raw_packet_caps = Shown(0)
    tm_caps = Shown(TMCaps())
    cq_mod_caps = Shown(CQModerationCaps())
    max_dm_size = Shown(0)
    phys_port_cnt_ex = Shown(1)


class AllocDmAttr(PyverbsObject):
    """Size of the device memory to allocate."""

    length = UInt(64)
    log_align_req = UInt(32)
    comp_mask = UInt(32)

    def __init__(self, length: int, log_align_req: int = 0, comp_mask: int = 0) -> None:
        self.length, self.log_align_req, self.comp_mask = length, log_align_req, comp_mask


#: ``port_cap_flags``, and the flag that each address vector needs a GID.
_PORT_CAPS = int(e.IBV_PORT_CM_SUP | e.IBV_PORT_IP_BASED_GIDS)


class PortAttr(PyverbsObject):
    """The state of a device's port (``struct ibv_port_attr``)."""

    state = Shown(0)
    max_mtu = Shown(int(e.IBV_MTU_4096))
    active_mtu = Shown(0)
    gid_tbl_len = Shown(16)
    port_cap_flags = Shown(_PORT_CAPS)
    port_cap_flags2 = Shown(0)
    max_msg_sz = Shown(0)
    bad_pkey_cntr = Shown(0)
    qkey_viol_cntr = Shown(0)
    pkey_tbl_len = Shown(1)
    lid = Shown(0)
    sm_lid = Shown(0)
    lmc = Shown(0)
    max_vl_num = Shown(1)
    sm_sl = Shown(0)
    subnet_timeout = Shown(0)
    init_type_reply = Shown(0)
    active_width = Shown(0)
    active_speed = Shown(0)
    phys_state = Shown(0)
    link_layer = Shown(e.IBV_LINK_LAYER_ETHERNET)
    flags = Shown(e.IBV_QPF_GRH_REQUIRED)

    def __str__(self) -> str:
        return attribute_lines(
            self, *(name for name, of in vars(PortAttr).items() if type(of) is Shown)
        )


class GIDEntry(PyverbsObject):
    """An entry of a device's GID table (``struct ibv_gid_entry``)."""

    gid_subnet_prefix = Shown(0)
    gid_interface_id = Shown(0)
    gid_index = Shown(0)
    port_num = Shown(0)
    gid_type = Shown(0)
    ndev_ifindex = Shown(0)

    def __init__(
        self,
        subnet_prefix: int = 0,
        interface_id: int = 0,
        gid_index: int = 0,
        port_num: int = 0,
        gid_type: int = 0,
        ndev_ifindex: int = 0,
    ) -> None:
        set_read_only_attributes(
            self,
            gid_subnet_prefix=subnet_prefix,
            gid_interface_id=interface_id,
            gid_index=gid_index,
            port_num=port_num,
            gid_type=gid_type,
            ndev_ifindex=ndev_ifindex,
        )

    def gid_str(self) -> str:
        """Return the GID as eight words of four digits."""
        return gid_str(self.gid_subnet_prefix, self.gid_interface_id)

    def __str__(self) -> str:
        return f"{'GID':<22}: {self.gid_str():<20}\n" + attribute_lines(
            self, "gid_index", "port_num", "gid_type", "ndev_ifindex"
        )


def gid_from_octets(raw: bytes) -> GID:
    """Return 16 octets as a GID."""
    return GID(gid_text(raw))
