"""NetReduce's evaluation (Liu et al., ASPLOS 2023): Appendix A's model with the paper's inputs, next to the simulator."""
import statistics

import parallel
import trainings
from figure import Elsewhere, Figure, Result, bars
from scenario import compute_seconds, iteration, job_of, link, model_bytes, run, run_all, star, time_of

MODELS = ("alexnet", "vgg16", "resnet50")
BATCH, RATE = 32, 100
# "Sliding window size N = 2, each message has 170 packets, and the packet payload carries 1 KB" (§5.1).
PARAMETERS = {"slots": 2, "message_packets": 170, "packet_elements": 256}
HOP = 1e-6
NVLINK = 150e9  # §5.4
TABLE_7 = {"alexnet": (60.62, 47.12, 44.69, 31.10), "vgg16": (185.08, 111.98, 148.63, 74.64), "resnet50": (89.19, 23.04, 83.42, 19.29)}
TABLE_8 = {64: (938.4, 1372.2, 585.2, 1051.1), 128: (1555.5, 2225.3, 1037.2, 1912.0)}
TABLE_9 = {"alexnet": (307.5, 328.8, 519.2), "vgg16": (115.2, 122.2, 173.6), "resnet50": (276.0, 282.8, 317.6)}


def predicted(pattern, size, gpus, per_machine, hop=HOP, inter=parallel.INTER):
    """Seconds by (1) to (3)."""
    answer, = parallel.predict([{"pattern": pattern, "bytes": size, "gpus": gpus, "gpus_per_machine": per_machine, "hop_seconds": hop,
                                 "intra": NVLINK, "inter": inter}])
    return sum(answer["stages"].values())


def training(protocol, model, workers, wire, job, bucketing):
    return {"protocol": protocol, "network": star(workers, RATE), "job": [job_of(model, "v100", wire=wire, bucketing=bucketing, **job)]}


def half(elements):
    """Bytes with 16 bits."""
    return 2 * elements


def table_7(_):
    rows, cut = [], {}
    for model, paper in TABLE_7.items():
        # The paper's iterations are computation and then communication: no overlap.
        simulated = run(training("netreduce", model, 4, "float16", {**PARAMETERS, "slots": 8}, "whole"), "flow")
        buckets = simulated["jobs"][0]["buckets"]
        computes, size = compute_seconds(buckets), model_bytes(simulated) / 2
        ring, ours = predicted("fr", size, 4, 1), predicted("pn", size, 4, 1)
        cut[model] = 1 - ours / ring
        own = time_of(simulated) - computes
        rows += [[model, "ring", f"{1e3 * (computes + ring):.2f}", f"{paper[0]:.2f}", f"{1e3 * ring:.2f}", "", f"{paper[1]:.2f}"],
                 [model, "NetReduce", f"{1e3 * (computes + ours):.2f}", f"{paper[2]:.2f}", f"{1e3 * ours:.2f}", f"{1e3 * own:.2f}", f"{paper[3]:.2f}"]]
    theirs = {model: 1 - paper[3] / paper[1] for model, paper in TABLE_7.items()}
    return Result(["model", "all-reduce", "iteration ms", "paper", "communication ms, Appendix A", "simulated", "paper"], rows,
                  "communication is cut by " + ", ".join(f"{100 * value:.1f} % ({model})" for model, value in cut.items()),
                  [bars(MODELS, {"Appendix A": [100 * cut[model] for model in MODELS]}, [("paper", [100 * theirs[model] for model in MODELS])],
                        y="% of communication saved")])


def figure_11(_):
    workers = 6
    found = {}
    for model in MODELS:
        netreduce, switchml = run_all([training("netreduce", model, workers, "float32", {**PARAMETERS, "slots": 8}, "buckets"),
                                       training("switchml", model, workers, "float32", {"packet_elements": 64, "slots": 2048}, "buckets")], "flow")
        ring = iteration(netreduce["jobs"][0]["buckets"], lambda elements: predicted("fr", 4 * elements, workers, 1))
        found[model] = ring / time_of(netreduce), ring / time_of(switchml)
    return Result(["model", "NetReduce over ring", "SwitchML over ring"], [[model, *(f"{each:.2f}" for each in pair)] for model, pair in found.items()],
                  "; ".join(f"{model} {pair[0]:.2f} : {pair[1]:.2f} : 1" for model, pair in found.items()),
                  [bars(MODELS, {"NetReduce": [each[0] for each in found.values()], "SwitchML": [each[1] for each in found.values()]},
                        [("paper", [1.45, None, None]), ("paper, SwitchML", [1.18, None, None])], y="speedup over ring", title="6 machines, 100 Gbit/s")])


