// SPDX-License-Identifier: Apache-2.0

// Functions with several results: processes and their samples, events, fields, GPM.

#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static unsigned long long now(void) // microseconds
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec * 1000000ULL + t.tv_nsec / 1000;
}

// uses returns whether p is listed for d: a GPU also lists the processes of its MIG devices.
static int uses(const device *d, const struct process *p)
{
	return p->gpu == d->gpu && (d->mig < 0 || p->mig == d->mig);
}

static nvmlReturn_t list(const device *d, const char *function, char kind, unsigned int *n, void *out, size_t size)
{
	const struct scenario *s = scenario();
	nvmlReturn_t r = begin(d, function);
	unsigned int room = *n, found = 0;

	if (r)
		return r;
	for (int i = 0; i < s->nprocesses; i++) {
		const struct process *p = &s->processes[i];
		device mig = {.gpu = p->gpu, .mig = p->mig};
		unsigned long long gi = -1U, ci = -1U;
		nvmlProcessInfo_t info;

		if (!uses(d, p) || !strchr(p->kinds, kind) || found++ >= room)
			continue;
		if (p->mig >= 0) {
			numbers(&mig, "nvmlDeviceGetGpuInstanceId", 1, &gi);
			numbers(&mig, "nvmlDeviceGetComputeInstanceId", 1, &ci);
		}
		info = (nvmlProcessInfo_t){p->pid, p->memory, gi, ci};
		// The older struct is the beginning of the newer one.
		memcpy((char *)out + (found - 1) * size, &info, size);
	}
	*n = found;
	return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

#define LIST(F, KIND, T)                                                                                               \
	nvmlReturn_t F(nvmlDevice_t d, unsigned int *n, T *out)                                                        \
	{                                                                                                              \
		return list(d.handle, #F, KIND, n, out, sizeof(T));                                                    \
	}

LIST(nvmlDeviceGetComputeRunningProcesses, 'C', nvmlProcessInfo_v1_t)
LIST(nvmlDeviceGetGraphicsRunningProcesses, 'G', nvmlProcessInfo_v1_t)
#ifndef OLD_LIBRARY
LIST(nvmlDeviceGetMPSComputeRunningProcesses, 'M', nvmlProcessInfo_v1_t)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, 'C', nvmlProcessInfo_v2_t)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, 'G', nvmlProcessInfo_v2_t)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, 'M', nvmlProcessInfo_v2_t)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, 'C', nvmlProcessInfo_t)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, 'G', nvmlProcessInfo_t)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, 'M', nvmlProcessInfo_t)
#endif

