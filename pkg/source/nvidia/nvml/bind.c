// SPDX-License-Identifier: Apache-2.0

//go:build cgo

// go-nvml refers to the functions of NVML by name and lets the dynamic linker resolve each at
// its first call. This ends the process if a function is missing, prevents its start if the
// linker binds eagerly (-z now), and keeps the first library open for ever: a library that the
// main program is bound to is never unloaded, so an upgraded driver could not be read until a
// restart.
//
// Therefore this file defines the functions: each jumps to the address in its slot. Opening a
// library fills the slots, closing it empties them. The functions are hidden: they are not
// visible to the library, or to a program that links with NVML itself.

#include "bind.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

// missing stands for any function that the library lacks, with any parameters.
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
#error "no jump through a pointer is defined for this architecture"
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