def passes(model):
    """Seconds of an image as in Table 7, and the model's elements."""
    if model not in passes.known:
        bucket, = run({"network": star(2, RATE), "job": [job_of(model, "v100", bucketing="whole")]}, "flow")["jobs"][0]["buckets"]
        passes.known[model] = (bucket["forward"] + bucket["backward"]) / BATCH, bucket["elements"]
    return passes.known[model]


passes.known = {}


def per_gpu(model, batch, size, pattern, gpus, per_machine, inter=parallel.INTER):
    """Images a second of a GPU, without overlap."""
    image, elements = passes(model)
    return batch / (image * batch + predicted(pattern, size(elements), gpus, per_machine, inter=inter))


def reached(model, pattern):
    """Bytes a second across machines that the communication of Table 7 (4 machines, 16 bits) means."""
    _, ring, _, netreduce = (each / 1e3 for each in TABLE_7[model])
    size = half(passes(model)[1])
    return size / netreduce if pattern == "pn" else 2 * 3 / 4 * size / ring


def communicates(batches, at):
    """Seconds of communication by Table 8, whose iterations are that and a time for each image."""
    (small, of_small), (large, of_large) = ((batch, batch / rates[at]) for batch, rates in batches.items())
    return of_small - small * (of_large - of_small) / (large - small)


def eight_at_one():
    """By how much communication of 8 GPUs at one NIC takes longer than Appendix A's does beside that of one, in Table 8: NetReduce, ring."""
    size, found = full(passes("alexnet")[1]), []
    for at, pattern in ((0, "pn"), (2, "fr")):
        of_four = communicates(TABLE_8, at + 1)
        across = (1 if pattern == "pn" else 2 * 3 / 4) * size / of_four
        found.append(communicates(TABLE_8, at) / predicted(pattern, size, 32, 8, inter=across))
    return found


def full(elements):
    return 4 * elements


def table_8(_):
    rows, losses = [], {}
    for batch, paper in TABLE_8.items():
        mine = [per_gpu("alexnet", batch, full, pattern, gpus, 8 if gpus == 32 else 1) for pattern in ("pn", "fr") for gpus in (32, 4)]
        losses[batch] = 1 - mine[0] / mine[1], 1 - mine[2] / mine[3]
        rows.append([batch, *(f"{value:.0f}" for value in mine[:2]), f"{100 * losses[batch][0]:.1f}%", f"{100 * (1 - paper[0] / paper[1]):.1f}%",
                     *(f"{value:.0f}" for value in mine[2:]), f"{100 * losses[batch][1]:.1f}%", f"{100 * (1 - paper[2] / paper[3]):.1f}%"])
    ours = "; ".join(f"batch {batch}: NetReduce {100 * mine:.1f} %, ring {100 * ring:.1f} % lost" for batch, (mine, ring) in losses.items())
    costs = eight_at_one()
    return Result(["batch", "NetReduce, 32 GPUs", "4 GPUs", "lost", "paper", "ring, 32 GPUs", "4 GPUs", "lost", "paper"], rows,
                  f"{ours}; the paper's communication with 32 GPUs takes {costs[0]:.2f} (NetReduce) and {costs[1]:.2f} times (ring) as long as its own with 4 "
                  "and Appendix A say")


def table_9(_):
    cost = statistics.mean(eight_at_one())
    rows, gains = [], {"link rate": {}, "the paper's rate": {}}
    for model, paper in TABLE_9.items():
        for rate, found in gains.items():
            mine = [per_gpu(model, BATCH, half, pattern, 32, 8, parallel.INTER if rate == "link rate" else reached(model, pattern) / cost)
                    for pattern in ("fr", "ta", "pn")]
            found[model] = mine[2] / mine[0] - 1, mine[2] / mine[1] - 1
            rows.append([model, rate, *(cell for value, other in zip(mine, paper) for cell in (f"{value:.0f}", f"{other:.1f}")),
                         *(cell for value, other in zip(found[model], paper[:2]) for cell in (f"{100 * value:.0f}%", f"{100 * (paper[2] / other - 1):.0f}%"))])
    ours = "; ".join(f"at {rate} " + ", ".join(f"{100 * ring:+.0f} and {100 * tencent:+.0f} % ({model})" for model, (ring, tencent) in found.items())
                     for rate, found in gains.items())
    return Result(["images/s of a GPU", "machines' links", "flat ring", "paper", "Tencent", "paper", "parallel NetReduce", "paper", "over flat ring", "paper",
                   "over Tencent", "paper"], rows, ours + ", on flat ring and on Tencent",
                  [bars(MODELS, {rate: [100 * each[0] for each in found.values()] for rate, found in gains.items()}, [("paper", [68.8, 50.7, 15.1])],
                        y="% over flat ring")])


