# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Enumerations for features of Ethernet and InfiniBand adapters only (``pyverbs.enums``)."""

from __future__ import annotations

from enum import IntEnum


class ibv_counter_description(IntEnum):
    """``enum ibv_counter_description``."""

    IBV_COUNTER_PACKETS = 0
    IBV_COUNTER_BYTES = 1


class ibv_dmah_init_attr_mask(IntEnum):
    """``enum ibv_dmah_init_attr_mask``."""

    IBV_DMAH_INIT_ATTR_MASK_CPU_ID = 1
    IBV_DMAH_INIT_ATTR_MASK_PH = 2
    IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE = 4


class ibv_flow_attr_type(IntEnum):
    """``enum ibv_flow_attr_type``."""

    IBV_FLOW_ATTR_NORMAL = 0
    IBV_FLOW_ATTR_ALL_DEFAULT = 1
    IBV_FLOW_ATTR_MC_DEFAULT = 2
    IBV_FLOW_ATTR_SNIFFER = 3


class ibv_flow_flags(IntEnum):
    """``enum ibv_flow_flags``."""

    IBV_FLOW_ATTR_FLAGS_DONT_TRAP = 2
    IBV_FLOW_ATTR_FLAGS_EGRESS = 4


class ibv_flow_spec_type(IntEnum):
    """``enum ibv_flow_spec_type``."""

    IBV_FLOW_SPEC_ETH = 32
    IBV_FLOW_SPEC_IPV4 = 48
    IBV_FLOW_SPEC_IPV6 = 49
    IBV_FLOW_SPEC_IPV4_EXT = 50
    IBV_FLOW_SPEC_ESP = 52
    IBV_FLOW_SPEC_TCP = 64
    IBV_FLOW_SPEC_UDP = 65
    IBV_FLOW_SPEC_VXLAN_TUNNEL = 80
    IBV_FLOW_SPEC_GRE = 81
    IBV_FLOW_SPEC_MPLS = 96
    IBV_FLOW_SPEC_INNER = 256
    IBV_FLOW_SPEC_ACTION_TAG = 4096
    IBV_FLOW_SPEC_ACTION_DROP = 4097
    IBV_FLOW_SPEC_ACTION_HANDLE = 4098
    IBV_FLOW_SPEC_ACTION_COUNT = 4099


class ibv_ops_flags(IntEnum):
    """``enum ibv_ops_flags``."""

    IBV_OPS_SIGNALED = 1
    IBV_OPS_TM_SYNC = 2


class ibv_ops_wr_opcode(IntEnum):
    """``enum ibv_ops_wr_opcode``."""

    IBV_WR_TAG_ADD = 0
    IBV_WR_TAG_DEL = 1
    IBV_WR_TAG_SYNC = 2


class ibv_raw_packet_caps(IntEnum):
    """``enum ibv_raw_packet_caps``."""

    IBV_RAW_PACKET_CAP_CVLAN_STRIPPING = 1
    IBV_RAW_PACKET_CAP_SCATTER_FCS = 2
    IBV_RAW_PACKET_CAP_IP_CSUM = 4
    IBV_RAW_PACKET_CAP_DELAY_DROP = 8


class ibv_read_counters_flags(IntEnum):
    """``enum ibv_read_counters_flags``."""

    IBV_READ_COUNTERS_ATTR_PREFER_CACHED = 1


class ibv_rx_hash_fields(IntEnum):
    """``enum ibv_rx_hash_fields``."""

    IBV_RX_HASH_SRC_IPV4 = 1
    IBV_RX_HASH_DST_IPV4 = 2
    IBV_RX_HASH_SRC_IPV6 = 4
    IBV_RX_HASH_DST_IPV6 = 8
    IBV_RX_HASH_SRC_PORT_TCP = 1 << 4
    IBV_RX_HASH_DST_PORT_TCP = 1 << 5
    IBV_RX_HASH_SRC_PORT_UDP = 1 << 6
    IBV_RX_HASH_DST_PORT_UDP = 1 << 7


class ibv_rx_hash_function_flags(IntEnum):
    """``enum ibv_rx_hash_function_flags``."""

    IBV_RX_HASH_FUNC_TOEPLITZ = 1


class ibv_tm_cap_flags(IntEnum):
    """``enum ibv_tm_cap_flags``."""

    IBV_TM_CAP_RC = 1


class ibv_tmh_op(IntEnum):
    """``enum ibv_tmh_op``."""

    IBV_TMH_NO_TAG = 0
    IBV_TMH_RNDV = 1
    IBV_TMH_FIN = 2
    IBV_TMH_EAGER = 3


class ibv_tph_mem_type(IntEnum):
    """``enum ibv_tph_mem_type``."""

    IBV_TPH_MEM_TYPE_VM = 0
    IBV_TPH_MEM_TYPE_PM = 1


class ibv_wq_attr_mask(IntEnum):
    """``enum ibv_wq_attr_mask``."""

    IBV_WQ_ATTR_STATE = 1
    IBV_WQ_ATTR_CURR_STATE = 2
    IBV_WQ_ATTR_FLAGS = 4


class ibv_wq_flags(IntEnum):
    """``enum ibv_wq_flags``."""

    IBV_WQ_FLAGS_CVLAN_STRIPPING = 1
    IBV_WQ_FLAGS_SCATTER_FCS = 2
    IBV_WQ_FLAGS_DELAY_DROP = 4
    IBV_WQ_FLAGS_PCI_WRITE_END_PADDING = 8


class ibv_wq_init_attr_mask(IntEnum):
    """``enum ibv_wq_init_attr_mask``."""

    IBV_WQ_INIT_ATTR_FLAGS = 1


class ibv_wq_state(IntEnum):
    """``enum ibv_wq_state``."""

    IBV_WQS_RESET = 0
    IBV_WQS_RDY = 1
    IBV_WQS_ERR = 2
    IBV_WQS_UNKNOWN = 3


class ibv_wq_type(IntEnum):
    """``enum ibv_wq_type``."""

    IBV_WQT_RQ = 0


class ibv_xrcd_init_attr_mask(IntEnum):
    """``enum ibv_xrcd_init_attr_mask``."""

    IBV_XRCD_INIT_ATTR_FD = 1
    IBV_XRCD_INIT_ATTR_OFLAGS = 2
    IBV_XRCD_INIT_ATTR_RESERVED = 4
