"""What no paper has: all three systems and a ring on the same networks, and how far each scales."""
import math
import statistics

import baselines
import trainings
from figure import Figure, Result, lines, points
from scenario import compute_seconds, gbit, iteration, job_of, run_all, time_of

IN_RACK, RACKS = 8, (1, 16)
RATES = (10, 100)
LOSSES = (0.0, 0.001)
LINK = 1e-6  # seconds from a node to the next
LARGE, SMALL = 500_000, 2_000  # elements
# Packets fill 1500 bytes of a link, but for SwitchML's and ATP's blocks of exponents; windows are more than rate times round trip.
SYSTEMS = {"SwitchML": {"packet_elements": 256}, "ATP": {"packet_elements": 256}, "NetReduce": {"packet_elements": 256, "message_packets": 8}}


# NetReduce's ranks, as netsum's own endpoint, repeat single packets; hosts with RoCE's hardware, behind a bump in the wire, go back.
BUMP = "NetReduce, go-back-N"
COMPARED = {**SYSTEMS, BUMP: SYSTEMS["NetReduce"]}


def window(rate):
    return 1024 if rate > 10 else 256


def scenario(system, racks, rate, loss, elements, packets=None):
    """A switch sums in each rack, and one above them."""
    packets = packets or window(rate)
    protocol = "bump" if system == BUMP else system.lower()
    hosts = IN_RACK + (1 if protocol == "atp" else 0)  # the server
    link = {"rate": gbit(rate), "delay": "1us", "loss": loss}
    network = {"kind": "star", "hosts": hosts} if racks == 1 else {"kind": "tree", "fan_out": [racks, hosts], "trunk": {**link, "rate": gbit(rate * IN_RACK)}}
    ranks = [f"h{hosts * rack}..h{hosts * rack + IN_RACK - 1}" for rack in range(racks)]
    slots = packets // COMPARED[system].get("message_packets", 1)
    job = {"hosts": ranks, "elements": elements, "iterations": 3 if elements > SMALL else 20, "slots": slots, **COMPARED[system]}
    aggregation = {"aggregators": ["sw"]} | ({"switches": "all"} if racks > 1 else {})
    if protocol == "atp":
        aggregation = {"aggregators": [f"h{IN_RACK}"], "pool_slots": 4 * packets, **({"switches": "all", "root": True} if racks > 1 else {"switches": ["sw"]})}
    return {"protocol": protocol, "network": {**network, "link": link}, "aggregation": aggregation, "job": [job]}


def ring(racks, rate, elements):
    """The better of a ring of all and a ring of rings; each step goes to a neighbour, whose packets nobody loses."""
    if racks == 1:
        return baselines.ring(IN_RACK, rate, 2 * LINK)(elements)
    return min(baselines.ring(racks * IN_RACK, rate, 4 * LINK)(elements), baselines.two_level_ring(racks, IN_RACK, rate, 4 * LINK)(elements))


LOSSY_WINDOWS = (1024, 512, 256)
LOSSY_ITERATIONS, LEARNING = 8, 2  # the first ones take longer


def with_losses(elements):
    """What losses cost across racks at 100 Gbit/s: {system: (times without, by the window; likewise of the first all-reduces, and of tensors twice as long, with the longest)}."""
    keys = [(system, packets, length, loss) for system in SYSTEMS for packets in LOSSY_WINDOWS for length in ((elements, 2 * elements) if packets == LOSSY_WINDOWS[0] else (elements,))
            for loss in LOSSES]

    def lossy(system, packets, length, loss):
        asked = scenario(system, RACKS[-1], 100, loss, length, packets)
        asked["job"][0]["iterations"] = LOSSY_ITERATIONS if loss else LEARNING + 1
        return asked
    tat = {key: report["jobs"][0]["iterations"] for key, report in zip(keys, run_all([lossy(*key) for key in keys]))}

    def cost(system, packets, length, which):
        return statistics.median(which(tat[system, packets, length, LOSSES[-1]])) / statistics.median(tat[system, packets, length, 0.0])

    def first(each):
        return each[:LEARNING]

    def later(each):
        return each[LEARNING:]
    return {system: ([cost(system, packets, elements, later) for packets in LOSSY_WINDOWS], cost(system, LOSSY_WINDOWS[0], elements, first),
                     cost(system, LOSSY_WINDOWS[0], 2 * elements, later)) for system in SYSTEMS}


