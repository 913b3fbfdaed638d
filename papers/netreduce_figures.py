"""NetReduce's evaluation (Liu et al., ASPLOS 2023): Appendix A's model with the paper's inputs, next to the simulator."""
import statistics

import parallel
import trainings
from figure import Beside, Elsewhere, Figure, Result, bars, lines
from scenario import buckets_of, compute_seconds, iteration, job_of, link, model_bytes, run, run_all, star, time_of

MODELS = ("alexnet", "vgg16", "resnet50")
BATCH, RATE = 32, 100
# "Sliding window size N = 2, each message has 170 packets, and the packet payload carries 1 KB" (§5.1).
PARAMETERS = {"slots": 2, "message_packets": 170, "packet_elements": 256}
HOP = 1e-6
NVLINK = 150e9  # §5.4
TABLE_7 = {"alexnet": (60.62, 47.12, 44.69, 31.10), "vgg16": (185.08, 111.98, 148.63, 74.64), "resnet50": (89.19, 23.04, 83.42, 19.29)}
TABLE_8 = {64: (938.4, 1372.2, 585.2, 1051.1), 128: (1555.5, 2225.3, 1037.2, 1912.0)}
TABLE_9 = {"alexnet": (307.5, 328.8, 519.2), "vgg16": (115.2, 122.2, 173.6), "resnet50": (276.0, 282.8, 317.6)}


# Of packets of 1 KB in frames of RoCEv2 (Ethernet, IP, UDP, BTH, ICRC), as hosts send them to a bump in the wire, and as a ring's.
ROCE_SHARE = 1024 / (1024 + 14 + 20 + 8 + 12 + 4)


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


def all_reduced(size, rate=RATE, part=16e6):
    """Seconds of NetReduce on 4 machines, N = 2, of so many bytes: a part of them, as times are long. The bytes of float16 go as half as many float32."""
    part = min(size, part)
    return size / part * time_of(run({"protocol": "netreduce", "network": star(4, rate), "job": [{"elements": round(part / 4), "iterations": 2, **PARAMETERS}]}))


def table_7(short):
    rows, cut, beside, again = [], {}, [], {}
    part = 2e6 if short else 16e6
    calls = {}
    for model, paper in TABLE_7.items():
        # The paper's iterations are computation and then communication: no overlap.
        bucket, = buckets_of(model, "v100", bucketing="whole")
        computes, size = compute_seconds([bucket]), 2 * bucket["elements"]
        ring, ours = predicted("fr", size, 4, 1, inter=ROCE_SHARE * parallel.INTER), predicted("pn", size, 4, 1)
        own = all_reduced(size, part=part)
        cut[model] = 1 - own / ring, 1 - ours / predicted("fr", size, 4, 1)
        # What links would have the paper's ring take as long as it did.
        slow = RATE * ring / (paper[1] / 1e3)
        again[model] = slow, 1e3 * all_reduced(size, slow, part)
        calls[model] = len(buckets_of(model, "v100", bucketing="layers"))
        rows += [[model, "ring", f"{1e3 * (computes + ring):.2f}", f"{paper[0]:.2f}", "", f"{1e3 * ring:.2f}", f"{paper[1]:.2f}"],
                 [model, "NetReduce", f"{1e3 * (computes + own):.2f}", f"{paper[2]:.2f}", f"{1e3 * ours:.2f}", f"{1e3 * own:.2f}", f"{paper[3]:.2f}"],
                 [model, f"NetReduce, links of {slow:.0f} Gbit/s", "", "", "", f"{again[model][1]:.2f}", f"{paper[3]:.2f}"]]
        beside += [Beside(f"{model}, communication with NetReduce, ms", paper[3], 1e3 * own),
                   Beside(f"{model}, communication cut, %", 100 * (1 - paper[3] / paper[1]), 100 * cut[model][0], 0)]
    # ResNet50's two times are a ring's and two thirds of it, and what both take besides.
    both = TABLE_7["resnet50"][1] - 3 * (TABLE_7["resnet50"][1] - TABLE_7["resnet50"][3])
    others = {}
    for model in ("alexnet", "vgg16"):
        less = both * calls[model] / calls["resnet50"]
        others[model] = 100 * (TABLE_7[model][1] - less) / 3 / TABLE_7[model][1]
    theirs = {model: 1 - paper[3] / paper[1] for model, paper in TABLE_7.items()}
    return Result(["model", "all-reduce", "iteration ms", "paper", "communication ms, Appendix A", "with headers", "paper"], rows,
                  "communication is cut by " + ", ".join(f"{100 * value[0]:.1f} % ({model})" for model, value in cut.items()) +
                  f"; Appendix A's formulas, which have no headers and no window, cut {100 * cut['vgg16'][1]:.1f} % of any model",
                  [bars(MODELS, {"simulated": [100 * cut[model][0] for model in MODELS], "Appendix A": [100 * cut[model][1] for model in MODELS]},
                        [("paper", [100 * theirs[model] for model in MODELS])], y="% of communication saved")], beside,
                  "On links as slow as the paper's ring took them to be, " + ", ".join(f"{rate:.0f} Gbit/s ({model})" for model, (rate, _) in again.items()) +
                  ", NetReduce takes " + ", ".join(f"{ms:.1f}" for _, ms in again.values()) + " ms: about 30 of 100 Gbit/s explain both of the paper's times. "
                  f"The cut is less than a third as tunnels' headers and N = 2 cost NetReduce {100 * (cut['vgg16'][1] - cut['vgg16'][0]):.0f} points at 100 Gbit/s. ResNet50's two times mean {both:.1f} ms "
                  f"that both ways take besides, {1e3 * both / calls['resnet50']:.0f} µs for each of its {calls['resnet50']} layers; by that AlexNet's cut is {others['alexnet']:.1f} and VGG16's {others['vgg16']:.1f} %.")


