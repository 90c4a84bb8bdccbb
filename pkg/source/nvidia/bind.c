// SPDX-License-Identifier: Apache-2.0

//go:build cgo

// go-nvml refers to the functions of NVML by name, and leaves it to the dynamic
// linker to find them at the first call of each. That ends the process where one
// is missing, does not start it at all where the linker binds at the start (-z
// now), and keeps the first library for ever: what the main program is bound to is
// never unloaded, so that a driver that is upgraded below us could not be read
// until a restart.
//
// So the functions are defined here: each jumps to where its slot points. Opening
// a library fills the slots, closing it empties them. They are hidden: the library
// does not see them, and neither does a program that links with NVML itself.

#include "bind.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

// missing stands for a function that is not there, whatever its parameters are.
static int missing(void)
{
	return 13; // NVML_ERROR_FUNCTION_NOT_FOUND
}

static const char *missing_text(void)
{
	return "NVML is not loaded";
}

#if defined(__x86_64__)
#define JUMP(name) "endbr64\n\tjmp *slot_" #name "(%rip)\n"
#elif defined(__aarch64__)
#define JUMP(name) "hint #34\n\tadrp x16, slot_" #name "\n\tldr x16, [x16, #:lo12:slot_" #name "]\n\tbr x16\n"
#else
#error "how does this architecture jump through a pointer?"
#endif

#define DEFINE(name, otherwise)                                                                                        \
	__attribute__((visibility("hidden"))) void *slot_##name = (void *)otherwise;                                   \
	__asm__(".pushsection .text\n\t.balign 16\n\t.globl " #name "\n\t.hidden " #name "\n\t.type " #name            \
		", %function\n" #name ":\n\t" JUMP(name) ".size " #name ", .-" #name "\n\t.popsection\n");

#define NVML(name) DEFINE(name, missing)
#include "symbols.h"
#undef NVML
DEFINE(nvmlErrorString, missing_text)

static const struct {
	const char *name;
	void **slot;
} functions[] = {
#define NVML(name) {#name, &slot_##name},
#include "symbols.h"
#undef NVML
};

void *nvml_bind(const char *path, char **error)
{
	void *library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
	if (!library) {
		const char *reason = dlerror();
		*error = strdup(reason ? reason : "unknown error");
		return NULL;
	}
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		void *function = dlsym(library, functions[i].name);
		*functions[i].slot = function ? function : (void *)missing;
	}
	void *text = dlsym(library, "nvmlErrorString");
	slot_nvmlErrorString = text ? text : (void *)missing_text;
	return library;
}

int nvml_has(void *library, const char *name)
{
	return dlsym(library, name) != NULL;
}

void nvml_unbind(void *library, int opened)
{
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		*functions[i].slot = (void *)missing;
	}
	slot_nvmlErrorString = (void *)missing_text;
	while (opened-- > 0) {
		dlclose(library);
	}
}
