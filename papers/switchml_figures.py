"""SwitchML's evaluation (Sapio et al., NSDI 2021)."""
import statistics

import baselines
import trainings
from figure import Elsewhere, Figure, Result, bars, lines
from scenario import compute_seconds, iteration, job_of, model_bytes, run, run_all, star, time_of

# Table 1, 8 workers: batch ms, communication as % of it, and the part of that which overlaps, at 10 and 100 Gbit/s; alpha.
TABLE_1 = {"deeplight": (2101, 97, 2, 258, 79, 20, 1.0), "lstm": (1534, 94, 10, 312, 46, 56, 1.5), "bert": (1677, 67, 3, 668, 17, 35, 3.5),
           "vgg19": (661, 73, 67, 499, 10, 99, 6.7), "ugatit": (1612, 28, 84, 1212, 4, 99, 17.6), "ncf": (149, 72, 4, 46, 23, 27, 1.2),
           "ssd": (293, 26, 99, 293, 3, 99, 15.2), "resnet50": (299, 29, 67, 270, 3, 94, 19.8)}
TABLE_2 = {10: {"deeplight": 1.80, "lstm": 1.77, "ncf": 1.54, "bert": 1.54, "vgg19": 1.60, "ugatit": 1.22, "resnet50": 1.05, "ssd": 1.01},
           100: {"deeplight": 1.67, "lstm": 1.20, "ncf": 1.22, "bert": 1.14}}
GPU = "p100"
RATES = (10, 100)
# Of a datagram, sent or received, by one core: sockets with segment trains, and in batches (docs/simulator.md, udp_bench).
TRAINS, BATCHES = "220ns", "1400ns"
CORES = 8  # of a host for this, each with a lane


def cores(cost):
    """Of network and scenario: hosts whose cores take so long for each packet."""
    return {"send": cost, "receive": cost, "threads": CORES}


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


def table_1(_):
    reports = {rate: trained(TABLE_1, 8, rate) for rate in RATES}
    rows, found = [], {}
    for model, paper in TABLE_1.items():
        row = [model, f"{model_bytes(reports[10][model]) / 2**20:.0f}"]
        for at, rate in enumerate(RATES):
            batch, share, overlaps = profile(reports[rate][model], rate)
            found[model, rate] = 1e3 * batch
            row += [f"{1e3 * batch:.0f}", f"{paper[3 * at]}", f"{100 * share:.0f}% ({100 * overlaps:.0f}%)",
                    f"{paper[3 * at + 1]}% ({paper[3 * at + 2]}%)"]
        factor = faster_gpu(reports[100][model]["jobs"][0]["buckets"], 100)
        rows.append([*row, f"{factor:.1f}" if factor else "one bucket", f"{paper[6]:.1f}"])
    off = {rate: [abs(found[model, rate] / TABLE_1[model][3 * at] - 1) for model in TABLE_1] for at, rate in enumerate(RATES)}
    panels = [bars(TABLE_1, {"simulated": [found[model, rate] for model in TABLE_1]},
                   [("paper", [TABLE_1[model][3 * at] for model in TABLE_1])], y="batch, ms", title=f"{rate} Gbit/s")
              for at, rate in enumerate(RATES)]
    return Result(["model", "MiB", "10: batch ms", "paper", "comm. (overlaps)", "paper", "100: batch ms", "paper", "comm. (overlaps)", "paper",
                   "alpha", "paper"], rows,
                  "batch times off by " + ", ".join(f"{100 * statistics.median(off[rate]):.0f} % (median; at most {100 * max(off[rate]):.0f} %) at "
                                                    f"{rate} Gbit/s" for rate in RATES), panels)


def speedups(models, workers, rate, host=None, **more):
    """Over an ideal ring whose bytes are on the wire as long as ours."""
    reports = trained(models, workers, rate, host, **more)
    on_wire = seconds_on_wire(rate)
    around = 2 * (workers - 1) / workers
    return {model: iteration(report["jobs"][0]["buckets"], lambda elements: around * on_wire(elements)) / time_of(report)
            for model, report in reports.items()}


def table_2(_):
    found = {rate: speedups(TABLE_2[rate], 8, rate) for rate in RATES}
    rows = [[f"{rate} Gbit/s", model, f"{value:.2f}", f"{TABLE_2[rate][model]:.2f}"] for rate in RATES for model, value in found[rate].items()]
    most = max(found[10].values())
    return Result(["links", "model", "over ring", "paper"], rows,
                  f"{min(found[10].values()):.2f} to {most:.2f} at 10, {min(found[100].values()):.2f} to {max(found[100].values()):.2f} at 100 Gbit/s",
                  [bars(found[rate], {"simulated": list(found[rate].values())}, [("paper", list(TABLE_2[rate].values()))],
                        y="speedup over ring", title=f"{rate} Gbit/s") for rate in RATES])


