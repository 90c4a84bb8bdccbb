// SPDX-License-Identifier: Apache-2.0
// uverbs-trace runs a program under ptrace and counts its verbs system calls: a ground truth that shares nothing
// with the eBPF probes. Every ioctl(RDMA_VERBS_IOCTL) and write() on /dev/infiniband/uverbs*, of every thread and
// child, is decoded from the user's memory at entry and counted with its errno at exit.
//
// Output: one JSON object a line,
//   {"device":"uverbs0","object":7,"method":1,"write_cmd":null,"errno":0,"count":3}
// object and method are null for a write(); write_cmd (IB_USER_VERBS_CMD_*, without the flag of the extended form)
// is null for an ioctl that carries no legacy command. A call that a kill cut short is not counted.

#define _GNU_SOURCE
#include <elf.h>
#include <err.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	VERBS_IOCTL = 0xc0181b01,
	OBJECT_DEVICE = 0,
	METHOD_INVOKE_WRITE = 0,
	ATTR_WRITE_CMD = 2,
	MAX_ATTRS = 255,
	NONE = -1,
};

struct call {
	char device[16];
	int object, method, write_cmd, error;
	long count;
};

struct attr {
	uint16_t id, len, flags, reserved;
	uint64_t data;
};

struct header {
	uint16_t length, object, method, num_attrs;
	uint64_t reserved1;
	uint32_t driver, reserved2;
	struct attr attrs[MAX_ATTRS];
};

static struct call calls[1024];
static int ncalls;

// pending holds the call in progress of each thread.
static struct {
	pid_t tid;
	struct call call;
} pending[4096];

static void count(const struct call *c)
{
	for (int i = 0; i < ncalls; i++) {
		struct call *o = &calls[i];
		if (!strcmp(o->device, c->device) && o->object == c->object && o->method == c->method &&
		    o->write_cmd == c->write_cmd && o->error == c->error) {
			o->count++;
			return;
		}
	}
	if (ncalls == sizeof calls / sizeof *calls)
		errx(125, "too many kinds of calls");
	calls[ncalls] = *c;
	calls[ncalls++].count = 1;
}

static ssize_t peek(pid_t tid, void *to, uint64_t from, size_t size)
{
	struct iovec local = {to, size}, remote = {(void *)from, size};

	return process_vm_readv(tid, &local, 1, &remote, 1, 0);
}

// on_uverbs returns whether a file descriptor is an open uverbs device, and which device.
static int on_uverbs(pid_t tid, uint64_t fd, char device[16])
{
	char link[64], path[128];

	snprintf(link, sizeof link, "/proc/%d/fd/%llu", tid, (unsigned long long)fd);
	ssize_t n = readlink(link, path, sizeof path - 1);
	if (n < 0)
		return 0;
	path[n] = 0;
	return sscanf(path, "/dev/infiniband/%15s", device) == 1 && !strncmp(device, "uverbs", 6);
}

// decode fills a call at the entry of a system call; it returns 0 if the call is not a verb.
static int decode(pid_t tid, const struct __ptrace_syscall_info *info, struct call *c)
{
	const __typeof__(info->entry.args[0]) *args = info->entry.args;

	*c = (struct call){.object = NONE, .method = NONE, .write_cmd = NONE};
	if (info->entry.nr == SYS_write && on_uverbs(tid, args[0], c->device)) {
		uint32_t command;
		if (args[2] < 8 || peek(tid, &command, args[1], sizeof command) != sizeof command)
			return 0;
		c->write_cmd = command & 0xff;
		return 1;
	}
	if (info->entry.nr == SYS_ioctl && (uint32_t)args[1] == VERBS_IOCTL && on_uverbs(tid, args[0], c->device)) {
		struct header h = {};
		size_t fixed = sizeof h - sizeof h.attrs;
		if (peek(tid, &h, args[2], fixed) != (ssize_t)fixed)
			return 0;
		c->object = h.object;
		c->method = h.method;
		if (h.object != OBJECT_DEVICE || h.method != METHOD_INVOKE_WRITE)
			return 1;
		size_t n = h.num_attrs < MAX_ATTRS ? h.num_attrs : MAX_ATTRS;
		if (peek(tid, h.attrs, args[2] + fixed, n * sizeof *h.attrs) < 0)
			return 1;
		for (size_t i = 0; i < n; i++)
			if (h.attrs[i].id == ATTR_WRITE_CMD)
				c->write_cmd = h.attrs[i].data & 0xff;
		return 1;
	}
	return 0;
}

