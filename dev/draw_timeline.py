"""Draws a step's timeline (--trace FILE) as an SVG: python3 dev/draw_timeline.py trace.json doc/timeline.svg"""

import json
import sys

LANES = ["gather", "compute", "reduce", "messages"]
COLOURS = {"gather": "#4c78a8", "forward": "#54a24b", "encode": "#54a24b", "norm": "#9ecae9", "head": "#88d27a",
           "backward": "#f58518", "reduce": "#e45756", "exchange": "#ff9da6", "update": "#b279a2"}
WIDTH, LANE, LEFT = 1200, 46, 80


def main():
    events = json.load(open(sys.argv[1]))
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    spans = [e for e in events if e["ph"] == "X"]
    start = min(e["ts"] for e in spans)
    for e in spans:
        e["ts"] -= start
    end = max(e["ts"] + e["dur"] for e in spans)
    scale = (WIDTH - LEFT - 10) / end
    height = LANE * len(LANES) + 50
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
           'font-family="sans-serif" font-size="12">', f'<rect width="{WIDTH}" height="{height}" fill="white"/>']
    for i, lane in enumerate(LANES):
        out.append(f'<text x="8" y="{i * LANE + 30}">{lane}</text>')
    for e in spans:
        kind, unit = e["name"].split(" ", 1)
        x, y = LEFT + e["ts"] * scale, LANES.index(names[e["tid"]]) * LANE + 10
        width = max(e["dur"] * scale, 0.6)
        out.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="30" fill="{COLOURS[kind]}" stroke="white" '
                   f'stroke-width="0.5"><title>{e["name"]}: {e["dur"] / 1000:.2f} ms</title></rect>')
        label = {"forward": "f", "backward": "b", "gather": "g", "reduce": "r", "update": "u", "exchange": "x"}.get(kind, kind)
        label += unit.replace("block ", "") if unit.startswith("block") else ""
        if width > 7 * len(label):
            out.append(f'<text x="{x + width / 2:.1f}" y="{y + 19}" text-anchor="middle" fill="white">{label}</text>')
    for tick in range(5):
        out.append(f'<text x="{LEFT + tick / 4 * (WIDTH - LEFT - 60):.0f}" y="{height - 14}" fill="#666">'
                   f'{end * tick / 4 / 1000:.0f} ms</text>')
    out.append("</svg>")
    open(sys.argv[2], "w").write("\n".join(out) + "\n")


main()
