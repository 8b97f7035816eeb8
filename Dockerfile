# Three images from one file: `--target operator`, `--target master`, `--target worker`.
#
#   docker build --target worker -t orca-worker:0.1.0 .
#   docker build --target worker --build-arg TORCH=cuda -t orca-worker:0.1.0-cuda .
#
# TORCH=cpu (the default) chooses a CPU build of torch as `make run` does (tools/install_torch.py): of pip's
# configuration, of PyTorch's CPU index, or else the registry's large build with CUDA. TORCH=cuda takes the registry's
# build and adds CuPy. `--build-arg TORCH_INDEX=URL` takes torch from this index; for an index for CUDA 12, TORCH=cuda12.
#
# `--build-arg BASE=python:3.11-slim@sha256:DIGEST` fixes the base image (docs/how-to/images.md).
ARG BASE=python:3.11-slim

# -- the tools of the build ----------------------------------------------------------------------------------------------
# Every package comes from a lock file with hashes (images/*.txt, written by `make lock`): an archive with other bytes
# ends the build. Two exceptions: a torch that tools/install_torch.py takes from another index than the registry, and the
# CUDA 12 packages, whose versions are in constraints.txt. The images hold no pip: it installs into /opt/orca from outside.
FROM ${BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_CACHE_DIR=1
WORKDIR /build
COPY images images
RUN python3 -m venv --without-pip /opt/orca && python3 -m venv /opt/pip && \
    /opt/pip/bin/python -m pip install --no-deps --require-hashes -r images/build.txt
RUN printf '%s\n' '#!/bin/sh' 'exec /opt/pip/bin/python -m pip --python /opt/orca/bin/python install --no-compile "$@"' \
    > /usr/local/bin/install-packages && chmod +x /usr/local/bin/install-packages

# -- ORCA itself, and the demo model -----------------------------------------------------------------------------------
FROM build AS orca
WORKDIR /src
COPY examples/demo-model /models/demo
RUN chmod -R a+rX /models
COPY pyproject.toml README.md LICENSE ./
COPY protos protos
COPY kernels kernels
COPY worker worker
COPY master master
COPY operator operator
RUN /opt/pip/bin/python -m pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . && \
    install-packages --compile --no-deps --no-index /wheels/*.whl

# -- the CPU kernels, built for every target of the image's architecture: the images that run have no compiler ----------
FROM orca AS kernels
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/* && \
    /opt/orca/bin/python -m orca_kernels.cpu.library

# -- third-party packages, one virtual environment per image, without pip ---------------------------------------------
# trim_packages.py leaves the bytecode of the modules that it is given. cyclonedx-py lists the packages (SBOM).
FROM build AS packages
COPY constraints.txt ./
COPY tools tools

FROM packages AS operator-packages
RUN install-packages --no-deps --require-hashes -r images/operator.txt && \
    /opt/pip/bin/python -m pip --python /opt/orca/bin/python check && \
    /opt/orca/bin/python tools/trim_packages.py cryptography.x509 httpx kopf kubernetes.dynamic prometheus_client \
      pydantic.alias_generators yaml && \
    /opt/pip/bin/cyclonedx-py environment --output-reproducible --output-file /opt/orca/sbom.cdx.json /opt/orca/bin/python

FROM packages AS master-packages
RUN install-packages --no-deps --require-hashes -r images/master.txt && \
    /opt/pip/bin/python -m pip --python /opt/orca/bin/python check && \
    /opt/orca/bin/python tools/trim_packages.py fastapi.middleware.cors google.protobuf.internal.builder \
      google.protobuf.runtime_version grpc grpc._utilities httptools huggingface_hub.hf_api jinja2.sandbox \
      obstore.store opentelemetry.exporter.otlp.proto.grpc.trace_exporter \
      opentelemetry.exporter.otlp.proto.http.trace_exporter opentelemetry.sdk.trace.export prometheus_client \
      pydantic.alias_generators tokenizers uvicorn yaml && \
    /opt/pip/bin/cyclonedx-py environment --output-reproducible --output-file /opt/orca/sbom.cdx.json /opt/orca/bin/python

FROM packages AS worker-packages
ARG TORCH=cpu
ARG TORCH_INDEX=
RUN case "$TORCH" in \
      cpu) device=cpu ;; \
      cuda) device=cuda ;; \
      cuda12) device=cuda; : "${TORCH_INDEX:?TORCH=cuda12 needs the index of builds for CUDA 12}" ;; \
      *) echo "TORCH=$TORCH: cpu, cuda or cuda12" >&2; exit 2 ;; \
    esac && \
    /opt/pip/bin/python tools/install_torch.py --python /opt/orca/bin/python --device $device \
      ${TORCH_INDEX:+--index "$TORCH_INDEX"} && \
    install-packages --no-deps --require-hashes -r images/worker.txt && \
    if [ "$TORCH" = cuda12 ]; then \
      install-packages -c constraints.txt torch cupy-cuda12x; \
    elif grep -q '^Requires-Dist: nvidia-' /opt/orca/lib/python3*/site-packages/torch-*.dist-info/METADATA; then \
      install-packages --no-deps --require-hashes -r images/cuda.txt; \
    fi && \
    /opt/pip/bin/python -m pip --python /opt/orca/bin/python check && \
    /opt/orca/bin/python tools/trim_packages.py google.protobuf.internal.builder google.protobuf.runtime_version grpc \
      grpc._utilities huggingface_hub.hf_api numpy obstore.store prometheus_client pydantic.alias_generators \
      pydantic.functional_serializers pydantic.root_model pydantic.types safetensors.torch torch.distributed yaml && \
    /opt/pip/bin/cyclonedx-py environment --output-reproducible --output-file /opt/orca/sbom.cdx.json /opt/orca/bin/python

# -- what runs -------------------------------------------------------------------------------------------------------
# The packages are one layer and ORCA is another, so that an upgrade moves little.
# dumb-init is process 1: it passes signals on to `orca`, which ends its own processes in order, and reaps the rest.
FROM ${BASE} AS runtime
# Libraries ask for the name and home of a user that the image need not know.
ENV PATH=/opt/orca/bin:$PATH HOME=/tmp USER=orca PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /tmp
ENTRYPOINT ["dumb-init", "--single-child", "--", "orca"]

FROM runtime AS operator
COPY --from=operator-packages /opt/orca /opt/orca
COPY --from=orca /opt/orca /opt/orca
USER 10001:10001
CMD ["operator"]

FROM runtime AS master
COPY --from=master-packages /opt/orca /opt/orca
COPY --from=orca /models /models
COPY --from=orca /opt/orca /opt/orca
USER 10001:10001
CMD ["master", "--help"]

FROM runtime AS worker
COPY --from=worker-packages /opt/orca /opt/orca
COPY --from=orca /models /models
COPY --from=kernels /opt/orca /opt/orca
USER 10001:10001
CMD ["worker", "--help"]
