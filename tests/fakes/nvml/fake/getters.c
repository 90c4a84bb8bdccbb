// SPDX-License-Identifier: Apache-2.0

// Functions that return one line of the scenario. Each line of the tables below is a function;
// OLD_LIBRARY omits those that were added after R450.

#include "fake.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static nvmlReturn_t text(const device *d, const char *function, char *out, unsigned int size)
{
	nvmlReturn_t r = begin(d, function);
	const char *v;
	char key[128];

	if (r)
		return r;
	name(key, function);
	v = value(scenario(), d, key);
	if (!v)
		return NVML_ERROR_NOT_SUPPORTED;
	if (strlen(v) >= size)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(out, v);
	return NVML_SUCCESS;
}

// get parses the n numbers for a call with arguments (-1: no more arguments).
static nvmlReturn_t get(const device *d, const char *function, int a, int b, int c, int n, unsigned long long *v)
{
	const int arguments[] = {a, b, c};
	nvmlReturn_t r = begin(d, function);
	char key[160];

	name(key, function);
	for (int i = 0; i < 3 && arguments[i] >= 0; i++)
		sprintf(key + strlen(key), ".%d", arguments[i]);
	return r ? r : numbers(d, key, n, v);
}

#define SYSTEM_TEXT(F)                                                                                                 \
	nvmlReturn_t F(char *out, unsigned int size)                                                                   \
	{                                                                                                              \
		return text(NULL, #F, out, size);                                                                      \
	}
#define TEXT(F)                                                                                                        \
	nvmlReturn_t F(nvmlDevice_t d, char *out, unsigned int size)                                                   \
	{                                                                                                              \
		return text(d.handle, #F, out, size);                                                                  \
	}

#define ANSWER(GET, T)                                                                                                 \
	unsigned long long v;                                                                                          \
	nvmlReturn_t r = (GET);                                                                                        \
	if (!r)                                                                                                        \
		*out = (T)v;                                                                                           \
	return r
#define NUMBER(F, T)                                                                                                   \
	nvmlReturn_t F(nvmlDevice_t d, T *out)                                                                         \
	{                                                                                                              \
		ANSWER(get(d.handle, #F, -1, -1, -1, 1, &v), T);                                                       \
	}
#define NUMBER_OF(F, A, T)                                                                                             \
	nvmlReturn_t F(nvmlDevice_t d, A a, T *out)                                                                    \
	{                                                                                                              \
		ANSWER(get(d.handle, #F, a, -1, -1, 1, &v), T);                                                        \
	}
#define NUMBER_OF_2(F, A, B, T)                                                                                        \
	nvmlReturn_t F(nvmlDevice_t d, A a, B b, T *out)                                                               \
	{                                                                                                              \
		ANSWER(get(d.handle, #F, a, b, -1, 1, &v), T);                                                         \
	}
#define NUMBER_OF_3(F, A, B, C, T)                                                                                     \
	nvmlReturn_t F(nvmlDevice_t d, A a, B b, C c, T *out)                                                          \
	{                                                                                                              \
		ANSWER(get(d.handle, #F, a, b, c, 1, &v), T);                                                          \
	}
#define PAIR(F, T, U)                                                                                                  \
	nvmlReturn_t F(nvmlDevice_t d, T *one, U *two)                                                                 \
	{                                                                                                              \
		unsigned long long v[2];                                                                               \
		nvmlReturn_t r = get(d.handle, #F, -1, -1, -1, 2, v);                                                  \
		if (!r) {                                                                                              \
			*one = (T)v[0];                                                                                \
			*two = (U)v[1];                                                                                \
		}                                                                                                      \
		return r;                                                                                              \
	}

// A struct with fields of type E only.
#define STRUCT(F, T, E)                                                                                                \
	nvmlReturn_t F(nvmlDevice_t d, T *out)                                                                         \
	{                                                                                                              \
		enum { N = sizeof(*out) / sizeof(E) };                                                                 \
		unsigned long long v[N];                                                                               \
		nvmlReturn_t r = get(d.handle, #F, -1, -1, -1, N, v);                                                  \
		for (int i = 0; !r && i < N; i++)                                                                      \
			((E *)out)[i] = (E)v[i];                                                                       \
		return r;                                                                                              \
	}

SYSTEM_TEXT(nvmlSystemGetDriverVersion);
SYSTEM_TEXT(nvmlSystemGetNVMLVersion);

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *out)
{
	ANSWER(get(NULL, __func__, -1, -1, -1, 1, &v), int);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *out)
{
	ANSWER(get(NULL, __func__, -1, -1, -1, 1, &v), int);
}

TEXT(nvmlDeviceGetUUID);
TEXT(nvmlDeviceGetName);
TEXT(nvmlDeviceGetSerial);
TEXT(nvmlDeviceGetVbiosVersion);
TEXT(nvmlDeviceGetBoardPartNumber);
TEXT(nvmlDeviceGetInforomImageVersion);
NUMBER(nvmlDeviceGetBrand, nvmlBrandType_t);
NUMBER(nvmlDeviceGetMinorNumber, unsigned int);
NUMBER(nvmlDeviceGetBoardId, unsigned int);
NUMBER(nvmlDeviceGetMultiGpuBoard, unsigned int);
NUMBER(nvmlDeviceGetDisplayMode, nvmlEnableState_t);
NUMBER(nvmlDeviceGetDisplayActive, nvmlEnableState_t);
NUMBER(nvmlDeviceGetPersistenceMode, nvmlEnableState_t);
NUMBER(nvmlDeviceGetComputeMode, nvmlComputeMode_t);
NUMBER(nvmlDeviceGetAccountingMode, nvmlEnableState_t);
NUMBER(nvmlDeviceGetVirtualizationMode, nvmlGpuVirtualizationMode_t);
NUMBER(nvmlDeviceGetPerformanceState, nvmlPstates_t);
NUMBER(nvmlDeviceGetFanSpeed, unsigned int);
NUMBER(nvmlDeviceGetPowerUsage, unsigned int);
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned int);
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int);
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned int);
NUMBER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long);
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long);
NUMBER(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long);
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int);
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int);
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int);
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int);
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned int);
NUMBER(nvmlDeviceGetBusType, nvmlBusType_t);
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, nvmlEnableState_t);
NUMBER(nvmlDeviceGetSupportedEventTypes, unsigned long long);
NUMBER(nvmlDeviceGetMaxMigDeviceCount, unsigned int);
NUMBER(nvmlDeviceGetGpuInstanceId, unsigned int);
NUMBER(nvmlDeviceGetComputeInstanceId, unsigned int);
NUMBER(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t);
NUMBER_OF(nvmlDeviceGetTemperature, nvmlTemperatureSensors_t, unsigned int);
NUMBER_OF(nvmlDeviceGetTemperatureThreshold, nvmlTemperatureThresholds_t, unsigned int);
NUMBER_OF(nvmlDeviceGetClockInfo, nvmlClockType_t, unsigned int);
NUMBER_OF(nvmlDeviceGetMaxClockInfo, nvmlClockType_t, unsigned int);
NUMBER_OF(nvmlDeviceGetFanSpeed_v2, unsigned int, unsigned int);
NUMBER_OF(nvmlDeviceGetNvLinkState, unsigned int, nvmlEnableState_t);
NUMBER_OF(nvmlDeviceGetNvLinkVersion, unsigned int, unsigned int);
NUMBER_OF_2(nvmlDeviceGetClock, nvmlClockType_t, nvmlClockId_t, unsigned int);
NUMBER_OF_2(nvmlDeviceGetTotalEccErrors, nvmlMemoryErrorType_t, nvmlEccCounterType_t, unsigned long long);
NUMBER_OF_2(nvmlDeviceGetNvLinkCapability, unsigned int, nvmlNvLinkCapability_t, unsigned int);
NUMBER_OF_2(nvmlDeviceGetNvLinkErrorCounter, unsigned int, nvmlNvLinkErrorCounter_t, unsigned long long);
NUMBER_OF_3(nvmlDeviceGetMemoryErrorCounter, nvmlMemoryErrorType_t, nvmlEccCounterType_t, nvmlMemoryLocation_t,
	    unsigned long long);
