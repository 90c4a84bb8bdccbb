// SPDX-License-Identifier: Apache-2.0

// Package config has everything that a user can set: the flags of all commands, their environment variables and the configuration
// file. Both programs know the flags of all commands, so that they have the same help and refuse the same things.
package config

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/accelscope/accelscope/pkg/metrics"
)

// A Program is the name of a program that parses flags.
type Program string

// The programs. Commands whose tag is tool belong to Tool, all others to Sensor.
const (
	Sensor Program = "accelscope"
	Tool   Program = "accelscope-tool"
)

// ErrOtherProgram reports a command that belongs to the other program.
var ErrOtherProgram = errors.New("wrong program")

// CLI is everything a user can set. kong fills it, in this order of precedence:
// command line, environment (ACCELSCOPE_ and the flag's name), the YAML file of
// --config.file (its keys are the names of the flags), default.
//
// Unknown environment variables are not refused: Kubernetes itself sets
// ACCELSCOPE_PORT and similar variables if a Service has the name accelscope.
type CLI struct {
	Run       RunCommand       `cmd:"" default:"withargs" help:"Run the sensor (default)."`
	Doctor    DoctorCommand    `cmd:"" help:"Try every source, probe and permission once and show failures with cures."`
	Check     CheckCommand     `cmd:"" help:"Check the configuration, or the node."`
	Top       TopCommand       `cmd:"" tool:"" help:"Show a running sensor's workloads and their devices."`
	Fleet     FleetCommand     `cmd:"" tool:"" set:"listen=:9851" help:"Show all nodes in a browser, from Prometheus."`
	Taint     TaintCommand     `cmd:"" tool:"" set:"listen=:9853" help:"Mark sick Kubernetes nodes and GPUs, from Prometheus."`
	Peers     PeersCommand     `cmd:"" tool:"" help:"Show a running sensor's connections between workloads and remote ports."`
	Topo      TopoCommand      `cmd:"" tool:"" help:"Show the distance between GPUs and HCAs, and their workloads."`
	Job       JobCommand       `cmd:"" tool:"" name:"job" help:"Ask about a job."`
	GPU       GPUCommand       `cmd:"" tool:"" name:"gpu" help:"Release a running sensor's GPUs for maintenance."`
	Inventory InventoryCommand `cmd:"" tool:"" name:"inventory" help:"Accept the node's devices as they are."`
	Version   VersionCommand   `cmd:"" help:"Print the version."`

	PrintVersion kong.VersionFlag `name:"version" env:"-" help:"Print the version."`

	ConfigFile string `name:"config.file" placeholder:"FILE" help:"YAML configuration file with flag names as keys."`
	LogLevel   string `name:"log.level" enum:"debug,info,warn,error" default:"info" help:"Log level (${enum})."`
	LogFormat  string `name:"log.format" enum:"console,json" default:"console" help:"Log format (${enum})."`

	program Program
}

