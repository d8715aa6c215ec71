"""Runs a program, and exits without finalizing the interpreter.

Both releases of E2B's client send requests through pyqwest, whose threads acquire the interpreter lock when a call completes
or is cancelled. Before Python 3.14 an interpreter that is being finalized at that moment aborts the process. The server
cannot prevent this: with a minimal server, 8 (2.45.1) and 33 (2.63.0) of 120 programs that cancelled calls before their
exit were aborted."""

import os
import runpy
import sys

runpy.run_path(sys.argv[1], run_name="__main__")
sys.stdout.flush()
os._exit(0)
