// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/accelscope/accelscope/pkg/metrics"
)

// cli is everything a user can set. kong fills it, in this order of precedence:
// command line, environment (ACCELSCOPE_ and the flag's name), the YAML file of
// --config.file (its keys are the names of the flags), default.
//
// Unknown environment variables are not refused: Kubernetes itself sets
// ACCELSCOPE_PORT and similar variables if a Service has the name accelscope.
type cli struct {
	Run       runCmd       `cmd:"" default:"withargs" help:"Run the sensor (default)."`
	Doctor    doctorCmd    `cmd:"" help:"Try every source, probe and permission once. Show what fails and the cure."`
	Check     checkCmd     `cmd:"" help:"Check flags, environment and configuration files without starting the sensor."`
	Top       topCmd       `cmd:"" help:"Show workloads and the devices they use, from a running sensor."`
	Fleet     fleetCmd     `cmd:"" set:"listen=:9851" help:"Show all nodes in a browser, from a Prometheus."`
	Peers     peersCmd     `cmd:"" help:"Show connections between workloads and remote ports, from a running sensor."`
	Topo      topoCmd      `cmd:"" help:"Show how near GPUs and HCAs are to each other, and which workloads use them."`
	GPU       gpuCmd       `cmd:"" name:"gpu" help:"Release the GPUs of a running sensor for work on them."`
	Inventory inventoryCmd `cmd:"" name:"inventory" help:"Accept the devices of the node as they are now."`
	Version   versionCmd   `cmd:"" help:"Print the version."`

	PrintVersion kong.VersionFlag `name:"version" env:"-" help:"Print the version."`

	ConfigFile string `name:"config.file" placeholder:"FILE" help:"YAML configuration file. Its keys are the names of the flags."`
	LogLevel   string `name:"log.level" enum:"debug,info,warn,error" default:"info" help:"Lowest level to log (${enum})."`
	LogFormat  string `name:"log.format" enum:"console,json" default:"console" help:"Log format (${enum})."`
}

