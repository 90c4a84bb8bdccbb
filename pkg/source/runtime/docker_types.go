// SPDX-License-Identifier: Apache-2.0

package runtime

// dockerInspection has the used fields of the answer to /containers/ID/json.
type dockerInspection struct {
	ID           string `json:"Id"`
	Created      string // RFC 3339, as all times
	Name         string
	Image        string // ID
	RestartCount int
	State        *struct {
		Status    string
		Pid       int
		ExitCode  int
		StartedAt string
		// FinishedAt belongs to the last run.
		FinishedAt string
		Health     *struct{ Status string }
	}
	Config *struct {
		Image  string // as requested
		Labels map[string]string
	}
	HostConfig *struct {
		Privileged     bool
		CgroupParent   string
		Devices        []struct{ PathOnHost string }
		DeviceRequests []dockerRequest
	}
}

// dockerRequest asks for devices by their number or their names (--gpus).
type dockerRequest struct {
	Driver       string
	Count        int // -1 for all
	DeviceIDs    []string
	Capabilities [][]string // alternatives, each of them a set
}

// dockerSummary has the used fields of an entry of /containers/json.
type dockerSummary struct {
	ID      string `json:"Id"`
	Names   []string
	Image   string
	ImageID string
	Created int64 // seconds since 1970
	State   string
	Labels  map[string]string
}

// dockerEvent has the used fields of an event of /events.
type dockerEvent struct {
	Type   string
	Action string
	Actor  struct {
		ID         string
		Attributes map[string]string
	}
	Time     int64 // seconds since 1970
	TimeNano int64 // nanoseconds since 1970
}
