"""A script without torch, which starts a process of its own."""

import builtins
import os
import subprocess
import sys
import time

world = int(os.environ["WORLD_SIZE"])
print(f"began with {world}, {builtins.own_site}", flush=True)  # type: ignore[attr-defined]
child = "import os; print([one for one in os.environ.get('PYTHONPATH', '').split(os.pathsep) if 'restart' in one])"
path = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True).stdout
print(f"a child's path: {path}", flush=True)
time.sleep(600 if world == 1 else 0.5)
