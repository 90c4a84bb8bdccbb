// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"time"

	"github.com/alecthomas/kong"
)

// cli is everything a user can set. kong fills it, in this order of precedence:
// command line, environment (ACCELSCOPE_ and the flag's name), the YAML file of
// --config.file (keys are the names of the flags), default.
//
// Unknown environment variables are not refused: Kubernetes itself sets
// ACCELSCOPE_PORT and its like in every pod beside a Service of that name.
type cli struct {
	Run     runCmd     `cmd:"" default:"withargs" help:"Run the sensor (default)."`
	Doctor  doctorCmd  `cmd:"" help:"Try every source, probe and permission once; say what is wrong and what helps."`
	Check   checkCmd   `cmd:"" help:"Check flags, environment and configuration files, and start nothing."`
	Top     topCmd     `cmd:"" help:"Show who uses what, from any running sensor."`
	Peers   peersCmd   `cmd:"" help:"Show who is connected to whom, from any running sensor."`
	Version versionCmd `cmd:"" help:"Print the version."`

	ConfigFile string `name:"config.file" placeholder:"FILE" help:"YAML file; its keys are the names of the flags."`
	LogLevel   string `name:"log.level" enum:"debug,info,warn,error" default:"info" help:"Lowest level to log (${enum})."`
	LogFormat  string `name:"log.format" enum:"console,json" default:"console" help:"Format of the log (${enum})."`
}

// sensorFlags say what is read and how: run and doctor share them.
type sensorFlags struct {
	Sysfs  string `name:"path.sysfs" default:"/sys" placeholder:"DIR" help:"Where sysfs is mounted."`
	Procfs string `name:"path.procfs" default:"/proc" placeholder:"DIR" help:"Where procfs is mounted."`
	Cgroup string `name:"path.cgroup" default:"/sys/fs/cgroup" placeholder:"DIR" help:"Where the cgroup tree is mounted."`
	Run    string `name:"path.run" placeholder:"DIR" help:"The node's /run: sockets of runtimes. Default: run in --path.host."`
	Host   string `name:"path.host" default:"/" placeholder:"DIR" help:"The node's root: sockets of runtimes, file systems, users."`

	RDMA          bool   `name:"collector.rdma" negatable:"" default:"true" help:"Read HCAs, ports and their counters."`
	DeviceInclude string `name:"collector.rdma.device-include" placeholder:"REGEXP" help:"Read only HCAs that match."`
	DeviceExclude string `name:"collector.rdma.device-exclude" placeholder:"REGEXP" help:"HCAs not to be read; the probe still counts."`
	CgroupTree    bool   `name:"collector.cgroup" negatable:"" default:"true" help:"Name the owners of cgroups."`
	Probe         bool   `name:"collector.probe" negatable:"" default:"true" help:"Count verbs and objects in the kernel."`

	Tier       string `name:"probe.tier" enum:"auto,fentry,kprobe,tracepoint" default:"auto" help:"How to attach (${enum})."`
	MapEntries uint32 `name:"probe.map-entries" default:"8192" help:"Most series the probes keep: (cgroup, HCA, verb)."`
	MaxObjects uint32 `name:"probe.max-objects" default:"65536" help:"Most live RDMA objects the probes follow; half as many peers."`

	dataPathFlags

	Containers bool `name:"collector.container" negatable:"" default:"true" help:"Read what containers use of the node."`
	Node       bool `name:"collector.node" negatable:"" default:"true" help:"Read the node itself, as node_exporter does."`

	Runtime bool     `name:"collector.runtime" negatable:"" default:"true" help:"Ask container runtimes for names and states."`
	Sockets []string `name:"runtime.socket" placeholder:"KIND:PATH" help:"As docker:/run/docker.sock; may be repeated. Default: all found."`
	Labels  []string `name:"workload.labels" placeholder:"NAME" help:"Labels and annotations for accelscope_workload_info."`

	kubeletFlags
	gpuFlags
	fabricFlags

	NodeName string `name:"node.name" env:"ACCELSCOPE_NODE_NAME,NODE_NAME" placeholder:"NAME" help:"The node. Default: the host name."`
	NodeIP   string `name:"node.ip" env:"ACCELSCOPE_NODE_IP,NODE_IP" placeholder:"ADDR" help:"Address of the node."`

	Grace  time.Duration `name:"grace" default:"5m" help:"How long what is gone keeps its name and totals."`
	Strict bool          `name:"strict" help:"End when a source is not fully usable."`
}

// dataPathFlags say what may be done to know what containers move.
type dataPathFlags struct {
	DataPath   string  `name:"rdma.datapath" enum:"off,budget,always" default:"off" help:"Probe what processes post and poll (${enum})."`
	PathBudget float64 `name:"rdma.datapath-budget" default:"0.01" placeholder:"RATIO" help:"Part of a process's CPU time it may cost."`
	PathSelect string  `name:"rdma.datapath-select" placeholder:"REGEXP" help:"Probe only workloads (ns/pod/container) that match."`
	QPCounters string  `name:"rdma.qp-counters" enum:"off,use,manage" default:"off" help:"Counters of queue pairs (${enum})."`
}