// sensorFlags select what the sensor reads. run and doctor share them.
type sensorFlags struct {
	released error // why NVIDIA's library is not opened; nil if it may be
	readOnly bool  // nothing is written to the state directory

	Sysfs  string `name:"path.sysfs" default:"/sys" placeholder:"DIR" help:"Mount point of sysfs."`
	Procfs string `name:"path.procfs" default:"/proc" placeholder:"DIR" help:"Mount point of procfs."`
	Cgroup string `name:"path.cgroup" default:"/sys/fs/cgroup" placeholder:"DIR" help:"Mount point of the cgroup hierarchy."`
	Run    string `name:"path.run" placeholder:"DIR" help:"/run of the node, with runtime sockets. Default: run below --path.host."`
	Host   string `name:"path.host" default:"/" placeholder:"DIR" help:"Root of the node: runtime sockets, file systems, users."`

	RDMA          bool   `name:"collector.rdma" negatable:"" default:"true" help:"Read HCAs, ports and their counters."`
	DeviceInclude string `name:"collector.rdma.device-include" placeholder:"REGEXP" help:"Read only HCAs with a matching name."`
	DeviceExclude string `name:"collector.rdma.device-exclude" placeholder:"REGEXP" help:"HCAs to skip. Probes still count on them."`
	Link          bool   `name:"collector.link" negatable:"" default:"true" help:"Read pause, FEC and link state of ports from drivers."`
	CgroupTree    bool   `name:"collector.cgroup" negatable:"" default:"true" help:"Map cgroups to their owners."`
	PCI           bool   `name:"collector.pci" negatable:"" default:"true" help:"Read PCIe links of HCAs and GPUs, and their errors."`
	Probe         bool   `name:"collector.probe" negatable:"" default:"true" help:"Count verbs and RDMA objects in the kernel, with BPF."`

	Tier       string `name:"probe.tier" enum:"auto,fentry,kprobe,tracepoint" default:"auto" help:"How BPF programs attach (${enum})."`
	BTFDir     string `name:"probe.btf-dir" placeholder:"DIR" help:"Type information of RDMA modules that have none, one file per module."`
	MapEntries uint32 `name:"probe.map-entries" default:"0" help:"Maximum number of (workload, HCA, verb) series. 0: by CPUs and HCAs."`
	MaxObjects uint32 `name:"probe.max-objects" default:"0" help:"Maximum number of RDMA objects; half as many peers. 0: by CPUs and HCAs."`

	AttachLimit time.Duration `name:"probe.attach-limit" default:"100ms" help:"Longest wait of forks for one probe of a file."`
	MaxMappings int           `name:"probe.max-mappings" default:"5000" help:"Maximum number of mappings of a file with uprobes."`

	linkFlags
	dataPathFlags

	Containers bool   `name:"collector.container" negatable:"" default:"true" help:"Deprecated: false is --container.scope=none."`
	Scope      string `name:"container.scope" enum:"auto,all,accelerated,none" default:"auto" help:"Workloads with CPU, memory (${enum})."`
	Node       bool   `name:"collector.node" negatable:"" default:"true" help:"Read metrics of the node, as node_exporter does."`

	NetExclude string `name:"collector.node.network-exclude" default:"${podinterfaces}" placeholder:"REGEXP" help:"Interfaces to skip."`

	KernelLog bool `name:"collector.kernellog" negatable:"" default:"true" help:"Read errors of GPUs and HCAs from the kernel log."`

	Runtime bool     `name:"collector.runtime" negatable:"" default:"true" help:"Read names and states of containers from runtimes."`
	Sockets []string `name:"runtime.socket" placeholder:"KIND:PATH" help:"Socket, as docker:/run/docker.sock. Default: all that exist."`
	Labels  []string `name:"workload.labels" placeholder:"NAME" help:"Labels and annotations in accelscope_workload_info."`
	Env     []string `name:"workload.env" placeholder:"NAME" help:"Variables of processes with their rank, as RANK. Default: none."`

	kubeletFlags
	gpuFlags
	fabricFlags

	NodeName string `name:"node.name" env:"ACCELSCOPE_NODE_NAME,NODE_NAME" placeholder:"NAME" help:"Node name. Default: the host name."`
	NodeIP   string `name:"node.ip" env:"ACCELSCOPE_NODE_IP,NODE_IP" placeholder:"ADDR" help:"IP address of the node."`

	StateDir string `name:"state.dir" default:"/var/lib/accelscope" placeholder:"DIR" help:"Directory for the inventory. Empty: none."`

	Grace  time.Duration `name:"grace" default:"5m" help:"How long an ended workload keeps its name and counters."`
	Strict bool          `name:"strict" help:"Exit when a source is not fully usable."`
}

// dataPathFlags configure how the bytes of containers are counted.
type dataPathFlags struct {
	DataPath   string  `name:"rdma.datapath" enum:"off,survey,always" default:"off" help:"Count posts and polls with uprobes (${enum})."`
	PathBudget float64 `name:"rdma.datapath-budget" default:"0.01" placeholder:"RATIO" help:"CPU share of probes that leads to surveys."`
	PathSelect string  `name:"rdma.datapath-select" placeholder:"REGEXP" help:"Probe only matching workloads (ns/pod/container)."`
	PathLimit  uint32  `name:"rdma.datapath-max-contexts" default:"4096" help:"Maximum number of probed verbs contexts. Half per cgroup."`
	QPCounters string  `name:"rdma.qp-counters" enum:"off,use,manage" default:"off" help:"Read hardware counters of queue pairs (${enum})."`

	SurveyLength   time.Duration `name:"rdma.survey-length" default:"10s" help:"Length of a survey of a costly process."`
	SurveyInterval time.Duration `name:"rdma.survey-interval" default:"10m" help:"Time between surveys."`

	StallAfter time.Duration `name:"rdma.stall-after" default:"10s" help:"Time without a completion after which a queue pair is stalled."`
}

