"""SwitchML's evaluation (Sapio et al., NSDI 2021)."""
import collections
import functools
import math
import statistics

import baselines
import timeouts
import trainings
from figure import Beside, Elsewhere, Figure, Result, bars, lines
from scenario import buckets_of, compute_seconds, iteration, job_of, link, model_bytes, run, run_all, star, time_of

# Table 1, 8 workers: batch ms, communication as % of it, and the part of that which overlaps, at 10 and 100 Gbit/s; alpha.
TABLE_1 = {"deeplight": (2101, 97, 2, 258, 79, 20, 1.0), "lstm": (1534, 94, 10, 312, 46, 56, 1.5), "bert": (1677, 67, 3, 668, 17, 35, 3.5),
           "vgg19": (661, 73, 67, 499, 10, 99, 6.7), "ugatit": (1612, 28, 84, 1212, 4, 99, 17.6), "ncf": (149, 72, 4, 46, 23, 27, 1.2),
           "ssd": (293, 26, 99, 293, 3, 99, 15.2), "resnet50": (299, 29, 67, 270, 3, 94, 19.8)}
TABLE_2 = {10: {"deeplight": 1.80, "lstm": 1.77, "ncf": 1.54, "bert": 1.54, "vgg19": 1.60, "ugatit": 1.22, "resnet50": 1.05, "ssd": 1.01},
           100: {"deeplight": 1.67, "lstm": 1.20, "ncf": 1.22, "bert": 1.14}}
FITTED = ("deeplight", "lstm", "ugatit", "ssd")  # the layers of these
GPU = "p100"
RATES = (10, 100)
# Half of what one core takes to send a datagram and to receive one: sockets with segment trains, and in batches (docs/simulator.md, udp_bench).
TRAINS, BATCHES = 110, 700
ADDITION = 14  # ns: of 256 elements, by a server (build/release/bin/kernel_bench, in cache)
CORES = 8  # of a host for this, each with a lane (§5)
FULL = 25_000_000  # elements: the paper's 100 MB


def cores(cost, more=0):
    """Of network and scenario: hosts whose cores take so many nanoseconds for each packet, and some more for each received."""
    return {"send": f"{cost}ns", "receive": f"{cost + more}ns", "threads": CORES}


PACKET = {"packet_elements": 256}


def slots_for(rate):
    """Packets of 256 elements in flight: more than rate times round trip at either rate."""
    return 512 if rate > 10 else 128


