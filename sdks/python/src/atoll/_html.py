"""HTML representation of a sandbox for notebooks."""

from __future__ import annotations

from .models import SandboxInfo

_COLOURS = {"running": "#1a7f37", "paused": "#9a6700", "failed": "#cf222e"}


def card(info: SandboxInfo) -> str:
    """Renders a sandbox as a small table."""
    from html import escape

    colour = _COLOURS.get(info.state, "#57606a")
    state = f'<b style="color:{colour}">●</b> {escape(info.state)}' + (
        f" ({escape(info.reason)})" if info.reason else ""
    )
    rows = {
        "sandbox": f"<code>{escape(info.id)}</code>" + (f" {escape(info.alias)}" if info.alias else ""),
        "state": state,
        "template": escape(info.template),
        "limits": f"{info.cpu_count:g} cpus, {info.memory_mb} MiB, {info.disk_mb} MiB disk, {info.pids} pids",
        "network": escape(info.network),
        "until": escape(f"{info.end_at:%Y-%m-%d %H:%M:%S %Z}") if info.end_at else "no end",
    }
    cells = "".join(f"<tr><th style='text-align:left'>{name}</th><td>{value}</td></tr>" for name, value in rows.items())
    return f"<table>{cells}</table>"
