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

// device_of reads "0" or "0:1".
static void device_of(const char *text, int *gpu, int *mig)
{
	*mig = -1;
	if (sscanf(text, "%d:%d", gpu, mig) < 1)
		*gpu = -1;
}

// add reads one line, "DEVICE KEY VALUE".
static void add(struct scenario *s, char *line)
{
	char who[16], key[96];
	int at = 0;

	if (sscanf(line, "%15s %95s %n", who, key, &at) < 2)
		return;
	if (!strcmp(key, "process")) {
		struct process *p = &s->processes[s->nprocesses++];

		device_of(who, &p->gpu, &p->mig);
		sscanf(line + at, "%u %llu %u %u %u %u %3s", &p->pid, &p->memory, &p->sm, &p->mem, &p->enc, &p->dec,
		       p->kinds);
	} else if (!strcmp(key, "event")) {
		struct event *e = &s->events[s->nevents++];

		device_of(who, &e->gpu, &e->mig);
		sscanf(line + at, "%llu %llu", &e->type, &e->data);
	} else {
		struct line *l = &s->lines[s->n++];

		l->key = malloc(strlen(who) + strlen(key) + 2);
		sprintf(l->key, "%s %s", who, key);
		l->value = line + at;
		s->faults += key[0] == '!';
	}
}

// load reads the file, and says in had which one that was: by now another one may be in
// its place, of another size.
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
	static struct timespec looked;
	static struct stat had;
	const char *path = getenv("NVML_FAKE_SCENARIO");
	struct timespec now;
	struct stat st;

	pthread_mutex_lock(&lock);
	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	if (!newest || now.tv_sec != looked.tv_sec || now.tv_nsec - looked.tv_nsec > 5000000) {
		looked = now;
		// It is renamed into its place: another one has another inode or time.
		if (path && !stat(path, &st) &&
		    (!newest || st.st_ino != had.st_ino || memcmp(&st.st_mtim, &had.st_mtim, sizeof(st.st_mtim))))
			newest = load(path, &had);
		if (!newest)
			newest = load("/dev/null", &had);
	}
	pthread_mutex_unlock(&lock);
	return newest;
}

static void who(char text[16], const device *d)
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
	char device[16], full[160];
	struct line want = {.key = full}, *found;

	who(device, d);
	snprintf(full, sizeof(full), "%s %s", device, key);
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

// The file of calls is a table of these, the unused ones zero.
struct calls {
	char who[56]; // "0:1 nvmlDeviceGetName"
	unsigned long long count;
};

void count(const device *d, const char *function)
{
	static struct calls *table;
	static unsigned int size;
	const char *path = getenv("NVML_FAKE_CALLS");
	char device[16], key[56];
	unsigned int h = 5381;

	who(device, d);
	snprintf(key, sizeof(key), "%s %s", device, function);
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

		if (!c->who[0])
			strcpy(c->who, key);
		if (!strcmp(c->who, key)) {
			c->count++;
			break;
		}
	}
	pthread_mutex_unlock(&lock);
}