def which(short):
    networks = [(racks, rate, loss) for racks in RACKS[:1 if short else None] for rate in RATES for loss in LOSSES]
    keys = [(elements, *network, system) for elements in (LARGE, SMALL) for network in networks for system in COMPARED
            if system != BUMP or network[0] == 1]
    reports = run_all([scenario(system, racks, rate, loss, elements) for elements, racks, rate, loss, system in keys])
    tat = dict(zip(keys, map(time_of, reports)))
    rows, panels, wins = [], [], {}
    for elements in (LARGE, SMALL):
        size = f"{4 * elements / 1000:g} kB" if elements < 250_000 else f"{4 * elements / 1e6:g} MB"
        gains = {system: [] for system in COMPARED}
        for racks, rate, loss in networks:
            of_ring = ring(racks, rate, elements)
            own = {system: tat.get((elements, racks, rate, loss, system), math.inf) for system in COMPARED}
            for system in COMPARED:
                gains[system].append(of_ring / own[system] if own[system] < math.inf else math.nan)
            best = min([*own, "ring"], key=lambda name: own.get(name, of_ring))
            wins[best] = wins.get(best, 0) + 1
            rows.append([size, racks, f"{rate} Gbit/s", f"{100 * loss:g}%", *(f"{1e6 * seconds:.0f}" if seconds < math.inf else "–" for seconds in own.values()), f"{1e6 * of_ring:.0f}", best])
        groups = [f"{racks * IN_RACK} ranks, {rate} Gbit/s" + (f", {100 * loss:g} % lost" if loss else "") for racks, rate, loss in networks]
        panels.append(points(groups, gains, x="times as fast as a ring", xscale="log", title=f"all-reduce of {size}"))
    return Result(["tensor", "racks", "links", "loss", *(f"{system}, µs" for system in COMPARED), "ring, µs", "fastest"], rows,
                  "fastest: " + ", ".join(f"{system} in {count} of {len(rows)}" for system, count in sorted(wins.items(), key=lambda each: -each[1])) +
                  ("" if short else f"; what 0.1 % of losses cost {RACKS[-1]} racks at 100 Gbit/s, {4 * LARGE / 1e6:g} MB, by windows of {', '.join(map(str, LOSSY_WINDOWS))} packets: " +
                   "; ".join(f"{system} {', '.join(f'{each:.2f}' for each in times)} times (the first two all-reduces {first:.2f}, tensors twice as long {longer:.2f})"
                             for system, (times, first, longer) in with_losses(LARGE).items())), panels)


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


# ---- levels

DELAYS = ("1us", "10us", "100us")
WINDOWS = (0.5, 1, 4, 16)  # of what the path holds
LENGTHS = (10_000, 100_000, 1_000_000)  # elements


MOST_PACKETS = 4096  # of a lane


def window_slots(system, delay, window):
    """Of packets of 1,100 bytes on the way there and back at 100 Gbit/s; SYSTEMS' messages are a slot of NetReduce."""
    holds = 2 * int(delay[:-2]) * 1e-6 * 100e9 / 8 / 1100
    return 1 << max(1, round(math.log2(window * holds / SYSTEMS[system].get("message_packets", 1))))


