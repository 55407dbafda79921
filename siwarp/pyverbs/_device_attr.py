# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Attributes of a device and its port, as read-only values."""

from __future__ import annotations

from siwarp.pyverbs import enums as e
from siwarp.pyverbs._field import ReadOnlyAttribute, UInt, attribute_lines, set_read_only_attributes
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
#: A vendor id that no vendor uses; programs take 0 for a failed query.
_NO_VENDOR = 0xFFFFFF
_ODP_UD = e.IBV_ODP_SUPPORT_SEND | e.IBV_ODP_SUPPORT_RECV | e.IBV_ODP_SUPPORT_SRQ_RECV
_ODP_UC = e.IBV_ODP_SUPPORT_SEND | e.IBV_ODP_SUPPORT_RECV | e.IBV_ODP_SUPPORT_WRITE
_ODP_RC = _ODP_UD | _ODP_UC | e.IBV_ODP_SUPPORT_READ | e.IBV_ODP_SUPPORT_ATOMIC


class DeviceAttr(PyverbsObject):
    """A device's limits (``struct ibv_device_attr``), which are 0 for unsupported objects."""

    fw_version = ReadOnlyAttribute("")
    node_guid = ReadOnlyAttribute(0)
    sys_image_guid = ReadOnlyAttribute(0)
    max_mr_size = ReadOnlyAttribute(0)
    page_size_cap = ReadOnlyAttribute(~0xFFF & 0xFFFFFFFFFFFFFFFF)
    vendor_id = ReadOnlyAttribute(_NO_VENDOR)
    vendor_part_id = ReadOnlyAttribute(0)
    hw_ver = ReadOnlyAttribute(1)
    max_qp = ReadOnlyAttribute(0)
    max_qp_wr = ReadOnlyAttribute(0)
    device_cap_flags = ReadOnlyAttribute(_DEVICE_CAPS)
    max_sge = ReadOnlyAttribute(0)
    max_sge_rd = ReadOnlyAttribute(0)
    max_cq = ReadOnlyAttribute(0)
    max_cqe = ReadOnlyAttribute(0)
    max_mr = ReadOnlyAttribute(0)
    max_pd = ReadOnlyAttribute(0)
    max_qp_rd_atom = ReadOnlyAttribute(0)
    max_ee_rd_atom = ReadOnlyAttribute(0)
    max_res_rd_atom = ReadOnlyAttribute(0)
    max_qp_init_rd_atom = ReadOnlyAttribute(0)
    max_ee_init_rd_atom = ReadOnlyAttribute(0)
    atomic_caps = ReadOnlyAttribute(0)
    max_ee = ReadOnlyAttribute(0)
    max_rdd = ReadOnlyAttribute(0)
    max_mw = ReadOnlyAttribute(0)
    max_raw_ipv6_qps = ReadOnlyAttribute(0)
    max_raw_ethy_qp = ReadOnlyAttribute(0)
    max_mcast_grp = ReadOnlyAttribute(0)
    max_mcast_qp_attach = ReadOnlyAttribute(0)
    max_ah = ReadOnlyAttribute(0)
    max_fmr = ReadOnlyAttribute(0)
    max_map_per_fmr = ReadOnlyAttribute(0)
    max_srq = ReadOnlyAttribute(0)
    max_srq_wr = ReadOnlyAttribute(0)
    max_srq_sge = ReadOnlyAttribute(0)
    max_pkeys = ReadOnlyAttribute(1)
    local_ca_ack_delay = ReadOnlyAttribute(0)
    phys_port_cnt = ReadOnlyAttribute(1)

    def __str__(self) -> str:
        return attribute_lines(
            self, *(name for name, of in vars(DeviceAttr).items() if type(of) is ReadOnlyAttribute)
        )


class QueryDeviceExInput(PyverbsObject):
    """Input of ``query_device_ex``; no bit of its mask is defined."""

    comp_mask = UInt(32)

    def __init__(self, comp_mask: int) -> None:
        self.comp_mask = comp_mask


class ODPCaps(PyverbsObject):
    """On-demand paging, supported for all regions except implicit regions."""

    general_caps = ReadOnlyAttribute(int(e.IBV_ODP_SUPPORT))
    rc_odp_caps = ReadOnlyAttribute(int(_ODP_RC))
    uc_odp_caps = ReadOnlyAttribute(int(_ODP_UC))
    ud_odp_caps = ReadOnlyAttribute(int(_ODP_UD))
    xrc_odp_caps = ReadOnlyAttribute(0)

    def __str__(self) -> str:
        return attribute_lines(
            self, "general_caps", "rc_odp_caps", "uc_odp_caps", "ud_odp_caps", "xrc_odp_caps"
        )


class PCIAtomicCaps(PyverbsObject):
    """Atomics over PCI, which siwarp does not support, because its devices are software."""

    fetch_add = ReadOnlyAttribute(0)
    swap = ReadOnlyAttribute(0)
    compare_swap = ReadOnlyAttribute(0)


class TSOCaps(PyverbsObject):
    """TCP segmentation offload, which siwarp does not support."""

    max_tso = ReadOnlyAttribute(0)
    supported_qpts = ReadOnlyAttribute(0)


class RSSCaps(PyverbsObject):
    """Receive side scaling, which siwarp does not support."""

    supported_qpts = ReadOnlyAttribute(0)
    max_rwq_indirection_tables = ReadOnlyAttribute(0)
    max_rwq_indirection_table_size = ReadOnlyAttribute(0)
    rx_hash_fields_mask = ReadOnlyAttribute(0)
    rx_hash_function = ReadOnlyAttribute(0)


