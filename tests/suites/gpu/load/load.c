// SPDX-License-Identifier: Apache-2.0
/*
 * A program that uses the first NVIDIA GPU through CUDA's driver API, and counts what it asks of the driver. It needs nothing of
 * CUDA to be built. Each line of standard input is an order, and each gets a line as answer:
 *
 *   start                  initializes CUDA and makes a context
 *   allocate BYTES         allocates memory, with cuMemAlloc_v2, and keeps it
 *   through library|driver where call finds functions: exported by the library, or by cuGetProcAddress, as CUDA's runtime does
 *   call FUNCTION COUNT BYTES
 *                          calls a function that allocates, and prints how often it returned 0, 1, 2 and anything else
 *   busy RUN PAUSE         keeps all multiprocessors busy for RUN ms, then pauses for PAUSE ms, again and again
 *   fault write|misaligned|trap
 *                          runs a kernel that fails, and prints the error; the context is lost
 *   count                  prints how many ioctls it made of nvidia and of nvidia_uvm, how often it opened one of their device
 *                          nodes, and how many of these files it has open
 *
 * libcuda calls open and ioctl of libc, which are those below: the program is linked with -rdynamic.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_ulong ioctls[2], opens;

enum { NVIDIA, UVM, OTHER };

static int node(int fd)
{
	char link[64], path[256];
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	path[n > 0 ? n : 0] = 0;
	if (strncmp(path, "/dev/nvidia", 11))
		return OTHER;
	return strncmp(path, "/dev/nvidia-uvm", 15) ? NVIDIA : UVM;
}

int ioctl(int fd, unsigned long request, ...)
{
	va_list args;
	void *arg;
	int of = node(fd);

	va_start(args, request);
	arg = va_arg(args, void *);
	va_end(args);
	if (of != OTHER)
		ioctls[of]++;
	return syscall(SYS_ioctl, fd, request, arg);
}

static int opened(int fd)
{
	if (fd >= 0 && node(fd) != OTHER)
		opens++;
	return fd;
}

int openat(int dir, const char *path, int flags, ...)
{
	va_list args;
	mode_t mode;

	va_start(args, flags);
	mode = va_arg(args, mode_t);
	va_end(args);
	return opened(syscall(SYS_openat, dir, path, flags, mode));
}

int open(const char *path, int flags, ...)
{
	va_list args;
	mode_t mode;

	va_start(args, flags);
	mode = va_arg(args, mode_t);
	va_end(args);
	return opened(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

int open64(const char *path, int flags, ...) __attribute__((alias("open")));
int openat64(int dir, const char *path, int flags, ...) __attribute__((alias("openat")));

/* Open files of the device nodes. Several descriptors can be of one: libcuda duplicates some. */
static int handles(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int files[1024], n = 0;

	for (struct dirent *e; dir && n < 1024 && (e = readdir(dir));) {
		int fd = atoi(e->d_name), i = 0;

		if (e->d_name[0] == '.' || node(fd) == OTHER)
			continue;
		while (i < n && syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, files[i], fd))
			i++;
		if (i == n)
			files[n++] = fd;
	}
	if (dir)
		closedir(dir);
	return n;
}

/* The driver API: functions of integers and pointers, whose results are 0 or an error. */
static void *library, *context, *module, *pool;
static int through_driver;

#define CALL(name, ...) ((int (*)())dlsym(library, name))(__VA_ARGS__)

static const char kernels[] = ".version 7.0\n.target sm_75\n.address_size 64\n"
			      ".visible .entry spin(.param .u64 cycles)\n{\n"
			      "	.reg .u64 %begin, %now, %cycles;\n	.reg .pred %more;\n"
			      "	ld.param.u64 %cycles, [cycles];\n	mov.u64 %begin, %clock64;\n"
			      "again:\n	mov.u64 %now, %clock64;\n	sub.u64 %now, %now, %begin;\n"
			      "	setp.lt.u64 %more, %now, %cycles;\n	@%more bra again;\n	ret;\n}\n"
			      ".visible .entry write(.param .u64 address)\n{\n"
			      "	.reg .u64 %address;\n	.reg .u32 %value;\n"
			      "	ld.param.u64 %address, [address];\n	mov.u32 %value, 1;\n"
			      "	st.global.u32 [%address], %value;\n	ret;\n}\n"
			      ".visible .entry stop(.param .u64 unused)\n{\n	trap;\n}\n";

