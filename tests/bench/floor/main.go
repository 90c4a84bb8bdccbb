// SPDX-License-Identifier: Apache-2.0

// Command floor is the minimal exporter of RDMA counters: it opens every counter file once, reads each with one system
// call per scrape and appends text, without discovery, attribution or error handling. It shows the lower bound of the
// cost on the machine.
package main

import (
	"bytes"
	"compress/gzip"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

func main() {
	sysfs := flag.String("path.sysfs", "/sys", "where sysfs is mounted")
	listen := flag.String("web.listen-address", "127.0.0.1:9848", "where to listen")
	compress := flag.Bool("gzip", false, "compress every answer")
	flag.Parse()

	counters, err := open(*sysfs)
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("GET /metrics", &handler{counters: counters, gzip: *compress})
	log.Fatal(http.ListenAndServe(*listen, nil))
}

// A counter is an open file and the text that precedes its value.
type counter struct {
	file   *os.File // its finalizer would close fd
	fd     uintptr
	name   string
	prefix string
}

// open opens counters/ and hw_counters/ of every port, sorted by metric name.
func open(sysfs string) ([]counter, error) {
	var counters []counter
	for _, group := range []string{"counters", "hw_counters"} {
		paths, err := filepath.Glob(filepath.Join(sysfs, "class/infiniband/*/ports/*", group, "*"))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			f, err := os.Open(path)
			if err != nil {
				return nil, err
			}
			elems := strings.Split(path, "/")
			device, port, name := elems[len(elems)-5], elems[len(elems)-3], "rdma_"+elems[len(elems)-1]
			counters = append(counters, counter{
				file:   f,
				fd:     f.Fd(),
				name:   name,
				prefix: fmt.Sprintf("%s{device=%q,port=%q} ", name, device, port),
			})
		}
	}
	sort.SliceStable(counters, func(i, j int) bool { return counters[i].name < counters[j].name })
	for i := range counters {
		if i == 0 || counters[i].name != counters[i-1].name {
			counters[i].prefix = "# TYPE " + counters[i].name + " untyped\n" + counters[i].prefix
		}
	}
	return counters, nil
}

// handler serves one scraper at a time.
type handler struct {
	counters []counter
	gzip     bool
	text     []byte
	packed   bytes.Buffer
	writer   *gzip.Writer
}

func (h *handler) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	h.text = h.text[:0]
	var value [32]byte
	for i := range h.counters {
		c := &h.counters[i]
		n, _, errno := syscall.RawSyscall6(syscall.SYS_PREAD64, c.fd,
			uintptr(unsafe.Pointer(&value[0])), unsafe.Sizeof(value), 0, 0, 0)
		if errno != 0 || n == 0 {
			continue
		}
		h.text = append(append(h.text, c.prefix...), value[:n]...)
	}
	body := h.text
	if h.gzip {
		body = h.pack()
		w.Header().Set("Content-Encoding", "gzip")
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.Write(body)
}

func (h *handler) pack() []byte {
	h.packed.Reset()
	if h.writer == nil {
		h.writer, _ = gzip.NewWriterLevel(&h.packed, gzip.BestSpeed)
	} else {
		h.writer.Reset(&h.packed)
	}
	h.writer.Write(h.text)
	h.writer.Close()
	return h.packed.Bytes()
}
