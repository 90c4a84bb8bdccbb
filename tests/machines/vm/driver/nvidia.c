// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0

// A stub of NVIDIA's kernel module, for tests in the guest: what decides whether the driver can be unloaded, unbound or
// reloaded, and nothing else. It has no GPU, and ioctls that hang only. As in the driver:
//
//   - the character devices have the major number 195 and refer to the module, so an open file prevents its removal;
//   - the nodes in /dev are made in user space;
//   - the removal of a PCI function waits until no file of its GPU is open;
//   - procfs has the driver's version and parameters, and the GPUs.
//
// The request HANG keeps a lock until the request RELEASE, and waits for the lock while another task has it. Any other request fails.
//
// What is written to the parameter log is in the kernel log afterwards, as if a driver had logged it: "DRIVER ADDRESS: TEXT" like
// dev_printk for this PCI device, other text like NVIDIA's driver does. So it has the facility of the kernel, which nothing that
// user space writes to /dev/kmsg has. The parameter times is the number of copies.
//
// A PCI function is bound by its driver_override. BuildModule of package tests/machines/vm builds the module.

#include <linux/atomic.h>
#include <linux/cdev.h>
#include <linux/completion.h>
#include <linux/delay.h>
#include <linux/device.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/proc_fs.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/string.h>

#define HANG _IO('F', 1)
#define RELEASE _IO('F', 2)

enum { MAJOR_NUMBER = 195, GPUS = 8, CONTROL = 255 };

static char *version = "550.54.15";
module_param(version, charp, 0444);

static unsigned int times = 1;
module_param(times, uint, 0600);

static int write_log(const char *text, const struct kernel_param *parameter)
{
	int length = strcspn(text, "\n");
	char address[sizeof("0000:00:00.0")];
	struct device *device = NULL;
	unsigned int i;

	if (sscanf(text, "%*s %12s", address) == 1)
		device = bus_find_device_by_name(&pci_bus_type, NULL, address);
	for (i = 0; i < times; i++) {
		if (device)
			dev_printk_emit(LOGLEVEL_ERR, device, "%.*s\n", length, text);
		else // nv_printf prints complete lines with KERN_CONT
			printk(KERN_CONT "%.*s\n", length, text);
		cond_resched();
	}
	put_device(device);
	return 0;
}

static const struct kernel_param_ops log_operations = {.set = write_log};
module_param_cb(log, &log_operations, NULL, 0200);

static struct gpu {
	struct pci_dev *pci; // NULL: there is no such GPU
	struct proc_dir_entry *proc;
	int users;
	bool leaving;
} gpus[GPUS];

static DEFINE_MUTEX(lock); // protects gpus
static struct cdev gpu_devices, control_device;
static struct proc_dir_entry *proc_root, *proc_gpus;

static int stub_open(struct inode *inode, struct file *file)
{
	unsigned int minor = iminor(inode);
	int error = 0;

	if (minor == CONTROL)
		return 0;
	mutex_lock(&lock);
	if (minor >= GPUS || !gpus[minor].pci || gpus[minor].leaving)
		error = -ENODEV;
	else
		gpus[minor].users++;
	mutex_unlock(&lock);
	return error;
}

static int stub_release(struct inode *inode, struct file *file)
{
	unsigned int minor = iminor(inode);

	if (minor == CONTROL)
		return 0;
	mutex_lock(&lock);
	gpus[minor].users--;
	mutex_unlock(&lock);
	return 0;
}

static DEFINE_MUTEX(hanging);
static DECLARE_COMPLETION(released);

static long nvidia_unlocked_ioctl(struct file *file, unsigned int request, unsigned long argument)
{
	switch (request) {
	case HANG:
		mutex_lock(&hanging);
		wait_for_completion(&released);
		mutex_unlock(&hanging);
		return 0;
	case RELEASE:
		complete_all(&released);
		return 0;
	}
	return -ENOTTY;
}

static const struct file_operations stub_files = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = nvidia_unlocked_ioctl,
	.open = stub_open,
	.release = stub_release,
};

static int show_gpu(struct seq_file *m, void *unused)
{
	struct gpu *gpu = m->private;

	seq_puts(m, "Model: \t\t NVIDIA H100 80GB HBM3\n");
	seq_printf(m, "Bus Location: \t %s\n", pci_name(gpu->pci));
	seq_printf(m, "Device Minor: \t %d\n", (int)(gpu - gpus));
	return 0;
}

