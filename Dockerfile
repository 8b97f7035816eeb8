# Three images from one file: `--target operator`, `--target master`, `--target worker`.
#
#   docker build --target worker -t orca-worker:0.1.0 .
#   docker build --target worker --build-arg TORCH=cuda -t orca-worker:0.1.0-cuda .
#
# TORCH=cpu (the default) installs the torch that constraints.txt names: on PyPI that is the large one with CUDA inside;
# `--build-arg TORCH_INDEX=URL` adds the index of PyTorch's CPU-only builds. TORCH=cuda adds CuPy.
ARG BASE=python:3.11-slim

# -- ORCA itself, and the demo model -----------------------------------------------------------------------------------
FROM ${BASE} AS orca
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
RUN python3 -m venv --without-pip /opt/orca
COPY examples/demo-model /models/demo
RUN chmod -R a+rX /models
COPY pyproject.toml README.md LICENSE ./
COPY protos protos
COPY kernels kernels
COPY worker worker
COPY master master
COPY operator operator
RUN python3 -m pip --python /opt/orca/bin/python install --no-cache-dir --no-deps .

# -- the CPU kernels, built for every level of x86-64: the images that run have no compiler -----------------------------
FROM orca AS kernels
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/* && \
    /opt/orca/bin/python -m orca_kernels.cpu.library

# -- third-party packages, one virtual environment per image, without pip ---------------------------------------------
FROM ${BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
RUN python3 -m venv --without-pip /opt/orca
COPY pyproject.toml constraints.txt ./
# `requires NAME…`: the requirements of the distribution itself (base) or of its extras
RUN printf '%s\n' '#!/bin/sh' \
    'exec python3 -c "import sys, tomllib; project = tomllib.load(open(\"pyproject.toml\", \"rb\"))[\"project\"]; lists = {\"base\": project[\"dependencies\"]} | project[\"optional-dependencies\"]; print(*(line for name in sys.argv[1:] for line in lists[name]), \"dumb-init\", sep=\"\\n\")" "$@"' \
    > /usr/local/bin/requires && chmod +x /usr/local/bin/requires

FROM build AS operator-packages
RUN requires operator > requirements.txt && \
    python3 -m pip --python /opt/orca/bin/python install --no-cache-dir -c constraints.txt -r requirements.txt

FROM build AS master-packages
RUN requires base hub > requirements.txt && \
    python3 -m pip --python /opt/orca/bin/python install --no-cache-dir -c constraints.txt -r requirements.txt

FROM build AS worker-packages
ARG TORCH=cpu
ARG TORCH_INDEX=
RUN case "$TORCH" in cpu) extra="" ;; cuda) extra=cuda ;; *) echo "TORCH=$TORCH: cpu or cuda" >&2; exit 2 ;; esac && \
    requires base hub worker $extra > requirements.txt && \
    python3 -m pip --python /opt/orca/bin/python install --no-cache-dir ${TORCH_INDEX:+--extra-index-url $TORCH_INDEX} \
      -c constraints.txt -r requirements.txt

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
CMD ["worker", "--listen", "0.0.0.0:50051", "--probe-port", "8081"]