def figure_3(short):
    elements = 500_000 if short else 1_250_000
    sizes = (4, 8) if short else (4, 8, 16)
    variants = {"SwitchML, 256": ({"packet_elements": 256}, None), "SwitchML, 64": ({"packet_elements": 64}, None),
                "256, 8 x 0.22 µs": ({"packet_elements": 256}, cores(TRAINS)),
                "256, 8 x 1.4 µs": ({"packet_elements": 256}, cores(BATCHES))}
    keys = [(rate, workers, name) for rate in RATES for workers in sizes for name in variants]
    scenarios = []
    for rate, workers, name in keys:
        job, host = variants[name]
        lanes = CORES if host else 1
        slots = slots_for(rate) * 256 // job["packet_elements"] // lanes
        scenarios.append({"lanes": lanes, "network": star(workers, rate, **({"host": host} if host else {})),
                          "job": [{"elements": elements, "slots": slots, **job}]})
    tat = {key: time_of(report) for key, report in zip(keys, run_all(scenarios))}
    for rate in RATES:
        for workers in sizes:
            tat[rate, workers, "ring"] = baselines.ring(workers, rate)(elements)
            tat[rate, workers, "dedicated PS"] = baselines.dedicated_servers(rate)(elements)
            tat[rate, workers, "colocated PS"] = baselines.colocated_servers(workers, rate)(elements)
    names = [*variants, "ring", "dedicated PS", "colocated PS"]
    ate = {key: elements / seconds / 1e6 for key, seconds in tat.items()}
    bound = {rate: rate * 1e9 / 32 / 1e6 for rate in RATES}
    rows = [[f"{rate} Gbit/s", workers, *(f"{ate[rate, workers, name]:.0f}" for name in names), f"{bound[rate]:.0f}"]
            for rate in RATES for workers in sizes]
    spread = [ate[100, sizes[-1], name] / ate[100, sizes[0], name] for name in list(variants)[:1]]
    last = sizes[-1]
    return Result(["links", "workers", *names, "payload alone"], rows,
                  f"256 elements: {100 * ate[100, last, 'SwitchML, 256'] / bound[100]:.0f} % of 100 Gbit/s are payload, whatever the number of workers "
                  f"({100 * (spread[0] - 1):+.1f} % from {sizes[0]} to {last}); 64: {100 * ate[100, last, 'SwitchML, 64'] / bound[100]:.0f} %; "
                  f"{ate[100, last, 'SwitchML, 256'] / ate[100, last, 'ring']:.2f} times a ring",
                  [lines({name: [(workers, ate[rate, workers, name]) for workers in sizes] for name in names}, x="workers",
                         y="million elements/s", title=f"{rate} Gbit/s") for rate in RATES])


def figure_4(_):
    once = speedups(TABLE_1, 8, 100, cores(TRAINS))
    batches = {model: compute_seconds(report["jobs"][0]["buckets"]) for model, report in trained(TABLE_1, 8, 100).items()}
    faster = {model: speedups([model], 8, 100, cores(TRAINS), iteration=f"{round(1e5 * seconds)}us")[model]
              for model, seconds in batches.items()}
    return Result(["model", "P100", "10 times faster"], [[model, f"{once[model]:.2f}", f"{faster[model]:.2f}"] for model in TABLE_1],
                  f"at most {max(once.values()):.2f}, with a 10 times faster GPU {max(faster.values()):.2f}",
                  [bars(TABLE_1, {"P100": list(once.values()), "10 times faster": list(faster.values())}, y="speedup over ring",
                        title="100 Gbit/s, 8 workers, 8 cores of 0.22 µs a packet")])


def figure_5(_):
    models = list(TABLE_2[100])
    found = speedups(models, 16, 100, cores(TRAINS))
    return Result(["model", "over ring"], [[model, f"{value:.2f}"] for model, value in found.items()],
                  f"{min(found.values()):.2f} to {max(found.values()):.2f} over a ring",
                  [bars(models, {"simulated": list(found.values())}, y="speedup over ring", title="100 Gbit/s, 16 workers")])


LOSSES = (0.0, 0.0001, 0.001, 0.01)