def figure_11(_):
    workers = 6
    found = {}
    for model in MODELS:
        netreduce, wider, switchml = run_all([training("netreduce", model, workers, "float32", PARAMETERS, "buckets"),
                                              training("netreduce", model, workers, "float32", {**PARAMETERS, "slots": 8}, "buckets"),
                                              training("switchml", model, workers, "float32", {"packet_elements": 64, "slots": 2048}, "buckets")], "flow")
        ring = iteration(netreduce["jobs"][0]["buckets"], lambda elements: predicted("fr", 4 * elements, workers, 1, inter=ROCE_SHARE * parallel.INTER))
        found[model] = [ring / time_of(report) for report in (netreduce, switchml, wider)]
    return Result(["model", "NetReduce over ring", "SwitchML over ring", "NetReduce, N = 8"], [[model, *(f"{each:.2f}" for each in three)] for model, three in found.items()],
                  "; ".join(f"{model} {three[0]:.2f} : {three[1]:.2f} : 1" for model, three in found.items()),
                  [bars(MODELS, {"NetReduce": [each[0] for each in found.values()], "SwitchML": [each[1] for each in found.values()]},
                        [("paper", [1.45, None, None]), ("paper, SwitchML", [1.18, None, None])], y="speedup over ring", title="6 machines, 100 Gbit/s")],
                  [Beside("alexnet, NetReduce over a ring", 1.45, found["alexnet"][0], 1), Beside("alexnet, SwitchML over a ring", 1.18, found["alexnet"][1], 1)])


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
    again = {}
    for batch, paper in TABLE_8.items():
        for at in range(2):
            passes_take = batch / paper[2 * at + 1] - communicates(TABLE_8, 2 * at + 1)
            again[batch, at] = 1 - batch / paper[2 * at + 1] / (passes_take + communicates(TABLE_8, 2 * at) * costs[1 - at] / costs[at])
    return Result(["batch", "NetReduce, 32 GPUs", "4 GPUs", "lost", "paper", "ring, 32 GPUs", "4 GPUs", "lost", "paper"], rows,
                  f"{ours}; the paper's communication with 32 GPUs takes {costs[0]:.2f} (NetReduce) and {costs[1]:.2f} times (ring) as long as its own with 4 "
                  "and Appendix A say", [],
                  [Beside(f"{what} lost with 32 GPUs, batch {batch}, %", 100 * (1 - paper[2 * at] / paper[2 * at + 1]), 100 * losses[batch][at])
                   for batch, paper in TABLE_8.items() for at, what in enumerate(("NetReduce,", "a ring,"))],
                  f"Appendix A has no cost for moving data between eight GPUs and one NIC, which §5.4 names. At the rate at which the table's 4 GPUs communicate (fitted), and with the factor of the "
                  f"other way, {costs[1]:.2f} for NetReduce and {costs[0]:.2f} for the ring, it gives " + "; ".join(
                      f"batch {batch}: " + ", ".join(f"{what} {100 * again[batch, at]:.1f} %" for at, what in enumerate(("NetReduce", "ring"))) for batch in TABLE_8) +
                  " lost: one cost of eight GPUs at a NIC explains most of both.")


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
                        y="% over flat ring")],
                  [Beside(f"{model}, over {what}, %", 100 * (TABLE_9[model][2] / TABLE_9[model][at] - 1), 100 * gains["link rate"][model][at], 0)
                   for model in MODELS for at, what in enumerate(("a flat ring", "Tencent"))],
                  "The paper's machines do not communicate at 100 Gbit/s: with what its Tables 7 and 8 say they do (fitted, so no evidence), the gains are " + "; ".join(
                      f"{100 * ring:+.0f} and {100 * tencent:+.0f} % ({model})" for model, (ring, tencent) in gains["the paper's rate"].items()) +
                  ". Tencent's rings stay faster by formula (2) than the paper's were.")


