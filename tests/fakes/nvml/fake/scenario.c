// SPDX-License-Identifier: Apache-2.0

#include "fake.h"

#include <ctype.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int by_key(const void *a, const void *b)
{
	return strcmp(((const struct line *)a)->key, ((const struct line *)b)->key);
}

// device_of parses "0" or "0:1".
static void device_of(const char *text, int *gpu, int *mig)
{
	*mig = -1;
	if (sscanf(text, "%d:%d", gpu, mig) < 1)
		*gpu = -1;
}

// add parses one line, "DEVICE KEY VALUE".
static void add(struct scenario *s, char *line)
{
	char dev[16], key[96];
	int at = 0;

	if (sscanf(line, "%15s %95s %n", dev, key, &at) < 2)
		return;
	if (!strcmp(key, "process")) {
		struct process *p = &s->processes[s->nprocesses++];

		device_of(dev, &p->gpu, &p->mig);
		sscanf(line + at, "%u %llu %u %u %u %u %3s", &p->pid, &p->memory, &p->sm, &p->mem, &p->enc, &p->dec,
		       p->kinds);
	} else if (!strcmp(key, "event")) {
		struct event *e = &s->events[s->nevents++];

		device_of(dev, &e->gpu, &e->mig);
		sscanf(line + at, "%llu %llu", &e->type, &e->data);
	} else {
		struct line *l = &s->lines[s->n++];

		l->key = malloc(strlen(dev) + strlen(key) + 2);
		sprintf(l->key, "%s %s", dev, key);
		l->value = line + at;
		s->faults += key[0] == '!';
	}
}

// load reads the file and sets had to its status: the file may have been replaced since the
// caller's stat.
static struct scenario *load(const char *path, struct stat *had)
{
	struct scenario *s = calloc(1, sizeof(*s));
	FILE *f = fopen(path, "r");
	size_t size = f && !fstat(fileno(f), had) ? had->st_size : 0, most = 1;
	char *text = calloc(1, size + 1), *line, *rest = text;

	if (f) {
		if (fread(text, 1, size, f) != size)
			text[0] = 0;
		fclose(f);
	}
	for (char *c = text; *c; c++)
		most += *c == '\n';
	s->lines = calloc(most, sizeof(*s->lines));
	s->processes = calloc(most, sizeof(*s->processes));
	s->events = calloc(most, sizeof(*s->events));
	while ((line = strsep(&rest, "\n")))
		add(s, line);
	qsort(s->lines, s->n, sizeof(*s->lines), by_key);
	return s;
}

const struct scenario *scenario(void)
{
	static struct scenario *newest;
	static struct timespec checked;
	static struct stat had;
	const char *path = getenv("NVML_FAKE_SCENARIO");
	struct timespec now;
	struct stat st;

	pthread_mutex_lock(&lock);
	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	if (!newest || now.tv_sec != checked.tv_sec || now.tv_nsec - checked.tv_nsec > 5000000) {
		checked = now;
		// A replaced file has another inode or time.
		if (path && !stat(path, &st) &&
		    (!newest || st.st_ino != had.st_ino || memcmp(&st.st_mtim, &had.st_mtim, sizeof(st.st_mtim))))
			newest = load(path, &had);
		if (!newest)
			newest = load("/dev/null", &had);
	}
	pthread_mutex_unlock(&lock);
	return newest;
}

static void device_name(char text[16], const device *d)
{
	if (!d)
		strcpy(text, "-");
	else if (d->mig < 0)
		snprintf(text, 16, "%d", d->gpu);
	else
		snprintf(text, 16, "%d:%d", d->gpu, d->mig);
}

const char *value(const struct scenario *s, const device *d, const char *key)
{
	char dev[16], full[160];
	struct line want = {.key = full}, *found;

	device_name(dev, d);
	snprintf(full, sizeof(full), "%s %s", dev, key);
	found = bsearch(&want, s->lines, s->n, sizeof(*s->lines), by_key);
	return found ? found->value : NULL;
}

void name(char key[128], const char *function)
{
	size_t n;

	snprintf(key, 128, "%s", function);
	n = strlen(key);
	if (n > 3 && !strncmp(key + n - 3, "_v", 2) && isdigit(key[n - 1]))
		key[n - 3] = 0;
}

// The call file is a table of these; unused ones are zero.
struct calls {
	char name[56]; // "0:1 nvmlDeviceGetName"
	unsigned long long count;
};

void count(const device *d, const char *function)
{
	static struct calls *table;
	static unsigned int size;
	const char *path = getenv("NVML_FAKE_CALLS");
	char dev[16], key[56];
	unsigned int h = 5381;

	device_name(dev, d);
	snprintf(key, sizeof(key), "%s %s", dev, function);
	for (char *c = key; *c; c++)
		h = h * 33 + (unsigned char)*c;
	pthread_mutex_lock(&lock);
	if (!table && path) {
		int fd = open(path, O_RDWR | O_CLOEXEC);
		struct stat st;

		if (fd >= 0 && !fstat(fd, &st) && st.st_size) {
			size = st.st_size / sizeof(*table);
			table = mmap(NULL, st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
			if (table == MAP_FAILED)
				table = NULL;
		}
		if (fd >= 0)
			close(fd);
	}
	for (unsigned int i = 0; table && i < size; i++) {
		struct calls *c = &table[(h + i) % size];

		if (!c->name[0])
			strcpy(c->name, key);
		if (!strcmp(c->name, key)) {
			c->count++;
			break;
		}
	}
	pthread_mutex_unlock(&lock);
}
