// SPDX-License-Identifier: Apache-2.0

// This is a fake of NVIDIA's management library, for tests on machines without a
// GPU: made from the vendor's header and its documentation, not from the library.
// The file named by NVML_FAKE_SCENARIO has the answers, line by line, and is
// read again when another one is renamed into its place:
//
//	DEVICE KEY VALUE
//
// DEVICE is - for the system, 0 for a GPU, 0:1 for a MIG device of it. KEY is the
// name of a function without _v2, followed by its arguments (nvmlDeviceGetClockInfo.1),
// VALUE the result: a string, or numbers in the order of the parameters or of the
// fields of the struct. A function without a line is not supported. Other lines:
//
//	0 !nvmlDeviceGetPowerUsage 15	the call fails with this code; !* for all calls
//	0 !nvmlDeviceGetPowerUsage block	the call blocks until the line is gone
//	0 !nvmlDeviceGetPowerUsage crash	the call ends the process with SIGSEGV
//	0 !nvmlDeviceGetPowerUsage sleep PATH	the call looks up a file, in a file system that may not answer
//	0 process PID MEMORY SM MEM ENC DEC KINDS	see struct process; MEMORY of 2^64-1 is unknown
//	0 event TYPE DATA	an event; new events are appended
//	0 field.ID.SCOPE [uUdi] VALUE	a field, of the type unsigned int, unsigned long long, double, int
//	0 field.ID.SCOPE r VALUE	a counter that grows by so much per second
//	0 gpm.ID VALUE	a metric of GPM
//
// The library holds the files of the directory NVML_FAKE_DEVICES as the real one holds device
// nodes: nodes.c.
//
// As in the real library, initialisation determines the set of GPUs; a GPU
// that is removed later is lost, a removed MIG device is an invalid argument.

#include "fake.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static device handles[1024];
static int nhandles, initialised;
static device *gpus[MOST]; // in the order of their index
static int ngpus;

device *find(int gpu, int mig)
{
	device d = {.gpu = gpu, .mig = mig};
	const char *uuid = value(scenario(), &d, "nvmlDeviceGetUUID");
	device *found = NULL;

	if (!uuid)
		return NULL;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < nhandles && !found; i++)
		if (handles[i].gpu == gpu && handles[i].mig == mig && !strcmp(handles[i].uuid, uuid))
			found = &handles[i];
	if (!found && nhandles < (int)(sizeof(handles) / sizeof(handles[0]))) {
		found = &handles[nhandles++];
		*found = d;
		snprintf(found->uuid, sizeof(found->uuid), "%s", uuid);
	}
	pthread_mutex_unlock(&lock);
	return found;
}

int fault(const struct scenario *s, const device *d, const char *function)
{
	char key[160] = "!";
	const char *v;

	name(key + 1, function);
	v = value(s, d, key);
	if (!v)
		v = value(s, d, "!*");
	if (!v)
		return 0;
	if (!strcmp(v, "crash"))
		return CRASH;
	if (!strncmp(v, "sleep ", 6)) {
		access(v + 6, F_OK);
		return 0;
	}
	return !strcmp(v, "block") ? BLOCK : atoi(v);
}

nvmlReturn_t begin(const device *d, const char *function)
{
	static int blocked[MOST]; // blocked calls for each GPU
	const struct scenario *s = scenario();
	const char *uuid;
	int code, blocks = 0;

	count(d, function);
	if (d && __atomic_load_n(&blocked[d->gpu], __ATOMIC_SEQ_CST))
		count(d, "while another call was blocked");
	for (;; s = scenario()) {
		code = d && s->faults ? fault(s, d, function) : 0;
		if (!code && s->faults)
			code = fault(s, NULL, function);
		if (code == CRASH)
			raise(SIGSEGV);
		if (code >= 0)
			break;
		if (d && !blocks++)
			__atomic_fetch_add(&blocked[d->gpu], 1, __ATOMIC_SEQ_CST);
		nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
	}
	if (blocks)
		__atomic_fetch_sub(&blocked[d->gpu], 1, __ATOMIC_SEQ_CST);
	if (code)
		return code;
	if (!initialised && strncmp(function, "nvmlInit", 8))
		return NVML_ERROR_UNINITIALIZED;
	if (d) {
		uuid = value(s, d, "nvmlDeviceGetUUID");
		if (!uuid || strcmp(uuid, d->uuid))
			return d->mig < 0 ? NVML_ERROR_GPU_IS_LOST : NVML_ERROR_INVALID_ARGUMENT;
	}
	return NVML_SUCCESS;
}

static nvmlReturn_t init(const char *function)
{
	nvmlReturn_t r = begin(NULL, "nvmlInit");

	if (strcmp(function, "nvmlInit"))
		count(NULL, function);
	if (r)
		return r;
	if (!initialised && (r = hold_control()))
		return r;
	if (initialised++)
		return NVML_SUCCESS;
	ngpus = 0;
	for (int i = 0; i < MOST; i++)
		if ((gpus[ngpus] = find(i, -1)))
			ngpus++;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit(void)
{
	return init(__func__);
}
nvmlReturn_t nvmlInit_v2(void)
{
	return init(__func__);
}
nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	return flags & ~3U ? NVML_ERROR_INVALID_ARGUMENT : init(__func__);
}