BATCHES = (32, 64, 128)


LINEAR = (1, 2, 3, 4)


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
    linear = {}
    for model in MODELS:
        alone = 1 / passes(model)[0]
        linear[model] = [1.0] + [per_gpu(model, BATCH, half, "pn", count, 1) / alone for count in LINEAR[1:]]
        rows += [[f"{count}, one GPU each, 100 Gbit/s", model, BATCH, 16, f"{alone * share:.0f}", ""] for count, share in zip(LINEAR, linear[model])]
    panels.append(lines({model: list(zip(LINEAR, shares)) for model, shares in linear.items()}, x="machines", y="of one machine's images/s a GPU"))
    of_paper = {model: BATCH / paper[2] * 1e3 * passes(model)[0] for model, paper in TABLE_7.items()}
    size = full(passes("vgg16")[1])
    over = predicted("ta", size, 32, 8) / predicted("fr", size, 32, 8)
    # (1) and (2) without what is small, solved for B_intra where both take as long.
    n, p = 8, 32
    equal = (2 * (n - 1) / n ** 2 + 2 * (n - 1) / n) / (2 * (p - 1) / p - 2 * (p / n - 1) / (p / n)) * parallel.INTER
    return Result(["machines", "model", "batch", "bits", "images/s of a GPU", "NetReduce over ring"], rows,
                  "; ".join(f"{where}: {min(each):.2f} to {max(each):.2f} times a ring" for where, each in gains.items()) +
                  "; 4 machines at 100 Gbit/s have of one's throughput a GPU " + ", ".join(f"{shares[-1]:.2f} ({model})" for model, shares in linear.items()), panels,
                  [*(Beside(f"{model}, 4 machines' throughput of a GPU over one machine's: \"linear\" (§5.4)", 1, shares[-1]) for model, shares in linear.items()),
                   Beside(f"Tencent's time over a flat ring's, {size / 1e6:.0f} MB, formulas (1) and (2): \"FR still outperforms TA\" (§5.4)", "> 1", over)],
                  "One machine does not communicate: by the paper's own Table 7 communication has 31 of AlexNet's 45 ms, which leaves " +
                  ", ".join(f"{share:.2f} ({model})" for model, share in of_paper.items()) +
                  f". From two machines on it is the same: with 4 {linear['alexnet'][3] / linear['alexnet'][1]:.2f} of that with 2. By (1) and (2) large tensors are faster by Tencent's way wherever B_intra is above "
                  f"{equal / 1e9:.0f} GB/s, and the paper has 150; its own Table 9 has Tencent ahead of the flat ring, too.")


def figure_7(_):
    """By Appendix A, as scripts/reproduce netreduce-fig7 --model; parallel rings are not among the paper's."""
    points = [point for point in parallel.figure_7() if point["pattern"] != "pr"]
    rows, wins = [], {}
    for size in (1e6, parallel.BYTES):
        for name, intra in parallel.INTRA.items():
            settings = {}
            for point in parallel.select(points, bytes=size, intra=intra):
                settings.setdefault((point["gpus"], point["hop_seconds"]), {})[point["pattern"]] = point["seconds"]
            fastest = [min(times, key=times.get) for times in settings.values()]
            wins[size, name] = fastest.count("pn") / len(fastest)
            rows.append([f"{size / 1e6:g} MB", name, *(fastest.count(pattern) for pattern in ("fr", "ta", "pn"))])
    beyond = {size: 100 * statistics.mean(share for (of, name), share in wins.items() if of == size and name != "PCIe 3.0") for size in (1e6, parallel.BYTES)}
    return Result(["tensor", "inside a machine", "settings in which a flat ring is the fastest", "Tencent", "parallel NetReduce"], rows,
                  "; ".join(f"{size / 1e6:g} MB: beyond 15.75 GB/s PN is the fastest in {share:.0f} % of the settings, at 15.75 in {100 * wins[size, 'PCIe 3.0']:.0f} %" for size, share in beyond.items()), [],
                  [Beside(f"settings beyond 15.75 GB/s in which PN is the fastest, {size / 1e6:g} MB, %", 100, share) for size, share in beyond.items()])