static int show_version(struct seq_file *m, void *unused)
{
	seq_printf(m, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  %s\n", version);
	return 0;
}

static int show_params(struct seq_file *m, void *unused)
{
	seq_puts(m, "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n");
	return 0;
}

static int stub_probe(struct pci_dev *pci, const struct pci_device_id *id)
{
	struct gpu *gpu = NULL;
	int error = -ENOSPC;
	int i;

	mutex_lock(&lock);
	for (i = 0; i < GPUS && !gpu; i++)
		gpu = gpus[i].pci ? NULL : &gpus[i];
	if (!gpu)
		goto out;
	error = -ENOMEM;
	gpu->proc = proc_mkdir(pci_name(pci), proc_gpus);
	if (!gpu->proc)
		goto out;
	gpu->pci = pci;
	if (!proc_create_single_data("information", 0444, gpu->proc, show_gpu, gpu)) {
		proc_remove(gpu->proc);
		gpu->pci = NULL;
		goto out;
	}
	pci_set_drvdata(pci, gpu);
	error = 0;
out:
	mutex_unlock(&lock);
	return error;
}

static void stub_remove(struct pci_dev *pci)
{
	struct gpu *gpu = pci_get_drvdata(pci);

	mutex_lock(&lock);
	gpu->leaving = true;
	if (gpu->users)
		pci_info(pci, "removal waits for %d open files\n", gpu->users);
	while (gpu->users) {
		mutex_unlock(&lock);
		msleep(500);
		mutex_lock(&lock);
	}
	mutex_unlock(&lock);
	proc_remove(gpu->proc);
	mutex_lock(&lock);
	memset(gpu, 0, sizeof(*gpu));
	mutex_unlock(&lock);
}

static const struct pci_device_id no_ids[] = {{0}};

static struct pci_driver stub_driver = {
	.name = "nvidia",
	.id_table = no_ids,
	.probe = stub_probe,
	.remove = stub_remove,
};

static ssize_t version_show(struct module_attribute *attribute, struct module_kobject *module, char *text)
{
	return sysfs_emit(text, "%s\n", version);
}

static struct module_attribute version_file = {
	.attr = {.name = "version", .mode = 0444},
	.show = (void *)version_show, // its first argument is const in Linux 7
};

static int add_devices(struct cdev *devices, unsigned int minor, unsigned int count, const char *name)
{
	dev_t first = MKDEV(MAJOR_NUMBER, minor);
	int error = register_chrdev_region(first, count, name);

	if (error)
		return error;
	cdev_init(devices, &stub_files);
	devices->owner = THIS_MODULE;
	error = cdev_add(devices, first, count);
	if (error)
		unregister_chrdev_region(first, count);
	return error;
}

static void delete_devices(struct cdev *devices, unsigned int minor, unsigned int count)
{
	cdev_del(devices);
	unregister_chrdev_region(MKDEV(MAJOR_NUMBER, minor), count);
}

static int __init stub_init(void)
{
	int error = -ENOMEM;

	proc_root = proc_mkdir("driver/nvidia", NULL);
	proc_gpus = proc_root ? proc_mkdir("gpus", proc_root) : NULL;
	if (!proc_gpus || !proc_create_single("version", 0444, proc_root, show_version) ||
	    !proc_create_single("params", 0444, proc_root, show_params))
		goto no_devices;
	error = add_devices(&gpu_devices, 0, GPUS, "nvidia");
	if (error)
		goto no_devices;
	error = add_devices(&control_device, CONTROL, 1, "nvidiactl");
	if (error)
		goto no_control;
	error = sysfs_create_file(&THIS_MODULE->mkobj.kobj, &version_file.attr);
	if (error)
		goto no_version;
	error = pci_register_driver(&stub_driver);
	if (!error)
		return 0;
	sysfs_remove_file(&THIS_MODULE->mkobj.kobj, &version_file.attr);
no_version:
	delete_devices(&control_device, CONTROL, 1);
no_control:
	delete_devices(&gpu_devices, 0, GPUS);
no_devices:
	proc_remove(proc_root);
	return error;
}

static void __exit stub_exit(void)
{
	pci_unregister_driver(&stub_driver);
	sysfs_remove_file(&THIS_MODULE->mkobj.kobj, &version_file.attr);
	delete_devices(&control_device, CONTROL, 1);
	delete_devices(&gpu_devices, 0, GPUS);
	proc_remove(proc_root);
}

module_init(stub_init);
module_exit(stub_exit);
MODULE_DESCRIPTION("stub of NVIDIA's driver, without a GPU");
MODULE_LICENSE("GPL");