// kubeletFlags configure access to the kubelet.
type kubeletFlags struct {
	Kubelet          bool          `name:"collector.kubelet" negatable:"" default:"true" help:"Read pods and devices from the kubelet."`
	PodResources     string        `name:"kubelet.pod-resources" placeholder:"PATH" help:"PodResources socket. Default: the kubelet's."`
	KubeletURL       string        `name:"kubelet.url" placeholder:"URL" help:"Kubelet. Default: https://NODE_IP:10250 in a pod."`
	KubeletTokenFile string        `name:"kubelet.token-file" placeholder:"FILE" help:"Bearer token. Default: the service account's."`
	KubeletCAFile    string        `name:"kubelet.ca-file" placeholder:"FILE" help:"CA of the kubelet. Default: the cluster's."`
	KubeletCertFile  string        `name:"kubelet.certificate-file" placeholder:"FILE" help:"The kubelet's self-signed certificate."`
	KubeletInsecure  bool          `name:"kubelet.insecure-skip-verify" help:"Do not verify the kubelet's certificate."`
	KubeletSendToken bool          `name:"kubelet.insecure-send-token" help:"Send the token also to a kubelet that is not verified."`
	KubeletInterval  time.Duration `name:"kubelet.interval" default:"15s" help:"Interval between requests to the kubelet."`
}

// gpuFlags configure how GPUs are read.
type gpuFlags struct {
	GPU         bool          `name:"collector.gpu" negatable:"" default:"true" help:"Read GPUs and the processes that use them."`
	Access      bool          `name:"collector.access" negatable:"" default:"true" help:"Count opens of the device nodes of HCAs and GPUs."`
	GPUInterval time.Duration `name:"gpu.process-interval" default:"5s" help:"Interval between listings of GPU processes."`
	GPUDetail   string        `name:"gpu.detail" enum:"basic,full" default:"basic" help:"Series of GPUs (${enum})."`
	NVML        string        `name:"gpu.nvml-library" placeholder:"PATH" help:"libnvidia-ml.so.1. Default: found in standard directories."`
	NodeLabels  bool          `name:"gpu.release-on-node-labels" help:"Release the driver when labels of the node pause its users."`
	Allocations bool          `name:"gpu.allocation-failures" help:"Count failed allocations of GPU memory, with uprobes."`
	GPUDriver   bool          `name:"collector.gpudriver" help:"Measure ioctls of GPU drivers and find tasks that are stuck in one."`
	StuckAfter  time.Duration `name:"gpu.stuck-after" default:"30s" help:"Time in an ioctl of a GPU driver after which a task is stuck."`
	AMDSMI      string        `name:"gpu.amd-smi" placeholder:"PATH" help:"amd-smi, for values that amdgpu lacks. Default: disabled."`
}

// fabricFlags configure how one node reads the InfiniBand fabric.
type fabricFlags struct {
	Fabric         bool          `name:"collector.fabric" help:"Read the InfiniBand fabric. Enable on one node per fabric."`
	FabricInterval time.Duration `name:"fabric.interval" default:"1m" help:"Interval between reads of the fabric."`
	FabricTools    string        `name:"fabric.tools" placeholder:"DIR" help:"Path of infiniband-diags. Default: standard directories."`
	FabricPort     string        `name:"fabric.port" placeholder:"HCA/PORT" help:"Port to read the fabric from. Default: the first active."`
	FabricNames    string        `name:"fabric.node-name-map" placeholder:"FILE" help:"Node name map, in the format of ibnetdiscover."`
	FabricParallel int           `name:"fabric.parallel" default:"4" help:"Maximum number of switches to query in parallel."`
}

