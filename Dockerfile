# Prefect's server, the workers that train, and the service: `docker build --target prefect|worker|worker-gpu|serve .`
FROM python:3.11.13-slim-bookworm@sha256:86adf8dbadc3d6e82ee5dd2c74bec2e1c2467cdad47886280501df722372d2e1 AS prefect
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 \
    DO_NOT_TRACK=1 HOME=/tmp
COPY requirements/constraints.txt /tmp/constraints.txt
# SQLAlchemy 2.1 silently stops Prefect's scheduler.
RUN pip install -c /tmp/constraints.txt prefect asyncpg "sqlalchemy<2.1" \
    && useradd --system --uid 10001 --no-create-home server \
    && install -d -o server -g server /data /work /work/tmp
USER 10001
EXPOSE 4200

FROM prefect AS source
USER root
RUN apt-get update && apt-get install --yes --no-install-recommends git && rm -rf /var/lib/apt/lists/* \
    && git config --system --add safe.directory '*'
WORKDIR /srv
COPY pyproject.toml README.md ./
COPY src src
ENV MLFLOW_DISABLE_TELEMETRY=true

# torch's CPU build is a tenth of the one on PyPI, which brings NVIDIA's libraries.
FROM source AS worker
RUN pip install -c /tmp/constraints.txt --extra-index-url https://download.pytorch.org/whl/cpu -e .
USER 10001
WORKDIR /work

FROM source AS worker-gpu
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/* \
    && pip install -c /tmp/constraints.txt -e '.[gpu]'
USER 10001
WORKDIR /work

FROM worker AS serve
USER root
RUN pip install -c /tmp/constraints.txt psycopg2-binary
USER 10001
WORKDIR /data