static int start(void)
{
	int device, failed;

	library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	if (!library)
		return fprintf(stderr, "%s\n", dlerror()), -1;
	failed = CALL("cuInit", 0);
	if (!failed)
		failed = CALL("cuDeviceGet", &device, 0);
	if (!failed)
		failed = CALL("cuDevicePrimaryCtxRetain", &context, device);
	if (!failed)
		failed = CALL("cuCtxSetCurrent", context);
	if (!failed)
		failed = CALL("cuModuleLoadData", &module, kernels);
	if (!failed)
		failed = CALL("cuDeviceGetDefaultMemPool", &pool, device);
	return failed;
}

static int launch(const char *name, unsigned long argument, unsigned int blocks)
{
	void *kernel = NULL, *arguments[] = {&argument};
	int failed = CALL("cuModuleGetFunction", &kernel, module, name);
	int (*run)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
		   void **) = dlsym(library, "cuLaunchKernel");

	if (!failed)
		failed = run(kernel, blocks, 1, 1, 128, 1, 1, 0, NULL, arguments, NULL);
	return failed ? failed : CALL("cuCtxSynchronize");
}

static unsigned long run_ms, pause_ms;

static void *busy(void *unused)
{
	CALL("cuCtxSetCurrent", context);
	/* At 1 GHz and more, 2112 blocks of 128 threads fill 132 multiprocessors. */
	while (!launch("spin", run_ms * 1000000, 2112))
		usleep(pause_ms * 1000);
	return unused;
}

static int fault(const char *kind)
{
	unsigned long memory = 0;

	if (!strcmp(kind, "write"))
		return launch("write", 0x10, 1);
	if (!strcmp(kind, "trap"))
		return launch("stop", 0, 1);
	return CALL("cuMemAlloc_v2", &memory, 4096UL) ?: launch("write", memory + 1, 1);
}

/* What cuMemCreate allocates: pinned memory (1) of the device (1) 0. */
static const struct {
	int type, handles, location, device;
	void *windows;
	unsigned long flags;
} pinned = {.type = 1, .location = 1};

static void *find(const char *name)
{
	char base[64];
	void *function = NULL;
	int found;

	if (!through_driver)
		return dlsym(library, name);
	snprintf(base, sizeof(base), "%s", name);
	if (strstr(base, "_v2"))
		*strstr(base, "_v2") = 0;
	int (*get)(const char *, void **, int, unsigned long, int *) = dlsym(library, "cuGetProcAddress_v2");
	return get && !get(base, &function, 12000, 0, &found) ? function : NULL;
}

static const char *call(const char *name, unsigned long count, unsigned long bytes)
{
	static char answer[128];
	unsigned long results[4] = {0}, where, pitch;
	int (*f)() = find(name);

	if (!f)
		return "no such function";
	for (unsigned long i = 0; i < count; i++) {
		int result;

		if (strstr(name, "Pitch"))
			result = f(&where, &pitch, bytes >> 20, 1UL << 20, 4);
		else if (strstr(name, "Pool"))
			result = f(&where, bytes, pool, NULL);
		else if (strstr(name, "Create"))
			result = f(&where, bytes, &pinned, 0UL);
		else
			result = f(&where, bytes, NULL);
		results[result >= 0 && result < 3 ? result : 3]++;
	}
	snprintf(answer, sizeof(answer), "%lu %lu %lu %lu", results[0], results[1], results[2], results[3]);
	return answer;
}

static const char *status(int failed)
{
	static char answer[64];

	snprintf(answer, sizeof(answer), failed ? "error %d" : "ok", failed);
	return answer;
}

int main(void)
{
	char line[256], word[16] = "", name[64] = "";
	pthread_t thread;

	setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(line, sizeof(line), stdin)) {
		unsigned long a = 0, b = 0, memory;

		if (sscanf(line, "call %63s %lu %lu", name, &a, &b) == 3)
			puts(call(name, a, b));
		else if (sscanf(line, "allocate %lu", &a) == 1)
			puts(status(CALL("cuMemAlloc_v2", &memory, a)));
		else if (sscanf(line, "busy %lu %lu", &run_ms, &pause_ms) == 2)
			puts(status(pthread_create(&thread, NULL, busy, NULL)));
		else if (sscanf(line, "fault %15s", word) == 1)
			puts(status(fault(word)));
		else if (sscanf(line, "through %15s", word) == 1)
			through_driver = !strcmp(word, "driver"), puts("ok");
		else if (!strcmp(line, "start\n"))
			puts(status(start()));
		else if (!strcmp(line, "count\n"))
			printf("%lu %lu %lu %d\n", ioctls[NVIDIA], ioctls[UVM], opens, handles());
		else
			puts("unknown order");
	}
	_exit(0); /* a kernel may still run */
}