def figure_6(short):
    elements, seeds = (250_000, (1,)) if short else (1_250_000, range(1, 12))
    keys = [(loss, seed) for loss in LOSSES for seed in seeds]
    reports = run_all([{"seed": seed, "network": star(8, 10, link={"loss": loss}), "job": [{"elements": elements, "slots": 128, **PACKET}]}
                       for loss, seed in keys])
    tat = {loss: [time_of(report) for key, report in zip(keys, reports) if key[0] == loss] for loss in LOSSES}
    base = statistics.median(tat[0.0])
    inflation = {loss: statistics.median(each) / base for loss, each in tat.items()}
    return Result(["loss", "TAT ms", "least", "most", "inflation"],
                  [[f"{100 * loss:g}%", f"{1e3 * statistics.median(each):.2f}", f"{1e3 * min(each):.2f}", f"{1e3 * max(each):.2f}",
                    f"{inflation[loss]:.3f}"] for loss, each in tat.items()],
                  ", ".join(f"{inflation[loss]:.2f} at {100 * loss:g} %" for loss in LOSSES[1:]),
                  [lines({"SwitchML": [(100 * loss, inflation[loss]) for loss in LOSSES[1:]]}, x="% loss of each link, each way",
                         y="TAT / TAT without loss", xscale="log", title="10 Gbit/s, 8 workers")])


def figure_7(short):
    elements = 1_000_000 if short else 12_500_000
    losses = (0.0, 0.0001, 0.01)
    reports = run_all([{"network": star(4, 10, link={"loss": loss}), "job": [{"elements": elements, "slots": 128, **PACKET}],
                        "output": {"series": ["link.h0.up.packets"], "bin": "1ms" if short else "10ms"}} for loss in losses])
    series = {f"{100 * loss:g} %": [(1e3 * at * report["bin_seconds"], packets) for at, packets in enumerate(report["series"]["link.h0.up.packets"])]
              for loss, report in zip(losses, reports)}
    rows = [[name, f"{1e3 * time_of(report):.1f}", f"{statistics.median(packets for _, packets in points):.0f}"]
            for (name, points), report in zip(series.items(), reports)]
    return Result(["loss", "TAT ms", "packets a bin, median"], rows, ", ".join(f"{row[1]} ms with {row[0]}" for row in rows),
                  [lines(series, x="ms", y="packets sent in a bin", title="one worker of 4, 10 Gbit/s")])


def figure_9(short):
    elements = 250_000 if short else 1_250_000
    sizes = (16, 64, 256) if short else (16, 32, 64, 128, 256, 512, 1024)
    reports = run_all([{"network": star(8, 100, host={"send": "50ns", "receive": "50ns"}), "job": [{"elements": elements, "slots": slots, **PACKET}]}
                       for slots in sizes])
    tat = {slots: 1e3 * time_of(report) for slots, report in zip(sizes, reports)}
    # By Little's law: a packet's time from its sending to its result.
    trip = {slots: 1e3 * each * slots / (elements / 256) for slots, each in tat.items()}
    enough = next(slots for slots in sizes if tat[slots] < 1.02 * min(tat.values()))
    return Result(["slots", "TAT ms", "round trip µs"], [[slots, f"{tat[slots]:.3f}", f"{trip[slots]:.1f}"] for slots in sizes],
                  f"TAT falls until {enough} slots, behind which the round trip grows",
                  [lines({"TAT": list(tat.items())}, x="slots", y="ms", xscale="log", title="100 Gbit/s, 8 workers"),
                   lines({"round trip": list(trip.items())}, x="slots", y="µs", xscale="log")])


def figure_11(short):
    elements = 250_000 if short else 2_500_000
    wires = ("float32", "float16")
    reports = run_all([{"network": star(8, rate), "job": [{"elements": elements, "slots": slots_for(rate), "wire": wire, **PACKET}]}
                       for rate in RATES for wire in wires])
    tat = dict(zip([(rate, wire) for rate in RATES for wire in wires], map(time_of, reports)))
    return Result(["links", *wires, "ratio"], [[f"{rate} Gbit/s", *(f"{1e3 * tat[rate, wire]:.3f} ms" for wire in wires),
                                               f"{tat[rate, 'float32'] / tat[rate, 'float16']:.2f}"] for rate in RATES],
                  f"float16 is {tat[10, 'float32'] / tat[10, 'float16']:.2f} times as fast at 10 Gbit/s",
                  [bars(wires, {f"{rate} Gbit/s": [1e3 * tat[rate, wire] for wire in wires] for rate in RATES}, y="TAT, ms")])


