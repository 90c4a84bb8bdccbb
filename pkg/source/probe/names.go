// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
)

var verbNames = [gen.VerbsVerbVERBS]string{
	gen.VerbsVerbVERB_OTHER:         "other",
	gen.VerbsVerbVERB_GET_CONTEXT:   "get_context",
	gen.VerbsVerbVERB_QUERY_DEVICE:  "query_device",
	gen.VerbsVerbVERB_QUERY_PORT:    "query_port",
	gen.VerbsVerbVERB_QUERY_GID:     "query_gid",
	gen.VerbsVerbVERB_ASYNC_EVENT:   "async_event",
	gen.VerbsVerbVERB_COMP_CHANNEL:  "create_comp_channel",
	gen.VerbsVerbVERB_ALLOC_PD:      "alloc_pd",
	gen.VerbsVerbVERB_DEALLOC_PD:    "dealloc_pd",
	gen.VerbsVerbVERB_CREATE_AH:     "create_ah",
	gen.VerbsVerbVERB_DESTROY_AH:    "destroy_ah",
	gen.VerbsVerbVERB_REG_MR:        "reg_mr",
	gen.VerbsVerbVERB_REG_DMABUF_MR: "reg_dmabuf_mr",
	gen.VerbsVerbVERB_REREG_MR:      "rereg_mr",
	gen.VerbsVerbVERB_ADVISE_MR:     "advise_mr",
	gen.VerbsVerbVERB_DEREG_MR:      "dereg_mr",
	gen.VerbsVerbVERB_ALLOC_MW:      "alloc_mw",
	gen.VerbsVerbVERB_DEALLOC_MW:    "dealloc_mw",
	gen.VerbsVerbVERB_CREATE_CQ:     "create_cq",
	gen.VerbsVerbVERB_MODIFY_CQ:     "modify_cq",
	gen.VerbsVerbVERB_POLL_CQ:       "poll_cq",
	gen.VerbsVerbVERB_REQ_NOTIFY_CQ: "req_notify_cq",
	gen.VerbsVerbVERB_DESTROY_CQ:    "destroy_cq",
	gen.VerbsVerbVERB_CREATE_QP:     "create_qp",
	gen.VerbsVerbVERB_QUERY_QP:      "query_qp",
	gen.VerbsVerbVERB_MODIFY_QP:     "modify_qp",
	gen.VerbsVerbVERB_DESTROY_QP:    "destroy_qp",
	gen.VerbsVerbVERB_CREATE_SRQ:    "create_srq",
	gen.VerbsVerbVERB_QUERY_SRQ:     "query_srq",
	gen.VerbsVerbVERB_MODIFY_SRQ:    "modify_srq",
	gen.VerbsVerbVERB_DESTROY_SRQ:   "destroy_srq",
	gen.VerbsVerbVERB_POST_SEND:     "post_send",
	gen.VerbsVerbVERB_POST_RECV:     "post_recv",
	gen.VerbsVerbVERB_ATTACH_MCAST:  "attach_mcast",
	gen.VerbsVerbVERB_DETACH_MCAST:  "detach_mcast",
	gen.VerbsVerbVERB_FLOW:          "flow",
	gen.VerbsVerbVERB_XRCD:          "xrcd",
	gen.VerbsVerbVERB_WQ:            "wq",
	gen.VerbsVerbVERB_DEVX:          "devx",
}

func verbName(v uint32) string {
	if v < uint32(len(verbNames)) {
		return verbNames[v]
	}
	return verbNames[gen.VerbsVerbVERB_OTHER]
}

var objectTypes = [gen.ObjectsObjectTypeTYPES]model.ObjectType{
	gen.ObjectsObjectTypeTYPE_PD:        model.PD,
	gen.ObjectsObjectTypeTYPE_CQ:        model.CQ,
	gen.ObjectsObjectTypeTYPE_QP:        model.QP,
	gen.ObjectsObjectTypeTYPE_CM_ID:     model.CMID,
	gen.ObjectsObjectTypeTYPE_MR:        model.MR,
	gen.ObjectsObjectTypeTYPE_CTX:       model.Context,
	gen.ObjectsObjectTypeTYPE_COUNTER:   model.OtherType,
	gen.ObjectsObjectTypeTYPE_SRQ:       model.SRQ,
	gen.ObjectsObjectTypeTYPE_AH:        model.AH,
	gen.ObjectsObjectTypeTYPE_MW:        model.MW,
	gen.ObjectsObjectTypeTYPE_FLOW:      model.Flow,
	gen.ObjectsObjectTypeTYPE_XRCD:      model.XRCD,
	gen.ObjectsObjectTypeTYPE_WQ:        model.WQ,
	gen.ObjectsObjectTypeTYPE_DM:        model.DM,
	gen.ObjectsObjectTypeTYPE_DEVX_OBJ:  model.DEVXObj,
	gen.ObjectsObjectTypeTYPE_DEVX_UMEM: model.DEVXUmem,
	gen.ObjectsObjectTypeTYPE_OTHER:     model.OtherType,
}

