/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* abi/ibverbs/abi_device.c - the device list, and device names, indices and GUIDs. */
#include <ifaddrs.h>
#include <net/if.h>
#include <netpacket/packet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "abi/ibverbs/abi.h"
#include "abi/ibverbs/abi_cancel.h"

/*
 * Bits inserted into an EUI-48 to form an EUI-64 (RFC 7042), as in the node GUIDs of Ethernet
 * adapters
 */
#define EUI64_MIDDLE 0xfffe

bool abi_persona_is_roce(void)
{
	return siw_persona_setting() != SIW_PERSONA_IWARP;
}

/*
 * Returns a GUID derived from an interface's hardware address or, without a hardware address, from
 * its index.
 */
static uint64_t interface_guid(const char *netdev, int ifindex)
{
	uint8_t mac[6] = { 0x02, 0, 0, 0, (uint8_t)(ifindex >> 8), (uint8_t)ifindex };
	struct ifaddrs *all, *one;
	uint8_t guid[8];
	uint64_t be;
	int cancel = abi_cancel_disable();

	if (getifaddrs(&all) == 0) {
		for (one = all; one; one = one->ifa_next) {
			const struct sockaddr_ll *ll = (const struct sockaddr_ll *)one->ifa_addr;
			static const uint8_t none[6];

			if (ll && ll->sll_family == AF_PACKET && ll->sll_halen == 6 &&
			    strcmp(one->ifa_name, netdev) == 0 &&
			    memcmp(ll->sll_addr, none, 6) != 0)
				memcpy(mac, ll->sll_addr, 6);
		}
		freeifaddrs(all);
	}
	abi_cancel_restore(cancel);
	memcpy(guid, mac, 3);
	guid[0] ^= 2;
	guid[3] = EUI64_MIDDLE >> 8;
	guid[4] = EUI64_MIDDLE & 0xff;
	memcpy(guid + 5, mac + 3, 3);
	memcpy(&be, guid, 8);
	return be;
}

static struct abi_device *device_create(const struct siw_device_info *info)
{
	struct abi_device *device = abi_alloc_object(ABI_DEVICE);
	struct ibv_device *ibv;

	if (!device)
		return NULL;
	ibv = &device->ibv;
	device->info = *info;
	device->ifindex = (int)if_nametoindex(info->netdev);
	device->guid_be = interface_guid(info->netdev, device->ifindex);
	device->users = 1;
	ibv->node_type = abi_persona_is_roce() ? IBV_NODE_CA : IBV_NODE_RNIC;
	ibv->transport_type = abi_persona_is_roce() ? IBV_TRANSPORT_IB : IBV_TRANSPORT_IWARP;
	snprintf(ibv->name, sizeof(ibv->name), "%s", info->name);
	/* `siwarp run` creates device files with the names of struct ibv_device. */
	snprintf(ibv->dev_name, sizeof(ibv->dev_name), "uverbs%d", device->ifindex);
	snprintf(ibv->dev_path, sizeof(ibv->dev_path), "/sys/class/infiniband_verbs/uverbs%d",
		 device->ifindex);
	snprintf(ibv->ibdev_path, sizeof(ibv->ibdev_path), "/sys/class/infiniband/%s", info->name);
	if (!abi_register_handle(ABI_DEVICE, device, NULL)) {
		abi_free_object(ABI_DEVICE, device);
		return NULL;
	}
	return device;
}

void abi_device_add_reference(struct abi_device *device)
{
	atomic_fetch_add(&device->users, 1);
}

void abi_device_drop_reference(struct abi_device *device)
{
	if (atomic_fetch_sub(&device->users, 1) == 1)
		abi_mark_object_dead(ABI_DEVICE, device);
}

/*
 * Compares devices so that loopback is last, because programs use the first device, which should
 * reach other machines.
 */
static int compare_devices_loopback_last(const void *a, const void *b)
{
	const struct abi_device *first = *(struct abi_device *const *)a;
	const struct abi_device *second = *(struct abi_device *const *)b;
	int by = (strcmp(first->info.netdev, "lo") == 0) - (strcmp(second->info.netdev, "lo") == 0);

	return by ? by : first->ifindex - second->ifindex;
}

static void device_list_free(struct ibv_device **list)
{
	for (struct ibv_device **one = list; one && *one; one++)
		if (abi_is_live_object(ABI_DEVICE, *one))
			abi_device_drop_reference((struct abi_device *)*one);
	free(list);
}

struct ibv_device **ibv_get_device_list(int *num_devices)
{
	struct ibv_device **list;
	struct siw_device **engine;
	int n = 0, made = 0;

	if (num_devices)
		*num_devices = 0;
	engine = siw_get_device_list(&n);
	if (!engine)
		return NULL;
	list = calloc((size_t)n + 1, sizeof(struct ibv_device *));
	for (; list && made < n; made++) {
		list[made] = (struct ibv_device *)device_create(siw_device_info(engine[made]));
		if (!list[made])
			break;
	}
	siw_free_device_list(engine);
	if (!list || made < n || !abi_register_handle(ABI_LIST, list, NULL)) {
		device_list_free(list);
		return abi_fail_null(ENOMEM);
	}
	qsort(list, (size_t)n, sizeof(struct ibv_device *), compare_devices_loopback_last);
	if (num_devices)
		*num_devices = n;
	return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
	if (abi_mark_object_dead(ABI_LIST, list))
		device_list_free(list);
}

const char *ibv_get_device_name(struct ibv_device *device)
{
	return abi_is_live_object(ABI_DEVICE, device) ? device->name : NULL;
}

int ibv_get_device_index(struct ibv_device *device)
{
	return abi_is_live_object(ABI_DEVICE, device) ? ((struct abi_device *)device)->ifindex : -1;
}

__be64 ibv_get_device_guid(struct ibv_device *device)
{
	return abi_is_live_object(ABI_DEVICE, device) ? ((struct abi_device *)device)->guid_be : 0;
}
