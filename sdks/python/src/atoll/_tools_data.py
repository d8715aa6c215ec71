# Generated from sdks/tools.json by generate.py.
import json
from typing import Any

TOOLS: dict[str, Any] = json.loads(r"""
{
  "longest": 30000,
  "languages": {
    "python": ["python3", "-"],
    "javascript": ["node", "-"],
    "bash": ["bash", "-s"]
  },
  "returnedErrors": {
    "categories": ["validation", "not_found", "conflict"],
    "codes": ["PERMISSION_DENIED", "QUOTA_EXCEEDED", "DISK_FULL"],
    "never": ["SANDBOX_NOT_FOUND", "SANDBOX_STOPPED", "SANDBOX_PAUSED", "SANDBOX_FAILED"]
  },
  "schemas": [
    {
      "name": "read_file",
      "description": "Read a text file in the sandbox, all of it or some of its lines.",
      "parameters": {
        "type": "object",
        "properties": {
          "path": { "type": "string", "description": "A path in the sandbox; a relative one starts at the home directory." },
          "start_line": { "type": "integer", "description": "The first line, counted from 1.", "minimum": 1 },
          "end_line": { "type": "integer", "description": "The last line.", "minimum": 1 }
        },
        "required": ["path"],
        "additionalProperties": false
      }
    },
    {
      "name": "write_file",
      "description": "Write a text file in the sandbox. Missing directories are made, and a file that is there is replaced.",
      "parameters": {
        "type": "object",
        "properties": {
          "path": { "type": "string", "description": "A path in the sandbox; a relative one starts at the home directory." },
          "content": { "type": "string", "description": "All of its text." }
        },
        "required": ["path", "content"],
        "additionalProperties": false
      }
    },
    {
      "name": "execute_code",
      "description": "Run a program in the sandbox and get what it writes. Each call is a new process; files stay.",
      "parameters": {
        "type": "object",
        "properties": {
          "code": { "type": "string", "description": "The whole program." },
          "language": { "type": "string", "description": "What it is written in; python if left out.", "enum": ["python", "javascript", "bash"] },
          "cwd": { "type": "string", "description": "Where it runs; the home directory if left out." },
          "timeout": { "type": "number", "description": "After how many seconds it is ended; 60 if left out.", "minimum": 1 }
        },
        "required": ["code"],
        "additionalProperties": false
      }
    },
    {
      "name": "bash",
      "description": "Run a command line in the sandbox and get what it writes. Each call is a new shell; files stay.",
      "parameters": {
        "type": "object",
        "properties": {
          "command": { "type": "string", "description": "A line for bash." },
          "cwd": { "type": "string", "description": "Where it runs; the home directory if left out." },
          "timeout": { "type": "number", "description": "After how many seconds it is ended; 60 if left out.", "minimum": 1 }
        },
        "required": ["command"],
        "additionalProperties": false
      }
    }
  ]
}
""")
