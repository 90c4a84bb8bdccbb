// SPDX-License-Identifier: Apache-2.0

// The device nodes that the library holds open, if NVML_FAKE_DEVICES names their directory. As far as
// it is known of the real library: the first initialisation opens nvidiactl, the first handle of a
// GPU or MIG device opens its node, an event set opens nvidiactl once more, and only the last
// shutdown closes them. A library that does not match the loaded driver cannot be initialised.

#include "fake.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 4096 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	char name[32];
	int fd;
} held[MOST];
static int nheld;

static int open_node(const char *name)
{
	const char *dir = getenv("NVML_FAKE_DEVICES");
	char path[4096];

	if (!dir)
		return -1;
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return open(path, O_RDWR | O_CLOEXEC);
}

int open_control(void)
{
	return open_node("nvidiactl");
}

// hold opens a node unless it is open, and returns whether it could be opened.
static int hold(const char *name)
{
	int fd, known = 0;

	if (!getenv("NVML_FAKE_DEVICES"))
		return 1;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < nheld && !known; i++)
		known = !strcmp(held[i].name, name);
	if (!known && nheld < MOST && (fd = open_node(name)) >= 0) {
		snprintf(held[nheld].name, sizeof(held[nheld].name), "%s", name);
		held[nheld++].fd = fd;
		known = 1;
	}
	pthread_mutex_unlock(&lock);
	return known;
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
	if (!hold("nvidiactl"))
		return errno == EACCES || errno == EPERM ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_DRIVER_NOT_LOADED;
	if (!getenv("NVML_FAKE_DEVICES") || matches())
		return NVML_SUCCESS;
	let_go();
	return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
}

nvmlReturn_t hold_device(const device *d)
{
	char name[32];

	if (d->mig < 0)
		snprintf(name, sizeof(name), "nvidia%d", d->gpu);
	else
		snprintf(name, sizeof(name), "nvidia-cap%d-%d", d->gpu, d->mig);
	return hold(name) ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}

void let_go(void)
{
	pthread_mutex_lock(&lock);
	while (nheld > 0)
		close(held[--nheld].fd);
	pthread_mutex_unlock(&lock);
}
