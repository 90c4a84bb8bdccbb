// SPDX-License-Identifier: Apache-2.0
// holdmm is a process that maps a file and holds its own mmap_lock, until its standard input ends or SECONDS have passed. It needs
// no privilege but a user and mount namespace of its own, which it makes. It serves a FUSE file system whose file answers no read,
// maps that file, and reads the mapping through /proc/self/mem: the kernel handles the page fault with the lock held for reading.
// With "overlay DIR" for SECONDS, it mounts that file system and an overlay over it at DIR/merged, and waits.
// usage: holdmm FILE SECONDS | holdmm FILE overlay DIR

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int fd;

static void answer(struct fuse_in_header *in, int err, const void *b, size_t n)
{
	char out[8192];
	struct fuse_out_header *h = (void *)out;

	h->len = sizeof *h + (err ? 0 : n);
	h->error = err;
	h->unique = in->unique;
	if (!err && n)
		memcpy(h + 1, b, n);
	if (write(fd, out, h->len) < 0)
		return;
}

static void attributes(struct fuse_attr *a, int file)
{
	memset(a, 0, sizeof *a);
	a->ino = file ? 2 : 1;
	a->mode = file ? S_IFREG | 0755 : S_IFDIR | 0755;
	a->size = file ? 1 << 16 : 0;
	a->nlink = 1;
	a->blksize = 4096;
}

static int answers_reads;
static volatile pid_t holder;

static void *serve(void *unused)
{
	static char buf[1 << 20], page[4096];
	struct fuse_in_header *in = (void *)buf;

	(void)unused;
	memset(page, 0x90, sizeof page);
	for (;;) {
		if (read(fd, buf, sizeof buf) < 0) {
			if (errno == EINTR || errno == ENOENT)
				continue;
			return NULL;
		}
		switch (in->opcode) {
		case FUSE_INIT: {
			struct fuse_init_out o = {.major = FUSE_KERNEL_VERSION, .minor = 31, .max_write = 4096, .max_background = 1};

			answer(in, 0, &o, sizeof o);
			break;
		}
		case FUSE_LOOKUP: {
			struct fuse_entry_out o = {.nodeid = 2, .attr_valid = 3600, .entry_valid = 3600};

			attributes(&o.attr, 1);
			answer(in, strcmp((char *)(in + 1), "file") ? -ENOENT : 0, &o, sizeof o);
			break;
		}
		case FUSE_GETATTR: {
			struct fuse_attr_out o = {.attr_valid = 3600};

			attributes(&o.attr, in->nodeid == 2);
			answer(in, 0, &o, sizeof o);
			break;
		}
		case FUSE_OPEN:
		case FUSE_OPENDIR: {
			struct fuse_open_out o = {.fh = 1, .open_flags = FOPEN_KEEP_CACHE};

			answer(in, 0, &o, sizeof o);
			break;
		}
		case FUSE_STATFS: {
			struct fuse_statfs_out o = {.st = {.bsize = 4096, .namelen = 255}};

			answer(in, 0, &o, sizeof o);
			break;
		}
		case FUSE_READ:
			if (answers_reads) {
				answer(in, 0, page, sizeof page);
			} else { // of the page fault, so the lock is held
				printf("ready %d\n", holder);
				fflush(stdout);
			}
			break;
		case FUSE_FORGET:
		case FUSE_BATCH_FORGET:
		case FUSE_INTERRUPT: break;
		default: answer(in, -ENOSYS, NULL, 0);
		}
	}
}

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void write_to(const char *path, const char *text)
{
	int f = open(path, O_WRONLY);

	if (f < 0 || write(f, text, strlen(text)) < 0)
		fail(path);
	close(f);
}

/* As root of a user namespace, which may mount FUSE. */
static void own_namespaces(void)
{
	char map[64];
	int uid = getuid(), gid = getgid();

	if (unshare(CLONE_NEWUSER | CLONE_NEWNS))
		fail("unshare");
	write_to("/proc/self/setgroups", "deny");
	snprintf(map, sizeof map, "0 %d 1", uid);
	write_to("/proc/self/uid_map", map);
	snprintf(map, sizeof map, "0 %d 1", gid);
	write_to("/proc/self/gid_map", map);
}

static void overlay(const char *dir, const char *lower)
{
	char options[4096], merged[4096];
	pthread_t t;
	char c;

	answers_reads = 1;
	pthread_create(&t, NULL, serve, NULL);
	snprintf(merged, sizeof merged, "%s/merged", dir);
	snprintf(options, sizeof options, "lowerdir=%s:%s/empty", lower, dir);
	if (mount("overlay", merged, "overlay", MS_RDONLY, options) && errno != EPERM) // before Linux 5.11
		fail("mount overlay");
	printf("ready %d\n", getpid());
	fflush(stdout);
	while (read(0, &c, 1) > 0)
		;
	_exit(0);
}

int main(int argc, char **argv)
{
	char dir[] = "/tmp/holdmm-XXXXXX", options[200], path[300], c;
	struct pollfd in = {.fd = 0, .events = POLLIN};
	pthread_t t;
	int ready[2], go[2];

	if (argc < 3 || pipe(ready) || pipe(go))
		return 2;
	if (!mkdtemp(dir))
		fail("mkdtemp");
	own_namespaces();
	fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	if (fd < 0)
		fail("/dev/fuse");
	snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=%d,group_id=%d", fd, getuid(), getgid());
	if (mount("fuse", dir, "fuse", MS_NOSUID | MS_NODEV, options))
		fail("mount fuse");
	if (argc > 3)
		overlay(argv[3], dir);
	holder = fork();
	if (!holder) {
		struct stat st;
		char *m, b[8];
		int p = open(argv[1], O_RDONLY), f, mem;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(fd);
		if (p < 0 || fstat(p, &st) || mmap(NULL, st.st_size, PROT_READ, MAP_PRIVATE, p, 0) == MAP_FAILED)
			fail(argv[1]);
		snprintf(path, sizeof path, "%s/file", dir);
		f = open(path, O_RDONLY);
		m = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, f, 0);
		mem = open("/proc/self/mem", O_RDONLY);
		if (f < 0 || m == MAP_FAILED || mem < 0)
			fail(path);
		if (read(go[0], &c, 1) == 1 && write(ready[1], "x", 1) == 1 && pread(mem, b, sizeof b, (off_t)m) < 0)
			_exit(0);
		_exit(0);
	}
	pthread_create(&t, NULL, serve, NULL);
	if (write(go[1], "x", 1) != 1 || read(ready[0], &c, 1) != 1)
		return 1;
	poll(&in, 1, atoi(argv[2]) * 1000);
	umount2(dir, MNT_DETACH);
	close(fd); // the read fails, and the lock is free
	rmdir(dir);
	_exit(0);
}