BATCHES = (32, 64, 128)


def figures_13_and_14(_):
    rows, panels = [], []
    machines = {"one GPU each": (4, 1, {"ring": "fr", "NetReduce": "pn"}), "eight GPUs each": (32, 8, {"flat ring": "fr", "Tencent": "ta", "parallel NetReduce": "pn"})}
    gains, cost = {}, statistics.mean(eight_at_one())
    for where, (gpus, per_machine, patterns) in machines.items():
        settings = [(model, batch, bits) for model in MODELS for batch in BATCHES for bits in (16, 32)]
        images = {name: [per_gpu(model, batch, half if bits == 16 else full, pattern, gpus, per_machine,
                                reached(model, pattern) / (cost if per_machine == 8 else 1)) for model, batch, bits in settings]
                  for name, pattern in patterns.items()}
        first, *_, last = images.values()
        gains[where] = [mine / other for mine, other in zip(last, first)]
        rows += [[where, model, batch, bits, "; ".join(f"{name} {values[at]:.0f}" for name, values in images.items()), f"{gains[where][at]:.2f}"]
                 for at, (model, batch, bits) in enumerate(settings)]
        panels.append(bars([f"{model}, {batch}, {bits} bits" for model, batch, bits in settings], images, y="images/s of a GPU", title=f"4 machines, {where}"))
    return Result(["machines", "model", "batch", "bits", "images/s of a GPU", "NetReduce over ring"], rows,
                  "; ".join(f"{where}: {min(each):.2f} to {max(each):.2f} times a ring" for where, each in gains.items()), panels)


def table_6(short):
    elements = 200_000 if short else 2_500_000
    kinds = {"ATP": ({"protocol": "atp", "aggregation": {"aggregators": ["h6"], "switches": ["sw"], "pool_slots": 1024}},
                     {"packet_elements": 64, "slots": 1024}),
             "SwitchML": ({}, {"packet_elements": 64, "slots": 1024}), "SwitchML, 256 elements": ({}, {"packet_elements": 256, "slots": 512}),
             "NetReduce": ({"protocol": "netreduce"}, PARAMETERS)}
    reports = run_all([{**top, "network": star(7, RATE), "job": [{"hosts": ["h0..h5"], "elements": elements, **job}]} for top, job in kinds.values()])
    rows, goodput = [], {}
    for name, report in zip(kinds, reports):
        seconds = time_of(report)
        through, good = 8e-9 * link(report, "h0.up")["bytes"] / seconds, 32e-9 * elements / seconds
        goodput[name] = good / through
        rows.append([name, f"{through:.1f}/{good:.1f}", f"{100 * goodput[name]:.0f}%"])
    return Result(["", "throughput/goodput, Gbit/s", "share"], rows,
                  "goodput of throughput: " + ", ".join(f"{name} {100 * value:.0f} %" for name, value in goodput.items()))


PRICES = {"GPU (V100)": (9075.4, 300), "switch port": (245.5, 9.4), "FPGA board": (6000, 28.3)}


def table_10(_):
    (gpu, gpu_watt), (port, port_watt), (board, board_watt) = PRICES.values()
    without = 32 * gpu + 4 * port, 32 * gpu_watt + 4 * port_watt
    rows, more = [["without NetReduce", 4, f"{without[0]:.1f}", "291394.6", f"{without[1]:.1f}", "9637.4"]], {}
    for ports in (4, 6):
        with_it = without[0] + board + ports * port, without[1] + board_watt + ports * port_watt
        more[ports] = with_it[0] / without[0] - 1, with_it[1] / without[1] - 1
        rows.append(["with NetReduce", 4 + ports, f"{with_it[0]:.1f}", "298376.5", f"{with_it[1]:.1f}", "9703.2"])
    return Result(["testbed 2", "ports", "$", "paper", "W", "paper"], rows,
                  "; ".join(f"with {ports} more ports {100 * cost:.2f} % more capital, {100 * power:.2f} % more power" for ports, (cost, power) in more.items()))


