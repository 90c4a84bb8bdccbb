// SPDX-License-Identifier: Apache-2.0
// devx makes DEVX objects as mlx5's interface defines them, without libmlx5, which needs an HCA: tests/machines/vm/driver/devx.c is the device.
// It holds them until SIGTERM or the end of standard input, and destroys the first one before.

#include "workload.h"

#include <dirent.h>
#include <fcntl.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sys/ioctl.h>

static int device = -1;

// open_uverbs opens the uverbs device of an HCA.
static void open_uverbs(const char *name)
{
	DIR *dir = opendir("/sys/class/infiniband_verbs");
	struct dirent *entry;
	char path[512], found[64];

	while (dir && device < 0 && (entry = readdir(dir))) {
		snprintf(path, sizeof path, "/sys/class/infiniband_verbs/%s/ibdev", entry->d_name);
		FILE *file = fopen(path, "r");
		int is = file && fscanf(file, "%63s", found) == 1 && !strcmp(found, name);

		if (file)
			fclose(file);
		snprintf(path, sizeof path, "/dev/infiniband/%s", entry->d_name);
		if (is && (device = open(path, O_RDWR | O_CLOEXEC)) < 0)
			err(1, "%s", path);
	}
	if (device < 0)
		errx(1, "no RDMA device %s", name);
}

// call invokes a method that has one attribute, a handle, or none, and returns the handle.
static uint64_t call(int object, int method, int attribute, uint64_t handle)
{
	struct {
		struct ib_uverbs_ioctl_hdr hdr;
		struct ib_uverbs_attr attr;
	} in = {
		.hdr = {.object_id = object, .method_id = method, .driver_id = RDMA_DRIVER_MLX5, .num_attrs = attribute >= 0},
		.attr = {.attr_id = attribute, .flags = UVERBS_ATTR_F_MANDATORY, .data = handle},
	};

	in.hdr.length = sizeof in.hdr + in.hdr.num_attrs * sizeof in.attr;
	if (ioctl(device, RDMA_VERBS_IOCTL, &in))
		err(1, "method %#x of object %#x", method, object);
	return in.attr.data;
}

int main(int argc, char **argv)
{
	uint64_t first = 0;

	if (argc != 3) {
		fputs("usage: devx DEVICE OBJECTS\n", stderr);
		return 2;
	}
	open_uverbs(argv[1]);
	call(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT, -1, 0);
	for (int i = 0; i < atoi(argv[2]); i++) {
		uint64_t handle = call(MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_CREATE, MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE, 0);

		if (!i)
			first = handle;
	}
	call(MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_DESTROY, MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE, first);
	hold();
	return 0;
}
