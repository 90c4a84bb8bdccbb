// SPDX-License-Identifier: Apache-2.0

package gpudriver

// A function is the ioctl operation of the device nodes of a driver: file_operations.unlocked_ioctl.
type function struct {
	name   string
	module string // that has the function
	drm    bool   // it is drm_ioctl, which other operations call
}

// functions are static functions of modules, not a stable interface. So a missing function is not an error.
var functions = []function{
	// i915, virtio_gpu, vgem, ast and most drivers of DRM.
	{name: "drm_ioctl", module: "drm", drm: true},
	// drivers/gpu/drm/amd/amdgpu/amdgpu_drv.c and drivers/gpu/drm/amd/amdkfd/kfd_chardev.c: /dev/dri and /dev/kfd. The
	// first resumes the GPU and calls drm_ioctl.
	{name: "amdgpu_drm_ioctl", module: "amdgpu"},
	{name: "kfd_ioctl", module: "amdgpu"},
	// drivers/gpu/drm/xe/xe_device.c, from Linux 6.8; resumes the GPU and calls drm_ioctl.
	{name: "xe_drm_ioctl", module: "xe"},
	// drivers/gpu/drm/nouveau/nouveau_drm.c; resumes the GPU, and calls drm_ioctl for all requests except
	// DRM_NOUVEAU_NVIF.
	{name: "nouveau_drm_ioctl", module: "nouveau"},
	// kernel-open/nvidia/nv.c, and nv-frontend.c of older drivers: /dev/nvidia* and /dev/nvidiactl.
	{name: "nvidia_unlocked_ioctl", module: "nvidia"},
	{name: "nvidia_frontend_unlocked_ioctl", module: "nvidia"},
	// kernel-open/nvidia-uvm/uvm.c: /dev/nvidia-uvm.
	{name: "uvm_unlocked_ioctl_entry", module: "nvidia_uvm"},
}

type request struct {
	module       string // empty: all DRM drivers
	kind, number uint8  // _IOC_TYPE and _IOC_NR
}

const (
	drmType = 'd' // DRM_IOCTL_BASE
	kfdType = 'K' // AMDKFD_IOCTL_BASE
	// driverBase is the number of a DRM driver's first own request (DRM_COMMAND_BASE).
	driverBase = 0x40
)

// waits are the requests that wait on purpose: for the end of a computation, an event or the display. Their numbers are
// in include/uapi. NVIDIA's driver has no such request: its users wait in poll(2) or in user space.
var waits = []request{
	// drm/drm.h
	{kind: drmType, number: 0x3A}, // DRM_IOCTL_WAIT_VBLANK
	{kind: drmType, number: 0xC3}, // DRM_IOCTL_SYNCOBJ_WAIT
	{kind: drmType, number: 0xCA}, // DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT
	// drm/amdgpu_drm.h
	{"amdgpu", drmType, driverBase + 0x07}, // DRM_AMDGPU_GEM_WAIT_IDLE
	{"amdgpu", drmType, driverBase + 0x09}, // DRM_AMDGPU_WAIT_CS
	{"amdgpu", drmType, driverBase + 0x12}, // DRM_AMDGPU_WAIT_FENCES
	{"amdgpu", drmType, driverBase + 0x18}, // DRM_AMDGPU_USERQ_WAIT
	// linux/kfd_ioctl.h
	{"amdgpu", kfdType, 0x0C}, // AMDKFD_IOC_WAIT_EVENTS
	// drm/i915_drm.h
	{"i915", drmType, driverBase + 0x2C}, // DRM_I915_GEM_WAIT
	// drm/xe_drm.h
	{"xe", drmType, driverBase + 0x0A}, // DRM_XE_WAIT_USER_FENCE
	// drm/nouveau_drm.h
	{"nouveau", drmType, driverBase + 0x42}, // DRM_NOUVEAU_GEM_CPU_PREP
	// drm/virtgpu_drm.h
	{"virtio_gpu", drmType, driverBase + 0x08}, // DRM_VIRTGPU_WAIT
}

// code returns the request as the programs compare it: type << 8 | number.
func (r request) code() uint16 { return uint16(r.kind)<<8 | uint16(r.number) }
