"""Runs a program to its end, and leaves without the end of its interpreter.

Both releases of E2B's client ask through pyqwest, whose threads want the interpreter when a call is answered or given up; before Python
3.14 one that ends just then is aborted by that. No server can help it: one of a few lines, which answers everything whole,
saw 8 (2.45.1) and 33 (2.63.0) of 120 programs die that gave calls up before they ended."""

import os
import runpy
import sys

runpy.run_path(sys.argv[1], run_name="__main__")
sys.stdout.flush()
os._exit(0)