FIGURES = [
    Figure("netreduce-table6", "Table 6", "Throughput and goodput", "simulated, packets", table_6,
           "goodput of throughput: ATP 79 %, SwitchML 70 %, SwitchML RDMA 93 %, NetReduce 94 %",
           "hosts cost nothing here: what differs is headers and windows; CPU and round trips are not simulated"),
    Figure("netreduce-table7", "Table 7", "Iterations on 4 machines", "computed, and simulated (flows)", table_7,
           "communication is cut by 34.0 %, 33.3 %, 16.3 %",
           "the model's cut is 1 - n / 2 (n - 1), a third with 4 machines; the paper's communication takes 1.7 to 3.3 times as long as 16 bits at link rate do"),
    Figure("netreduce-table8", "Table 8", "32 GPUs and 4, AlexNet", "computed", table_8,
           "batch 64: 31.6 and 44.3 % lost; 128: 30.1 and 45.8 %",
           "Appendix A has no cost for moving data between eight GPUs and one NIC; §5.4 names it as the reason"),
    Figure("netreduce-table9", "Table 9", "32 GPUs", "computed", table_9,
           "+68.8 %, +50.7 %, +15.1 % on flat ring; +57.9 %, +42.1 %, +12.3 % on Tencent",
           "no overlap; the paper's rate: what Table 7's times mean, 20 to 30 of 100 Gbit/s, less Table 8's cost of eight GPUs at one NIC"),
    Figure("netreduce-table10", "Table 10", "Cost", "computed", table_10, "2.40 % more capital, 0.68 % more power",
           "the table counts four more ports, §5.5 says six"),
    Figure("netreduce-figure11", "Figure 11", "Training speed on 6 machines (A)", "simulated, flows; the ring computed", figure_11,
           "AlexNet 1.45 : 1.18 : 1", "passes are a V100's with 16 bits (Table 7), the paper's an RTX 2080's, whose times it does not give, nor those of B's models; SwitchML has 64 elements a packet, not 32"),
    Elsewhere("Table 6", "Throughput, goodput, CPU and round trips", "measured", "; ".join(
        f"{name} {{rates loopback-4: {name}, 6250000}} Gbit/s, {{cpu loopback-4: {name}, 6250000}}, {{us latency-sizes-4: {name}, 256}} µs"
        for name in ("ATP", "SwitchML", "NetReduce")),
              "scripts/bench --suite loopback,latency", "ATP 50.3/39.7 Gbit/s, 128 % (3.2 for each Gbit/s), 751 µs; SwitchML 46.8/32.7, 130 % (4.0), 812 µs; "
              "NetReduce 92.5/86.8, 100 % (1.2), 6.3 µs",
              "all of it on two cores and their loopback, by sockets, NetReduce too: 4 ranks with 25 MB, and calls of 1 kB. Four ranks and the aggregator "
              "share two processors, so a rank's share says what it was left; that for each Gbit/s what it needs: system calls for each train of packets, and "
              "conversions, which an RDMA NIC spares NetReduce's hosts"),
    Elsewhere("Figure 7", "Communication of FR, TA and PN", "computed, and measured", "of 112 settings with 100 MB PN is the fastest in 93, of 1 MB in 107",
              "scripts/reproduce netreduce-fig7", "PN is the fastest beyond 15.75 GB/s inside", "M is not in the paper ([parallel.md](parallel.md#figure-7-scriptsreproduce-netreduce-fig7))"),
    Elsewhere("Figure 2", "VGG16 in ATP beside DCTCP", "simulated, ns-3", "beside DCTCP, a job of slow hosts gets half of what it needs, one that takes all it can 13 %", "scripts/reproduce atp-figure16",
              "cited from ATP's authors: ATP and DCTCP contend (a plot)", "as Figure 16 of ATP, above"),
    Figure("netreduce-figure12", "Figure 12", "Difference of losses between NetReduce and a ring", "trained", trainings.loss_differences,
           "usually below 0.2 %, at most 1.5 %", "float32 sums in another order; the networks are small, and trained for a few hundred steps"),
    Figure("netreduce-figure13", "Figures 13, 14", "Throughput over batch sizes and precisions", "computed", figures_13_and_14,
           "a plot; Tables 7 to 9 have its numbers", "rates as in Table 9; passes take as long for each image with 16 bits and with 32"),
]
