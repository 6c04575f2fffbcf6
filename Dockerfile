# One image for every process of ours: `redrive worker`, `redrive migrate`, and whatever else the command offers.
FROM python:3.11.15-slim-bookworm@sha256:d29f48a31a8b408ed19272ca1e7b10ebae13b240a27e862d3d4217c528e2e0c3

ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore

WORKDIR /app

# The dependencies first: they change less often than the code, so this layer is kept. The embedded servers are not
# among them.
COPY requirements-image.txt ./
RUN pip install --require-hashes -r requirements-image.txt

COPY pyproject.toml README.md LICENSE worker.py ./
COPY redrive redrive
COPY workflows workflows
COPY activities activities
COPY starter starter
COPY examples examples
RUN pip install --no-deps --no-build-isolation . \
    && useradd --uid 10001 --create-home --shell /usr/sbin/nologin redrive

USER redrive
WORKDIR /home/redrive

# No HEALTHCHECK: what is healthy depends on the command; docker-compose.yml has the worker's.
ENTRYPOINT ["redrive"]
CMD ["--help"]