HOST = 30  # ns to send a packet, and to receive one: then SwitchML has the paper's 46.8 Gbit/s


def table_6(short):
    elements = 200_000 if short else 2_500_000
    hosts = ["h0..h5"]
    costs = {"host": {"send": f"{HOST}ns", "receive": f"{HOST}ns"}}
    def with_switch(network, protocol, **job):
        more = {"aggregators": ["h6"], "switches": ["sw"], "pool_slots": 1024} if protocol == "atp" else {}
        return {"protocol": protocol, "network": network, "job": [{"hosts": hosts, "elements": elements, **job}], **({"aggregation": more} if more else {})}
    def with_arm(ports, slots):
        """The accelerator beside the switch, at so many ports of 100 Gbit/s (Figure 10B)."""
        return {"protocol": "netreduce", "network": star(7, RATE, change=[{"nodes": ["h6"], "link": {"rate": f"{RATE * ports}gbit"}}]),
                "aggregation": {"aggregators": ["h6"]}, "job": [{"hosts": hosts, "elements": elements, **PARAMETERS, "slots": slots}]}
    small = {"packet_elements": 64, "slots": 1024}
    kinds = {"ATP": with_switch(star(7, RATE), "atp", **small), "SwitchML": with_switch(star(7, RATE), "switchml", **small),
             "SwitchML, 256 elements": with_switch(star(7, RATE), "switchml", packet_elements=256, slots=512),
             "NetReduce": with_switch(star(7, RATE), "netreduce", **PARAMETERS),
             "ATP, hosts of 60 ns a packet": with_switch(star(7, RATE, **costs), "atp", **small),
             "SwitchML, hosts of 60 ns a packet": with_switch(star(7, RATE, **costs), "switchml", **small),
             "NetReduce, six ports to the accelerator": with_arm(6, 2), "the same, N = 4": with_arm(6, 4), "NetReduce, one port to the accelerator": with_arm(1, 2)}
    rows, goodput, through = [], {}, {}
    for (name, scenario), report in zip(kinds.items(), run_all([*kinds.values()])):
        seconds = time_of(report)
        through[name], good = 8e-9 * link(report, "h0.up")["bytes"] / seconds, 32e-9 * elements / seconds
        goodput[name] = 100 * good / through[name]
        rows.append([name, f"{through[name]:.1f}/{good:.1f}", f"{goodput[name]:.0f}%"])
    rows.append(["NetReduce, frames of a bump in the wire (computed)", "", f"{100 * ROCE_SHARE:.0f}%"])
    return Result(["", "throughput/goodput, Gbit/s", "share"], rows,
                  "goodput of throughput: " + ", ".join(f"{name} {goodput[name]:.0f} %" for name in ("ATP", "SwitchML", "SwitchML, 256 elements")) +
                  f", NetReduce through tunnels {goodput['NetReduce']:.0f}, as frames of a bump in the wire {100 * ROCE_SHARE:.0f} %; Gbit/s " +
                  ", ".join(f"{name} {through[name]:.1f}" for name in ("NetReduce", "NetReduce, six ports to the accelerator", "NetReduce, one port to the accelerator")), [],
                  [Beside("ATP, goodput of throughput, %", 79, goodput["ATP"]), Beside("SwitchML, %", 70, goodput["SwitchML"]),
                   Beside("SwitchML RDMA, here packets of 256 elements, %", 93, goodput["SwitchML, 256 elements"]),
                   Beside("NetReduce, frames of a bump, %", 94, 100 * ROCE_SHARE), Beside("NetReduce, Gbit/s", 92.5, through["NetReduce"]),
                   Beside("NetReduce, six ports to the accelerator, Gbit/s", 92.5, through["NetReduce, six ports to the accelerator"]),
                   Beside("SwitchML RDMA, Gbit/s", 89.4, through["SwitchML, 256 elements"]), Beside("ATP, Gbit/s", 50.3, through["ATP"]),
                   Beside("SwitchML, Gbit/s", 46.8, through["SwitchML"]),
                   Beside("ATP, hosts as slow as the paper's SwitchML's, Gbit/s", 50.3, through["ATP, hosts of 60 ns a packet"])],
                  f"Hosts cost nothing here. With 60 ns a packet, fitted to the paper's SwitchML, SwitchML has {through['SwitchML, hosts of 60 ns a packet']:.1f} and ATP "
                  f"{through['ATP, hosts of 60 ns a packet']:.1f} Gbit/s: processors bound both in the paper.")


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
    Elsewhere("Table 1", "RoCE, parallel DMA and DPDK", "measured", "sockets: SwitchML {rates loopback-4: SwitchML, 6250000} Gbit/s, {cpu loopback-4: SwitchML, 6250000}, {us latency-sizes-2: SwitchML, 256} µs with 2 ranks; "
              "a switch's packets by AF_XDP {af-xdp-switch} times sockets'; by DPDK over a memif {dpdk-software-switch-xdp} times what a bare AF_XDP loop returns",
              "scripts/bench --suite loopback,latency,af-xdp,dpdk", "RoCE 25.6 % of a CPU, 84.2 Gbit/s, 5.7 µs; parallel DMA 100 %, 58.67, 70.2; DPDK 200 %, 90.5, 20.5",
              "one machine's loopback and virtual links, in place of 100 Gbit/s between two; no RoCE hardware is here (soft-RoCE in virtual machines is tested, not measured); processors and round trips of AF_XDP and DPDK are not in the row: on two cores DPDK's threads poll at 100 % whatever comes"),
    Elsewhere("Tables 2, 5", "Lines of code", "not here", paper="3,394 lines of ATP's hosts, of which 41 % are a transport; hosts 3,100 (SwitchML), 3,400 (ATP) and 850 (NetReduce), switches 3,700 and 5,200 in P4, "
              "8,600 of an FPGA's", reason="lines of other programs; netsum's three protocols share sessions, transports and kernels"),
    Figure("netreduce-table6", "Table 6", "Throughput and goodput", "simulated, packets", table_6,
           "throughput/goodput: ATP 50.3/39.7 Gbit/s (79 %), SwitchML 46.8/32.7 (70 %), SwitchML RDMA 89.4/82.7 (93 %), NetReduce 92.5/86.8 (94 %); overhead at the switch: 50 % of bandwidth, none, 75 % of bandwidth, "
           "50 % of ports",
           "6 ranks, N = 2, 170 packets of 1 KB, as in the paper; 10 MB. NetReduce's own endpoint puts RoCE's packets into tunnels, 28 bytes more; hosts' own frames need none. SwitchML's RDMA is not here: "
           "packets of 256 elements. CPU and round trips are not simulated. The accelerator is in the switch, and where said beside it, at six ports or one, with two more hops. At the switch ours has no overhead of bandwidth or ports: a software switch is a host, and beside a switch it takes the arm's ports",
           fitted="the 60 ns of a packet, to SwitchML's throughput"),
    Figure("netreduce-table7", "Table 7", "Iterations on 4 machines", "simulated, packets; the ring computed", table_7,
           "communication is cut by 34.0 %, 33.3 %, 16.3 %, to 31.10, 74.64 and 19.29 ms",
           "N = 2, 170 packets; 16 MB of each model's bytes stand for all; the ring has RoCE's headers, NetReduce tunnels' too",
           fitted="passes, to the table's iterations less communication; the slower links, to its rings"),
    Figure("netreduce-table8", "Table 8", "32 GPUs and 4, AlexNet", "computed", table_8,
           "batch 64: 31.6 and 44.3 % lost; 128: 30.1 and 45.8 %", "B_intra 150 GB/s, 1 µs a hop, 100 Gbit/s",
           fitted="what the cause is shown by: rates and factors are the table's own"),
    Figure("netreduce-table9", "Table 9", "32 GPUs", "computed", table_9,
           "+68.8 %, +50.7 %, +15.1 % on flat ring; +57.9 %, +42.1 %, +12.3 % on Tencent",
           "no overlap; the paper's rate: what Table 7's times mean, 20 to 30 of 100 Gbit/s, less Table 8's cost of eight GPUs at one NIC",
           fitted="\"the paper's rate\", to Tables 7 and 8; predicted is link rate"),
    Figure("netreduce-table10", "Table 10", "Cost", "computed", table_10, "2.40 % more capital, 0.68 % more power",
           "the table counts four more ports, §5.5 says six"),
    Figure("netreduce-figure7", "Figure 7", "Communication of FR, TA and PN", "computed", figure_7,
           "PN is always the fastest beyond 15.75 GB/s inside", "M is not in the paper: 1 and 100 MB"),
    Figure("netreduce-figure11", "Figure 11", "Training speed on 6 machines", "simulated, flows; the ring computed", figure_11,
           "A: AlexNet 1.45 : 1.18 : 1; B: BERT +34.6 %, GPT-2 +24.8 %, GLUE +22.2 to +29.6 %, SQuAD +42.5 %",
           "N = 2; passes are a V100's with 16 bits (Table 7), the paper's an RTX 2080's, whose times it does not give, nor those of B's models, which are not here; SwitchML has 64 elements a packet, not 32; "
           "the ring has RoCE's headers", fitted="AlexNet's passes, to Table 7"),
    Elsewhere("Table 6", "Throughput, goodput, CPU and round trips", "measured", "; ".join(
        f"{name} {{rates loopback-4: {name}, 6250000}} Gbit/s, {{cpu loopback-4: {name}, 6250000}}, {{us latency-sizes-4: {name}, 256}} µs"
        for name in ("ATP", "SwitchML", "NetReduce")),
              "scripts/bench --suite loopback,latency", "ATP 50.3/39.7 Gbit/s, 128 % (3.2 for each Gbit/s), 751 µs; SwitchML 46.8/32.7, 130 % (4.0), 812 µs; "
              "SwitchML RDMA 89.4/82.7, 100 %, 8.1 µs; NetReduce 92.5/86.8, 100 % (1.2), 6.3 µs",
              "all of it on two cores and their loopback, by sockets, NetReduce too: 4 ranks with 25 MB, and calls of 1 kB. Four ranks and the aggregator "
              "share two processors, so a rank's share says what it was left; that for each Gbit/s what it needs: system calls for each train of packets, and "
              "conversions, which an RDMA NIC spares NetReduce's hosts",
              (Beside("NetReduce, round trip, µs", 6.3, "{us latency-sizes-4: NetReduce, 256}"), Beside("SwitchML, round trip, µs", 812, "{us latency-sizes-4: SwitchML, 256}"),
               Beside("ATP, round trip, µs", 751, "{us latency-sizes-4: ATP, 256}")),
              "An exchange of 8 bytes over bare sockets takes {us latency-4: bare sockets, 2} µs with 4 ranks on these two cores: kernel and scheduler, not the protocols, are half of a call. The paper does not say how long the messages of its round trips were."),
    Elsewhere("Figure 7", "Communication of FR, TA and PN", "measured", "[the four ways](parallel.md#figure-7-scriptsreproduce-netreduce-fig7) as processes behind slow links",
              "scripts/reproduce netreduce-fig7", "as above", "M is not in the paper"),
    Elsewhere("Figure 2", "VGG16 in ATP beside DCTCP", "simulated, ns-3", "beside DCTCP, a job of slow hosts gets half of what it needs, one that takes all it can 13 %", "scripts/reproduce atp-figure16",
              "cited from ATP's authors, without figures: ATP and DCTCP contend", "as Figure 16 of ATP, above"),
    Figure("netreduce-figure12", "Figure 12", "Difference of losses between NetReduce and a ring", "trained", trainings.loss_differences,
           "usually below 0.2 %, at most 1.5 %",
           "real packets through netsum's accelerator, in tunnels; as RoCEv2 frames of software hosts through `netsum bump` every loss is the same to the bit (`bench/bump/train`); not by RDMA hardware; 8 ranks for 6; small networks, trained for a few hundred steps"),
    Figure("netreduce-figure13", "Figures 13, 14", "Throughput over batch sizes and precisions", "computed", figures_13_and_14,
           "NetReduce's average throughput of 4 machines is that of one, \"linear\"; FR outperforms TA for larger tensors; +35.6, +24.5, +6.9 % (Table 7)",
           "passes take as long for each image with 16 bits and with 32", fitted="images a second, to Tables 7 and 8; predicted are those of 1 to 4 machines at 100 Gbit/s"),
]