nvmlReturn_t nvmlShutdown(void)
{
	count(NULL, __func__);
	if (!initialised)
		return NVML_ERROR_UNINITIALIZED;
	if (!--initialised)
		let_go();
	return NVML_SUCCESS;
}

__attribute__((constructor)) static void opened(void)
{
	count(NULL, "dlopen");
}
__attribute__((destructor)) static void closed(void)
{
	count(NULL, "dlclose");
}

static nvmlReturn_t give(const device *found, nvmlDevice_t *out)
{
	nvmlReturn_t r = found ? begin(found, "nvmlDeviceGetHandleByIndex") : NVML_ERROR_NOT_FOUND;

	if (!r)
		r = hold_device(found);
	if (!r)
		out->handle = (device *)found;
	return r;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *n)
{
	nvmlReturn_t r = begin(NULL, __func__);

	if (!r)
		*n = ngpus;
	return r;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *out)
{
	nvmlReturn_t r = begin(NULL, __func__);

	if (!r && index >= (unsigned int)ngpus)
		r = NVML_ERROR_INVALID_ARGUMENT;
	return r ? r : give(gpus[index], out);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out)
{
	nvmlReturn_t r = begin(NULL, __func__);
	const device *found = NULL;

	for (int i = 0; !r && i < ngpus && !found; i++) {
		found = strcmp(gpus[i]->uuid, uuid) ? NULL : gpus[i];
		for (int m = 0; m < MOST && !found; m++) {
			found = find(gpus[i]->gpu, m);
			found = found && !strcmp(found->uuid, uuid) ? found : NULL;
		}
	}
	return r ? r : give(found, out);
}

// The address may lack the domain and the PCI function.
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *address, nvmlDevice_t *out)
{
	nvmlReturn_t r = begin(NULL, __func__);
	unsigned int want[3] = {0}, have[3];
	const device *found = NULL;

	if (sscanf(address, "%x:%x:%x", &want[0], &want[1], &want[2]) < 3) {
		want[0] = 0;
		if (sscanf(address, "%x:%x", &want[1], &want[2]) < 2)
			return NVML_ERROR_INVALID_ARGUMENT;
	}
	for (int i = 0; !r && i < ngpus && !found; i++) {
		const char *v = value(scenario(), gpus[i], "nvmlDeviceGetPciInfo");

		if (v && sscanf(v, "%x:%x:%x", &have[0], &have[1], &have[2]) == 3 && !memcmp(want, have, sizeof(have)))
			found = gpus[i];
	}
	return r ? r : give(found, out);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t d, unsigned int *index)
{
	nvmlReturn_t r = begin(d.handle, __func__);

	for (int i = 0; !r && i < ngpus; i++)
		if (gpus[i]->gpu == d.handle->gpu)
			*index = d.handle->mig < 0 ? i : d.handle->mig;
	return r;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t d, unsigned int *is)
{
	nvmlReturn_t r = begin(d.handle, __func__);

	*is = d.handle->mig >= 0;
	return r;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, unsigned int index, nvmlDevice_t *out)
{
	nvmlReturn_t r = begin(d.handle, __func__);

	return r ? r : give(find(d.handle->gpu, index), out);
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t d, nvmlDevice_t *out)
{
	nvmlReturn_t r = begin(d.handle, __func__);

	return r ? r : give(find(d.handle->gpu, -1), out);
}

nvmlReturn_t numbers(const device *d, const char *key, int n, unsigned long long *v)
{
	const char *text = value(scenario(), d, key);
	char *end;

	if (!text)
		return NVML_ERROR_NOT_SUPPORTED;
	for (int i = 0; i < n; i++, text = end)
		v[i] = strtoull(text, &end, 0);
	return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t r)
{
	static const char *const text[] = {
		[NVML_SUCCESS] = "Success",
		[NVML_ERROR_UNINITIALIZED] = "Uninitialized",
		[NVML_ERROR_INVALID_ARGUMENT] = "Invalid Argument",
		[NVML_ERROR_NOT_SUPPORTED] = "Not Supported",
		[NVML_ERROR_NO_PERMISSION] = "Insufficient Permissions",
		[NVML_ERROR_NOT_FOUND] = "Not Found",
		[NVML_ERROR_INSUFFICIENT_SIZE] = "Insufficient Size",
		[NVML_ERROR_DRIVER_NOT_LOADED] = "Driver Not Loaded",
		[NVML_ERROR_TIMEOUT] = "Timeout",
		[NVML_ERROR_GPU_IS_LOST] = "GPU is lost",
		[NVML_ERROR_RESET_REQUIRED] = "GPU requires reset",
		[NVML_ERROR_LIB_RM_VERSION_MISMATCH] = "Driver/library version mismatch",
	};

	if ((unsigned int)r < sizeof(text) / sizeof(text[0]) && text[r])
		return text[r];
	return "Unknown Error";
}
