#!/usr/bin/env python3
"""Draws what the accelerator does, clock by clock: waves.py TRACE > SVG. The trace is the co-simulation's (NETSUM_RTL_WAVES)."""
import sys

NAMES = ["beats come in", "a job is decided", "values enter the history", "history is read and added", "sums are written",
         "sums are read", "beats leave"]
CLOCKS, LEFT, STEP, ROW = 180, 170, 4, 26


def wave(bits, top):
    """A line that is high where a bit is set."""
    points, was = [], None
    for clock, bit in enumerate(bits):
        y = top + (4 if bit == "1" else 18)
        if bit != was:
            points.append(f"{LEFT + STEP * clock},{y if was is None else top + (4 if was == '1' else 18)}")
            points.append(f"{LEFT + STEP * clock},{y}")
        was = bit
    points.append(f"{LEFT + STEP * len(bits)},{top + (4 if was == '1' else 18)}")
    return f'<polyline fill="none" stroke="#2a6db0" stroke-width="1.3" points="{" ".join(points)}"/>'


def main():
    with open(sys.argv[1], encoding="ascii") as file:
        lines = file.read().split()[:CLOCKS]
    width, height = LEFT + STEP * CLOCKS + 20, ROW * len(NAMES) + 40
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">'
          f'<rect width="{width}" height="{height}" fill="#ffffff"/>')
    for clock in range(0, CLOCKS + 1, 17):  # the beats of a packet
        x = LEFT + STEP * clock
        print(f'<line x1="{x}" x2="{x}" y1="6" y2="{height - 28}" stroke="#dddddd"/>'
              f'<text x="{x}" y="{height - 12}" text-anchor="middle" fill="#555555">{clock}</text>')
    for row, name in enumerate(NAMES):
        print(f'<text x="{LEFT - 10}" y="{ROW * row + 22}" text-anchor="end" fill="#222222">{name}</text>')
        print(wave([line[row] for line in lines], ROW * row + 4))
    print("</svg>")


main()
