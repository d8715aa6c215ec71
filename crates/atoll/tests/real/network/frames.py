"""Sends frames from a sandbox's link as they are, then prints what arrives until a frame contains some bytes.

Standard input has a frame a line, in hexadecimal; the argument is what ends the wait.
"""

import os
import socket
import sys

EVERY_PROTOCOL = 3
OUTGOING = 4

# On one processor frames are handled in the order in which they are sent.
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERY_PROTOCOL))
link.bind(("eth0", EVERY_PROTOCOL))
link.settimeout(60)
for line in sys.stdin:
    link.send(bytes.fromhex(line))
last = bytes.fromhex(sys.argv[1])
frame = b""
while last not in frame:
    frame, (_, _, kind, *_) = link.recvfrom(2048)
    if kind != OUTGOING:
        print(frame.hex())
    else:
        frame = b""
