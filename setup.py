"""The one part that is compiled, and the one that is installed twice. Everything else stands in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

ROOM = Path("neuraldbg/capture/kernels")
FACADE = ("cli", "cloud", "dashboard", "profiling")


class WithOwnFacade(build_py):
    """Other projects install a `neural` too, and write their files over ours: `neuraldbg.compat` has copies."""

    def run(self) -> None:
        super().run()
        if not getattr(self, "editable_mode", False):
            for part in FACADE:
                target = Path(self.build_lib) / "neuraldbg" / "compat" / part
                unwanted = shutil.ignore_patterns("__pycache__")
                shutil.copytree(Path("neural") / part, target, ignore=unwanted, dirs_exist_ok=True)


setup(
    cmdclass={"build_py": WithOwnFacade},
    ext_modules=[
        Extension(
            "neuraldbg.capture.kernels._fused",
            [str(ROOM / "_fused.c")],
            depends=sorted(map(str, ROOM.glob("*.h"))),
            extra_compile_args=["-O3"],
            optional=True,  # without a compiler the install goes on, and torch does its work, slower
        )
    ],
)
