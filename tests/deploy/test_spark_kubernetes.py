"""The pipeline's CronJob on Spark in Kubernetes, and its image: by their schemas, and by what Spark and this code know.

No cluster runs it here, and no image is built.
"""

from __future__ import annotations

import os
import re
import subprocess
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pyspark
import pytest
import typer
import yaml

from gateway.pipeline import job
from gateway.pipeline.cli import pipeline
from gateway.pipeline.session import prepare
from tests.deploy.dockerfile import assignments, read

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "config/deploy/spark"
BOUND_S: Final = 120
DOCUMENTS: Final[dict[str, dict[str, Any]]] = {
    document["kind"]: document for document in yaml.safe_load_all((FOLDER / "cronjob.yaml").read_text(encoding="utf-8"))
}
NAME: Final = "durable-gateway-spark"
POD: Final = DOCUMENTS["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
CONTAINER: Final = POD["containers"][0]
AT: Final = CONTAINER["args"].index("/opt/pipeline/job.py")
SUBMIT: Final = CONTAINER["args"][:AT]
COMMAND: Final = CONTAINER["args"][AT + 1 :]
CONF: Final = dict(one.split("=", 1) for flag, one in pairwise(SUBMIT) if flag == "--conf")
ARGUMENTS, STAGES = read(FOLDER / "Dockerfile")
FINAL: Final = STAGES[-1]


@pytest.mark.parametrize("release", ["1.30", "newest"])
@pytest.mark.parametrize("kind", sorted(DOCUMENTS))
def test_every_manifest_is_of_its_kinds_schema(kind: str, release: str) -> None:
    import kubernetes_validate

    release = kubernetes_validate.latest_version() if release == "newest" else release
    kubernetes_validate.validate(DOCUMENTS[kind], release, strict=True)


def test_the_pod_has_the_account_that_the_role_is_for() -> None:
    assert POD["serviceAccountName"] == DOCUMENTS["ServiceAccount"]["metadata"]["name"] == NAME
    assert DOCUMENTS["RoleBinding"]["subjects"] == [{"kind": "ServiceAccount", "name": NAME}]
    assert DOCUMENTS["RoleBinding"]["roleRef"]["name"] == DOCUMENTS["Role"]["metadata"]["name"]


def test_driver_and_executors_have_one_image_and_one_lake() -> None:
    assert CONF["spark.kubernetes.container.image"] == CONTAINER["image"]
    claim = DOCUMENTS["PersistentVolumeClaim"]["metadata"]["name"]
    volume = "spark.kubernetes.executor.volumes.persistentVolumeClaim.lake"
    assert CONF[f"{volume}.options.claimName"] == claim
    assert POD["volumes"] == [{"name": "lake", "persistentVolumeClaim": {"claimName": claim}}]
    assert CONTAINER["volumeMounts"] == [{"name": "lake", "mountPath": CONF[f"{volume}.mount.path"]}]
    assert all(word.startswith("/lake/") for word in COMMAND if word.startswith("/"))


def test_variables_in_the_command_are_the_pods() -> None:
    named = set(re.findall(r"\$\((\w+)\)", " ".join(CONTAINER["args"])))
    assert named == {one["name"] for one in CONTAINER["env"]}


def test_flags_and_settings_are_sparks_own() -> None:
    home = Path(pyspark.__file__).parent
    environ = dict(os.environ)
    prepare(environ, is_local=True)
    told = subprocess.run(
        [home / "bin" / "spark-submit", "--help"],
        env=environ, capture_output=True, text=True, check=True, timeout=BOUND_S,
    )  # fmt: skip
    known = set(re.findall(r"--[a-z-]+", told.stderr))
    assert SUBMIT[0] == "/opt/spark/bin/spark-submit"
    assert {word for word in SUBMIT if word.startswith("--")} <= known
    [archive] = (home / "jars").glob("spark-kubernetes_*.jar")
    with zipfile.ZipFile(archive) as packed:
        names = packed.read("org/apache/spark/deploy/k8s/Config$.class")
    for name in CONF:
        if name.startswith("spark.kubernetes."):
            # Of a volume, the prefix is a name, and the type.
            constant = re.sub(r"(\.volumes\.).*", r"\1", name)
            assert constant.encode() in names, name


def test_the_command_is_one_of_the_pipelines() -> None:
    assert Path(job.__file__).name == Path(CONTAINER["args"][AT]).name
    group: Any = typer.main.get_command(pipeline)
    given = group.commands[COMMAND[0]].make_context(COMMAND[0], COMMAND[1:]).params
    assert given["source"] == ["http://durable-gateway/logs/edge"]
    assert given["lake"] == "/lake/traffic"


def test_the_image_has_the_locked_spark_and_what_is_copied_is_there() -> None:
    lock = (ROOT / "requirements/dev.txt").read_text()
    assert f"\npyspark=={ARGUMENTS['SPARK_VERSION']} " in lock
    assert STAGES[0].base == f"apache/spark:{ARGUMENTS['SPARK_VERSION']}"
    copied = {source for one in FINAL.all("COPY") if "--from" not in one.text for source in one.text.split()[:-1]}
    assert {source for source in copied if not (ROOT / source).exists()} == set()
    rules = (FOLDER / "Dockerfile.dockerignore").read_text(encoding="utf-8").split("\n")
    assert copied == {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    assert any("--require-hashes -r requirements/workers.txt" in one.text for one in FINAL.all("RUN"))


def test_what_the_manifest_names_is_linked_in_the_image() -> None:
    linked = {path for one in FINAL.all("RUN") for path in re.findall(r'\)" (/opt/\w+)', one.text)}
    assert linked == {"/opt/spark", "/opt/pipeline"}
    environ = {name: value for one in FINAL.all("ENV") for name, value in assignments(one.text).items()}
    assert environ["SPARK_HOME"] == "/opt/spark"
    assert environ["PYSPARK_PYTHON"] == environ["PYSPARK_DRIVER_PYTHON"]
    user = FINAL.last("USER").text
    assert user == f"{POD['securityContext']['runAsUser']}:{POD['securityContext']['runAsGroup']}"