// SensorFlags select what the sensor reads. run and doctor share them.
type SensorFlags struct {
	Sysfs  string `name:"path.sysfs" default:"/sys" placeholder:"DIR" help:"Sysfs mount point."`
	Procfs string `name:"path.procfs" default:"/proc" placeholder:"DIR" help:"Procfs mount point."`
	Cgroup string `name:"path.cgroup" default:"/sys/fs/cgroup" placeholder:"DIR" help:"Cgroup mount point."`
	Run    string `name:"path.run" placeholder:"DIR" help:"Node's /run with runtime sockets. Default: run below --path.host."`
	Host   string `name:"path.host" default:"/" placeholder:"DIR" help:"Node's root directory, for runtime sockets, file systems, users."`

	RDMA          bool   `name:"collector.rdma" negatable:"" default:"true" help:"Read HCAs, ports and counters."`
	DeviceInclude string `name:"collector.rdma.device-include" placeholder:"REGEXP" help:"Read only matching HCA names."`
	DeviceExclude string `name:"collector.rdma.device-exclude" placeholder:"REGEXP" help:"Skip matching HCAs (probes still count them)."`
	Link          bool   `name:"collector.link" negatable:"" default:"true" help:"Read ports' pause, FEC and link state from drivers."`
	CgroupTree    bool   `name:"collector.cgroup" negatable:"" default:"true" help:"Map cgroups to owners."`
	PCI           bool   `name:"collector.pci" negatable:"" default:"true" help:"Read PCIe links and errors of HCAs and GPUs."`
	Probe         bool   `name:"collector.probe" negatable:"" default:"true" help:"Count verbs and RDMA objects with BPF."`

	Tier       string `name:"probe.tier" enum:"auto,fentry,kprobe,tracepoint" default:"auto" help:"Attachment of BPF programs (${enum})."`
	BTFDir     string `name:"probe.btf-dir" placeholder:"DIR" help:"BTF files for RDMA modules without BTF, one per module."`
	MapEntries uint32 `name:"probe.map-entries" default:"0" help:"Maximum (workload, HCA, verb) series; 0: by CPUs and HCAs."`
	MaxObjects uint32 `name:"probe.max-objects" default:"0" help:"Maximum RDMA objects, and half as many peers; 0: by CPUs and HCAs."`

	AttachLimit time.Duration `name:"probe.attach-limit" default:"100ms" help:"Maximum wait of forks for one file probe."`
	MaxMappings int           `name:"probe.max-mappings" default:"5000" help:"Maximum mappings of a file with uprobes."`

	LinkFlags
	DataPathFlags

	Containers bool   `name:"collector.container" negatable:"" default:"true" help:"Container metrics; false: --container.scope=none."`
	Scope      string `name:"container.scope" enum:"auto,all,accelerated,none" default:"auto" help:"Workloads with CPU, memory (${enum})."`
	Node       bool   `name:"collector.node" negatable:"" default:"true" help:"Read node metrics like node_exporter."`

	NetExclude string `name:"collector.node.network-exclude" default:"${podinterfaces}" placeholder:"REGEXP" help:"Skip interfaces."`

	KernelLog bool `name:"collector.kernellog" negatable:"" default:"true" help:"Read GPU and HCA errors from the kernel log."`

	Runtime bool     `name:"collector.runtime" negatable:"" default:"true" help:"Read container names and states from runtimes."`
	Sockets []string `name:"runtime.socket" placeholder:"KIND:PATH" help:"Socket, such as docker:/run/docker.sock. Default: all existing."`
	Labels  []string `name:"workload.labels" placeholder:"NAME" help:"Labels and annotations in accelscope_workload_info."`
	Env     []string `name:"workload.env" placeholder:"NAME" help:"Environment variables with process ranks, such as RANK. Default: none."`

	KubeletFlags
	GPUFlags
	FabricFlags

	NodeName string `name:"node.name" env:"ACCELSCOPE_NODE_NAME,NODE_NAME" placeholder:"NAME" help:"Node name. Default: host name."`
	NodeIP   string `name:"node.ip" env:"ACCELSCOPE_NODE_IP,NODE_IP" placeholder:"ADDR" help:"Node IP address."`

	StateDir string `name:"state.dir" default:"/var/lib/accelscope" placeholder:"DIR" help:"Inventory directory; empty: no inventory file."`

	Grace  time.Duration `name:"grace" default:"5m" help:"Time for which ended workloads keep name and counters."`
	Strict bool          `name:"strict" help:"Exit if a source is not fully usable."`
}

// LinkFlags select what is read of links.
type LinkFlags struct {
	Modules          bool   `name:"link.modules" negatable:"" default:"true" help:"Read transceivers and cables (needs CAP_NET_ADMIN)."`
	ModuleLanes      bool   `name:"link.module-lanes" help:"Export each lane's bias and optical power."`
	ModuleThresholds bool   `name:"link.module-thresholds" help:"Export modules' alarm and warning thresholds."`
	Mlxlink          string `name:"link.mlxlink" placeholder:"PATH" help:"mlxlink or mstlink for mlx5 bit errors. Default: disabled."`
}

