"""The one part that is compiled. Everything else stands in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup

ROOM = Path("neuraldbg/capture/kernels")

setup(
    ext_modules=[
        Extension(
            "neuraldbg.capture.kernels._fused",
            [str(ROOM / "_fused.c")],
            depends=sorted(map(str, ROOM.glob("*.h"))),
            extra_compile_args=["-O3"],
            optional=True,  # without a compiler the install goes on, and torch does its work, slower
        )
    ]
)
