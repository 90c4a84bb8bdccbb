// SPDX-License-Identifier: Apache-2.0

// Package drm reads what the kernel's Direct Rendering Manager provides for the GPUs of all vendors: cards and their nodes
// from the links of /sys/class/drm, attributes in sysfs, and the use of GPUs by processes from /proc/PID/fdinfo.
//
// The sources of GPUs with a DRM driver are made of it. Listing cards reads no attribute, so it wakes no GPU. udev makes
// /dev/dri/by-path from the same links; without udev it is missing.
package drm
