#!/usr/bin/env python3
"""How the time of an AllReduce grows with message and ranks, drawn against what the memory allows.

Runs collective_perf under prun for n = 2 to 64 and messages from 4 bytes up to 1 GiB or to where n x bytes reaches a limit,
and draws the times over the bytes, one line a rank count, both axes logarithmic. The dashed lines are 2 n S / B: each rank reads and
writes its message once, at the bandwidth B that the same run measures with a loop that adds two arrays into a third. B is
that of the run with as many ranks as there are CPUs, or the nearest below: ranks that share a CPU measure one after the
other, and their sum is more than the memory has.
"""

import math
import os
import sys
from pathlib import Path

sys.dont_write_bytecode = True
import peers  # noqa: E402

LIMIT_S = 300
COLOURS = ["#1b6ca8", "#d1495b", "#2e933c", "#8f5aa8", "#c77d0a", "#555555"]


def measure(prun, perf, ranks, largest, buffers, batch_ms):
    """Bandwidth in GB/s and [(bytes, microseconds)], or None where the job does not end or fails."""
    sizes = sorted({size for size in (4 * 16 ** step for step in range(15)) if size <= largest} | {largest})
    command = prun.command(ranks, [perf, "--stream", "--buffers", buffers, "--batches", "5", "--batch-ms", str(batch_ms),
                                   "--sizes", ",".join(map(str, sizes))])
    with peers.Job(command) as job:
        if job.wait(LIMIT_S) is None or job.code:
            return None
        lines = job.stdout().decode().splitlines()
    bandwidth = next(float(line.split()[2]) for line in lines if line.startswith("# stream"))
    return bandwidth, [(int(line.split()[0]), float(line.split()[1])) for line in lines if not line.startswith("#")]


def with_one_bandwidth(results):
    """The same with the bandwidth of the run that has a CPU for each rank."""
    fitting = [ranks for ranks in results if ranks <= (os.cpu_count() or 1)]
    bandwidth = results[max(fitting or results)][0] if results else None
    return {ranks: (bandwidth, points) for ranks, (_, points) in results.items()}


def draw(results, title):
    """The plot as SVG."""
    width, height, left, top, right, bottom = 860, 520, 70, 46, 90, 54
    times = [us for _, points in results.values() for _, us in points]
    sizes = [size for _, points in results.values() for size, _ in points]
    low_x, high_x = math.log10(min(sizes)), math.log10(max(sizes))
    low_y, high_y = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))

    def x(size):
        return left + (math.log10(size) - low_x) / (high_x - low_x) * (width - left - right)

    def y(us):
        return height - bottom - (math.log10(us) - low_y) / (high_y - low_y) * (height - top - bottom)

    def text(at_x, at_y, words, more=""):
        return f'<text x="{at_x:.1f}" y="{at_y:.1f}" {more}>{words}</text>'

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>', text(left, 22, title, 'font-size="14"')]
    for power in range(low_y, high_y + 1):
        at = y(10 ** power)
        label = f"{10 ** power:g} µs" if power < 3 else f"{10 ** (power - 3):g} ms" if power < 6 else f"{10 ** (power - 6):g} s"
        out += [f'<line x1="{left}" x2="{width - right}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>',
                text(left - 6, at + 4, label, 'text-anchor="end"')]
    for size in sorted(size for size in set(sizes) if (size.bit_length() - 3) % 4 == 0):
        name = f"{size >> 20} M" if size >= 1 << 20 else f"{size >> 10} K" if size >= 1 << 10 else f"{size}"
        out.append(text(x(size), height - bottom + 18, name, 'text-anchor="middle"'))
    out.append(text((left + width - right) / 2, height - 12, "bytes a rank", 'text-anchor="middle"'))
    for (ranks, (bandwidth, points)), colour in zip(results.items(), COLOURS):
        path = " ".join(f"{x(size):.1f},{y(us):.1f}" for size, us in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        limit = [(size, 2 * ranks * size / bandwidth / 1e3) for size, _ in points]
        limit = [(size, us) for size, us in limit if us >= 10 ** low_y]
        path = " ".join(f"{x(size):.1f},{y(us):.1f}" for size, us in limit)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-dasharray="4 4"/>')
        first, its = points[0]  # where the lines are furthest apart
        out.append(text(x(first) + 4, y(its) - 5, f"n = {ranks}", f'fill="{colour}"'))
    return "\n".join([*out, "</svg>", ""])


def main():
    parser = peers.arguments(__doc__)
    parser.add_argument("-n", dest="ranks", metavar="N", type=int, action="append", help="rank count (2 4 8 16 32 64)")
    parser.add_argument("--total", metavar="BYTES", type=int, default=4 << 30, help="limit of n x bytes (4 GiB)")
    parser.add_argument("--buffers", default="malloc", choices=["malloc", "alloc"])
    parser.add_argument("--batch-ms", metavar="MS", type=float, default=10)
    parser.add_argument("--program", metavar="PATH", type=Path, help="collective_perf, if not beside prun")
    parser.add_argument("--svg", metavar="FILE", type=Path, help="draw it there")
    options = parser.parse_args()
    peers.prepare()
    prun = peers.launchers_present(options)[0]
    peers.say_circumstances(about := peers.circumstances([prun]))
    perf = str(options.program or Path(options.prun).resolve().parent / "collective_perf")
    results = {}
    for ranks in options.ranks or [2, 4, 8, 16, 32, 64]:
        peers.progress(f"n = {ranks}")
        found = measure(prun, perf, ranks, min(1 << 30, options.total // ranks), options.buffers, options.batch_ms)
        if found is None:
            print(f"note: n = {ranks} failed, or did not end in {LIMIT_S} s")
            continue
        results[ranks] = found
    peers.progress("")
    results = with_one_bandwidth(results)
    sizes = sorted({size for _, points in results.values() for size, _ in points})
    rows = [["bytes", *(f"n = {ranks}, µs" for ranks in results), *(f"n = {ranks}, x limit" for ranks in results)]]
    for size in sizes:
        cells = [dict(points).get(size) for _, points in results.values()]
        limits = [2 * ranks * size / bandwidth / 1e3 for ranks, (bandwidth, _) in results.items()]
        rows.append([str(size)] + ["-" if us is None else f"{us:.1f}" for us in cells]
                    + ["-" if us is None or size < 1 << 16 else f"{us / limit:.1f}" for us, limit in zip(cells, limits)])
    print(peers.table(rows))
    if options.svg:
        title = f"AllReduce, f32 sum, {options.buffers} buffers; dashed: 2 n S / B of the same run"
        options.svg.write_text(draw(results, title))
    peers.write_json(options.json, {"circumstances": about, "results": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
