// SPDX-License-Identifier: Apache-2.0

package identity

import "testing"

// TestOfKernel: the names are KBUILD_MODNAME of the modules in Linux 6.1, 6.12 and 7.2, and of Lustre. Modules of one
// service have one owner; an unknown module has its own name.
func TestOfKernel(t *testing.T) {
	var table Table
	owners := map[string]OwnerID{}
	for module, want := range map[string]string{
		"nvme_rdma": "kernel:nvme", "nvmet_rdma": "kernel:nvmet", "rpcrdma": "kernel:nfs", "cifs": "kernel:smb", "ksmbd": "kernel:smb",
		"smbdirect": "kernel:smb", "ib_srp": "kernel:srp", "ib_iser": "kernel:iser", "ko2iblnd": "kernel:lustre",
		"ib_ipoib": "kernel:ipoib", "rds_rdma": "kernel:rds", "smc": "kernel:smc", "mmfs_26": "kernel:mmfs_26",
	} {
		id := table.OfKernel(module)
		if got := *table.Owner(id); got != (Owner{Workload: want}) || KernelOwner(module) != got {
			t.Errorf("%s: %+v, want only the workload %s", module, got, want)
		}
		if runtime := table.Info(id).Runtime; runtime != "kernel" {
			t.Errorf("%s: runtime %q", module, runtime)
		}
		if before, ok := owners[want]; ok && before != id {
			t.Errorf("%s: two owners", want)
		}
		owners[want] = id
	}
	if len(owners) != 11 {
		t.Errorf("%d services: %v", len(owners), owners)
	}
}