// DataPathFlags configure how the bytes of containers are counted.
type DataPathFlags struct {
	DataPath   string  `name:"rdma.datapath" enum:"off,survey,always" default:"off" help:"Count posts and polls with uprobes (${enum})."`
	PathBudget float64 `name:"rdma.datapath-budget" default:"0.01" placeholder:"RATIO" help:"CPU share of probes that starts surveys."`
	PathSelect string  `name:"rdma.datapath-select" placeholder:"REGEXP" help:"Probe only matching workloads (ns/pod/container)."`
	PathLimit  uint32  `name:"rdma.datapath-max-contexts" default:"4096" help:"Maximum probed verbs contexts; half per cgroup."`
	QPCounters string  `name:"rdma.qp-counters" enum:"off,use,manage" default:"off" help:"Read queue pair hardware counters (${enum})."`

	SurveyLength   time.Duration `name:"rdma.survey-length" default:"10s" help:"Survey length of a costly process."`
	SurveyInterval time.Duration `name:"rdma.survey-interval" default:"10m" help:"Time between surveys."`

	StallAfter time.Duration `name:"rdma.stall-after" default:"10s" help:"Time without completion until a queue pair counts as stalled."`
}

// KubeletFlags configure access to the kubelet.
type KubeletFlags struct {
	Kubelet          bool          `name:"collector.kubelet" negatable:"" default:"true" help:"Read pods and devices from the kubelet."`
	PodResources     string        `name:"kubelet.pod-resources" placeholder:"PATH" help:"PodResources socket. Default: kubelet's."`
	KubeletURL       string        `name:"kubelet.url" placeholder:"URL" help:"Kubelet URL. Default in a pod: https://NODE_IP:10250."`
	KubeletTokenFile string        `name:"kubelet.token-file" placeholder:"FILE" help:"Bearer token file. Default: service account's."`
	KubeletCAFile    string        `name:"kubelet.ca-file" placeholder:"FILE" help:"Kubelet CA. Default: cluster's."`
	KubeletCertFile  string        `name:"kubelet.certificate-file" placeholder:"FILE" help:"Kubelet's self-signed certificate."`
	KubeletInsecure  bool          `name:"kubelet.insecure-skip-verify" help:"Skip verification of the kubelet's certificate."`
	KubeletSendToken bool          `name:"kubelet.insecure-send-token" help:"Send the token to unverified kubelets too."`
	KubeletInterval  time.Duration `name:"kubelet.interval" default:"15s" help:"Interval of kubelet requests."`
}

// GPUFlags configure how GPUs are read.
type GPUFlags struct {
	GPU         bool          `name:"collector.gpu" negatable:"" default:"true" help:"Read GPUs and their processes."`
	Access      bool          `name:"collector.access" negatable:"" default:"true" help:"Count opens of HCA and GPU device nodes."`
	GPUInterval time.Duration `name:"gpu.process-interval" default:"5s" help:"Interval of GPU process lists."`
	GPUDetail   string        `name:"gpu.detail" enum:"basic,full" default:"basic" help:"GPU series (${enum})."`
	IdleEnergy  string        `name:"gpu.idle-energy" enum:"owner,nobody" default:"owner" help:"Who gets energy of idle GPUs (${enum})."`
	NVML        string        `name:"gpu.nvml-library" placeholder:"PATH" help:"libnvidia-ml.so.1. Default: from standard directories."`
	NodeLabels  bool          `name:"gpu.release-on-node-labels" help:"Release the driver when node labels pause its users."`
	Allocations bool          `name:"gpu.allocation-failures" help:"Count failed GPU memory allocations with uprobes."`
	Collective  bool          `name:"collector.collective" help:"Count NCCL and RCCL launches with uprobes."`
	JobStall    time.Duration `name:"job.stall-after" default:"30s" help:"Time without a launch until a job counts as standing."`
	KeyFile     string        `name:"collective.key-file" placeholder:"FILE" help:"Key for hashes of communicators, same on all nodes."`
	GPUDriver   bool          `name:"collector.gpudriver" help:"Measure GPU driver ioctls and find tasks stuck there."`
	StuckAfter  time.Duration `name:"gpu.stuck-after" default:"30s" help:"Time in a GPU driver ioctl until a task counts as stuck."`
	AMDSMI      string        `name:"gpu.amd-smi" placeholder:"PATH" help:"amd-smi for values missing in amdgpu. Default: disabled."`
}

