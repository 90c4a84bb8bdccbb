// SPDX-License-Identifier: Apache-2.0
// dmabuf registers memory of the process, memory of a GPU by its address (peer memory), and buffers that devices share (dma-bufs) as
// memory regions, prints each and holds them until SIGTERM or the end of standard input.

#include "workload.h"

#include <fcntl.h>
#include <linux/dma-heap.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>

enum { MOST = 64 };

// Definitions of drm/drm.h, which is in another package than the other headers of the kernel.
struct create_dumb {
	uint32_t height, width, bits_per_pixel, flags, handle, pitch;
	uint64_t size;
};
struct prime_handle {
	uint32_t handle, flags;
	int32_t fd;
};
struct map_dumb {
	uint32_t handle, pad;
	uint64_t offset;
};
#define CREATE_DUMB _IOWR('d', 0xb2, struct create_dumb)
#define MAP_DUMB _IOWR('d', 0xb3, struct map_dumb)
#define PRIME_HANDLE_TO_FD _IOWR('d', 0x2d, struct prime_handle)

static int open_device_file(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);

	if (fd < 0)
		err(1, "%s", path);
	return fd;
}

// memory_file returns a file in memory that udmabuf accepts.
static int memory_file(size_t size)
{
	int fd = memfd_create("dmabuf", MFD_ALLOW_SEALING | MFD_CLOEXEC);

	if (fd < 0 || ftruncate(fd, size) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK))
		err(1, "memfd of %zu bytes", size);
	return fd;
}

// gpu_buffer returns the handle of a new buffer of a GPU.
static uint32_t gpu_buffer(int gpu, size_t size)
{
	struct create_dumb create = {.height = size / 4096, .width = 1024, .bits_per_pixel = 32};

	if (ioctl(gpu, CREATE_DUMB, &create))
		err(1, "buffer of a GPU of %zu bytes", size);
	if (create.size != size)
		errx(2, "%zu: want a multiple of 4096", size);
	return create.handle;
}

// gpu_memory maps a new buffer of a GPU.
static void *gpu_memory(const char *path, size_t size)
{
	int gpu = open_device_file(path);
	struct map_dumb map = {.handle = gpu_buffer(gpu, size)};
	void *at;

	if (ioctl(gpu, MAP_DUMB, &map))
		err(1, "%s: offset of a buffer", path);
	at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, gpu, map.offset);
	if (at == MAP_FAILED)
		err(1, "%s: mmap", path);
	return memset(at, 1, size); // the driver maps each page when it is written
}

// buffer returns a new dma-buf.
static int buffer(const char *exporter, size_t size)
{
	if (!strcmp(exporter, "udmabuf")) {
		struct udmabuf_create create = {.memfd = memory_file(size), .flags = UDMABUF_FLAGS_CLOEXEC, .size = size};
		int fd = ioctl(open_device_file("/dev/udmabuf"), UDMABUF_CREATE, &create);
		if (fd < 0)
			err(1, "udmabuf of %zu bytes", size);
		return fd;
	}
	if (!strcmp(exporter, "heap")) {
		struct dma_heap_allocation_data create = {.len = size, .fd_flags = O_RDWR | O_CLOEXEC};
		if (ioctl(open_device_file("/dev/dma_heap/system"), DMA_HEAP_IOCTL_ALLOC, &create))
			err(1, "heap of %zu bytes", size);
		return create.fd;
	}
	if (!strncmp(exporter, "/dev/dri/", 9)) {
		int gpu = open_device_file(exporter);
		struct prime_handle prime = {.handle = gpu_buffer(gpu, size), .flags = O_RDWR | O_CLOEXEC};
		if (ioctl(gpu, PRIME_HANDLE_TO_FD, &prime))
			err(1, "%s: dma-buf", exporter);
		return prime.fd;
	}
	errx(2, "%s: want udmabuf, heap or /dev/dri/FILE", exporter);
}

// ibv_reg_dmabuf_mr calls the provider, and rxe's lacks it. Providers call this function of libibverbs for it.
struct verbs_mr {
	struct ibv_mr mr;
	int type, access;
};
int ibv_cmd_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access,
			  struct verbs_mr *mr);

// register_buffer registers the first bytes of a dma-buf. It returns NULL if the kernel refuses that.
static struct ibv_mr *register_buffer(struct ibv_pd *pd, int fd, size_t bytes)
{
	struct verbs_mr *region = calloc(1, sizeof *region);

	if (!region)
		err(1, "calloc");
	if (ibv_cmd_reg_dmabuf_mr(pd, 0, bytes, 0, fd, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ, region)) {
		free(region);
		return NULL;
	}
	region->mr.context = pd->context;
	region->mr.pd = pd;
	region->mr.length = bytes;
	return &region->mr; // ibv_dereg_mr frees it
}

