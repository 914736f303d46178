"""Creates what the servers of docker-compose.yml need: databases, their users, the bucket, the team's user, work pools.

All steps can be repeated: existing objects stay, and passwords are set to those of the variables. The one-shot
containers run `python -m stack.provision STEP ...`, which reads the environment and secret files.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import boto3
import psycopg2
import requests
from botocore.exceptions import ClientError, EndpointConnectionError
from psycopg2 import sql

Variables = Mapping[str, str]

# The role that owns each database.
DATABASES = {"mlflow": "mlflow", "mlflow_auth": "mlflow", "prefect": "prefect", "feedback": "feedback"}
POOLS = ("cpu", "gpu")
_TIMEOUT = 30


def databases(variables: Variables) -> None:
    """Create the servers' databases; each owner can access only its own databases."""
    connection = psycopg2.connect(
        host=variables["PGHOST"],
        port=variables["PGPORT"],
        user="postgres",
        password=variables["POSTGRES_PASSWORD"],
        dbname="postgres",
    )
    connection.autocommit = True  # a database cannot be created in a transaction
    with connection.cursor() as cursor:
        for role in sorted(set(DATABASES.values())):
            cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role])
            verb = "ALTER" if cursor.fetchone() else "CREATE"
            command = sql.SQL(verb + " ROLE {} LOGIN PASSWORD {}")
            password = sql.Literal(variables[f"{role.upper()}_DB_PASSWORD"])
            cursor.execute(command.format(sql.Identifier(role), password))
        for database, owner in DATABASES.items():
            cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", [database])
            if not cursor.fetchone():
                names = sql.Identifier(database), sql.Identifier(owner)
                cursor.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(*names))
            cursor.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(sql.Identifier(database)))
    connection.close()


def bucket(variables: Variables) -> None:
    """Create the bucket for artifacts."""
    store = boto3.client(
        "s3",
        endpoint_url=variables["S3_ENDPOINT"],
        aws_access_key_id=variables["S3_ACCESS_KEY"],
        aws_secret_access_key=variables["S3_SECRET_KEY"],
        region_name="us-east-1",
    )
    try:
        store.head_bucket(Bucket=variables["S3_BUCKET"])
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] != 404:
            raise
        store.create_bucket(Bucket=variables["S3_BUCKET"])


def team(variables: Variables) -> None:
    """Create the team's MLflow user, or set its password to that of the variables."""
    users = f"{variables['MLFLOW_TRACKING_URI']}/api/2.0/mlflow/users"
    administrator = ("admin", variables["MLFLOW_ADMIN_PASSWORD"])
    name, password = variables["MLFLOW_TRACKING_USERNAME"], variables["MLFLOW_TEAM_PASSWORD"]
    known = requests.get(f"{users}/get", params={"username": name}, auth=administrator, timeout=_TIMEOUT)
    values = {"username": name, "password": password}
    if known.status_code == 404:
        requests.post(f"{users}/create", json=values, auth=administrator, timeout=_TIMEOUT).raise_for_status()
        return
    known.raise_for_status()
    answer = requests.patch(f"{users}/update-password", json=values, auth=administrator, timeout=_TIMEOUT)
    answer.raise_for_status()


def pools(variables: Variables) -> None:
    """Create Prefect's work pools; `make deploy` adds everything else that the flows need."""
    user, _, password = variables["PREFECT_API_AUTH_STRING"].partition(":")
    for name in POOLS:
        values = {"name": name, "type": "process"}
        url = f"{variables['PREFECT_API_URL']}/work_pools/"
        answer = requests.post(url, json=values, auth=(user, password), timeout=_TIMEOUT)
        if answer.status_code != requests.codes.conflict:  # it already exists
            answer.raise_for_status()


def given(secrets: Path = Path("/run/secrets")) -> dict[str, str]:
    """Return the environment variables and a container's secrets, which are files named like variables."""
    return {**os.environ, **{file.name: file.read_text().strip() for file in secrets.glob("*")}}


STEPS: dict[str, Callable[[Variables], None]] = {"databases": databases, "bucket": bucket, "team": team, "pools": pools}


def main() -> None:
    """Run the steps given on the command line; retry each for a minute while its server does not answer."""
    variables = given()
    for name in sys.argv[1:]:
        deadline = time.monotonic() + 60
        while True:
            try:
                STEPS[name](variables)
                break
            except (requests.ConnectionError, requests.Timeout, EndpointConnectionError, psycopg2.OperationalError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(1)


if __name__ == "__main__":
    main()
