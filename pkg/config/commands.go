// SPDX-License-Identifier: Apache-2.0

package config

import "time"

// RunCommand has the flags of the sensor.
type RunCommand struct {
	SensorFlags
	WebFlags
	EventFlags
	ControlFlags
}

// CheckCommand has the commands that check something and exit with the result.
type CheckCommand struct {
	Config RunCommand       `cmd:"" default:"withargs" help:"Check flags, environment and configuration files (default)."`
	Node   CheckNodeCommand `cmd:"" tool:"" help:"Check a running sensor's verdicts: exit status 0 (none), 1, 2 (unknown)."`
}

// CheckNodeCommand has the flags of check node.
type CheckNodeCommand struct {
	URL      string        `name:"url" default:"http://127.0.0.1:9847" help:"Sensor URL, optionally http://USER:PASSWORD@HOST."`
	Severity string        `name:"severity" enum:"critical,warning,info" default:"critical" help:"Least severity that counts (${enum})."`
	Subjects []string      `name:"subject" enum:"node,port,hca,gpu,switch,workload" placeholder:"KIND" help:"Only on these (${enum})."`
	Timeout  time.Duration `name:"timeout" default:"4s" help:"Maximum time; a later answer is unknown."`
}

// DoctorCommand has the flags of doctor.
type DoctorCommand struct {
	SensorFlags
	ControlFlags
	HealthFlags
	JSON bool `name:"json" xor:"answer" help:"Print one JSON object instead of a table."`
}

// TopCommand has the flags of top.
type TopCommand struct {
	URL      string        `name:"url" default:"http://127.0.0.1:9847" help:"Sensor URL, optionally http://USER:PASSWORD@HOST."`
	Interval time.Duration `name:"interval" default:"2s" help:"Time between readings. The sensor computes rates over 5 s or more."`
	Once     bool          `name:"once" help:"Print the tables as soon as they have rates, and exit."`
	Plain    bool          `name:"plain" help:"Print tables in sequence, as without a terminal."`
	Devices  bool          `name:"devices" help:"Show HCA ports and GPUs instead of workloads."`
	Sort     string        `name:"sort" default:"name" placeholder:"KEY" help:"Sort by column, the largest number first."`
	Filter   string        `name:"filter" placeholder:"TEXT" help:"Show only rows whose workload or device name contains this."`
	JSON     bool          `name:"json" help:"Print verdicts, workloads and devices as one JSON line per interval."`

	Prometheus string `name:"prometheus" placeholder:"URL" help:"Show all nodes from this Prometheus."`
	PrometheusFlags
	Job string `name:"job" placeholder:"NAME" help:"With --prometheus: show [NAMESPACE/][KIND/]NAME and its members."`
}

// FleetCommand has the flags of the page of all nodes.
type FleetCommand struct {
	Prometheus string `name:"prometheus" required:"" placeholder:"URL" help:"Prometheus with accelscope's series and rules."`
	PrometheusFlags
	NodeURL    string `name:"fleet.node-url" placeholder:"URL" help:"Node page, such as http://{instance}/. Default: no links."`
	GrafanaURL string `name:"fleet.grafana-url" placeholder:"URL" help:"Grafana with accelscope's dashboards. Default: no links."`
	SensorURL  string `name:"fleet.sensor-url" placeholder:"URL" help:"Node sensor to ask for peers, such as http://{instance}/."`
	SensorFile string `name:"fleet.sensor.config.file" placeholder:"FILE" help:"HTTP client for sensors (credentials, TLS, headers)."`

	NamespacesHeader string        `name:"fleet.namespaces-header" placeholder:"NAME" help:"Header of a proxy: whose jobs are shown."`
	LinkKeyFile      string        `name:"fleet.link-key-file" placeholder:"FILE" help:"Key of at least 32 bytes that signs links to jobs."`
	LinkLifetime     time.Duration `name:"fleet.link-lifetime" default:"168h" help:"Time for which a signed link is valid."`
	ListenFlags
}

