// SPDX-License-Identifier: Apache-2.0

package model

// RuntimeAPI is the API that a container runtime serves on its socket, and the KIND of --runtime.socket.
type RuntimeAPI string

// The APIs. Podman serves that of Docker.
const (
	APIContainerd RuntimeAPI = "containerd"
	APIDocker     RuntimeAPI = "docker"
	APICRI        RuntimeAPI = "cri"
)

// The names of runtimes that drivers need to know.
const (
	RuntimeContainerd = "containerd"
	RuntimeDocker     = "docker"
	RuntimePodman     = "podman"
)

// Runtime describes one container runtime: its sockets, and how it names the cgroups of its containers.
type Runtime struct {
	Name    string // value of the label runtime
	API     RuntimeAPI
	Sockets []string // default paths of its socket
	// SocketWord is the part of a socket's path that identifies the runtime. Empty if there is none.
	SocketWord string
	Scopes     []string // prefixes of a container's cgroup, followed by its ID
	// Parent is the directory in which the cgroupfs driver puts containers without a pod. Empty if there is none.
	Parent string
	Unit   string // systemd service below which only root's runtimes create cgroups; empty if there is none
	// Rootless reports that unprivileged users can create cgroups with these names: the
	// container ID is not verified.
	Rootless bool
}

// Runtimes lists the container runtimes. If two of them serve one socket, the API of the first is used.
var Runtimes = []Runtime{
	{
		Name: RuntimeContainerd, API: APIContainerd, SocketWord: "containerd",
		Sockets: []string{
			"/run/containerd/containerd.sock", "/run/k3s/containerd/containerd.sock", "/run/k0s/containerd.sock",
			"/var/snap/microk8s/common/run/containerd.sock",
		},
		Scopes: []string{"cri-containerd-", "nerdctl-"}, Parent: "k8s.io", Unit: "containerd.service",
	},
	{
		Name: RuntimeDocker, API: APIDocker, SocketWord: "docker",
		Sockets: []string{"/run/docker.sock", "/var/run/docker.sock"},
		Scopes:  []string{"docker-"}, Parent: "docker", Unit: "docker.service",
	},
	{
		Name: RuntimePodman, API: APIDocker, SocketWord: "podman",
		Sockets: []string{"/run/podman/podman.sock"},
		Scopes:  []string{"libpod-payload-", "libpod-"}, Rootless: true,
	},
	{
		Name: "cri-o", API: APICRI, Sockets: []string{"/run/crio/crio.sock"}, Scopes: []string{"crio-"}, Unit: "crio.service",
	},
}
