"""python -m neural.profiling show-report report.json"""

from .cli import profiling

profiling(prog_name="python -m neural.profiling")
