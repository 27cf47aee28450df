"""`make fuzz`: the targets under atheris (libFuzzer with coverage of Python), one process each.

What covers more than before is kept in build/fuzz/TARGET.  An input that breaks an invariant is added to the corpus in
the tree, where `make test` plays it until it is mended and ever after.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from tests.fuzz import corpus

_BUILD = Path("build/fuzz")
_MORE_S = 60
"""What a process may take beyond its time, to start and to end."""


def main() -> int:
    """Run the chosen targets; returns 1 if an input broke one of them."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="time for each target (60)")
    parser.add_argument("--only", nargs="+", metavar="TARGET", help="these targets and no others")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        _fuzz(arguments.one, arguments.seconds)
    known = sorted(path.name for path in corpus.FOLDER.iterdir())
    wanted = arguments.only or known
    if unknown := set(wanted) - set(known):
        parser.error(f"no such target: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return max([_run(name, arguments.seconds) for name in wanted], default=0)


def _run(name: str, seconds: int) -> int:
    (_BUILD / name).mkdir(parents=True, exist_ok=True)
    found = _BUILD / f"{name}.found"
    found.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.fuzz", "--one", name, "--seconds", str(seconds)]
    log = _BUILD / f"{name}.log"
    with log.open("wb") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, timeout=seconds + _MORE_S, check=False)
    lines = log.read_text(errors="replace").splitlines()
    runs = next((line.strip() for line in reversed(lines) if line.startswith("Done")), f"ended with {done.returncode}")
    print(f"{name:16} {runs}", flush=True)  # noqa: T201
    if found.exists():
        print(f"{name:16} broken by {corpus.keep(name, found.read_bytes())}; see {log}", flush=True)  # noqa: T201
    return int(done.returncode != 0)


def _fuzz(name: str, seconds: int) -> None:
    """Fuzz one target in this process; does not return."""
    import atheris

    with atheris.instrument_imports(include=["gateway"]):
        from tests.fuzz.targets import TARGETS
    options = [
        f"-max_total_time={seconds}", "-max_len=2048", "-timeout=10", "-rss_limit_mb=1024",
        f"-exact_artifact_path={_BUILD / name}.found",
    ]  # fmt: skip
    atheris.Setup(["fuzz", *options, str(_BUILD / name), str(corpus.FOLDER / name)], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
