# SPDX-License-Identifier: Apache-2.0
#
# The image: the sensor, accelscope-tool, the health check, the C library that it needs to open NVIDIA's, and the certificates of
# public authorities. No shell, no package manager.
#
#	docker build -t accelscope .                                         # BuildKit: Docker 23, or DOCKER_BUILDKIT=1
#	docker build -t accelscope:fabric --target fabric .                  # for the node that reads the fabric
#	docker build --platform linux/arm64 .                                # cross-compiled, nothing is emulated
#	make image                                                           # without a registry and without Docker

# Any Debian with Go, and gcc or the means to install it.
ARG BUILDER=golang:1.26-bookworm
# Nothing but what rootfs.sh takes from Debian's packages, or any image with a glibc not older than the builder's.
ARG BASE=scratch

FROM --platform=$BUILDPLATFORM ${BUILDER} AS build
ARG TARGETARCH=amd64
WORKDIR /src
COPY deploy/docker/rootfs.sh deploy/docker/
RUN deploy/docker/rootfs.sh "$TARGETARCH" /out

COPY go.mod go.sum ./
COPY cmd cmd
COPY gen gen
COPY pkg pkg
COPY deploy/docker/sbom deploy/docker/sbom
ARG VERSION=unknown
ARG BASE
# The same sources, Go, and gcc give the same binary, wherever they are. BPF objects come from gen/.
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=1 GOOS=linux GOARCH="$TARGETARCH" CC="$(cat /out/cc)" CGO_CFLAGS='-O2 -g -Wno-deprecated-declarations' \
        go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /out/sensor/usr/bin/ ./cmd/... && \
    go build -C deploy/docker/sbom -trimpath -o /out/sbom . && \
    { [ "$BASE" = scratch ] || { rm -r /out/base/*; : > /out/packages; }; } && \
    /out/sbom -version "$VERSION" -packages /out/packages -out /out/sensor /out/sensor/usr/bin/* && \
    cat /out/packages /out/packages-fabric > /out/packages-all && \
    /out/sbom -version "$VERSION" -packages /out/packages-all -out /out/fabric /out/sensor/usr/bin/*

FROM ${BASE} AS sensor
COPY --from=build /out/base /
COPY LICENSE /usr/share/doc/accelscope/LICENSE
COPY --from=build /out/sensor /
ARG VERSION=unknown
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.title="accelscope" \
      org.opencontainers.image.description="Which container uses which RDMA HCA and which GPU, how hard, and how well is it going?" \
      org.opencontainers.image.source="https://github.com/accelscope/accelscope" \
      org.opencontainers.image.url="https://github.com/accelscope/accelscope" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.created="$CREATED"
ENV PATH=/usr/sbin:/usr/bin
# Root, because what is read belongs to root and BPF needs capabilities; which ones suffice is in deploy/README.md.
USER 0:0
EXPOSE 9847
# It asks where the sensor listens: what changes that, and TLS, must be set by ACCELSCOPE_WEB_LISTEN_ADDRESS and
# ACCELSCOPE_WEB_CONFIG_FILE, or in the file that ACCELSCOPE_CONFIG_FILE names, not by an argument.
HEALTHCHECK --interval=30s --timeout=10s --start-period=10s --retries=3 CMD ["accelscope-health"]
ENTRYPOINT ["/usr/bin/accelscope"]

# The same, and infiniband-diags for --collector.fabric.
FROM sensor AS fabric
COPY --from=build /out/fabric /

FROM sensor AS accelscope
