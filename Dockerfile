# Images with the pinned lock.
#   docker build --target cpu -t retrospect:cpu .
#   docker build --target gpu -t retrospect:gpu .
#   docker run --rm retrospect:cpu train --config configs/arithmetic.yaml --run.iterations 5
# The steps of the cpu image were run by buildah and the result trained, over Debian 12 and its Python in the place of the base image.
# The gpu image was not built.

FROM python:3.11-slim-bookworm AS base
# g++: Triton compiles kernels on GPUs. bubblewrap: the sandbox of model-written programs. wget, rsync: Ray on Kubernetes, `ray up`.
RUN apt-get update && apt-get install -y --no-install-recommends g++ bubblewrap libnuma1 git rsync wget && rm -rf /var/lib/apt/lists/*
WORKDIR /retrospect
ENV PATH=/retrospect/.venv/bin:$PATH PYTHONPATH=/retrospect RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0 VLLM_NO_USAGE_STATS=1 PIP_NO_CACHE_DIR=1
COPY requirements requirements

FROM base AS cpu
ARG TORCH_INDEX=
RUN bash requirements/install.sh python3.11 .venv "$TORCH_INDEX"
COPY . .
ENTRYPOINT ["python", "launch.py"]

# The wheels bring CUDA; the host brings the driver (nvidia-container-toolkit).
FROM base AS gpu
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN python3.11 -m venv .venv && .venv/bin/pip install --no-deps -r requirements/gpu.txt
COPY . .
ENTRYPOINT ["python", "launch.py"]