static void syscall_stop(pid_t tid)
{
	struct __ptrace_syscall_info info;
	int slot = 0, last = sizeof pending / sizeof *pending - 1;

	if (ptrace(PTRACE_GET_SYSCALL_INFO, tid, sizeof info, &info) < 0)
		return;
	for (slot = 0; slot < last && pending[slot].tid != tid; slot++)
		;
	if (info.op == PTRACE_SYSCALL_INFO_ENTRY) {
		struct call c;
		int verb = decode(tid, &info, &c);

		if (pending[slot].tid == tid) // a call that never returned
			pending[slot].tid = 0;
		if (!verb)
			return;
		for (slot = 0; slot < last && pending[slot].tid; slot++)
			;
		if (pending[slot].tid)
			errx(125, "too many threads");
		pending[slot].tid = tid;
		pending[slot].call = c;
	} else if (info.op == PTRACE_SYSCALL_INFO_EXIT && pending[slot].tid == tid) {
		pending[slot].call.error = info.exit.is_error ? -info.exit.rval : 0;
		pending[slot].tid = 0;
		count(&pending[slot].call);
	}
}

static const char *nullable(int n)
{
	static char text[4][16];
	static int next;

	if (n == NONE)
		return "null";
	snprintf(text[next = (next + 1) % 4], 16, "%d", n);
	return text[next];
}

static pid_t child;

static void forward(int sig)
{
	kill(child, sig);
}

int main(int argc, char **argv)
{
	FILE *out = stderr;
	int opt, gate[2], status = 0, code = 125;
	char byte = 0;

	while ((opt = getopt(argc, argv, "+o:h")) != -1) {
		if (opt != 'o') {
			fputs("usage: uverbs-trace [-o FILE] PROGRAM [ARGUMENT]...\n", stderr);
			return 2;
		}
		if (!(out = fopen(optarg, "we")))
			err(125, "%s", optarg);
	}
	if (optind == argc)
		errx(2, "no program");
	if (pipe(gate))
		err(125, "pipe");
	child = fork();
	if (child < 0)
		err(125, "fork");
	if (!child) {
		close(gate[1]);
		if (read(gate[0], &byte, 1) != 1)
			_exit(125);
		close(gate[0]);
		execvp(argv[optind], argv + optind);
		err(127, "%s", argv[optind]);
	}
	if (ptrace(PTRACE_SEIZE, child, 0,
		   PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE |
			   PTRACE_O_EXITKILL) ||
	    ptrace(PTRACE_INTERRUPT, child, 0, 0))
		err(125, "ptrace");
	signal(SIGTERM, forward);
	signal(SIGINT, forward);
	if (write(gate[1], &byte, 1) != 1)
		err(125, "pipe");
	close(gate[0]);
	close(gate[1]);

	for (;;) {
		pid_t tid = waitpid(-1, &status, __WALL);
		int sig = 0;

		if (tid < 0 && errno == EINTR)
			continue;
		if (tid < 0)
			break;
		if (!WIFSTOPPED(status)) {
			if (tid == child)
				code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
			continue;
		}
		if (status >> 16 == PTRACE_EVENT_STOP && WSTOPSIG(status) != SIGTRAP) {
			ptrace(PTRACE_LISTEN, tid, 0, 0);
			continue;
		}
		if (WSTOPSIG(status) == (SIGTRAP | 0x80))
			syscall_stop(tid);
		else if (!(status >> 16))
			sig = WSTOPSIG(status);
		ptrace(PTRACE_SYSCALL, tid, 0, sig);
	}
	for (int i = 0; i < ncalls; i++)
		fprintf(out, "{\"device\":\"%s\",\"object\":%s,\"method\":%s,\"write_cmd\":%s,\"errno\":%d,\"count\":%ld}\n",
			calls[i].device, nullable(calls[i].object), nullable(calls[i].method),
			nullable(calls[i].write_cmd), calls[i].error, calls[i].count);
	if (fclose(out))
		err(125, "output");
	return code;
}