def trained(models, workers, rate, host=None, **more):
    """The reports of a training of each model, at the flow level."""
    network, lanes = star(workers, rate), 1
    if host:
        network["host"], lanes = host, CORES
    return dict(zip(models, run_all([{"lanes": lanes, "network": network,
                                      "job": [job_of(model, GPU, slots=slots_for(rate) // lanes, **PACKET, **more)]} for model in models],
                                    "flow")))


def profile(report, rate):
    """Batch seconds, share of communication, share of that which overlaps, as in Table 1."""
    buckets, batch = report["jobs"][0]["buckets"], time_of(report)
    communicates = sum(seconds_on_wire(rate)(bucket["elements"]) for bucket in buckets)
    exposed = batch - compute_seconds(buckets)
    return batch, communicates / batch, max(0.0, 1 - exposed / communicates)


def seconds_on_wire(rate):
    """Of elements in packets of 256, at line rate: measured on the simulator's own packets, once."""
    if rate not in seconds_on_wire.known:
        elements = 50_000_000
        report = run({"network": star(8, rate), "job": [{"elements": elements, "slots": slots_for(rate), **PACKET}]}, "flow")
        seconds_on_wire.known[rate] = time_of(report) / elements
    return lambda elements: elements * seconds_on_wire.known[rate]


seconds_on_wire.known = {}


def faster_gpu(buckets, rate):
    """The factor by which a faster GPU makes the network busy without a gap once it has begun (Table 1's alpha)."""
    on_wire = seconds_on_wire(rate)
    sent, waited, factor = on_wire(buckets[0]["elements"]), 0.0, None
    for bucket in buckets[1:]:
        waited += bucket["backward"]
        factor = max(factor or 0.0, waited / sent)
        sent += on_wire(bucket["elements"])
    return factor


def of_tables(share):
    """NCF's buckets with its four embedding tables, of 64 and 128 for 138,493 users and 26,744 films (MLPerf), whose gradients take a share of the passes."""
    (whole,) = buckets_of("ncf", GPU)
    tables = [26744 * 128, 138493 * 128, 26744 * 64, 138493 * 64]
    def part(elements, of):
        return {"elements": elements, **{name: f"{round(1e9 * whole[name] * of)}ns" for name in ("forward", "backward")}}
    return [part(whole["elements"] - sum(tables), 1 - share), *(part(each, share * each / sum(tables)) for each in tables)]


def as_resnet(model):
    """The model's size and time, in ResNet-50's layers."""
    own, other = buckets_of(model, GPU), buckets_of("resnet50", GPU)
    longer = compute_seconds(own) / compute_seconds(other)
    larger = sum(each["elements"] for each in own) / sum(each["elements"] for each in other)
    return [{"elements": round(each["elements"] * larger), **{name: f"{round(1e9 * longer * each[name])}ns" for name in ("forward", "backward")}} for each in other]


@functools.cache
def ablations():
    """What other layers, buckets and times would give: {(model, what): {rate: (batch seconds, share, overlap, over a ring, alpha)}}."""
    jobs = {("bert", "all gradients at the end"): job_of("bert", GPU, bucketing="whole"), ("resnet50", "Horovod's buckets of 64 MiB"): job_of("resnet50", GPU, bucket="64MiB"),
            ("ugatit", "1,540 ms of passes"): job_of("ugatit", GPU, iteration="1540ms"), ("ssd", "ResNet-50's layers"): {"bucket": as_resnet("ssd")},
            ("ncf", "tables that take a quarter of the passes"): {"bucket": of_tables(0.25)}}
    keys = [(key, rate) for key in jobs for rate in RATES]
    reports = run_all([{"network": star(8, rate), "job": [{**jobs[key], "slots": slots_for(rate), **PACKET}]} for key, rate in keys], "flow")
    found = {key: {} for key in jobs}
    for (key, rate), report in zip(keys, reports):
        found[key][rate] = (*profile(report, rate), over_ring(report, 8, rate), faster_gpu(report["jobs"][0]["buckets"], rate))
    return found


def table_1(_):
    reports = {rate: trained(TABLE_1, 8, rate) for rate in RATES}
    rows, beside, off = [], [], {rate: [] for rate in RATES}
    for model, paper in TABLE_1.items():
        row = [model, f"{model_bytes(reports[10][model]) / 2**20:.0f}"]
        for at, rate in enumerate(RATES):
            batch, share, overlaps = profile(reports[rate][model], rate)
            off[rate].append(abs(1e3 * batch / paper[3 * at] - 1))
            row += [f"{1e3 * batch:.0f}", f"{paper[3 * at]}", f"{100 * share:.0f}% ({100 * overlaps:.0f}%)",
                    f"{paper[3 * at + 1]}% ({paper[3 * at + 2]}%)"]
            if rate == 10:
                beside += [Beside(f"{model}, batch at 10 Gbit/s, ms", paper[0], 1e3 * batch), Beside(f"{model}, communication at 10 Gbit/s, %", paper[1], 100 * share),
                           Beside(f"{model}, overlap at 10 Gbit/s, %", paper[2], 100 * overlaps)]
            elif model not in FITTED:
                beside.append(Beside(f"{model}, overlap at 100 Gbit/s, %", paper[5], 100 * overlaps))
        factor = faster_gpu(reports[100][model]["jobs"][0]["buckets"], 100)
        if factor:
            beside.append(Beside(f"{model}, alpha", paper[6], factor))
        rows.append([*row, f"{factor:.1f}" if factor else "one bucket", f"{paper[6]:.1f}"])
    for (model, what), at in ablations().items():
        rows.append([f"{model}, {what}", "", *(cell for rate in RATES for cell in (f"{1e3 * at[rate][0]:.0f}", "", f"{100 * at[rate][1]:.0f}% ({100 * at[rate][2]:.0f}%)", "")),
                     f"{at[100][4]:.1f}" if at[100][4] else "one bucket", ""])
    panels = [bars(TABLE_1, {"simulated": [1e3 * profile(reports[rate][model], rate)[0] for model in TABLE_1]},
                   [("paper", [TABLE_1[model][3 * at] for model in TABLE_1])], y="batch, ms", title=f"{rate} Gbit/s")
              for at, rate in enumerate(RATES)]
    causes = "; ".join(f"{model} with {what}: batches of {1e3 * at[10][0]:.0f} and {1e3 * at[100][0]:.0f} ms, overlap {100 * at[10][2]:.0f} and {100 * at[100][2]:.0f} %"
                       + (f", alpha {at[100][4]:.1f}" if at[100][4] else "")
                       for (model, what), at in ablations().items())
    return Result(["model", "MiB", "10: batch ms", "paper", "comm. (overlaps)", "paper", "100: batch ms", "paper", "comm. (overlaps)", "paper",
                   "alpha", "paper"], rows,
                  f"batch times at 10 Gbit/s off by {100 * statistics.median(off[10]):.0f} % (median; at most {100 * max(off[10]):.0f} %)", panels, beside,
                  "When gradients are there decides what overlaps, and the paper's traces are not public. Runs at 10 and 100 Gbit/s with what would give its numbers: "
                  f"{causes}. UGATIT's two columns need two computing times (1,540 and 1,211 ms). Alpha is of the two buckets that are furthest apart, so it hangs on where buckets end.")


def over_ring(report, workers, rate, fills=1.0):
    """Speedup over an ideal ring whose bytes are on the wire as long as ours; or one that fills only a part of its links."""
    on_wire, around = seconds_on_wire(rate), 2 * (workers - 1) / workers / fills
    return iteration(report["jobs"][0]["buckets"], lambda elements: around * on_wire(elements)) / time_of(report)


def speedups(models, workers, rate, host=None, fills=1.0, **more):
    return {model: over_ring(report, workers, rate, fills) for model, report in trained(models, workers, rate, host, **more).items()}


def table_2(_):
    found = {rate: speedups(TABLE_2[rate], 8, rate) for rate in RATES}
    rows = [[f"{rate} Gbit/s", model, f"{value:.2f}", f"{TABLE_2[rate][model]:.2f}"] for rate in RATES for model, value in found[rate].items()]
    others = {(rate, *key): at[rate][3] for key, at in ablations().items() for rate in RATES if key[0] in TABLE_2[rate]}
    rows += [[f"{rate} Gbit/s", f"{model}, {what}", f"{value:.2f}", f"{TABLE_2[rate][model]:.2f}"] for (rate, model, what), value in others.items()]
    most = max(found[10].values())
    return Result(["links", "model", "over ring", "paper"], rows,
                  f"{min(found[10].values()):.2f} to {most:.2f} at 10, {min(found[100].values()):.2f} to {max(found[100].values()):.2f} at 100 Gbit/s",
                  [bars(found[rate], {"simulated": list(found[rate].values())}, [("paper", list(TABLE_2[rate].values()))],
                        y="speedup over ring", title=f"{rate} Gbit/s") for rate in RATES],
                  [Beside(f"{model}, {rate} Gbit/s", TABLE_2[rate][model], value, 1) for rate in RATES for model, value in found[rate].items()],
                  "Two layers stand for SSD, fitted to 100 Gbit/s, and the first's gradients come too late at 10: " +
                  ", ".join(f"{model} with {what} {value:.2f} at {rate} Gbit/s" for (rate, model, what), value in others.items() if model in ("ssd", "bert")) + ".")


def servers(workers, rate, cost, dedicated):
    """Scenario parts of §6.1's parameter servers: as many programs that stream, as a switch does, on hosts of their own or on the workers'. All
    windows of a worker together are as large as with a switch."""
    hosts = [f"h{at}" for at in range(workers, 2 * workers)] if dedicated else [f"h{at}" for at in range(workers)]
    change = [{"nodes": hosts, "node": cores(cost, ADDITION)}]
    return {"lanes": CORES, "network": star(2 * workers if dedicated else workers, rate, host=cores(cost), change=change),
            "aggregation": {"aggregators": hosts}}, [f"h0..h{workers - 1}"], max(1, slots_for(rate) // CORES // workers)


def figure_3(short):
    elements = 500_000 if short else FULL // 10
    sizes = (4, 8) if short else (4, 8, 16)
    costs = {"8 x 0.22 µs": TRAINS, "8 x 1.4 µs": BATCHES}
    scenarios = {}
    for rate in RATES:
        for workers in sizes:
            everyone = [f"h0..h{workers - 1}"]
            for per_packet in (256, 64):
                scenarios[rate, workers, f"SwitchML, {per_packet}"] = {
                    "network": star(workers, rate), "job": [{"elements": elements, "slots": slots_for(rate) * 256 // per_packet, "packet_elements": per_packet}]}
            for name, cost in costs.items():
                scenarios[rate, workers, f"256, {name}"] = {"lanes": CORES, "network": star(workers, rate, host=cores(cost)), "job": [
                    {"elements": elements, "slots": slots_for(rate) // CORES, "hosts": everyone, **PACKET}]}
            for kind in ("dedicated", "colocated"):
                for name, cost in costs.items():
                    parts, hosts, slots = servers(workers, rate, cost, kind == "dedicated")
                    scenarios[rate, workers, f"{kind} PS, {name}"] = {**parts, "job": [{"elements": elements, "slots": slots, "hosts": hosts, **PACKET}]}
    longer = 2 * elements if short else FULL
    full = {"network": star(8, 100), "job": [{"elements": longer, "slots": slots_for(100), **PACKET}]}
    *reports, of_full = run_all([*scenarios.values(), full])
    tat = {key: time_of(report) for key, report in zip(scenarios, reports)}
    used = {key: 8 * link(report, "h0.up")["bytes"] / tat[key] / key[0] / 1e9 for key, report in zip(scenarios, reports)}
    names = [*dict.fromkeys(name for _, _, name in scenarios), "ring"]
    tat |= {(rate, workers, "ring"): baselines.ring(workers, rate)(elements) for rate in RATES for workers in sizes}
    ate = {key: elements / seconds / 1e6 for key, seconds in tat.items()}
    bound = {rate: rate * 1e9 / 32 / 1e6 for rate in RATES}
    rows = [[f"{rate} Gbit/s", workers, *(f"{ate[rate, workers, name]:.0f}" for name in names), f"{bound[rate]:.0f}"]
            for rate in RATES for workers in sizes]
    first, last = sizes[0], sizes[-1]
    best = {per_packet: ate[100, last, f"SwitchML, {per_packet}"] for per_packet in (256, 64)}
    of_dpdk = {rate: ate[rate, 8, "dedicated PS, 8 x 1.4 µs"] / ate[rate, 8, "256, 8 x 1.4 µs"] for rate in RATES}
    colocated = {(rate, cost): ate[rate, last, f"colocated PS, {cost}"] / ate[rate, last, f"dedicated PS, {cost}"] for rate in RATES for cost in costs}
    over_ring = best[256] / ate[100, last, "ring"]
    most = 2 * (last - 1) / last
    of_longer = elements / tat[100, 8, "SwitchML, 256"] / (longer / time_of(of_full))
    return Result(["links", "workers", *names, "payload alone"], rows,
                  f"256 elements: {100 * best[256] / bound[100]:.0f} % of 100 Gbit/s are payload, with 4 workers as with {last} "
                  f"({100 * (best[256] / ate[100, first, 'SwitchML, 256'] - 1):+.1f} %); 64: {100 * best[64] / bound[100]:.0f} %. Hosts with 8 cores of 1.4 µs a packet: dedicated PS "
                  f"{of_dpdk[10]:.2f} of SwitchML's rate at 10, {of_dpdk[100]:.2f} at 100 Gbit/s, colocated {colocated[10, '8 x 1.4 µs']:.2f} of dedicated at 10; {over_ring:.2f} times an ideal ring",
                  [lines({name: [(workers, ate[rate, workers, name]) for workers in sizes] for name in names}, x="workers",
                         y="million elements/s", title=f"{rate} Gbit/s") for rate in RATES],
                  [Beside("goodput of the line rate with 256 elements, %", 93, 100 * best[256] / bound[100]),
                   Beside("with 64, %", 77, 100 * best[64] / bound[100]),
                   Beside("of the goodput that is possible, 256 elements, %", "> 98", 100 * used[100, last, "SwitchML, 256"]),
                   *(Beside(f"dedicated PS over SwitchML, the same hosts, {rate} Gbit/s", "< 1", of_dpdk[rate]) for rate in RATES),
                   *(Beside(f"colocated over dedicated PS, {rate} Gbit/s, {cost}", 0.5, colocated[rate, cost]) for rate, cost in colocated),
                   Beside("at most over NCCL on RDMA; here over an ideal ring", 2.9, over_ring, 1),
                   Beside("at most over NCCL on TCP; here over an ideal ring", 9.1, over_ring, 1)],
                  "Where 8 cores of 1.4 µs a packet are full before 100 Gbit/s are, a colocated server has 8 more, and loses nothing by its neighbour: with 0.22 µs it does. "
                  f"A ring cannot be further behind than 2 (n - 1) / n, {most:.2f} with {last} workers: NCCL's 2.9 and 9.1 are of a ring that gets "
                  f"{100 * most / 2.9:.0f} and {100 * most / 9.1:.0f} % of its links, ours of one that gets all. Tensors of {4e-6 * elements:.0f} MB have {of_longer:.3f} of the rate of {4e-6 * longer:.0f} MB.")


NCCL_FILLS = 1.875 / 2.9  # of its links, by §1's 2.9 times (Figure 3)


def figure_4(_):
    once = speedups(TABLE_1, 8, 100, cores(TRAINS))
    batches = {model: compute_seconds(report["jobs"][0]["buckets"]) for model, report in trained(TABLE_1, 8, 100).items()}
    def faster(fills):
        return {model: speedups([model], 8, 100, cores(TRAINS), fills, iteration=f"{round(1e5 * seconds)}us")[model] for model, seconds in batches.items()}
    tenfold, slow = faster(1.0), {"P100": speedups(TABLE_1, 8, 100, cores(TRAINS), NCCL_FILLS), "10 times faster": faster(NCCL_FILLS)}
    most = max(once.values())
    return Result(["model", "P100", "10 times faster", *(f"{name}, over a ring that fills {100 * NCCL_FILLS:.0f} % of links" for name in slow)],
                  [[model, f"{once[model]:.2f}", f"{tenfold[model]:.2f}", *(f"{each[model]:.2f}" for each in slow.values())] for model in TABLE_1],
                  f"over an ideal ring at most {most:.2f}, with a 10 times faster GPU {max(tenfold.values()):.2f}",
                  [bars(TABLE_1, {"P100": list(once.values()), "10 times faster": list(tenfold.values())}, y="speedup over ring",
                        title="100 Gbit/s, 8 workers, 8 cores of 0.22 µs a packet")],
                  [Beside("at most over NCCL on RDMA; here over an ideal ring", 2.1, most, 1)],
                  f"Over a ring that fills {100 * NCCL_FILLS:.0f} % of its links, as NCCL's does by §1's 2.9 times, it is at most {max(slow['P100'].values()):.2f}, and {max(slow['10 times faster'].values()):.2f} "
                  "with a 10 times faster GPU; bytes bound it to 1.75 over an ideal one.")


def figure_5(_):
    models = list(TABLE_2[100])
    found, slow = speedups(models, 16, 100, cores(TRAINS)), speedups(models, 16, 100, cores(TRAINS), NCCL_FILLS)
    return Result(["model", "over ring", f"over a ring that fills {100 * NCCL_FILLS:.0f} % of links"], [[model, f"{value:.2f}", f"{slow[model]:.2f}"] for model, value in found.items()],
                  f"{min(found.values()):.2f} to {max(found.values()):.2f} over an ideal ring",
                  [bars(models, {"simulated": list(found.values())}, y="speedup over ring", title="100 Gbit/s, 16 workers")],
                  [Beside("least over NCCL on RDMA; here over an ideal ring", 1.13, min(found.values()), 1),
                   Beside("most over NCCL on RDMA", 2.27, max(found.values()), 1)],
                  f"Over a ring that fills {100 * NCCL_FILLS:.0f} % of its links, as NCCL's does by §1's 2.9 times: {min(slow.values()):.2f} to {max(slow.values()):.2f}.")


LOSSES = (0.0, 0.0001, 0.001, 0.01)
SLOTS_10 = 128  # Appendix C, at 10 Gbit/s


@functools.cache
def by_timeouts(loss, elements):
    """The paper's Algorithms 3 and 4 and its time-out of 1 ms: seconds, and when a worker sent."""
    return timeouts.all_reduce(8, 10, loss, SLOTS_10, elements)


def figure_6(short):
    elements, seeds = (250_000, (1,)) if short else (FULL, (1, 2, 3))
    keys = [(loss, seed) for loss in LOSSES for seed in (seeds if loss else seeds[:1])]
    small = [(loss, seed) for loss in LOSSES for seed in (1, 2, 3)]
    def scenario(loss, seed, length):
        return {"seed": seed, "network": star(8, 10, link={"loss": loss}), "job": [{"elements": length, "slots": SLOTS_10, **PACKET}]}
    reports = run_all([*(scenario(*key, elements) for key in keys), *(scenario(*key, 250_000 if short else FULL // 20) for key in small)])
    tat = {loss: [time_of(report) for key, report in zip(keys, reports) if key[0] == loss] for loss in LOSSES}
    of_small = {loss: statistics.median(time_of(report) for key, report in zip(small, reports[len(keys):]) if key[0] == loss) for loss in LOSSES}
    inflation = {loss: statistics.median(each) / tat[0.0][0] for loss, each in tat.items()}
    plain = {loss: by_timeouts(loss, elements)[0] / by_timeouts(0.0, elements)[0] for loss in LOSSES}
    last = LOSSES[-1]
    return Result(["loss", "TAT ms", "least", "most", "inflation", "Algorithm 4, 1 ms", "5 MB"],
                  [[f"{100 * loss:g}%", f"{1e3 * statistics.median(each):.2f}", f"{1e3 * min(each):.2f}", f"{1e3 * max(each):.2f}",
                    f"{inflation[loss]:.3f}", f"{plain[loss]:.3f}", f"{of_small[loss] / of_small[0.0]:.3f}"] for loss, each in tat.items()],
                  ", ".join(f"{inflation[loss]:.3f} ({min(tat[loss]) / tat[0.0][0]:.3f} to {max(tat[loss]) / tat[0.0][0]:.3f}) at {100 * loss:g} %" for loss in LOSSES[1:]) +
                  "; by the paper's time-outs of 1 ms alone " + ", ".join(f"{plain[loss]:.3f}" for loss in LOSSES[1:]) +
                  f"; with 5 MB {of_small[last] / of_small[0.0]:.2f} at {100 * last:g} %",
                  [lines({"SwitchML": [(100 * loss, inflation[loss]) for loss in LOSSES[1:]], "Algorithm 4, 1 ms": [(100 * loss, plain[loss]) for loss in LOSSES[1:]]},
                         x="% loss of each link, each way", y="TAT / TAT without loss", xscale="log", title="100 MB, 10 Gbit/s, 8 workers")],
                  [Beside("TAT with 0.01 % loss over that without", "< 1.02", inflation[0.0001])])


def figure_7(short):
    elements = 1_000_000 if short else FULL
    losses = (0.0, 0.0001, 0.01)
    reports = run_all([{"network": star(8, 10, link={"loss": loss}), "job": [{"elements": elements, "slots": SLOTS_10, **PACKET}],
                        "output": {"series": ["link.h0.up.packets"], "bin": "1ms" if short else "10ms"}} for loss in losses])
    series = {f"{100 * loss:g} %": [(1e3 * at * report["bin_seconds"], packets) for at, packets in enumerate(report["series"]["link.h0.up.packets"])]
              for loss, report in zip(losses, reports)}
    tat = {name: time_of(report) for name, report in zip(series, reports)}
    width = reports[0]["bin_seconds"]
    for loss in losses[1:]:
        name = f"{100 * loss:g} %, Algorithm 4"
        tat[name], sent = by_timeouts(loss, elements)
        counts = collections.Counter(int(at / width) for at in sent)
        series[name] = [(1e3 * at * width, counts[at]) for at in range(max(counts) + 1)]
    rows = [[name, f"{1e3 * tat[name]:.1f}", f"{statistics.median(packets for _, packets in points):.0f}"] for name, points in series.items()]
    return Result(["loss", "TAT ms", "packets a bin, median"], rows, ", ".join(f"{row[1]} ms with {row[0]}" for row in rows),
                  [lines(series, x="ms", y="packets sent in a bin", title="one worker of 8, 100 MB, 10 Gbit/s")],
                  [] if short else [Beside("TAT with 1 % loss, ms", "> 150", 1e3 * tat["1 %"])],
                  f"The paper's own rule, a time-out of 1 ms for each loss, takes {1e3 * tat['1 %, Algorithm 4']:.0f} ms at the same rate of loss; ours repeats most packets when later results come.")


DELAYS = (1, 5, 20)  # µs of a link
# Passes through a pipeline in place of one: four to add 256 elements, and four to read them, 520 ns each (§5).
PASSES = {"a chip's passes": 7 * 0.52}


def figure_9(short):
    elements = 250_000 if short else FULL // 4
    sizes = (16, 64, 256) if short else (16, 32, 64, 128, 256, 512, 1024)
    ways = {f"{delay} µs a link": 2 * delay for delay in DELAYS} | {f"1 µs, and {name}": 2 + more for name, more in PASSES.items()}
    keys = [(way, slots) for way in ways for slots in sizes]
    def scenario(way, slots, length):
        link = {"delay": f"{round(1000 * ways[way] / 2)}ns"}
        return {"network": star(8, 100, link=link, host={"send": "50ns", "receive": "50ns"}), "job": [{"elements": length, "slots": slots, **PACKET}]}
    first = next(iter(ways))
    *reports, of_full, most_slots = run_all([*(scenario(*key, elements) for key in keys),
                                             *(scenario(first, slots, elements if short else FULL) for slots in (64, sizes[-1]))])
    tat = {key: 1e3 * time_of(report) for key, report in zip(keys, reports)}
    # By Little's law: a packet's time from its sending to its result.
    trip = {key: 1e3 * each * key[1] / (elements / 256) for key, each in tat.items()}
    rows, beside, enough = [], [], {}
    for way in ways:
        least = min(tat[way, slots] for slots in sizes)
        enough[way] = next(slots for slots in sizes if tat[way, slots] < 1.02 * least)
        packets = math.ceil(trip[way, sizes[0]] / (1e3 * least / (elements / 256)))
        formula = 1 << (packets - 1).bit_length()
        rows += [[way, slots, f"{tat[way, slots]:.3f}", f"{trip[way, slots]:.1f}"] for slots in sizes]
        if not short:
            beside.append(Beside(f"slots that are enough, {way}; the paper's: Appendix C's next power of two above the round trip's {packets} packets", formula, enough[way]))
    return Result(["round trip", "slots", "TAT ms", "round trip µs"], rows,
                  "TAT falls until " + ", ".join(f"{slots} slots ({way})" for way, slots in enough.items()) +
                  f", behind which the round trip grows; with 100 MB {sizes[-1]} slots take {100 * (time_of(most_slots) / time_of(of_full) - 1):.1f} % longer than 64",
                  [lines({way: [(slots, tat[way, slots]) for slots in sizes] for way in ways}, x="slots", y="ms", xscale="log", title=f"{4e-6 * elements:.0f} MB, 100 Gbit/s, 8 workers"),
                   lines({way: [(slots, trip[way, slots]) for slots in sizes] for way in ways}, x="slots", y="round trip, µs", xscale="log")], beside)


CONVERSION = 25  # ns: of 256 elements, each way, in cache (build/release/bin/kernel_bench, quantize and dequantize)


def figure_11(short):
    """A host converts where it sends and where it receives."""
    elements = 250_000 if short else FULL // 10
    types = {"int32": (0, "float32"), "float32": (CONVERSION, "float32"), "float16": (2 * CONVERSION, "float16")}  # packets hold twice the float16
    keys = [(rate, cost, kind) for rate in RATES for cost in (TRAINS, BATCHES) for kind in types]
    reports = run_all([{"lanes": CORES, "network": star(8, rate, host={**cores(cost + types[kind][0])}), "job": [
        {"elements": elements, "slots": slots_for(rate) // CORES, "wire": types[kind][1], **PACKET}]} for rate, cost, kind in keys])
    tat = {key: 1e3 * time_of(report) for key, report in zip(keys, reports)}
    rows = [[f"{rate} Gbit/s", f"8 x {2 * cost / 1000:g} µs", *(f"{tat[rate, cost, kind]:.3f} ms" for kind in types)] for rate in RATES for cost in (TRAINS, BATCHES)]
    halves = {rate: tat[rate, TRAINS, "float32"] / tat[rate, TRAINS, "float16"] for rate in RATES}
    costs = {(rate, cost): tat[rate, cost, "float32"] / tat[rate, cost, "int32"] for rate in RATES for cost in (TRAINS, BATCHES)}
    return Result(["links", "cores", *types], rows,
                  f"float32 takes {costs[10, TRAINS]:.3f} of int32's time at 10 Gbit/s; at 100 {costs[100, TRAINS]:.3f}, and with 1.4 µs a packet {costs[100, BATCHES]:.3f}; "
                  f"float16 is {halves[10]:.2f} times as fast as float32 at 10, {halves[100]:.2f} at 100 Gbit/s",
                  [bars(types, {f"{rate} Gbit/s": [tat[rate, TRAINS, kind] for kind in types] for rate in RATES}, y="TAT, ms")],
                  [Beside("float16 over float32, 10 Gbit/s", 2, halves[10], 1),
                   Beside("float32 over int32's time, 10 Gbit/s: negligible", "< 1.02", costs[10, TRAINS])])


FITTED_TABLE = ("times of one GPU to the batch times at 100 Gbit/s, the layers of DeepLight, LSTM, UGATIT and SSD to their overlap there; predicted are "
                "10 Gbit/s and, of the other four, overlap")
FIGURES = [
    Figure("switchml-table1", "Table 1", "Profile of eight models", "simulated, flows", table_1,
           "batch 2101 ms (DeepLight) to 149 ms (NCF) at 10 Gbit/s, 258 to 46 ms at 100; alpha 1.0 to 19.8",
           "buckets of 25 MiB, as PyTorch's; the paper's traces are not public", fitted=FITTED_TABLE),
    Figure("switchml-table2", "Table 2", "Speedup over a ring", "simulated, flows", table_2,
           "1.01 to 1.80 at 10, 1.14 to 1.67 at 100 Gbit/s",
           "bytes bound it to 1.75 with 8 workers, which the paper's 1.80 and 1.77 exceed; QSGD and top-k (compression) are not here",
           fitted="models as in Table 1, so the column of 100 Gbit/s"),
    Elsewhere("Table 3", "What is trained", "as Table 1", "the same eight models, as layers: `examples/workloads/models.toml`",
              paper="eight models on PyTorch and TensorFlow", reason="neither their data nor TensorFlow is here"),
    Figure("switchml-figure3", "Figure 3", "Elements aggregated a second", "simulated, packets; the ring computed", figure_3,
           "RDMA with 256 elements within 2 % of the most that is possible, whatever the number of workers; 93 % of the line rate, 64 elements 77 %; dedicated PS below "
           "SwitchML on DPDK, colocated half of it; at most 2.9 times NCCL on RDMA, 9.1 on TCP",
           "10 MB in place of 100; links count Ethernet frames without preamble and gap; headers are ours; a server's hosts are as a worker's, and add; NCCL is not here, the ring is ideal"),
    Figure("switchml-figure4", "Figure 4", "Batch speedup at 100 Gbit/s, P100 and a 10 times faster GPU", "simulated, flows", figure_4,
           "at most 2.1 over NCCL on RDMA, on TCP up to ten times", "over an ideal ring (at most 1.75 with 8 workers); 8 cores of 0.22 µs a packet", fitted="models as in Table 1"),
    Figure("switchml-figure5", "Figure 5", "Training speedup, 16 workers", "simulated, flows", figure_5,
           "1.13 to 2.27 over NCCL on RDMA, 2.05 to 5.55 on TCP", "over an ideal ring (at most 1.88 with 16 workers); no data loading", fitted="models as in Table 1"),
    Figure("switchml-figure6", "Figure 6", "Inflation of TAT by losses", "simulated, packets; Algorithm 4 computed", figure_6,
           "0.01 % changes little; no other number in the text",
           "the paper's 100 MB, 8 workers, 128 slots; a rank repeats by later results, [mostly without a time-out](protocol-switchml.md): the paper's own rule is `papers/timeouts.py`. "
           "What is lost in the last window waits for a probe, which short tensors feel"),
    Figure("switchml-figure7", "Figure 7", "Packets sent over time, with losses", "simulated, packets; Algorithm 4 computed", figure_7,
           "near the ideal rate; with 1 % slower past 150 ms", "as Figure 6"),
    Figure("switchml-figure9", "Figure 9", "Pool size", "simulated, packets", figure_9,
           "TAT falls until slots times packets are bandwidth times delay (Appendix C), rounded up to a power of two: 128 slots at 10, 512 at 100 Gbit/s; 520 ns a pipeline's pass (§5)",
           "the delay is the scenario's, not the paper's hosts': three of them, 50 ns a packet, and the passes of a chip; 25 MB, and 100 MB where said. A chip's recirculation "
           "has room for 16 ports of 100 Gbit/s (§5), so it bounds none of these runs"),
    Figure("switchml-figure11", "Figure 11", "int32, float32 and float16", "simulated, packets", figure_11,
           "scaling and conversion cost nothing at 10 Gbit/s; float16 doubles the rate", "10 MB; packets are as long and hold twice the float16; the paper halves its tensor"),
    Elsewhere("Figure 3", "Elements aggregated a second", "measured", "16 workers for 2: {scaling-16}; Gloo's time over ours with 4 workers: {shaped-4}",
              "scripts/bench --suite scaling,shaped", "as above", "links of 200 and 50 Mbit/s ([performance.md](performance.md))"),
    Elsewhere("Figure 6", "Inflation of TAT by losses", "measured", "{loss-4-inflation-0.01} at 0.01 %, {loss-4-inflation-0.1} at 0.1 %, "
              "{loss-4-inflation-1} at 1 %; Gloo, cubic, at 1 %: {loss-4-inflation-gloo-cubic}", "scripts/bench --suite loss", "as above",
              "links of 200 Mbit/s: with a time-out of the same length a loss costs fewer packets"),
    Elsewhere("Figure 7", "Packets sent over time, with losses", "measured", "[timelines](images/performance-loss-timeline.svg) without a gap",
              "scripts/bench --suite timeline", "as above", "links of 200 Mbit/s"),
    Elsewhere("Figure 11", "float32 and 16 bits", "measured", "of Gloo's time with float32: {shaped-4} with float32, {shaped-4-bfloat16} with bfloat16",
              "scripts/bench --suite shaped", "as above", "links of 200 Mbit/s, 4 workers"),
    Elsewhere("Figure 11", "int32, float32 and float16", "measured", "of int32's time, with 2 and 4 ranks: float32 1.20 and 1.18, float32 with float16 in packets 0.94 and 0.95, float16 0.64 and 0.64",
              "scripts/reproduce switchml-types", "as above", "two processors and their loopback, 25 MB: what bounds these runs is processors, as at 100 Gbit/s in the paper"),
    Elsewhere("Section 6.3", "Switch resources", "computed", "256 KiB and 1 MiB of sums for 128 and 512 slots, as the paper's, whatever the number of workers; our P4 program for a chip plans 36 of 48 "
              "register units", "p4/budget.py p4/netsum_tna.p4", "less than 10 % of the switch's memory; 256 KB and 1 MB", "a plan, not a compiler's result ([a chip's profile](protocol-switchml-chip.md))"),
    Figure("switchml-figure2", "Figures 2, 12, 13", "Accuracy and loss with quantized sums", "trained", trainings.accuracies,
           "as accurate as without (ResNet-110 on CIFAR10: 91 to 93 %, and five more; BERT's loss is the same)",
           "8 ranks, 5 seeds; a CNN on Fashion-MNIST and a transformer on generated text, for a few hundred steps: two cores can do no ResNet-110, and have no CIFAR10"),
    Elsewhere("Table 4", "Test metrics with compression", "not here", reason="netsum has no compression (top-k, QSGD), and two cores do not train these models"),
    Elsewhere("Figure 10", "Convergence with compression", "not here", reason="as Table 4"),
]