func objectType(t uint16) model.ObjectType {
	if int(t) < len(objectTypes) {
		return objectTypes[t]
	}
	return model.OtherType
}

func typeCode(t model.ObjectType) (uint8, bool) {
	i := slices.Index(objectTypes[:], t)
	return uint8(max(i, 0)), i >= 0
}

var memoryNames = [gen.ObjectsMemoryMEMORIES]model.Memory{
	gen.ObjectsMemoryMEMORY_HOST:         model.HostMemory,
	gen.ObjectsMemoryMEMORY_GPU:          model.GPUMemory,
	gen.ObjectsMemoryMEMORY_DMABUF:       model.DMABufMemory,
	gen.ObjectsMemoryMEMORY_DEVICE:       model.DeviceMemory,
	gen.ObjectsMemoryMEMORY_IMPLICIT_ODP: model.ImplicitODPMemory,
	gen.ObjectsMemoryMEMORY_UNKNOWN:      model.UnknownMemory,
}

func memoryName(m uint16) model.Memory {
	if int(m) < len(memoryNames) {
		return memoryNames[m]
	}
	return model.UnknownMemory
}

// memoryCode returns the number that the programs use for a kind of memory. Objects that are not memory regions have
// the kind 0.
func memoryCode(o model.Object) uint8 {
	if o.Type != model.MR {
		return 0
	}
	if i := slices.Index(memoryNames[:], o.Memory); i >= 0 {
		return uint8(i)
	}
	return uint8(gen.ObjectsMemoryMEMORY_UNKNOWN)
}

var lossNames = [gen.VerbsLossLOSSES + 1]string{
	gen.VerbsLossLOSS_VERBS_FULL:     "verbs_map_full",
	gen.VerbsLossLOSS_ERRORS_FULL:    "errors_map_full",
	gen.VerbsLossLOSS_CALLS_FULL:     "calls_map_full",
	gen.VerbsLossLOSS_RETURN_MISSED:  "return_missed",
	gen.VerbsLossLOSS_OBJECTS_FULL:   "objects_map_full",
	gen.VerbsLossLOSS_HOLDINGS_FULL:  "holdings_map_full",
	gen.VerbsLossLOSS_PEERS_FULL:     "peers_map_full",
	gen.VerbsLossLOSS_VERBS_SHARE:    "verbs_map_share",
	gen.VerbsLossLOSS_ERRORS_SHARE:   "errors_map_share",
	gen.VerbsLossLOSS_OBJECTS_SHARE:  "objects_map_share",
	gen.VerbsLossLOSS_HOLDINGS_SHARE: "holdings_map_share",
	gen.VerbsLossLOSS_PEERS_SHARE:    "peers_map_share",
	gen.VerbsLossLOSSES:              "program_skipped",
}

// The losses of owners that used up their share, by map of each object.
var (
	verbShares = [...]int{
		gen.VerbsVerbMapVERBS_OF_OWNER:  int(gen.VerbsLossLOSS_VERBS_SHARE),
		gen.VerbsVerbMapERRORS_OF_OWNER: int(gen.VerbsLossLOSS_ERRORS_SHARE),
	}
	objectShares = [...]int{
		gen.ObjectsObjectMapOBJECTS_OF_OWNER:  int(gen.VerbsLossLOSS_OBJECTS_SHARE),
		gen.ObjectsObjectMapHOLDINGS_OF_OWNER: int(gen.VerbsLossLOSS_HOLDINGS_SHARE),
	}
	peerShares = [...]int{gen.PeersPeerMapPEERS_OF_OWNER: int(gen.VerbsLossLOSS_PEERS_SHARE)}
)

// errnoName returns the symbol of an errno, or the number if user space defines no symbol (512 and above).
func errnoName(n uint16) string {
	if name := unix.ErrnoName(unix.Errno(n)); name != "" {
		return name
	}
	return strconv.Itoa(int(n))
}

func cString(b []int8) string {
	var s strings.Builder
	for _, c := range b {
		if c == 0 {
			break
		}
		s.WriteByte(byte(c))
	}
	return s.String()
}

// deviceNames maps the device number of a uverbs character device to its HCA.
type deviceNames map[uint32]string

// of returns the name of a device number, or MAJOR:MINOR while sysfs lists no name.
func (n deviceNames) of(rdev uint32) string {
	if name, ok := n[rdev]; ok {
		return name
	}
	return fmt.Sprintf("%d:%d", rdev>>20, rdev&(1<<20-1))
}
