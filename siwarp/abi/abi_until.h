/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* abi/abi_until.h - stand-ins for calls that the engine gets. */
#ifndef SIWARP_ABI_UNTIL_H
#define SIWARP_ABI_UNTIL_H
#endif