FIGURES = [
    Figure("switchml-table1", "Table 1", "Profile of eight models", "simulated, flows", table_1,
           "batch 2101 ms (DeepLight) to 149 ms (NCF) at 10 Gbit/s, 258 to 46 ms at 100",
           "times on one GPU are those of 100 Gbit/s, so 10 Gbit/s is what the simulator predicts; the paper's own two profiles need different ones "
           "(UGATIT: 1211 and 1540 ms)"),
    Figure("switchml-table2", "Table 2", "Speedup over a ring", "simulated, flows", table_2,
           "1.01 to 1.80 at 10, 1.14 to 1.67 at 100 Gbit/s",
           "bytes bound it to 1.75 with 8 workers, which the paper's 1.80 and 1.77 exceed; QSGD and top-k (compression) are not here"),
    Figure("switchml-figure3", "Figure 3", "Elements aggregated a second", "simulated, packets; baselines computed", figure_3,
           "RDMA with 256 elements within 2 % of the most that is possible, whatever the number of workers",
           "the simulator's links count Ethernet frames without preamble and gap; their headers are ours"),
    Figure("switchml-figure4", "Figure 4", "Batch speedup at 100 Gbit/s, P100 and a 10 times faster GPU", "simulated, flows", figure_4,
           "at most 2.1 over NCCL on RDMA", "our ring is ideal (at most 1.75 with 8 workers), NCCL's is not"),
    Figure("switchml-figure5", "Figure 5", "Training speedup, 16 workers", "simulated, flows", figure_5,
           "1.13 to 2.27 over NCCL on RDMA, 2.05 to 5.55 on TCP", "our ring is ideal (at most 1.88 with 16 workers); no data loading"),
    Figure("switchml-figure6", "Figure 6", "Inflation of TAT by losses", "simulated, packets", figure_6,
           "0.01 % changes little (no numbers in the text)", "the rank whose packet was lost repeats it alone, mostly without a time-out ([why](protocol-switchml.md)); the paper's time-out of 1 ms is all ranks'"),
    Figure("switchml-figure7", "Figure 7", "Packets sent over time, with losses", "simulated, packets", figure_7,
           "near the ideal rate, with 1 % slower behind 150 ms", "repeats as in Figure 6; 4 workers"),
    Figure("switchml-figure9", "Figure 9", "Pool size", "simulated, packets", figure_9,
           "TAT falls until slots times packets are bandwidth times delay (Appendix C)", "the delay is the scenario's: 1 µs a link, 50 ns a packet"),
    Figure("switchml-figure11", "Figure 11", "float32 and float16", "simulated, packets", figure_11,
           "float16 doubles the rate", "headers stay: 256 elements have half the bytes and the same headers"),
    Elsewhere("Figure 3", "Elements aggregated a second", "measured", "16 workers for 2: {scaling-16}; Gloo's time over ours with 4 workers: {shaped-4}",
              "scripts/bench --suite scaling,shaped", "as above", "links of 200 and 50 Mbit/s ([performance.md](performance.md))"),
    Elsewhere("Figure 6", "Inflation of TAT by losses", "measured", "{loss-4-inflation-0.01} at 0.01 %, {loss-4-inflation-0.1} at 0.1 %, "
              "{loss-4-inflation-1} at 1 %; Gloo, cubic, at 1 %: {loss-4-inflation-gloo-cubic}", "scripts/bench --suite loss", "as above",
              "links of 200 Mbit/s: with a time-out of the same length a loss costs fewer packets"),
    Elsewhere("Figure 7", "Packets sent over time, with losses", "measured", "[timelines](images/performance-loss-timeline.svg) without a gap",
              "scripts/bench --suite timeline", "as above", "links of 200 Mbit/s"),
    Elsewhere("Figure 11", "float32 and 16 bits", "measured", "of Gloo's time with float32: {shaped-4} with float32, {shaped-4-bfloat16} with bfloat16",
              "scripts/bench --suite shaped", "as above", "links of 200 Mbit/s, 4 workers"),
    Figure("switchml-figure2", "Figures 2, 12, 13", "Accuracy and loss with quantized sums", "trained", trainings.accuracies,
           "as accurate as without (ResNet-110 on CIFAR10, and five more; BERT's loss is the same)",
           "a CNN on Fashion-MNIST and a transformer on generated text, for a few hundred steps on 4 ranks: two cores can do no ResNet-110, and have no CIFAR10"),
    Elsewhere("Table 4", "Test metrics with compression", "not here", reason="netsum has no compression (top-k, QSGD), and two cores do not train these models"),
    Elsewhere("Figure 10", "Convergence with compression", "not here", reason="as Table 4"),
]
