# docker build -t starling .
# docker run -p 8000:8000 starling
# docker run -p 8000:8000 -v "$PWD/mine:/models:ro" starling serve --models /models
#
# PyTorch's CPU wheels by default: with them models run on the CPU, also on a machine with a GPU. For the CUDA wheels name
# their index, and another base if you need one (it must have Python 3.11 or later as `python`):
#   docker build --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 -t starling:cuda .
# There `--device auto` takes the first GPU that the container was given (`docker run --gpus 1`), else the CPU.
# Extras, as pyproject.toml names them, in brackets (traces need otel, tasks of transformers hf):
#   docker build --build-arg EXTRAS="[otel,hf]" -t starling .
# The base is a version, which is mended from time to time. A build that must give the same image again names a digest:
#   docker build --build-arg BASE=python:3.11-slim@sha256:... -t starling .
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
ARG EXTRAS=""
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python -m venv /opt/starling
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE starling_serve.py ./
COPY app ./app
COPY planner ./planner
COPY loadtest ./loadtest
RUN /opt/starling/bin/python -m pip install --no-cache-dir -c constraints.txt --extra-index-url "${TORCH_INDEX}" ".${EXTRAS}"

FROM ${BASE}
COPY --from=build /opt/starling /opt/starling
ENV PATH=/opt/starling/bin:${PATH} \
    PYTHONUNBUFFERED=1 \
    STARLING_HOST=0.0.0.0 \
    STARLING_PORT=8000
# By number: Kubernetes' runAsNonRoot cannot look up a name.
USER 10001:10001
WORKDIR /tmp
EXPOSE 8000
# Asks where the variables say, never a proxy. The certificate is not checked: it names no loopback address.
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD ["python", "-c", "import http.client as h, os, ssl, sys; of = os.environ.get; at = of('STARLING_HOST') or '127.0.0.1', of('STARLING_PORT') or 8000; c = h.HTTPSConnection(*at, timeout=2, context=ssl._create_unverified_context()) if of('STARLING_TLS_CERT') else h.HTTPConnection(*at, timeout=2); c.request('GET', '/v2/health/live'); sys.exit(c.getresponse().status != 200)"]
# Without a shell in between, so that SIGTERM reaches the server.
ENTRYPOINT ["starling"]
CMD ["serve"]