def levels(short):
    """The flow level's times over the packet level's. Float16 goes in packets that are as long, so that of NetReduce is compared with half as many float32."""
    ranks, delays, lengths = 4, DELAYS[:2 if short else None], LENGTHS[:2 if short else None]
    kinds = [(system, wire) for system in SYSTEMS for wire in ("float32", "float16") if (system, wire) != ("ATP", "float16")]
    keys = [(*kind, delay, window, length) for kind in kinds for delay in delays for window in WINDOWS for length in lengths
            if window_slots(kind[0], delay, window) * SYSTEMS[kind[0]].get("message_packets", 1) <= MOST_PACKETS]
    packets, flows = [], []
    for system, wire, delay, window, length in keys:
        slots = window_slots(system, delay, window)
        aggregation = {"aggregation": {"aggregators": [f"h{ranks}"], "switches": ["sw"], "pool_slots": 4 * slots}} if system == "ATP" else {}
        def scenario(elements, wire):
            return {"protocol": system.lower(), "network": {"kind": "star", "hosts": ranks + 1, "link": {"rate": "100gbit", "delay": delay}}, **aggregation,
                    "job": [{"hosts": [f"h0..h{ranks - 1}"], "elements": elements, "iterations": 2, "slots": slots, "wire": wire, **SYSTEMS[system]}]}
        halves = (system, wire) == ("NetReduce", "float16")
        packets.append(scenario(length // 2, "float32") if halves else scenario(length, wire))
        flows.append(scenario(length, wire))
    of_packets, of_flows = run_all(packets), run_all(flows, "flow")
    rows, ours, panels = [], [], []
    off = {key: time_of(flow) / time_of(packet) - 1 for key, flow, packet in zip(keys, of_flows, of_packets)}
    warned = {key for key, flow in zip(keys, of_flows) if flow.get("warnings")}
    for kind in kinds:
        for delay, window in dict.fromkeys(key[2:4] for key in keys if key[:2] == kind):
            these = [key for key in keys if key[:4] == (*kind, delay, window)]
            rows.append([*kind, delay, window, *(f"{100 * off[key]:+.1f} %{' (warned)' if key in warned else ''}" for key in these)])
        mine = [key for key in keys if key[:2] == kind]
        sure, doubted = ([abs(off[key]) for key in mine if (key in warned) == doubt] for doubt in (False, True))
        ours.append(f"{kind[0]} {kind[1]} {100 * max(sure, default=0):.1f} %" + (f", where it warns {100 * max(doubted):.0f}" if doubted else ""))
        panels.append((f"{kind[0]}, {kind[1]}", [(window, 100 * max(abs(off[key]) for key in mine if key[3] == window)) for window in WINDOWS]))
    return Result(["protocol", "packets hold", "delay of a link", "window, of what the path holds", *(f"{length} elements" for length in lengths)], rows,
                  f"off by at most: {'; '.join(ours)} ({len(keys)} experiments, {len(warned)} with a warning)",
                  [lines(dict(panels), x="window, of what the path holds", y="% off, at most", xscale="log")])


FIGURES = [
    Figure("levels", "", "The flow level beside the packet level", "simulated, packets and flows", levels,
           reason="4 ranks at 100 Gbit/s, no losses; ATP's packets have 32 bits; float16 of NetReduce is beside half as many float32"),
    Figure("which", "", "Which protocol is the fastest where", "simulated, packets; the ring computed", which,
           reason="racks of 8; hosts cost nothing, and of the ring no packet is ever lost. NetReduce is twice: netsum's own endpoint repeats single packets, through tunnels; RDMA hardware "
                  "goes back, behind a bump, and in one rack: a bridge of a rack, which hears no ARP here, floods more than a network would", picture=True),
    Figure("few-bits", "", "Accuracy with 16, 8 and 4 bits", "trained", trainings.few_bits,
           reason="4 ranks; a CNN and a ResNet on Fashion-MNIST and a transformer on generated text, for 50 to 100 steps of Adam, 5 seeds: sizes for two cores; "
                  "feedback is each rank's own, to nearest", picture=True),
    Figure("scaling", "", "An iteration with up to 50,000 ranks", "simulated, flows; rings computed", scaling,
           reason="SwitchML's rates, trees of switches with 32 and 64 ports, half of them below; no losses, all ranks equally fast; as many ranks as no "
                  "job of netsum may have", picture=True),
]
