/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tests the names of enum values, including invalid values, and the conversion of rates.
 */
#include "common.h"

static void check_enum_str_functions(void)
{
	for (int i = -3; i < 60; i++) {
		const char *all[] = {
			ibv_node_type_str((enum ibv_node_type)i),
			ibv_port_state_str((enum ibv_port_state)i),
			ibv_event_type_str((enum ibv_event_type)i),
			ibv_wc_status_str((enum ibv_wc_status)i),
		};

		for (size_t n = 0; n < sizeof(all) / sizeof(all[0]); n++)
			CHECK(all[n] && *all[n]);
	}
	/* The names of the values of an enum are unique. */
	for (int a = 0; a < IBV_WC_TM_RNDV_INCOMPLETE; a++)
		for (int b = a + 1; b <= IBV_WC_TM_RNDV_INCOMPLETE; b++)
			CHECK(strcmp(ibv_wc_status_str((enum ibv_wc_status)a),
				     ibv_wc_status_str((enum ibv_wc_status)b)) != 0);
	for (int a = 0; a < IBV_EVENT_WQ_FATAL; a++)
		for (int b = a + 1; b <= IBV_EVENT_WQ_FATAL; b++)
			CHECK(strcmp(ibv_event_type_str((enum ibv_event_type)a),
				     ibv_event_type_str((enum ibv_event_type)b)) != 0);
	CHECK(strcmp(ibv_port_state_str(IBV_PORT_ACTIVE), ibv_port_state_str(IBV_PORT_DOWN)) != 0);
}

static void check_rate_conversions(void)
{
	CHECK(ibv_rate_to_mult(IBV_RATE_5_GBPS) == 2 && mult_to_ibv_rate(2) == IBV_RATE_5_GBPS);
	CHECK(ibv_rate_to_mult(IBV_RATE_MAX) == -1 && mult_to_ibv_rate(3) == IBV_RATE_MAX);
	CHECK(ibv_rate_to_mbps(IBV_RATE_10_GBPS) == 10000);
	CHECK(mbps_to_ibv_rate(10000) == IBV_RATE_10_GBPS);
	CHECK(ibv_rate_to_mbps(IBV_RATE_MAX) == -1 && mbps_to_ibv_rate(1) == IBV_RATE_MAX);
	for (int rate = IBV_RATE_2_5_GBPS; rate <= IBV_RATE_1200_GBPS; rate++) {
		int mbps = ibv_rate_to_mbps((enum ibv_rate)rate);
		int mult = ibv_rate_to_mult((enum ibv_rate)rate);

		CHECK(mbps > 0 && mbps_to_ibv_rate(mbps) == (enum ibv_rate)rate);
		CHECK(mult == -1 || mult_to_ibv_rate(mult) == (enum ibv_rate)rate);
	}
}

static void check_rkey_increment(void)
{
	/* ibv_inc_rkey increments only the low octet of a key. */
	CHECK(ibv_inc_rkey(0x12345600) == 0x12345601 && ibv_inc_rkey(0x123456ff) == 0x12345600);
}

int main(void)
{
	check_enum_str_functions();
	check_rate_conversions();
	check_rkey_increment();
	return 0;
}
