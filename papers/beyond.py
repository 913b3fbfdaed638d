"""What no paper has: all three systems and a ring on the same networks, and how far each scales."""
import math

import baselines
from figure import Figure, Result, lines, points
from scenario import compute_seconds, gbit, iteration, job_of, run_all, time_of

IN_RACK, RACKS = 8, (1, 16)
RATES = (10, 100)
LOSSES = (0.0, 0.001)
LINK = 1e-6  # seconds from a node to the next
LARGE, SMALL = 500_000, 2_000  # elements
# Packets fill 1500 bytes of a link, but for SwitchML's and ATP's blocks of exponents; windows are more than rate times round trip.
SYSTEMS = {"SwitchML": {"packet_elements": 256}, "ATP": {"packet_elements": 256}, "NetReduce": {"packet_elements": 256, "message_packets": 8}}


def window(rate):
    return 1024 if rate > 10 else 256


def scenario(system, racks, rate, loss, elements):
    """A switch sums in each rack, and one above them."""
    protocol = system.lower()
    hosts = IN_RACK + (1 if protocol == "atp" else 0)  # the server
    link = {"rate": gbit(rate), "delay": "1us", "loss": loss}
    network = {"kind": "star", "hosts": hosts} if racks == 1 else {"kind": "tree", "fan_out": [racks, hosts], "trunk": {**link, "rate": gbit(rate * IN_RACK)}}
    ranks = [f"h{hosts * rack}..h{hosts * rack + IN_RACK - 1}" for rack in range(racks)]
    slots = window(rate) // (8 if protocol == "netreduce" else 1)
    job = {"hosts": ranks, "elements": elements, "iterations": 3 if elements > SMALL else 20, "slots": slots, **SYSTEMS[system]}
    aggregation = {"aggregators": ["sw"]} | ({"switches": "all"} if racks > 1 else {})
    if protocol == "atp":
        aggregation = {"aggregators": [f"h{IN_RACK}"], "pool_slots": 4 * window(rate), **({"switches": "all", "root": True} if racks > 1 else {"switches": ["sw"]})}
    return {"protocol": protocol, "network": {**network, "link": link}, "aggregation": aggregation, "job": [job]}


def ring(racks, rate, elements):
    """The better of a ring of all and a ring of rings; each step goes to a neighbour, whose packets nobody loses."""
    if racks == 1:
        return baselines.ring(IN_RACK, rate, 2 * LINK)(elements)
    return min(baselines.ring(racks * IN_RACK, rate, 4 * LINK)(elements), baselines.two_level_ring(racks, IN_RACK, rate, 4 * LINK)(elements))


def which(short):
    networks = [(racks, rate, loss) for racks in RACKS[:1 if short else None] for rate in RATES for loss in LOSSES]
    keys = [(elements, *network, system) for elements in (LARGE, SMALL) for network in networks for system in SYSTEMS]
    reports = run_all([scenario(system, racks, rate, loss, elements) for elements, racks, rate, loss, system in keys])
    tat = dict(zip(keys, map(time_of, reports)))
    rows, panels, wins = [], [], {}
    for elements in (LARGE, SMALL):
        size = f"{4 * elements / 1000:g} kB" if elements < 250_000 else f"{4 * elements / 1e6:g} MB"
        gains = {system: [] for system in SYSTEMS}
        for racks, rate, loss in networks:
            of_ring = ring(racks, rate, elements)
            own = {system: tat[elements, racks, rate, loss, system] for system in SYSTEMS}
            for system in SYSTEMS:
                gains[system].append(of_ring / own[system])
            best = min([*own, "ring"], key=lambda name: own.get(name, of_ring))
            wins[best] = wins.get(best, 0) + 1
            rows.append([size, racks, f"{rate} Gbit/s", f"{100 * loss:g}%", *(f"{1e6 * seconds:.0f}" for seconds in own.values()), f"{1e6 * of_ring:.0f}", best])
        groups = [f"{racks * IN_RACK} ranks, {rate} Gbit/s" + (f", {100 * loss:g} % lost" if loss else "") for racks, rate, loss in networks]
        panels.append(points(groups, gains, x="times as fast as a ring", xscale="log", title=f"all-reduce of {size}"))
    return Result(["tensor", "racks", "links", "loss", *(f"{system}, µs" for system in SYSTEMS), "ring, µs", "fastest"], rows,
                  "fastest: " + ", ".join(f"{system} in {count} of {len(rows)}" for system, count in sorted(wins.items(), key=lambda each: -each[1])), panels)


# ---- scaling

COUNTS = (8, 64, 512, 4_096, 16_384, 50_000)
TRAININGS = {"resnet50": "v100", "vgg16": "v100", "bert": "p100"}
RING_STEP = 2 * LINK


def fan_out(ranks, ports):
    """Of a tree with room for them: a switch has as many ports below as above, the root all of them below. The first is the root's."""
    half = ports // 2
    below = [min(half, ranks)]
    while math.prod(below) * ports < ranks:
        below.insert(0, half)
    above = math.ceil(ranks / math.prod(below))
    return [above, *below] if above > 1 else below


def scaling(short):
    counts = COUNTS[:4] if short else COUNTS
    rows, panels, ours = [], [], []
    for model, gpu in TRAININGS.items():
        keys = [(count, ports) for count in counts for ports in (32, 64)]
        scenarios = []
        for count, ports in keys:
            tree = fan_out(count, ports)
            network = {"kind": "tree", "fan_out": tree, "link": {"rate": "100gbit", "delay": "1us"}}
            scenarios.append({"network": network, "aggregation": {"switches": "all"},
                              "job": [job_of(model, gpu, hosts=[f"h0..h{count - 1}"], slots=1024, packet_elements=256)]})
        reports = dict(zip(keys, run_all(scenarios, "flow")))
        buckets = reports[keys[0]]["jobs"][0]["buckets"]
        series = {f"{ports} ports": [(count, 1e3 * time_of(reports[count, ports])) for count in counts] for ports in (32, 64)}
        series["ring"] = [(count, 1e3 * iteration(buckets, baselines.ring(count, 100, RING_STEP))) for count in counts]
        # Racks as those of 64 ports; a step across them goes as far as a tree's.
        series["two-level ring"] = [(count, 1e3 * iteration(buckets, baselines.two_level_ring(max(1, math.ceil(count / 32)), min(32, count), 100, 2 * RING_STEP)))
                                    for count in counts]
        rows += [[model, count, *(f"{points[at][1]:.1f}" for points in series.values())] for at, count in enumerate(counts)]
        last = {name: points[-1][1] for name, points in series.items()}
        ours.append(f"{model} {last['64 ports']:.0f} ms ({series['64 ports'][0][1]:.0f} with {counts[0]}), ring {last['ring']:.0f}, two-level ring {last['two-level ring']:.0f}")
        panels.append(lines(series, x="ranks", y="ms an iteration", xscale="log", yscale="log", title=f"{model} ({gpu}), 100 Gbit/s"))
    return Result(["model", "ranks", *(f"{name}, ms" for name in series)], rows, f"with {counts[-1]:,} ranks: " + "; ".join(ours), panels)


FIGURES = [
    Figure("which", "", "Which protocol is the fastest where", "simulated, packets; the ring computed", which,
           reason="racks of 8; hosts cost nothing, and of the ring no packet is ever lost", picture=True),
    Figure("scaling", "", "An iteration with up to 50,000 ranks", "simulated, flows; rings computed", scaling,
           reason="SwitchML's rates, trees of switches with 32 and 64 ports, half of them below; no losses, all ranks equally fast; as many ranks as no "
                  "job of netsum may have", picture=True),
]
