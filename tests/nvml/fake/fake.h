// SPDX-License-Identifier: Apache-2.0

// The parts of the fake NVML that are not NVML: see nvml.c.

#pragma once

#define NVML_NO_UNVERSIONED_FUNC_DEFS // the old names are functions of their own
#include <nvml.h>

// A device is a GPU (mig -1) or a MIG device of it, as it was when its handle was
// given out.
struct nvmlDevice_st {
	int gpu, mig;
	char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
};

typedef struct nvmlDevice_st device;

// A process of the scenario.
struct process {
	int gpu, mig;
	unsigned int pid;
	unsigned long long memory;
	unsigned int sm, mem, enc, dec; // percent
	char kinds[4];                  // C: compute, G: graphics, M: client of MPS
};

// An event of the scenario, in the order in which they happen.
struct event {
	int gpu, mig;
	unsigned long long type, data;
};

// A scenario is a file that was read. It is never freed: a call that blocks may
// be in it for ever.
struct scenario {
	struct line {
		char *key, *value;
	} * lines; // sorted by key: "0:1 nvmlDeviceGetName"
	struct process *processes;
	struct event *events;
	int n, faults, nprocesses, nevents;
};

// scenario is the newest one, read again when the file of NVML_FAKE_SCENARIO is another.
const struct scenario *scenario(void);

// value is what the scenario has for the key of a device (NULL: of the system), or NULL.
const char *value(const struct scenario *s, const device *d, const char *key);

// name writes the key of a function: its name without _v2.
void name(char key[128], const char *function);

// count adds one to the calls of a function, in the file of NVML_FAKE_CALLS.
void count(const device *d, const char *function);

// begin counts a call and says how it fails: by the scenario, because the library
// is not initialised, because the device is gone. It does not return while the
// scenario blocks the call.
nvmlReturn_t begin(const device *d, const char *function);

// numbers reads up to n numbers that the scenario has for a key into v.
nvmlReturn_t numbers(const device *d, const char *key, int n, unsigned long long *v);

// fault is what the scenario has against a call for a device: a code, or -1 to block it.
int fault(const struct scenario *s, const device *d, const char *function);

// find is the handle of the GPU, or of the MIG device of it, or NULL.
device *find(int gpu, int mig);