PAIR(nvmlDeviceGetEccMode, nvmlEnableState_t, nvmlEnableState_t);
PAIR(nvmlDeviceGetMigMode, unsigned int, unsigned int);
PAIR(nvmlDeviceGetEncoderUtilization, unsigned int, unsigned int);
PAIR(nvmlDeviceGetDecoderUtilization, unsigned int, unsigned int);
PAIR(nvmlDeviceGetPowerManagementLimitConstraints, unsigned int, unsigned int);
PAIR(nvmlDeviceGetGpuOperationMode, nvmlGpuOperationMode_t, nvmlGpuOperationMode_t);
PAIR(nvmlDeviceGetCudaComputeCapability, int, int);

STRUCT(nvmlDeviceGetUtilizationRates, nvmlUtilization_t, unsigned int);
STRUCT(nvmlDeviceGetMemoryInfo, nvmlMemory_t, unsigned long long);
STRUCT(nvmlDeviceGetBAR1MemoryInfo, nvmlBAR1Memory_t, unsigned long long);
STRUCT(nvmlDeviceGetRowRemapperHistogram, nvmlRowRemapperHistogramValues_t, unsigned int);

nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t d, nvmlPerfPolicyType_t policy, nvmlViolationTime_t *out)
{
	unsigned long long v[2];
	nvmlReturn_t r = get(d.handle, __func__, policy, -1, -1, 2, v);

	if (!r)
		*out = (nvmlViolationTime_t){v[0], v[1]};
	return r;
}

