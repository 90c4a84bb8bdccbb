// SPDX-License-Identifier: Apache-2.0

// The internal interface of the fake NVML: see nvml.c.

#pragma once

#define NVML_NO_UNVERSIONED_FUNC_DEFS // the old names are functions, too
#include <nvml.h>

// A device is a GPU (mig -1) or one of its MIG devices, with its properties when its handle
// was created.
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

// An event of the scenario, in the order of the file.
struct event {
	int gpu, mig;
	unsigned long long type, data;
};

// A scenario is the parsed file. It is never freed: a blocked call may use it for ever.
struct scenario {
	struct line {
		char *key, *value;
	} * lines; // sorted by key: "0:1 nvmlDeviceGetName"
	struct process *processes;
	struct event *events;
	int n, faults, nprocesses, nevents;
};

// scenario returns the current scenario. It reads the file of NVML_FAKE_SCENARIO again if it
// was replaced.
const struct scenario *scenario(void);

// value returns the scenario's value for the key of a device (NULL: of the system), or NULL.
const char *value(const struct scenario *s, const device *d, const char *key);

// name writes the key of a function: its name without _v2.
void name(char key[128], const char *function);

// count adds one to the calls of a function, in the file of NVML_FAKE_CALLS.
void count(const device *d, const char *function);

// begin counts a call and returns its failure: by the scenario, because the library is not
// initialised, or because the device is gone. It blocks while the scenario blocks the call.
nvmlReturn_t begin(const device *d, const char *function);

// numbers parses up to n numbers of the scenario's value for a key into v.
nvmlReturn_t numbers(const device *d, const char *key, int n, unsigned long long *v);

// fault returns the scenario's failure of a call for a device: a code, BLOCK or CRASH.
enum { BLOCK = -1, CRASH = -2 };
int fault(const struct scenario *s, const device *d, const char *function);

// hold_control and hold_device open the device nodes of the library and of a device, unless they are open;
// let_go closes all. open_control returns another descriptor of nvidiactl, or -1.
nvmlReturn_t hold_control(void);
nvmlReturn_t hold_device(const device *d);
void let_go(void);
int open_control(void);

// find returns the handle of a GPU or of one of its MIG devices, or NULL.
device *find(int gpu, int mig);
