"""Writes `gateway/s2/s2_pb2.py` and its types from `s2.proto`, by the protoc of grpcio-tools (`make proto`)."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Final

from grpc_tools import protoc

ROOT: Final = Path(__file__).parents[2]
PROTO: Final = "gateway/s2/s2.proto"
GENERATED: Final = ("gateway/s2/s2_pb2.py", "gateway/s2/s2_pb2.pyi")


def generate(folder: Path) -> None:
    """Write the generated files below a folder, at the paths that they have below the root of the tree."""
    well_known = resources.files("grpc_tools") / "_proto"
    # The path of the .proto below the root is written into the generated code, and has to be the same everywhere.
    arguments = ["protoc", f"-I{ROOT}", f"-I{well_known}", f"--python_out={folder}", f"--pyi_out={folder}", PROTO]
    if protoc.main(arguments) != 0:
        raise RuntimeError(f"protoc cannot compile {PROTO}")


if __name__ == "__main__":
    generate(ROOT)