// TaintCommand has the flags of taint.
type TaintCommand struct {
	Prometheus string `name:"prometheus" required:"" placeholder:"URL" help:"Prometheus with accelscope's series and rules."`
	PrometheusFlags
	DryRun     bool          `name:"taint.dry-run" negatable:"" default:"true" help:"Only log what would be changed."`
	SetAfter   time.Duration `name:"taint.set-after" default:"30s" help:"Time for which an alert fires before a mark is set."`
	ClearAfter time.Duration `name:"taint.clear-after" default:"10m" help:"Time for which the node is healthy before a mark is removed."`
	MaxNodes   int           `name:"taint.max-nodes" default:"3" help:"Maximum nodes with marks; no further node is marked."`
	Effect     string        `name:"taint.effect" enum:"NoSchedule,NoExecute" default:"NoSchedule" help:"Device taints (${enum})."`
	Interval   time.Duration `name:"interval" default:"15s" help:"Time between requests."`
	URL        string        `name:"kubernetes.url" placeholder:"URL" help:"API server. Default in a pod: its cluster's."`
	TokenFile  string        `name:"kubernetes.token-file" default:"${account}/token" placeholder:"FILE" help:"Bearer token."`
	CAFile     string        `name:"kubernetes.ca-file" default:"${account}/ca.crt" placeholder:"FILE" help:"CA of the API server."`
	ListenFlags
}

// PeersCommand has the flags of peers.
type PeersCommand struct {
	URL      string `name:"url" default:"http://127.0.0.1:9847" help:"Sensor URL, optionally http://USER:PASSWORD@HOST."`
	Workload string `name:"workload" placeholder:"NAME" help:"Show only this workload."`
	Device   string `name:"device" placeholder:"NAME" help:"Show only this HCA."`
	Stalled  bool   `name:"stalled" help:"Show only stalled queue pairs."`
	QPs      bool   `name:"qps" help:"Print one line per queue pair, with the local and the remote number."`
	JSON     bool   `name:"json" help:"Print the sensor's JSON answer."`
}

// TopoCommand has the flags of topo.
type TopoCommand struct {
	URL      string `name:"url" default:"http://127.0.0.1:9847" help:"Sensor URL, optionally http://USER:PASSWORD@HOST."`
	Workload string `name:"workload" placeholder:"NAME" help:"Show only this workload's devices and problems as owned."`
	Sysfs    string `name:"path.sysfs" default:"/sys" placeholder:"DIR" help:"Sysfs mount point, used without a local sensor."`
	JSON     bool   `name:"json" help:"Print the sensor's JSON answer."`
}

// JobCommand has the commands for a job.
type JobCommand struct {
	RAS RASCommand `cmd:"" name:"ras" help:"Ask NCCL's RAS of a job that stands. This may end the job: crashes are known."`
}

// RASCommand has the flags of job ras.
type RASCommand struct {
	Pod     string        `arg:"" help:"[NAMESPACE/]POD or workload with ranks on this node."`
	URL     string        `name:"url" default:"http://127.0.0.1:9847" help:"Sensor of this node, optionally http://USER:PASSWORD@HOST."`
	Port    uint16        `name:"port" default:"28028" help:"Port of RAS, as in NCCL_RAS_ADDR."`
	Timeout time.Duration `name:"timeout" default:"30s" help:"Maximum time."`
	Procfs  string        `name:"path.procfs" default:"/proc" placeholder:"DIR" help:"Procfs mount point of the node."`
	Force   bool          `name:"force" help:"Ask although a rank launched within 60 s, or the library's version is not known to be safe."`
}

// GPUCommand has the commands for the GPUs of a running sensor.
type GPUCommand struct {
	Release ReleaseCommand `cmd:"" help:"Close NVIDIA's library to unload the driver, reset a GPU or change MIG."`
	Resume  ResumeCommand  `cmd:"" help:"Open NVIDIA's library again."`
}

// ReleaseCommand has the flags of gpu release.
type ReleaseCommand struct {
	ControlFlags
	For    time.Duration `name:"for" default:"10m" help:"Maximum time; reloading the driver ends the release earlier."`
	Reason string        `name:"reason" placeholder:"TEXT" help:"Reason shown in the source's state."`
}

// ResumeCommand has the flags of gpu resume.
type ResumeCommand struct{ ControlFlags }

// InventoryCommand has the commands for the inventory of a running sensor.
type InventoryCommand struct {
	Accept AcceptCommand `cmd:"" help:"Accept missing devices, and GPU links that are down."`
}

// AcceptCommand has the flags of inventory accept.
type AcceptCommand struct {
	ControlFlags
	Devices []string `arg:"" optional:"" name:"device" help:"ID, name, PCI address or serial number. Default: all."`
}

// VersionCommand has no flags.
type VersionCommand struct{}
