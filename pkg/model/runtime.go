// SPDX-License-Identifier: Apache-2.0

package model

// RuntimeAPI is the API on a container runtime's socket, and the KIND of --runtime.socket.
type RuntimeAPI string

// The APIs. Podman serves Docker's API.
const (
	APIContainerd RuntimeAPI = "containerd"
	APIDocker     RuntimeAPI = "docker"
	APICRI        RuntimeAPI = "cri"
)

// The names of runtimes that code refers to.
const (
	RuntimeContainerd = "containerd"
	RuntimeDocker     = "docker"
	RuntimePodman     = "podman"
)

// Runtime describes a container runtime: its sockets, and its names of container cgroups.
type Runtime struct {
	Name    string // value of the label runtime
	API     RuntimeAPI
	Sockets []string // default paths of its socket
	// SocketWord is the part of a socket's path that identifies the runtime; may be empty.
	SocketWord string
	Scopes     []string // prefixes of a container's cgroup, followed by its ID
	// Parent is the cgroupfs driver's directory of containers without a pod; may be empty.
	Parent string
	Unit   string // systemd service below which only root's runtimes create cgroups; may be empty
	// Rootless reports that unprivileged users can create cgroups with these names: the container ID is not verified.
	Rootless bool
}

// Runtimes lists the container runtimes. If two runtimes serve a socket, the first decides the API.
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
