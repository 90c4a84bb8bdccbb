// SPDX-License-Identifier: Apache-2.0

// The device nodes that the library holds open, if NVML_FAKE_DEVICES names their directory. As far as
// it is known of the real library: the first initialisation opens nvidiactl, the first handle of a
// GPU opens its node, an event set opens nvidiactl once more, and only the last shutdown closes
// them. A library that does not match the loaded driver cannot be initialised.

#include "fake.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONTROL = 255 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int held[CONTROL + 1]; // descriptors plus one, by minor number

int open_control(void)
{
	const char *dev = getenv("NVML_FAKE_DEVICES");
	char path[256];

	if (!dev)
		return -1;
	snprintf(path, sizeof(path), "%s/nvidiactl", dev);
	return open(path, O_RDWR | O_CLOEXEC);
}

static nvmlReturn_t hold(int minor, const char *dev)
{
	nvmlReturn_t r = NVML_SUCCESS;
	char path[256];
	int fd = -1;

	pthread_mutex_lock(&lock);
	if (!held[minor]) {
		snprintf(path, sizeof(path), "%s/nvidia%d", dev, minor);
		fd = minor == CONTROL ? open_control() : open(path, O_RDWR | O_CLOEXEC);
		if (fd >= 0)
			held[minor] = fd + 1;
		else if (minor == CONTROL && errno != EACCES && errno != EPERM)
			r = NVML_ERROR_DRIVER_NOT_LOADED;
		else
			r = NVML_ERROR_NO_PERMISSION;
	}
	pthread_mutex_unlock(&lock);
	return r;
}

// matches returns whether the loaded driver has the version of the library.
static int matches(void)
{
	const char *own = value(scenario(), NULL, "nvmlSystemGetDriverVersion");
	FILE *f = fopen("/sys/module/nvidia/version", "re");
	char loaded[64] = "";

	if (!f)
		return 1;
	if (fgets(loaded, sizeof(loaded), f))
		loaded[strcspn(loaded, "\n")] = 0;
	fclose(f);
	return own && !strcmp(own, loaded);
}

nvmlReturn_t hold_control(void)
{
	const char *dev = getenv("NVML_FAKE_DEVICES");
	nvmlReturn_t r = dev ? hold(CONTROL, dev) : NVML_SUCCESS;

	if (dev && !r && !matches()) {
		let_go();
		r = NVML_ERROR_LIB_RM_VERSION_MISMATCH;
	}
	return r;
}

nvmlReturn_t hold_gpu(const device *d)
{
	const char *dev = getenv("NVML_FAKE_DEVICES");

	return dev && d->gpu < CONTROL ? hold(d->gpu, dev) : NVML_SUCCESS;
}

void let_go(void)
{
	pthread_mutex_lock(&lock);
	for (int i = 0; i <= CONTROL; i++) {
		if (held[i])
			close(held[i] - 1);
		held[i] = 0;
	}
	pthread_mutex_unlock(&lock);
}
