"""The garbage collector: a start hardly waits for it, and a long-lived process neither, for it examines few objects."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import gc, json
from gateway.commands.run import collect_rarely

collect_rarely()
kept, turnover, young, older = [], [[] for _ in range(2_000)], [], []

def note(phase, info):
    if phase == "start":
        (older if info["generation"] else young).append(len(gc.get_objects(generation=0)))

gc.callbacks.append(note)
for n in range(100_000):
    kept.append([])
    # What is freed later than it was made hides from the collector how much is new.
    turnover[n % 2_000] = []
gc.callbacks.remove(note)
print(json.dumps([young, older]))
"""


def test_a_collection_examines_few_objects_and_all_of_them_hardly_ever() -> None:
    done = subprocess.run((sys.executable, "-c", PROGRAM), capture_output=True, check=True, timeout=60)
    young, older = json.loads(done.stdout)
    assert len(young) >= 10
    # At about 0.3 us each; the collector counts what was made less what was freed.
    assert max(young) <= 2_000
    assert older == []


START = """
import gc, sys

collections = 0

def note(phase, info):
    global collections
    collections += phase == "start"

gc.callbacks.append(note)
from gateway.cli import main

sys.argv = ["durable-gateway", "origin", "--help"]
assert main() == 0
import gateway.app
print("collections", collections)
"""


def test_a_program_that_starts_collects_no_garbage_of_its_modules() -> None:
    done = subprocess.run((sys.executable, "-c", START), capture_output=True, check=True, timeout=60, text=True)
    name, count = done.stdout.splitlines()[-1].split()
    assert name == "collections"
    # By Python's own thresholds, some two hundred.
    assert int(count) <= 20
