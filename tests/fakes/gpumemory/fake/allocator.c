// SPDX-License-Identifier: Apache-2.0
/*
 * A program that allocates GPU memory. Each line of standard input is an order, and each gets a line as answer:
 *
 *   load LIBRARY           opens a library, with dlopen
 *   limit BYTES            sets how much memory there is
 *   call FUNCTION COUNT SIZE [HEIGHT]
 *                          calls a function, and prints how often it returned 0, 1, 2 and anything else
 *   thread FUNCTION COUNT SIZE [HEIGHT]
 *                          the same in two other threads at once, and prints the sums
 *   exec LIBRARY           executes this program again, which opens the library
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *library;

struct job {
	char name[64];
	unsigned long count, size, height;
	unsigned long results[4];
};

static void *run(void *arg)
{
	struct job *j = arg;
	/* The functions take integers and pointers, in registers. */
	int (*pitched)(void *, size_t *, size_t, size_t, size_t) = dlsym(library, j->name);
	int (*plain)(void *, size_t, size_t, size_t) = (void *)pitched;

	if (!pitched)
		return "no such function";
	for (unsigned long i = 0; i < j->count; i++) {
		unsigned long long where;
		size_t pitch;
		int result = j->height ? pitched(&where, &pitch, j->size, j->height, 4) : plain(&where, j->size, 0, 0);

		j->results[result >= 0 && result < 3 ? result : 3]++;
	}
	return NULL;
}

static void *run_twice(struct job *j)
{
	struct job jobs[2] = {*j, *j};
	pthread_t threads[2];
	void *failed = NULL;

	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, run, &jobs[i]);
	for (int i = 0; i < 2; i++) {
		void *one;

		pthread_join(threads[i], &one);
		failed = failed ? failed : one;
		for (int k = 0; k < 4; k++)
			j->results[k] += jobs[i].results[k];
	}
	return failed;
}

static const char *load(const char *path)
{
	library = dlopen(path, RTLD_NOW);
	return library ? "ok" : dlerror();
}

int main(int argc, char **argv)
{
	char line[4200], word[16], rest[4096];

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc > 1)
		puts(load(argv[1]));
	while (fgets(line, sizeof(line), stdin)) {
		struct job j = {.height = 0};

		if (sscanf(line, "%15s %4095[^\n]", word, rest) != 2) {
			puts("two words are needed");
		} else if (!strcmp(word, "load")) {
			puts(load(rest));
		} else if (!strcmp(word, "exec")) {
			execl("/proc/self/exe", argv[0], rest, NULL);
			perror("exec");
			return 1;
		} else if (!strcmp(word, "limit")) {
			void (*limit)(size_t) = library ? dlsym(library, "fake_limit") : NULL;

			if (limit)
				limit(strtoul(rest, NULL, 0));
			puts(limit ? "ok" : "no library");
		} else if (sscanf(rest, "%63s %lu %lu %lu", j.name, &j.count, &j.size, &j.height) >= 3) {
			char *failed = strcmp(word, "thread") ? run(&j) : run_twice(&j);

			if (failed)
				puts(failed);
			else
				printf("%lu %lu %lu %lu\n", j.results[0], j.results[1], j.results[2], j.results[3]);
		} else {
			puts("unknown order");
		}
	}
	return 0;
}
