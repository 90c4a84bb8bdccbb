// SPDX-License-Identifier: Apache-2.0

// nvml_bind opens the library at path and makes all functions of NVML lead into
// it; those that it lacks return NVML_ERROR_FUNCTION_NOT_FOUND. NULL is a failure,
// with what the dynamic linker says of it in *error, to be freed by the caller.
void *nvml_bind(const char *path, char **error);

// nvml_has says whether the library has a function.
int nvml_has(void *library, const char *name);

// nvml_unbind closes the library as often as it was opened: until the next
// nvml_bind all functions return NVML_ERROR_FUNCTION_NOT_FOUND. Nothing may be
// inside of the library.
void nvml_unbind(void *library, int opened);