class PacketPacingCaps(PyverbsObject):
    """Limits of the rate of UD and UC queue pairs, in kbit/s."""

    qp_rate_limit_min = ReadOnlyAttribute(1)
    qp_rate_limit_max = ReadOnlyAttribute(0xFFFFFFFF)
    supported_qpts = ReadOnlyAttribute(1 << e.IBV_QPT_UD | 1 << e.IBV_QPT_UC)


class TMCaps(PyverbsObject):
    """Tag matching, which siwarp does not support."""

    max_rndv_hdr_size = ReadOnlyAttribute(0)
    max_num_tags = ReadOnlyAttribute(0)
    flags = ReadOnlyAttribute(0)
    max_ops = ReadOnlyAttribute(0)
    max_sge = ReadOnlyAttribute(0)


class CQModerationCaps(PyverbsObject):
    """Event moderation, which siwarp does not support, as each completion raises its event."""

    max_cq_count = ReadOnlyAttribute(0)
    max_cq_period = ReadOnlyAttribute(0)


class DeviceAttrEx(PyverbsObject):
    """A device's limits and unsupported features (``struct ibv_device_attr_ex``)."""

    orig_attr = ReadOnlyAttribute(DeviceAttr())
    comp_mask = ReadOnlyAttribute(0)
    odp_caps = ReadOnlyAttribute(ODPCaps())
    completion_timestamp_mask = ReadOnlyAttribute(0xFFFFFFFFFFFFFFFF)
    #: Frequency of the time stamp clock, which counts nanoseconds, in kHz.
    hca_core_clock = ReadOnlyAttribute(1_000_000)
    device_cap_flags_ex = ReadOnlyAttribute(_DEVICE_CAPS)
    tso_caps = ReadOnlyAttribute(TSOCaps())
    pci_atomic_caps = ReadOnlyAttribute(PCIAtomicCaps())
    rss_caps = ReadOnlyAttribute(RSSCaps())
    max_wq_type_rq = ReadOnlyAttribute(0)
    packet_pacing_caps = ReadOnlyAttribute(PacketPacingCaps())
    raw_packet_caps = ReadOnlyAttribute(0)
    tm_caps = ReadOnlyAttribute(TMCaps())
    cq_mod_caps = ReadOnlyAttribute(CQModerationCaps())
    max_dm_size = ReadOnlyAttribute(0)
    phys_port_cnt_ex = ReadOnlyAttribute(1)


class CompCntrCaps(PyverbsObject):
    """Completion counters, which siwarp does not support."""

    max_counters = ReadOnlyAttribute(0)
    max_value = ReadOnlyAttribute(0)
    supported_qp_attach_ops = ReadOnlyAttribute(0)


class AllocDmAttr(PyverbsObject):
    """Size of the device memory to allocate."""

    length = UInt(64)
    log_align_req = UInt(32)
    comp_mask = UInt(32)

    def __init__(self, length: int, log_align_req: int = 0, comp_mask: int = 0) -> None:
        self.length, self.log_align_req, self.comp_mask = length, log_align_req, comp_mask


#: ``port_cap_flags`` of a port; IP_BASED_GIDS: each address vector needs a GID.
_PORT_CAPS = int(e.IBV_PORT_CM_SUP | e.IBV_PORT_IP_BASED_GIDS)


class PortAttr(PyverbsObject):
    """The state of a device's port (``struct ibv_port_attr``)."""

    state = ReadOnlyAttribute(0)
    max_mtu = ReadOnlyAttribute(int(e.IBV_MTU_4096))
    active_mtu = ReadOnlyAttribute(0)
    gid_tbl_len = ReadOnlyAttribute(16)
    port_cap_flags = ReadOnlyAttribute(_PORT_CAPS)
    port_cap_flags2 = ReadOnlyAttribute(0)
    max_msg_sz = ReadOnlyAttribute(0)
    bad_pkey_cntr = ReadOnlyAttribute(0)
    qkey_viol_cntr = ReadOnlyAttribute(0)
    pkey_tbl_len = ReadOnlyAttribute(1)
    lid = ReadOnlyAttribute(0)
    sm_lid = ReadOnlyAttribute(0)
    lmc = ReadOnlyAttribute(0)
    max_vl_num = ReadOnlyAttribute(1)
    sm_sl = ReadOnlyAttribute(0)
    subnet_timeout = ReadOnlyAttribute(0)
    init_type_reply = ReadOnlyAttribute(0)
    active_width = ReadOnlyAttribute(0)
    active_speed = ReadOnlyAttribute(0)
    active_speed_ex = ReadOnlyAttribute(0)
    phys_state = ReadOnlyAttribute(0)
    link_layer = ReadOnlyAttribute(e.IBV_LINK_LAYER_ETHERNET)
    flags = ReadOnlyAttribute(e.IBV_QPF_GRH_REQUIRED)

    def __str__(self) -> str:
        return attribute_lines(
            self, *(name for name, of in vars(PortAttr).items() if type(of) is ReadOnlyAttribute)
        )


class GIDEntry(PyverbsObject):
    """An entry of a device's GID table (``struct ibv_gid_entry``)."""

    gid_subnet_prefix = ReadOnlyAttribute(0)
    gid_interface_id = ReadOnlyAttribute(0)
    gid_index = ReadOnlyAttribute(0)
    port_num = ReadOnlyAttribute(0)
    gid_type = ReadOnlyAttribute(0)
    ndev_ifindex = ReadOnlyAttribute(0)

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
