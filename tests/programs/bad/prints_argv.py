"""Says everything about how it was started, so that two ways of starting it can be compared."""
import os
import pickle
import sys

print("argv", sys.argv[1:], os.path.basename(sys.argv[0]))
print("name", __name__)
print("file", os.path.basename(__file__), os.path.exists(__file__))
print("spec", __spec__, "package", __package__, "doc", __doc__.split()[0])
print("loader", type(__loader__).__name__)
print("path0", os.path.realpath(sys.path[0]))
print("cwd", os.getcwd())
print("main is me", sys.modules["__main__"].__dict__ is globals())
print("stdin", repr(sys.stdin.read()))
print("env", {key: os.environ.get(key) for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "PYTHONPATH", "MARKER")})
print("on stderr", file=sys.stderr)


class Thing:
    def __init__(self, value):
        self.value = value


again = pickle.loads(pickle.dumps(Thing(41)))
print("pickled", type(again) is Thing, again.value, Thing.__module__)