// kubeletFlags say how the kubelet is asked.
type kubeletFlags struct {
	Kubelet          bool          `name:"collector.kubelet" negatable:"" default:"true" help:"Ask the kubelet for pods and devices."`
	PodResources     string        `name:"kubelet.pod-resources" placeholder:"PATH" help:"Its PodResources. Default: the usual place."`
	KubeletURL       string        `name:"kubelet.url" placeholder:"URL" help:"The kubelet. Default: https://NODE_IP:10250 in a pod."`
	KubeletTokenFile string        `name:"kubelet.token-file" placeholder:"FILE" help:"Bearer token. Default: the service account's."`
	KubeletCAFile    string        `name:"kubelet.ca-file" placeholder:"FILE" help:"Who signs for it. Default: the cluster."`
	KubeletInsecure  bool          `name:"kubelet.insecure-skip-verify" help:"Do not check the kubelet's certificate."`
	KubeletInterval  time.Duration `name:"kubelet.interval" default:"15s" help:"How often the kubelet is asked."`
}

// gpuFlags say how GPUs are read.
type gpuFlags struct {
	GPU         bool          `name:"collector.gpu" negatable:"" default:"true" help:"Read GPUs and who uses them."`
	Access      bool          `name:"collector.access" negatable:"" default:"true" help:"Count who opens HCAs and GPUs."`
	GPUInterval time.Duration `name:"gpu.process-interval" default:"5s" help:"How often users of GPUs are listed."`
	NVML        string        `name:"gpu.nvml-library" placeholder:"PATH" help:"libnvidia-ml.so.1. Default: the usual places."`
	AMDSMI      string        `name:"gpu.amd-smi" placeholder:"PATH" help:"amd-smi, for what amdgpu does not tell. Default: not used."`
}

// fabricFlags say how the InfiniBand fabric is read, by one node for all.
type fabricFlags struct {
	Fabric         bool          `name:"collector.fabric" help:"Read the InfiniBand fabric; on one node for each fabric."`
	FabricInterval time.Duration `name:"fabric.interval" default:"1m" help:"How often the fabric is read."`
	FabricTools    string        `name:"fabric.tools" placeholder:"DIR" help:"Where infiniband-diags is. Default: the usual places."`
	FabricPort     string        `name:"fabric.port" placeholder:"HCA/PORT" help:"Port to read it from. Default: the first active one."`
	FabricNames    string        `name:"fabric.node-name-map" placeholder:"FILE" help:"Names of nodes, as ibnetdiscover takes them."`
	FabricParallel int           `name:"fabric.parallel" default:"4" help:"Most switches to ask at once."`
}

// eventFlags say where events go.
type eventFlags struct {
	Endpoint    string `name:"events.otlp-endpoint" placeholder:"HOST:PORT" help:"Who takes events (OTLP over gRPC). Default: nobody."`
	Insecure    bool   `name:"events.otlp-insecure" help:"Send events without TLS."`
	CAFile      string `name:"events.otlp-ca-file" placeholder:"FILE" help:"Who signs for it. Default: the system's authorities."`
	CertFile    string `name:"events.otlp-cert-file" placeholder:"FILE" help:"Certificate to show to it."`
	KeyFile     string `name:"events.otlp-key-file" placeholder:"FILE" help:"Key of that certificate."`
	HeadersFile string `name:"events.otlp-headers-file" placeholder:"FILE" help:"Headers to send with events, a line NAME: VALUE each."`
	QueueSize   int    `name:"events.queue-size" default:"8192" help:"Most events to keep while the collector is away."`
}

// listenFlags say where the sensor answers: run and the health check share them.
type listenFlags struct {
	ListenAddress []string `name:"web.listen-address" default:":9847" placeholder:"ADDR" help:"Where to listen; may be repeated."`
	WebConfig     string   `name:"web.config.file" placeholder:"FILE" help:"TLS and authentication (exporter-toolkit)."`
}

// webFlags say how the sensor answers.
type webFlags struct {
	listenFlags
	TelemetryPath string   `name:"web.telemetry-path" default:"/metrics" placeholder:"PATH" help:"Path of the metrics."`
	NoSelfMetrics bool     `name:"web.disable-exporter-metrics" help:"Leave out go_* and process_*."`
	Compat        []string `name:"metrics.compat" enum:"lens,node_exporter,rdma_exporter,dcgm" default:"lens" help:"Add names (${enum})."`
}

// parse reads args, the environment and the configuration file into c. What
// --help prints goes to stdout, and exit is called after it.
func parse(c *cli, args []string, stdout, stderr io.Writer, exit func(int)) (*kong.Context, error) {
	parser, err := kong.New(c,
		kong.Name("accelscope"),
		kong.Description("Which container uses which RDMA HCA and which GPU, how hard, and how well is it going?"),
		kong.DefaultEnvars("ACCELSCOPE"),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Writers(stdout, stderr),
		kong.Exit(exit),
	)
	if err != nil {
		return nil, err
	}
	return parser.Parse(args)
}

// BeforeResolve adds the configuration file to where values come from. It runs
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