// eventFlags configure the endpoint that receives events.
type eventFlags struct {
	Endpoint    string `name:"events.otlp-endpoint" placeholder:"HOST:PORT" help:"OTLP/gRPC receiver of events. Default: disabled."`
	Insecure    bool   `name:"events.otlp-insecure" help:"Send events without TLS."`
	CAFile      string `name:"events.otlp-ca-file" placeholder:"FILE" help:"CA of the endpoint's certificate. Default: the system's CAs."`
	CertFile    string `name:"events.otlp-cert-file" placeholder:"FILE" help:"Client certificate."`
	KeyFile     string `name:"events.otlp-key-file" placeholder:"FILE" help:"Key of the client certificate."`
	HeadersFile string `name:"events.otlp-headers-file" placeholder:"FILE" help:"File with headers to send, one NAME: VALUE per line."`
	QueueSize   int    `name:"events.queue-size" default:"8192" help:"Maximum number of events to queue while the endpoint is unavailable."`
}

// listenFlags configure where the sensor listens. run and the health check share them.
type listenFlags struct {
	ListenAddress []string `name:"web.listen-address" default:"${listen}" placeholder:"ADDR" help:"Address to listen on. May be repeated."`
	WebConfig     string   `name:"web.config.file" placeholder:"FILE" help:"Configures TLS and authentication (exporter-toolkit)."`
	ProbeAddress  string   `name:"web.probe-address" placeholder:"ADDR" help:"Answer /healthz and /readyz here as well, without TLS."`
}

// webFlags configure the HTTP server and the metrics it serves.
type webFlags struct {
	listenFlags
	TelemetryPath string `name:"web.telemetry-path" default:"/metrics" placeholder:"PATH" help:"Path of the metrics."`
	Pages         bool   `name:"web.pages" negatable:"" default:"true" help:"Show the node in a browser, at /."`
	History       bool   `name:"web.history" negatable:"" default:"true" help:"Keep the last 15 minutes for the pages, in at most 2 MB."`
	NoSelfMetrics bool   `name:"web.disable-exporter-metrics" help:"Omit go_* and process_* metrics."`
	metricsFlags
}

// metricsFlags select the metrics that are exported.
type metricsFlags struct {
	Compat  []string `name:"metrics.compat" enum:"${compat}" default:"lens" help:"Add names (${enum})."`
	Exclude string   `name:"metrics.exclude" default:"node_cpu_guest_seconds_total" placeholder:"REGEXP" help:"Metrics to leave out."`
	States  string   `name:"metrics.states" enum:"current,all" default:"current" help:"Series of states of the sensor (${enum})."`
	Forms   []string `name:"metrics.histograms" enum:"classic,native" default:"classic,native" help:"Forms of histograms (${enum})."`
	Created bool     `name:"metrics.created-lines" help:"Add start times to OpenMetrics text, as series NAME_created."`
}

// podInterfaces are the names of the ends on the node of the interfaces of pods and containers: of CNI plugins and Docker, of
// Calico, of Cilium, and of Azure. container_network_* has the other ends.
const podInterfaces = "(veth|cali|lxc|azv).*"

// flagVars are the variables in the tags of flags.
var flagVars = kong.Vars{
	"podinterfaces": podInterfaces, "compat": strings.Join(metrics.CompatSets(), ","), "socket": defaultSocket,
	"listen": ":9847", // the page of all nodes has another default
}

// parse reads args, the environment and the configuration file into c. What
// --help prints goes to stdout, and exit is called after it.
func parse(c *cli, args []string, stdout, stderr io.Writer, exit func(int)) (*kong.Context, error) {
	parser, err := kong.New(c,
		kong.Name("accelscope"),
		kong.Description("Which container uses which RDMA HCA and which GPU, how hard, and how well is it going?"),
		kong.DefaultEnvars("ACCELSCOPE"),
		flagVars,
		kong.Vars{"version": versionLine()},
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Writers(stdout, stderr),
		kong.Exit(exit),
	)
	if err != nil {
		return nil, err
	}
	return parser.Parse(args)
}

// BeforeResolve adds the configuration file as a resolver. It runs
// when the command line and the environment are known and nothing is set yet.
func (c *cli) BeforeResolve(ctx *kong.Context) error {
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