// The call blocks for the duration of the measurement.
nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t d, nvmlPcieUtilCounter_t counter, unsigned int *out)
{
	nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
	ANSWER(get(d.handle, __func__, counter, -1, -1, 1, &v), unsigned int);
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t d, unsigned int *corrected, unsigned int *uncorrected,
				       unsigned int *pending, unsigned int *failure)
{
	unsigned long long v[4];
	nvmlReturn_t r = get(d.handle, __func__, -1, -1, -1, 4, v);

	if (!r)
		*corrected = v[0], *uncorrected = v[1], *pending = v[2], *failure = v[3];
	return r;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t d, nvmlDeviceAttributes_t *out)
{
	unsigned long long v[9];
	nvmlReturn_t r = get(d.handle, __func__, -1, -1, -1, 9, v);

	for (int i = 0; !r && i < 8; i++)
		(&out->multiprocessorCount)[i] = v[i];
	if (!r)
		out->memorySizeMB = v[8];
	return r;
}

// pages returns as many addresses as there are: ascending numbers.
static nvmlReturn_t pages(const device *d, const char *function, int cause, unsigned int *n, unsigned long long *out)
{
	unsigned long long have;
	nvmlReturn_t r = get(d, function, cause, -1, -1, 1, &have);
	unsigned int room = *n;

	if (r)
		return r;
	*n = have;
	if (room < have)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned int i = 0; out && i < have; i++)
		out[i] = i * 4096ULL;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t d, nvmlPageRetirementCause_t cause, unsigned int *n,
				       unsigned long long *addresses)
{
	return pages(d.handle, __func__, cause, n, addresses);
}

nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t d, nvmlPageRetirementCause_t cause, unsigned int *n,
					  unsigned long long *addresses, unsigned long long *times)
{
	nvmlReturn_t r = pages(d.handle, __func__, cause, n, addresses);

	for (unsigned int i = 0; !r && times && i < *n; i++)
		times[i] = i;
	return r;
}

// pci parses "00000000:18:00.0 DEVICE SUBSYSTEM" for a key.
static nvmlReturn_t pci(const device *d, const char *key, nvmlPciInfo_t *out)
{
	const char *v = value(scenario(), d, key);

	if (!v)
		return NVML_ERROR_NOT_SUPPORTED;
	memset(out, 0, sizeof(*out));
	if (sscanf(v, "%31s %x %x", out->busId, &out->pciDeviceId, &out->pciSubSystemId) < 1 ||
	    sscanf(out->busId, "%x:%x:%x", &out->domain, &out->bus, &out->device) < 3)
		return NVML_ERROR_UNKNOWN;
	snprintf(out->busIdLegacy, sizeof(out->busIdLegacy), "%04x:%02x:%02x.0", out->domain & 0xffff, out->bus & 0xff,
		 out->device & 0x1f);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, nvmlPciInfo_t *out)
{
	nvmlReturn_t r = begin(d.handle, __func__);

	return r ? r : pci(d.handle, "nvmlDeviceGetPciInfo", out);
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t d, unsigned int link, nvmlPciInfo_t *out)
{
	nvmlReturn_t r = begin(d.handle, __func__);
	char key[64];

	snprintf(key, sizeof(key), "nvmlDeviceGetNvLinkRemotePciInfo.%u", link);
	return r ? r : pci(d.handle, key, out);
}