// FabricFlags configure how one node reads the InfiniBand fabric.
type FabricFlags struct {
	Fabric         bool          `name:"collector.fabric" help:"Read the InfiniBand fabric (enable on one node per fabric)."`
	FabricInterval time.Duration `name:"fabric.interval" default:"1m" help:"Interval of fabric reads."`
	FabricTools    string        `name:"fabric.tools" placeholder:"DIR" help:"infiniband-diags directory. Default: standard directories."`
	FabricPort     string        `name:"fabric.port" placeholder:"HCA/PORT" help:"Port for fabric reads. Default: first active."`
	FabricNames    string        `name:"fabric.node-name-map" placeholder:"FILE" help:"Node name map in ibnetdiscover format."`
	FabricParallel int           `name:"fabric.parallel" default:"4" help:"Maximum switches queried in parallel."`
}

// EventFlags configure the endpoint that receives events.
type EventFlags struct {
	Endpoint    string `name:"events.otlp-endpoint" placeholder:"HOST:PORT" help:"OTLP/gRPC event receiver. Default: disabled."`
	Insecure    bool   `name:"events.otlp-insecure" help:"Send events without TLS."`
	CAFile      string `name:"events.otlp-ca-file" placeholder:"FILE" help:"Endpoint CA. Default: system CAs."`
	CertFile    string `name:"events.otlp-cert-file" placeholder:"FILE" help:"Client certificate."`
	KeyFile     string `name:"events.otlp-key-file" placeholder:"FILE" help:"Client certificate key."`
	HeadersFile string `name:"events.otlp-headers-file" placeholder:"FILE" help:"File of headers, one NAME: VALUE per line."`
	QueueSize   int    `name:"events.queue-size" default:"8192" help:"Maximum events queued while the endpoint is unavailable."`
}

// ListenFlags configure where the sensor listens. run and the health check share them.
type ListenFlags struct {
	ListenAddress []string `name:"web.listen-address" default:"${listen}" placeholder:"ADDR" help:"Listen address; may be repeated."`
	WebConfig     string   `name:"web.config.file" placeholder:"FILE" help:"TLS and authentication configuration (exporter-toolkit)."`
	ProbeAddress  string   `name:"web.probe-address" placeholder:"ADDR" help:"Also answer /healthz and /readyz here, without TLS."`
}

// WebFlags configure the HTTP server and the metrics it serves.
type WebFlags struct {
	ListenFlags
	TelemetryPath string `name:"web.telemetry-path" default:"/metrics" placeholder:"PATH" help:"Metrics path."`
	Pages         bool   `name:"web.pages" negatable:"" default:"true" help:"Show the node in a browser at /."`
	History       bool   `name:"web.history" negatable:"" default:"true" help:"Keep 15 minutes for the pages in at most 2 MB."`
	NoSelfMetrics bool   `name:"web.disable-exporter-metrics" help:"Omit go_* and process_* metrics."`
	MetricsFlags
}

// MetricsFlags select the metrics that are exported.
type MetricsFlags struct {
	Compat  []string `name:"metrics.compat" enum:"${compat}" default:"lens" help:"Add compatible metric names (${enum})."`
	Exclude string   `name:"metrics.exclude" default:"node_cpu_guest_seconds_total" placeholder:"REGEXP" help:"Omit matching metrics."`
	States  string   `name:"metrics.states" enum:"current,all" default:"current" help:"Sensor state series (${enum})."`
	Forms   []string `name:"metrics.histograms" enum:"classic,native" default:"classic,native" help:"Histogram forms (${enum})."`
	Created bool     `name:"metrics.created-lines" help:"Add start times to OpenMetrics text as NAME_created."`
}

