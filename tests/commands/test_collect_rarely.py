"""The garbage collector of a long-lived process: each collection examines few objects, and old ones hardly ever."""

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
