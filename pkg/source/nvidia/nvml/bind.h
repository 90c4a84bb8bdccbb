// SPDX-License-Identifier: Apache-2.0

// nvml_bind opens the library at path and binds all functions of NVML to it. Functions that the library lacks return
// NVML_ERROR_FUNCTION_NOT_FOUND. On failure nvml_bind returns NULL and sets *error to the message of the dynamic
// linker, which the caller frees.
void *nvml_bind(const char *path, char **error);

// nvml_has reports whether the library has a function.
int nvml_has(void *library, const char *name);

// nvml_unbind closes the library the given number of times. Until the next nvml_bind all
// functions return NVML_ERROR_FUNCTION_NOT_FOUND. No call into the library may be in progress.
void nvml_unbind(void *library, int opened);
