// SPDX-License-Identifier: Apache-2.0

package identity

// services are the services of the kernel over RDMA, by the module (KBUILD_MODNAME) that allocates their protection
// domains and connection manager ids. A module that is not listed names itself.
var services = map[string]string{
	"nvme_rdma":   "nvme",  // drivers/nvme/host
	"nvmet_rdma":  "nvmet", // drivers/nvme/target
	"rpcrdma":     "nfs",   // net/sunrpc/xprtrdma: clients and servers
	"cifs":        "smb",   // fs/smb/client
	"ksmbd":       "smb",   // fs/smb/server
	"smbdirect":   "smb",   // fs/smb/smbdirect: both, on later kernels
	"ko2iblnd":    "lustre",
	"ib_srp":      "srp",
	"ib_srpt":     "srpt",
	"ib_iser":     "iser",
	"ib_isert":    "isert",
	"ib_ipoib":    "ipoib",
	"rds_rdma":    "rds",
	"rtrs_core":   "rtrs", // protection domains
	"rtrs_client": "rtrs", // connection manager ids
	"rtrs_server": "rtrs",
	"9pnet_rdma":  "9p",
}

const kernelRuntime = "kernel"

// OfKernel returns the owner of what a module of the kernel holds: kernel:nfs for rpcrdma.
func (t *Table) OfKernel(module string) OwnerID {
	n := kernelName(module)
	return t.find(&n)
}

// KernelOwner returns the labels of the owner of what a module of the kernel holds.
func KernelOwner(module string) Owner { return kernelName(module).Owner }

func kernelName(module string) name {
	service := services[module]
	if service == "" {
		service = valid(module)
	}
	return name{Owner: Owner{Workload: "kernel:" + service}, Runtime: kernelRuntime}
}