// The driver samples six times a second and keeps this many samples.
enum { PERIOD = 166667, KEPT = 100 };

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t d, nvmlProcessUtilizationSample_t *out, unsigned int *n,
					     unsigned long long last)
{
	const struct scenario *s = scenario();
	nvmlReturn_t r = begin(d.handle, __func__);
	unsigned long long newest = now() / PERIOD * PERIOD, v[2];
	unsigned int room = *n, found = 0;

	if (!r && !numbers(d.handle, "nvmlDeviceGetMigMode", 2, v) && v[0])
		r = NVML_ERROR_NOT_SUPPORTED;
	if (r)
		return r;
	for (int k = KEPT - 1; k >= 0; k--) {
		unsigned long long at = newest - k * (unsigned long long)PERIOD;

		for (int i = 0; at > last && i < s->nprocesses; i++) {
			const struct process *p = &s->processes[i];

			// Only active processes have a sample.
			if (!uses(d.handle, p) || !(p->sm | p->mem | p->enc | p->dec) || found++ >= room || !out)
				continue;
			out[found - 1] = (nvmlProcessUtilizationSample_t){p->pid, at, p->sm, p->mem, p->enc, p->dec};
		}
	}
	*n = found;
	if (!found)
		return NVML_ERROR_NOT_FOUND;
	return !out || found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

// The utilization of the device is constant between its samples. Others are not sampled.
nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t d, nvmlSamplingType_t type, unsigned long long last,
				  nvmlValueType_t *kind, unsigned int *n, nvmlSample_t *out)
{
	static const struct {
		const char *key;
		int second; // selects the second one of the numbers
	} sampled[NVML_SAMPLINGTYPE_COUNT] = {
		[NVML_GPU_UTILIZATION_SAMPLES] = {"nvmlDeviceGetUtilizationRates", 0},
		[NVML_MEMORY_UTILIZATION_SAMPLES] = {"nvmlDeviceGetUtilizationRates", 1},
		[NVML_ENC_UTILIZATION_SAMPLES] = {"nvmlDeviceGetEncoderUtilization", 0},
		[NVML_DEC_UTILIZATION_SAMPLES] = {"nvmlDeviceGetDecoderUtilization", 0},
		[NVML_JPG_UTILIZATION_SAMPLES] = {"nvmlDeviceGetJpgUtilization", 0},
		[NVML_OFA_UTILIZATION_SAMPLES] = {"nvmlDeviceGetOfaUtilization", 0},
	};
	nvmlReturn_t r = begin(d.handle, __func__);
	unsigned long long newest = now() / PERIOD * PERIOD, v[2];
	unsigned int room = *n, found = 0;

	if (!r && (type >= NVML_SAMPLINGTYPE_COUNT || !sampled[type].key))
		r = NVML_ERROR_NOT_SUPPORTED;
	if (!r)
		r = numbers(d.handle, sampled[type].key, 2, v);
	if (r)
		return r;
	*kind = NVML_VALUE_TYPE_UNSIGNED_INT;
	for (int k = KEPT - 1; k >= 0; k--) {
		unsigned long long at = newest - k * (unsigned long long)PERIOD;

		if (at <= last || (out && found == room))
			continue;
		if (out) {
			out[found].timeStamp = at;
			out[found].sampleValue.uiVal = v[sampled[type].second];
		}
		found++;
	}
	*n = found;
	return found ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

// A set receives the events of its registered GPUs.
struct nvmlEventSet_st {
	unsigned long long types[64];
	int next; // of the events of the scenario
	int fd;   // of nvidiactl, or -1
};

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *out)
{
	nvmlReturn_t r = begin(NULL, __func__);

	if (r)
		return r;
	out->handle = calloc(1, sizeof(*out->handle));
	out->handle->next = scenario()->nevents;
	out->handle->fd = open_control();
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
	nvmlReturn_t r = begin(NULL, __func__);

	if (!r) {
		close(set.handle->fd);
		free(set.handle);
	}
	return r;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t d, unsigned long long types, nvmlEventSet_t set)
{
	unsigned long long can = 0;
	nvmlReturn_t r = begin(d.handle, __func__);

	if (r)
		return r;
	numbers(d.handle, "nvmlDeviceGetSupportedEventTypes", 1, &can);
	if (types & ~can)
		return NVML_ERROR_NOT_SUPPORTED;
	if (d.handle->mig >= 0 || d.handle->gpu >= 64)
		return NVML_ERROR_INVALID_ARGUMENT;
	set.handle->types[d.handle->gpu] |= types;
	return NVML_SUCCESS;
}

// lost returns whether a GPU has fallen off the bus, which ends a wait.
static int lost(const struct scenario *s, int gpu)
{
	device d = {.gpu = gpu, .mig = -1};

	return !value(s, &d, "nvmlDeviceGetUUID") || fault(s, &d, "nvmlEventSetWait") == NVML_ERROR_GPU_IS_LOST;
}

static nvmlReturn_t wait(const char *function, nvmlEventSet_t set, nvmlEventData_t *out, unsigned int ms)
{
	unsigned long long until = now() + ms * 1000ULL;
	nvmlReturn_t r;

	for (r = begin(NULL, function); !r; nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL)) {
		const struct scenario *s = scenario();

		while (set.handle->next < s->nevents) {
			const struct event *e = &s->events[set.handle->next++];
			device *d = find(e->gpu, -1), *mig = e->mig < 0 ? NULL : find(e->gpu, e->mig);
			unsigned long long gi = -1U, ci = -1U;

			if (!d || e->gpu >= 64 || !(set.handle->types[e->gpu] & e->type))
				continue;
			if (mig) {
				numbers(mig, "nvmlDeviceGetGpuInstanceId", 1, &gi);
				numbers(mig, "nvmlDeviceGetComputeInstanceId", 1, &ci);
			}
			*out = (nvmlEventData_t){{d}, e->type, e->data, gi, ci};
			return NVML_SUCCESS;
		}
		for (int i = 0; i < 64; i++)
			if (set.handle->types[i] && lost(s, i))
				return NVML_ERROR_GPU_IS_LOST;
		if (now() >= until)
			return NVML_ERROR_TIMEOUT;
	}
	return r;
}

nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *out, unsigned int ms)
{
	return wait(__func__, set, out, ms);
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *out, unsigned int ms)
{
	return wait(__func__, set, out, ms);
}

static void field(const device *d, nvmlFieldValue_t *f)
{
	const char *v;
	char key[64];

	f->timestamp = now();
	f->latencyUsec = 0;
	snprintf(key, sizeof(key), "field.%u.%u", f->fieldId, f->scopeId);
	v = value(scenario(), d, key);
	if (!v && !f->scopeId) {
		snprintf(key, sizeof(key), "field.%u", f->fieldId);
		v = value(scenario(), d, key);
	}
	f->nvmlReturn = v ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
	if (!v)
		return;
	switch (v[0]) {
	case 'd':
		f->valueType = NVML_VALUE_TYPE_DOUBLE;
		f->value.dVal = atof(v + 1);
		break;
	case 'i':
		f->valueType = NVML_VALUE_TYPE_SIGNED_INT;
		f->value.siVal = atoi(v + 1);
		break;
	case 'r':
		f->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
		f->value.ullVal = atof(v + 1) * f->timestamp / 1e6;
		break;
	case 'u':
		f->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
		f->value.uiVal = strtoul(v + 1, NULL, 0);
		break;
	default:
		f->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
		f->value.ullVal = strtoull(v + (v[0] == 'U'), NULL, 0);
	}
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t d, int n, nvmlFieldValue_t *values)
{
	nvmlReturn_t r = begin(d.handle, __func__);

	for (int i = 0; !r && i < n; i++)
		field(d.handle, &values[i]);
	return r;
}

#ifndef OLD_LIBRARY
struct nvmlGpmSample_st {
	const device *d;
};

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t d, nvmlGpmSupport_t *out)
{
	nvmlReturn_t r = begin(d.handle, __func__);

	out->isSupportedDevice = !!value(scenario(), d.handle, "gpm.2");
	return r;
}

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *out)
{
	nvmlReturn_t r = begin(NULL, __func__);

	if (!r)
		out->handle = calloc(1, sizeof(*out->handle));
	return r;
}

nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
	nvmlReturn_t r = begin(NULL, __func__);

	if (!r)
		free(sample.handle);
	return r;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t d, nvmlGpmSample_t sample)
{
	nvmlReturn_t r = begin(d.handle, __func__);

	if (!r && !value(scenario(), d.handle, "gpm.2"))
		r = NVML_ERROR_NOT_SUPPORTED;
	if (!r)
		sample.handle->d = d.handle;
	return r;
}

// A GPU instance has the metrics of its first MIG device.
nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t d, unsigned int instance, nvmlGpmSample_t sample)
{
	nvmlReturn_t r = begin(d.handle, __func__);

	for (int i = 0; !r && i < 64; i++) {
		const device *mig = find(d.handle->gpu, i);
		unsigned long long gi;

		if (mig && !numbers(mig, "nvmlDeviceGetGpuInstanceId", 1, &gi) && gi == instance) {
			sample.handle->d = mig;
			return NVML_SUCCESS;
		}
	}
	return r ? r : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *m)
{
	nvmlReturn_t r = begin(NULL, __func__);
	const device *d = m->sample1.handle->d;

	if (!r && (!d || d != m->sample2.handle->d))
		r = NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned int i = 0; !r && i < m->numMetrics; i++) {
		const char *v;
		char key[64];

		snprintf(key, sizeof(key), "gpm.%u", m->metrics[i].metricId);
		v = value(scenario(), d, key);
		m->metrics[i].nvmlReturn = v ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
		m->metrics[i].value = v ? atof(v) : 0;
	}
	return r;
}
#endif
