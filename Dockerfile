# SPDX-License-Identifier: MIT
# tutti on Debian 12, for the processor:
#   docker build -t tutti .
#   docker run --rm -v "$PWD/runs:/runs" tutti train_cifar10 --dataset synthetic --epochs 1 --run-dir /runs/first
#   docker run --rm -v /data/images:/images:ro -v "$PWD/runs:/runs" tutti train_imagenet --data-dir /images --log-dir /runs/own
# --build-arg DEBIAN=... takes another image of Debian 12 or newer. For jobs of AWS Batch there are infra/batch/Dockerfile.*.
ARG DEBIAN=debian:12.12-slim

FROM ${DEBIAN} AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ cmake ninja-build dpkg-dev file python3 libdnnl-dev libeigen3-dev libcli11-dev \
       libjpeg-dev libstb-dev libopenmpi-dev openmpi-bin libzmq3-dev libgloo-dev libssl-dev \
    && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN cmake -S /src -B /build -G Ninja -DCMAKE_BUILD_TYPE=Release -DTUTTI_BUILD_TESTS=OFF -DTUTTI_BUILD_EXAMPLES=ON \
       -DTUTTI_BUILD_TOOLS=ON -DTUTTI_BUILD_BENCH=OFF -DTUTTI_EIGEN_NATIVE=OFF \
    && cmake --build /build --parallel \
    && cd /build && cpack -G DEB -B /packages

FROM ${DEBIAN}
COPY --from=build /packages/*.deb /tmp/
RUN apt-get update \
    && apt-get install -y --no-install-recommends /tmp/*.deb openmpi-bin openssh-client python3 ca-certificates curl \
    && rm -rf /var/lib/apt/lists/* /tmp/*.deb
# The image does not need root.
RUN useradd --create-home tutti && mkdir /runs && chown tutti:tutti /runs
USER tutti
WORKDIR /runs
CMD ["train_cifar10", "--help"]