// ControlFlags configure the socket for the commands that change what a running sensor does.
type ControlFlags struct {
	Socket string `name:"gpu.control-socket" default:"${socket}" placeholder:"PATH" help:"Socket of the commands gpu and inventory (root)."`
}

// DefaultSocket is the default of --gpu.control-socket. Its directory belongs to the sensor.
const DefaultSocket = "/run/accelscope/control.sock"

// HealthFlags are the flags that doctor needs to reach a running sensor.
type HealthFlags struct {
	ListenFlags
	Health bool `name:"health" xor:"answer" help:"Only check that the local sensor answers (exit status 0 or 1)."`
}

// PrometheusFlags configure the connection to a Prometheus. fleet and top share them.
type PrometheusFlags struct {
	PrometheusFile string `name:"prometheus.config.file" placeholder:"FILE" help:"HTTP client (credentials, TLS, headers) as for promtool."`
}

// podInterfaces are the names of the ends on the node of the interfaces of pods and containers: of CNI plugins and Docker, of
// Calico, of Cilium, and of Azure. container_network_* has the other ends.
const podInterfaces = "(veth|cali|lxc|azv).*"

// flagVars are the variables in the tags of flags.
var flagVars = kong.Vars{
	"podinterfaces": podInterfaces, "compat": strings.Join(metrics.CompatSets(), ","), "socket": DefaultSocket,
	"listen":  ":9847", // the page of all nodes has another default
	"account": "/var/run/secrets/kubernetes.io/serviceaccount",
}

// Parse reads args, the environment and the configuration file. It returns the name of the command with its subcommands, or ErrOtherProgram
// before it reads the file, which may be a pipe. What --help and --version print goes to stdout, and exit is called after it.
func Parse(p Program, args []string, version string, stdout, stderr io.Writer, exit func(int)) (c *CLI, command string, err error) {
	c = &CLI{program: p}
	parsed, err := parse(c, args, version, stdout, stderr, exit)
	if err != nil {
		return nil, "", err
	}
	return c, parsed.Command(), nil
}

func parse(c *CLI, args []string, version string, stdout, stderr io.Writer, exit func(int)) (*kong.Context, error) {
	parser, err := kong.New(c,
		kong.Name("accelscope"),
		kong.Description("Which container uses which RDMA HCA and which GPU, how hard, and how well is it going?"),
		kong.DefaultEnvars("ACCELSCOPE"),
		flagVars,
		kong.Vars{"version": version},
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Writers(stdout, stderr),
		kong.Exit(exit),
	)
	if err != nil {
		return nil, err
	}
	return parser.Parse(args)
}

// BeforeResolve rejects commands of the other program, and adds the configuration file as a resolver. It runs
// when the command line and the environment are known and nothing is set yet.
func (c *CLI) BeforeResolve(ctx *kong.Context) error {
	if p := programOf(ctx.Selected()); c.program != "" && c.program != p {
		return fmt.Errorf("%w: %s is a command of %s", ErrOtherProgram, ctx.Command(), p)
	}
	var path string
	for _, flag := range ctx.Model.Flags {
		if flag.Name == "config.file" {
			path, _ = ctx.FlagValue(flag).(string)
		}
	}
	if path == "" {
		return nil
	}
	file, err := readConfigFile(path)
	if err != nil {
		return err
	}
	if err := file.checkKeys(ctx.Model); err != nil {
		return err
	}
	ctx.AddResolver(file)
	return nil
}

// programOf returns the program that a command or subcommand belongs to.
func programOf(command *kong.Node) Program {
	for ; command != nil; command = command.Parent {
		if command.Tag.Has("tool") {
			return Tool
		}
	}
	return Sensor
}