// refused tries registrations that fail: before, during and after the mapping of the dma-buf.
static void refused(struct ibv_pd *pd)
{
	int page = getpagesize(), fd = buffer("udmabuf", 2 * page);
	struct {
		int fd;
		size_t bytes;
		int e;
	} tries[] = {{memory_file(page), page, EINVAL}, {fd, 3 * page, EINVAL}, {fd, page, EOPNOTSUPP}};

	for (int i = 0; i < 3; i++)
		if (register_buffer(pd, tries[i].fd, tries[i].bytes) || errno != tries[i].e)
			err(1, "registration %d did not fail as expected", i);
	close(fd);
}

// read_back writes into the last page of each dma-buf and of peer memory by the CPU, reads it by RDMA, and compares. Regions of dma-bufs
// have no address.
static void read_back(struct ibv_pd *pd, struct ibv_mr *to, struct ibv_mr **from, int *fds, int n)
{
	struct ibv_cq *cq = ibv_create_cq(pd->context, 16, NULL, NULL, 0);
	struct ibv_qp *qp = cq ? create_qp(pd, cq) : NULL;
	uint32_t page = getpagesize();
	union ibv_gid gid;

	if (!qp || ibv_query_gid(pd->context, 1, 1, &gid))
		err(1, "create_cq or query_gid");
	connect_qp(qp, gid, 1);
	for (int i = 0; i < n; i++) {
		if (from[i] == to)
			continue;
		size_t last = from[i]->length - page;
		char *buffer = from[i]->addr;
		if (!buffer)
			buffer = mmap(NULL, from[i]->length, PROT_READ | PROT_WRITE, MAP_SHARED, fds[i], 0);
		if (buffer == MAP_FAILED)
			err(1, "mmap of a dma-buf");
		memset(buffer + last, 'a' + i, page);
		struct ibv_sge sge = {.addr = (uintptr_t)to->addr, .length = page, .lkey = to->lkey};
		struct ibv_send_wr *bad, wr = {
			.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = {.remote_addr = (uintptr_t)from[i]->addr + last, .rkey = from[i]->rkey},
		};
		struct ibv_wc wc = {};
		if (ibv_post_send(qp, &wr, &bad))
			err(1, "post_send");
		while (!ibv_poll_cq(cq, 1, &wc))
			;
		if (wc.status || memcmp(to->addr, buffer + last, page))
			errx(1, "read of a device's memory: %s", wc.status ? ibv_wc_status_str(wc.status) : "other bytes");
		if (!from[i]->addr)
			munmap(buffer, from[i]->length);
	}
	if (ibv_destroy_qp(qp) || ibv_destroy_cq(cq))
		errx(1, "destroy_qp or destroy_cq");
}

static const char usage[] =
	"usage: dmabuf [-d DEVICE] [-r] EXPORTER=BYTES...\n"
	"  EXPORTER  udmabuf, heap, a file of /dev/dri, peer:FILE for such a file and the address of its memory, or host: memory\n"
	"            of the process, after three registrations of dma-bufs that fail\n"
	"  -r        reads from each dma-buf and peer memory by RDMA, into the memory of the process\n";

int main(int argc, char **argv)
{
	const char *device = NULL;
	struct ibv_mr *mrs[MOST], *host = NULL;
	int opt, n = 0, read = 0, fds[MOST];

	while ((opt = getopt(argc, argv, "d:rh")) != -1)
		switch (opt) {
		case 'd': device = optarg; break;
		case 'r': read = 1; break;
		default: fputs(usage, stderr); return 2;
		}
	struct ibv_context *context = open_device(device);
	struct ibv_pd *pd = ibv_alloc_pd(context);

	if (!pd)
		err(1, "alloc_pd");
	for (; optind < argc; optind++) {
		char *exporter = argv[optind], *size = strchr(exporter, '=');
		if (!size || n == MOST)
			errx(2, "%s: want EXPORTER=BYTES, %d at most", exporter, MOST);
		*size++ = 0;
		size_t bytes = strtoull(size, NULL, 0);
		if (!strcmp(exporter, "host")) {
			refused(pd);
			mrs[n] = host = register_pages(pd, bytes);
		} else if (!strncmp(exporter, "peer:", 5)) {
			mrs[n] = ibv_reg_mr(pd, gpu_memory(exporter + 5, bytes), bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
			if (!mrs[n])
				err(1, "reg_mr of %zu bytes of %s", bytes, exporter);
		} else {
			fds[n] = buffer(exporter, bytes);
			if (!(mrs[n] = register_buffer(pd, fds[n], bytes)))
				err(1, "reg_dmabuf_mr of %zu bytes of %s", bytes, exporter);
		}
		n++;
		printf("region %s %zu\n", exporter, bytes);
	}
	if (read && host)
		read_back(pd, host, mrs, fds, n);
	hold();
	while (n--)
		if (ibv_dereg_mr(mrs[n]))
			errx(1, "dereg_mr");
	if (ibv_dealloc_pd(pd) || ibv_close_device(context))
		errx(1, "dealloc_pd or close_device");
	return 0;
}