#ifndef OLD_LIBRARY
NUMBER(nvmlDeviceGetModuleId, unsigned int);
NUMBER(nvmlDeviceGetNumaNodeId, unsigned int);
NUMBER(nvmlDeviceGetNumFans, unsigned int);
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long);
NUMBER(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long);
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned int);
NUMBER(nvmlDeviceGetPcieSpeed, unsigned int);
NUMBER(nvmlDeviceGetPcieLinkMaxSpeed, unsigned int);
NUMBER(nvmlDeviceGetMemoryBusWidth, unsigned int);
NUMBER(nvmlDeviceGetNumGpuCores, unsigned int);
NUMBER_OF(nvmlDeviceGetNvLinkRemoteDeviceType, unsigned int, nvmlIntNvLinkDeviceType_t);
PAIR(nvmlDeviceGetJpgUtilization, unsigned int, unsigned int);
PAIR(nvmlDeviceGetOfaUtilization, unsigned int, unsigned int);
PAIR(nvmlDeviceGetGspFirmwareMode, unsigned int, unsigned int);

// The value is total, reserved, free, used; the older function has a value of its own.
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t d, nvmlMemory_v2_t *out)
{
	unsigned long long v[4];
	nvmlReturn_t r = begin(d.handle, __func__);

	if (!r && out->version != NVML_STRUCT_VERSION(Memory, 2))
		r = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (!r)
		r = numbers(d.handle, "memory_v2", 4, v);
	if (!r)
		out->total = v[0], out->reserved = v[1], out->free = v[2], out->used = v[3];
	return r;
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t d, nvmlTemperature_t *out)
{
	unsigned long long v;
	nvmlReturn_t r = begin(d.handle, __func__);
	char key[64];

	if (!r && out->version != nvmlTemperature_v1)
		r = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	snprintf(key, sizeof(key), "nvmlDeviceGetTemperature.%d", out->sensorType);
	if (!r)
		r = numbers(d.handle, key, 1, &v);
	if (!r)
		out->temperature = v;
	return r;
}

nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t d, nvmlMarginTemperature_t *out)
{
	unsigned long long v;
	nvmlReturn_t r = get(d.handle, __func__, -1, -1, -1, 1, &v);

	if (!r && out->version != nvmlMarginTemperature_v1)
		r = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (!r)
		out->marginTemperature = v;
	return r;
}

// The numbers are state, status, healthMask, the clique, and the first byte of the cluster's UUID. Only version 2 is known.
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t d, nvmlGpuFabricInfoV_t *out)
{
	nvmlGpuFabricInfo_v2_t *v2 = (nvmlGpuFabricInfo_v2_t *)out;
	unsigned long long v[5] = {0};
	nvmlReturn_t r = get(d.handle, __func__, -1, -1, -1, 5, v);

	if (!r && out->version != nvmlGpuFabricInfo_v2)
		r = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (!r) {
		v2->state = v[0];
		v2->status = v[1];
		v2->healthMask = v[2];
		v2->cliqueId = v[3];
		v2->clusterUuid[0] = v[4];
	}
	return r;
}

// The numbers are the counts in the order of the struct.
nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t d, nvmlEccSramErrorStatus_t *out)
{
	unsigned long long v[12];
	nvmlReturn_t r = get(d.handle, __func__, -1, -1, -1, 12, v);

	for (int i = 0; !r && i < 11; i++)
		(&out->aggregateUncParity)[i] = v[i];
	if (!r)
		out->bThresholdExceeded = v[11];
	return r;
}
#endif
