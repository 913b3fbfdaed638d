"""ATP's evaluation (Lao et al., NSDI 2021)."""
import statistics

import baselines
from figure import Elsewhere, Figure, Result, bars, lines
from scenario import buckets_of, compute_seconds, gbit, iteration, job_of, link, run, run_all, scaled, star, time_of

GPU, BATCH, RATE, WORKERS = "rtx2080ti", 32, 100, 8
REACHED = 20  # Gbit/s of tensor that a VGG16 job of the paper's reaches over these links (§5.5)
MODELS = ("alexnet", "vgg11", "vgg16", "vgg19", "resnet50", "resnet101", "resnet152")
BYTEPS = {"bucketing": "pieces", "bucket": "4MB"}
# ATP's packets carry twice what its SwitchML's do (§5.2.1).
PACKETS = {"atp": 128, "switchml": 64}
WINDOW = 1024

# Packets of a model are too many: a hundredth of the elements, links of a hundredth of the rate, a hundred times the
# delay. Passes and all-reduces take as long, and as many packets fill a link.
FACTOR = 0.01
SCALED = {"rate": gbit(REACHED * FACTOR), "delay": "50us", "buffer": "512kB", "mark": "64kB"}
SCALED_WINDOW = 128
SERVER = 60  # Gbit/s that a server reaches (§D.1)


def atp(network, jobs, pool, servers, switches=("sw",), **more):
    return {"protocol": "atp", "network": network, "job": jobs,
            "aggregation": {"aggregators": servers, "switches": list(switches), "pool_slots": pool, **more}}


def single_jobs(rate):
    """Iteration seconds of each model by who sums; the last key is computation alone."""
    found = {}
    for model in MODELS:
        job = job_of(model, GPU, hosts=[f"h0..h{WORKERS - 1}"], slots=WINDOW, **BYTEPS)
        with_atp, with_switchml = run_all([atp(star(WORKERS + 1, rate), [{**job, "packet_elements": PACKETS["atp"]}], WINDOW, [f"h{WORKERS}"]),
                                           {"network": star(WORKERS, rate), "job": [{**job, "packet_elements": PACKETS["switchml"]}]}], "flow")
        buckets = with_atp["jobs"][0]["buckets"]
        found[model] = {"ATP": time_of(with_atp), "SwitchML": time_of(with_switchml),
                        "ring": iteration(buckets, baselines.ring(WORKERS, rate)),
                        "BytePS NtoN": iteration(buckets, baselines.colocated_servers(WORKERS, rate)),
                        "BytePS Nto1": iteration(buckets, baselines.one_server(WORKERS, rate)), "no communication": compute_seconds(buckets)}
    return found


def figure_8(_):
    rows, panels, ours = [], [], []
    for rate in (RATE, REACHED):
        found = single_jobs(rate)
        names = list(found["vgg16"])
        images = {name: [BATCH / found[model][name] for model in MODELS] for name in names}
        rows += [[f"{rate} Gbit/s", model, *(f"{images[name][at]:.0f}" for name in names)] for at, model in enumerate(MODELS)]
        best = {name: max(found[model][name] / found[model]["ATP"] for model in MODELS) for name in names[1:-1]}
        ours.append(f"at {rate} Gbit/s at most " + ", ".join(f"{ratio:.2f} over {name}" for name, ratio in best.items()))
        panels.append(bars(MODELS, images, y="images/s of a worker", title=f"8 workers, {rate} Gbit/s"))
    return Result(["links", "images/s of a worker", *names], rows, "; ".join(ours), panels)


TIME_TO_ACCURACY = {"alexnet": 2.39, "vgg16": 1.25, "vgg19": 1.2, "resnet50": 1.02, "resnet101": 1.01}


def figures_11_and_18(_):
    found = single_jobs(REACHED)
    ratio = {model: found[model]["BytePS NtoN"] / found[model]["ATP"] for model in TIME_TO_ACCURACY}
    return Result(["model", "faster than BytePS NtoN", "paper"],
                  [[model, f"{ratio[model]:.2f}", f"{paper:.2f}"] for model, paper in TIME_TO_ACCURACY.items()],
                  ", ".join(f"{value:.2f} ({model})" for model, value in ratio.items()),
                  [bars(ratio, {"iterations": list(ratio.values())}, [("paper, time to accuracy", list(TIME_TO_ACCURACY.values()))],
                        y="speedup over colocated servers")])


def figure_3(_):
    job = {"hosts": ["h0"], "slots": SCALED_WINDOW, "iterations": 3}
    buckets = buckets_of("vgg16", GPU, **BYTEPS)
    report = run({**atp({"kind": "star", "hosts": 2, "link": SCALED}, [{**job, "bucket": scaled(buckets, FACTOR)}], SCALED_WINDOW, ["h1"]),
                  "output": {"series": ["link.h0.up.bytes"], "bin": "5ms"}})
    sent = [8e-9 * each / report["bin_seconds"] / FACTOR for each in report["series"]["link.h0.up.bytes"]]
    idle = sum(each < 1 for each in sent) / len(sent)
    return Result(["iteration ms", "bins without traffic", "most, Gbit/s"],
                  [[f"{1e3 * time_of(report):.0f}", f"{100 * idle:.0f}%", f"{max(sent):.0f}"]],
                  f"in {100 * idle:.0f} % of the time nothing is sent",
                  [lines({"worker": [(5 * at, each) for at, each in enumerate(sent)]}, x="ms", y="Gbit/s", title="VGG16, one worker, one server")])


def figure_9(short):
    elements = 50_000 if short else 500_000
    network = {"kind": "tree", "fan_out": [3, 3], "link": {"rate": "10gbit", "delay": "1us"}}
    job = {"hosts": ["h0", "h1", "h3", "h4", "h6", "h7"], "slots": 256, "elements": elements}
    switches = ("s0", "s1", "s2")
    both = run_all([atp(network, [job], 1024, ["h8"], switches, parents={"s0": "s2", "s1": "s2"}), atp(network, [job], 1024, ["h8"], switches)])
    received = [link(report, "h8.down")["bytes"] for report in both]
    ratio = received[1] / received[0]
    return Result(["aggregation", "MB at the server"], [["at two levels", f"{received[0] / 1e6:.2f}"], ["in racks", f"{received[1] / 1e6:.2f}"]],
                  f"{ratio:.2f} times the traffic with aggregation in racks alone")


LOSSES = (0.0, 0.00001, 0.0001, 0.001, 0.01)


def figure_10(short):
    elements, seeds = (100_000, (1,)) if short else (1_000_000, (1, 2, 3))
    def scenario(protocol, loss, seed):
        network = star(WORKERS + 1, 10, change=[{"nodes": ["h0"], "link": {"loss": loss}}])
        job = {"hosts": [f"h0..h{WORKERS - 1}"], "slots": 128, "elements": elements}
        if protocol == "switchml":
            return {"seed": seed, "network": network, "job": [job]}
        return {"seed": seed, **atp(network, [{**job, "congestion_control": False}], 256, [f"h{WORKERS}"])}
    keys = [(protocol, loss, seed) for protocol in ("atp", "switchml") for loss in LOSSES for seed in seeds]
    tat = {}
    for (protocol, loss, _), report in zip(keys, run_all([scenario(*key) for key in keys])):
        tat.setdefault((protocol, loss), []).append(time_of(report))
    tat = {key: statistics.median(each) for key, each in tat.items()}
    share = {key: tat[key[0], 0.0] / each for key, each in tat.items()}
    return Result(["loss", "ATP", "SwitchML"], [[f"{100 * loss:g}%", f"{share['atp', loss]:.3f}", f"{share['switchml', loss]:.3f}"] for loss in LOSSES],
                  f"with 1 % at one worker ATP keeps {100 * share['atp', 0.01]:.0f} %, SwitchML {100 * share['switchml', 0.01]:.0f} %",
                  [lines({name: [(100 * loss, share[key, loss]) for loss in LOSSES[1:]] for key, name in (("atp", "ATP"), ("switchml", "SwitchML"))},
                         x="% loss at one worker", y="throughput / without loss", xscale="log", title="microbenchmark, 10 Gbit/s")])


def figure_12(_):
    network = {"kind": "shared", "left": 6, "right": 2, "link": {"rate": gbit(REACHED), "delay": "1us"}}
    jobs = [job_of("vgg16", GPU, name=f"job{job}", hosts=[f"h{2 * job}", f"h{2 * job + 1}", f"h{6 + job}"], aggregators=[f"h{4 + job}"],
                   slots=WINDOW, packet_elements=PACKETS["atp"], **BYTEPS) for job in range(2)]
    report = run(atp(network, jobs, 2 * WINDOW, ["h4", "h5"], ("left", "right"), parents={"right": "left"}), "flow")
    buckets = report["jobs"][0]["buckets"]
    # Both jobs' rings cross the trunk once each way, and share it.
    ring = iteration(buckets, lambda elements: 2 * baselines.ring(3, REACHED)(elements))
    servers = iteration(buckets, lambda elements: 2 * baselines.colocated_servers(3, REACHED)(elements))
    own = [time_of(report, job) for job in range(2)]
    return Result(["job", "ATP ms", "ring ms", "colocated servers ms"],
                  [[job, f"{1e3 * each:.0f}", f"{1e3 * ring:.0f}", f"{1e3 * servers:.0f}"] for job, each in enumerate(own)],
                  f"{ring / max(own):.2f} times as fast as rings; both jobs alike")


def with_server(hosts, rate, delay=SCALED["delay"]):
    """A star whose last host is a parameter server."""
    return {"kind": "star", "hosts": hosts + 1, "link": {**SCALED, "delay": delay},
            "change": [{"nodes": [f"h{hosts}"], "link": {"rate": gbit(rate * FACTOR)}}]}


# Of Figure 13: with 16 packets in flight, and not with 8, a job fills its links ("peak throughput aggregators"). In the paper the
# results of fixed parts come from the server, too: SwitchML's links are twice as long.
WINDOW_13, DELAY_13 = 16, 150


def figure_13(short):
    buckets = buckets_of("vgg16", GPU, **BYTEPS)
    iterations = 2 if short else 4
    third = 1e3 * compute_seconds(buckets) / 3
    def job(index, **more):
        return {"name": f"job{index}", "hosts": [f"h{3 * index}..h{3 * index + 2}"], "slots": WINDOW_13, "bucket": scaled(buckets, FACTOR),
                "iterations": iterations, "start": f"{round(index * third)}ms", **more}
    near, far = f"{DELAY_13}us", f"{2 * DELAY_13}us"
    ratios = (1.0, 0.5, 0.25)  # our SwitchML's pools are powers of two
    parts = [round(WINDOW_13 * ratio) for ratio in ratios]
    dynamic = run_all([atp(with_server(9, SERVER, near), [job(index) for index in range(3)], 3 * part, ["h9"]) for part in parts])
    # Of fixed parts a job sees its own: a third of the slots, and of the server's link. SwitchML's waits for them, ATP's goes to the server.
    waits = run_all([{"network": with_server(3, SERVER / 3, far), "job": [job(0, slots=part)]} for part in parts])
    falls_back = run_all([atp(with_server(3, SERVER / 3, near), [job(0)], part, ["h3"]) for part in parts])
    images = {"dynamic": [3 * BATCH / sum(time_of(report, index) for index in range(3)) for report in dynamic],
              "static, waits": [BATCH / time_of(report) for report in waits], "static, ATP": [BATCH / time_of(report) for report in falls_back]}
    gain = [mine / other - 1 for mine, other in zip(images["dynamic"], images["static, waits"])]
    groups = [f"{100 * ratio:.0f}%" for ratio in ratios]
    return Result(["slots", *(f"{name}, images/s" for name in images), "dynamic gains on waiting"],
                  [[groups[at], *(f"{values[at]:.1f}" for values in images.values()), f"{100 * gain[at]:+.0f}%"] for at in range(3)],
                  "dynamic gains " + ", ".join(f"{100 * each:+.0f} % with {group}" for each, group in zip(gain, groups)),
                  [bars(groups, images, x="of the slots that all need", y="images/s of a worker", title="three VGG16 jobs")])


def three_jobs(part, **more):
    """With so many slots each, of which all may take any."""
    network = {**with_server(9, SERVER, f"{DELAY_13}us")}
    return [network, [{"name": f"job{index}", "hosts": [f"h{3 * index}..h{3 * index + 2}"], "slots": WINDOW_13, **more} for index in range(3)], 3 * part, ["h9"]]


def figure_13b(short):
    """As many slots as all need: a packet that goes past the switch to the server met another chunk in its slot."""
    milliseconds = 300 if short else 1500
    report = run({**atp(*three_jobs(WINDOW_13, elements=20_000, iterations=100_000, stop=f"{milliseconds}ms")),
                  "output": {"series": ["aggregator.h9.server_added_single", "aggregator.h9.server_added_complete"], "bin": "10ms"}})
    single, complete = (report["series"][f"aggregator.h9.server_added_{kind}"] for kind in ("single", "complete"))
    share = [100 * past / (past + 3 * summed) if past + summed else 0.0 for past, summed in zip(single, complete)]
    tenth = len(share) // 10
    first, last = statistics.mean(share[1:1 + tenth]), statistics.mean(share[-tenth - 2:-2])
    return Result(["first tenth, % past the switch", "last tenth"], [[f"{first:.1f}", f"{last:.1f}"]],
                  f"{first:.1f} % of the packets go past the switch in the first {10 * tenth} ms, {last:.1f} % in the last",
                  [lines({"packets summed by the server": [(10 * at, each) for at, each in enumerate(single)]}, x="ms", y="in 10 ms")])


def figure_13c(short):
    """A third of the slots; the last job pauses."""
    begin, end, stop = (100, 200, 300) if short else (500, 1000, 1500)
    network, jobs, pool, servers = three_jobs(WINDOW_13 // 3, elements=20_000, iterations=100_000, stop=f"{stop}ms")
    jobs[2]["pauses"] = [[f"{begin}ms", f"{end}ms"]]
    names = [f"job.job{index}.bytes" for index in range(3)]
    report = run({**atp(network, jobs, pool, servers), "output": {"series": names, "bin": "10ms"}})
    rates = {name: [8e-6 * each / report["bin_seconds"] for each in report["series"][name]] for name in names}
    def mean(name, from_ms, to_ms):
        return statistics.mean(rates[name][from_ms // 10:to_ms // 10])
    before, during = (sum(mean(name, *span) for name in names[:2]) for span in ((begin // 2, begin), (begin + (end - begin) // 4, end)))
    return Result(["the two others before, Mbit/s", "during the pause"], [[f"{before:.0f}", f"{during:.0f}"]],
                  f"the two others reduce {100 * (during / before - 1):.0f} % more while the third pauses",
                  [lines({f"job {index}": [(10 * at, each) for at, each in enumerate(rates[name])] for index, name in enumerate(names)}, x="ms", y="Mbit/s")])


def figure_14(short):
    elements, counts = (20_000, (1, 2)) if short else (100_000, (1, 2, 4, 8))
    def scenario(jobs, indexing, pool):
        network = {"kind": "star", "hosts": 4 * jobs, "link": SCALED}
        return atp(network, [{"name": f"job{job}", "hosts": [f"h{3 * job}..h{3 * job + 2}"], "aggregators": [f"h{3 * jobs + job}"],
                              "slots": SCALED_WINDOW, "elements": elements, "iterations": 4, "indexing": indexing, "congestion_control": True}
                             for job in range(jobs)], pool, [f"h{3 * jobs + job}" for job in range(jobs)])
    keys = [(jobs, indexing) for jobs in counts for indexing in ("rehash", "hash", "linear")]
    reports = dict(zip(keys, run_all([scenario(jobs, indexing, jobs * SCALED_WINDOW) for jobs, indexing in keys])))
    alone = run(scenario(1, "linear", SCALED_WINDOW))
    def mbit(report):
        return statistics.mean(32e-6 * elements / each["iteration_seconds"]["mean"] for each in report["jobs"])
    series = {"static": [mbit(alone)] * len(counts)} | {indexing: [mbit(reports[jobs, indexing]) for jobs in counts] for indexing in ("rehash", "hash", "linear")}
    last = {name: values[-1] / series["static"][-1] for name, values in series.items()}
    return Result(["jobs", *(f"{name}, Mbit/s" for name in series)], [[jobs, *(f"{values[at]:.0f}" for values in series.values())] for at, jobs in enumerate(counts)],
                  f"with {counts[-1]} jobs, of a static share: by hash and another on collision {100 * last['rehash']:.0f} %, by hash "
                  f"{100 * last['hash']:.0f} %, by sequence number {100 * last['linear']:.0f} %",
                  [lines({name: list(zip(counts, values)) for name, values in series.items()}, x="jobs", y=f"Mbit/s of each (links of {SCALED['rate']})")])


def figure_15(short):
    elements, window = (100_000, 256) if short else (1_000_000, 256)
    reports = run_all([atp(star(WORKERS + 1, 10, link={"buffer": "512kB", "mark": "64kB"}),
                           [{"hosts": [f"h0..h{WORKERS - 1}"], "slots": window, "elements": elements, "iterations": 2, "congestion_control": control}],
                           window // 2, [f"h{WORKERS}"]) for control in (True, False)])
    rows = [[name, f"{32e-9 * elements / time_of(report):.2f}", report["jobs"][0]["retransmissions"], link(report, f"h{WORKERS}.down")["dropped"]]
            for name, report in zip(("with", "without"), reports)]
    slower = 1 - time_of(reports[0]) / time_of(reports[1])
    return Result(["congestion control", "Gbit/s", "retransmissions", "dropped"], rows,
                  f"without congestion control {100 * slower:.0f} % slower; {rows[0][3]} packets dropped with it, {rows[1][3]} without")


def figure_16(short):
    """The link from a worker, which TCP takes: a job that needs less than half of it, and one that takes all that it gets."""
    rate, workers, window = 1, 6, 256
    tcps = ("reno",) if short else ("reno", "dctcp", "cubic")
    link = {"rate": gbit(rate), "delay": "20us", "buffer": "512kB", "mark": "64kB"}
    computes = [{"elements": 25_000, "forward": "1ms", "backward": "1ms"}] * 4
    # VGG16's hosts send less than half of a link's rate even when they send (§5.5). All ranks go in step: what the others' links carry.
    slow_hosts = [{"nodes": [f"h{host}" for host in range(1, workers)], "link": {"rate": gbit(0.4 * rate)}}]
    jobs = {"a job of slow hosts": ({"bucket": computes}, slow_hosts), "microbenchmark": ({"elements": 100_000}, [])}
    begin, end = 50, 130 if short else 250  # ms
    def scenario(job, tcp):
        flows = [{"name": "tcp", "from": "h0", "to": f"h{workers + 1}", "tcp": tcp}] if tcp else []
        job, change = job
        return {**atp({"kind": "star", "hosts": workers + 2, "link": link, "change": change},
                      [{"name": "job", "hosts": [f"h0..h{workers - 1}"], "slots": window, "start": f"{begin}ms", "stop": f"{end}ms", "iterations": 100_000, **job}],
                      4 * window, [f"h{workers}"]), "end": f"{end + 50}ms", "background": flows,
                "output": {"series": ["job.job.bytes", *(["background.tcp.bytes"] if tcp else [])], "bin": "5ms"}}
    keys = [(name, tcp) for name in jobs for tcp in (None, *tcps)]
    reports = dict(zip(keys, run_all([scenario(jobs[name], tcp) for name, tcp in keys], "ns-3")))
    def mbit(report, series):
        bins = [8e-6 * each / report["bin_seconds"] for each in report["series"][series]]
        return bins, statistics.mean(bins[(begin + 30) // 5:end // 5])
    rows, panels, ours = [], [], []
    for name in jobs:
        alone = mbit(reports[name, None], "job.job.bytes")[1]
        for tcp in tcps:
            (job, of_job), (flow, of_flow) = (mbit(reports[name, tcp], series) for series in ("job.job.bytes", "background.tcp.bytes"))
            rows.append([name, tcp, f"{alone:.0f}", f"{of_job:.0f}", f"{of_flow:.0f}", f"{of_job + of_flow:.0f}"])
            ours.append(f"{name} beside {tcp}: {of_job:.0f} and {of_flow:.0f} Mbit/s ({alone:.0f} alone)")
            panels.append(lines({"ATP": [(5 * at, each) for at, each in enumerate(job)], "TCP": [(5 * at, each) for at, each in enumerate(flow)]}, x="ms",
                                y="Mbit/s", title=f"{name}, {tcp}"))
    return Result(["job", "TCP", "job alone, Mbit/s", "job", "TCP", "together"], rows, "; ".join(ours), panels)


def figure_20(short):
    vgg, resnet = buckets_of("vgg16", GPU, **BYTEPS), buckets_of("resnet50", GPU, **BYTEPS)
    iterations = 2 if short else 4
    network = with_server(7, SERVER)
    def job(name, hosts, buckets):
        return {"name": name, "hosts": hosts, "slots": SCALED_WINDOW, "bucket": scaled(buckets, FACTOR), "iterations": iterations}
    cases = {"VGG16 and VGG16, 3 each": (job("a", ["h0..h2"], vgg), job("b", ["h3..h5"], vgg)),
             "VGG16 with 5 and with 2": (job("a", ["h0..h4"], vgg), job("b", ["h5..h6"], vgg)),
             "VGG16 and ResNet50": (job("a", ["h0..h2"], vgg), job("b", ["h3..h5"], resnet))}
    rows, found = [], {}
    for name, jobs in cases.items():
        together, *alone = run_all([atp(network, list(jobs), 2 * SCALED_WINDOW, ["h7"])] + [atp(network, [each], 2 * SCALED_WINDOW, ["h7"]) for each in jobs])
        found[name] = [time_of(own) / time_of(together, at) for at, own in enumerate(alone)]
        rows.append([name, *(f"{share:.2f}" for share in found[name])])
    return Result(["jobs", "first, of alone", "second"], rows, "; ".join(f"{name}: {shares[0]:.2f} and {shares[1]:.2f}" for name, shares in found.items()),
                  [bars(found, {"first": [each[0] for each in found.values()], "second": [each[1] for each in found.values()]}, y="throughput / alone")])


HUNDREDTH = "links of the 20 Gbit/s that the paper's jobs reach (§5.5); a hundredth of rate and elements"
FIGURES = [
    Figure("atp-figure3", "Figure 3", "Traffic of a training comes and goes", "simulated, packets", figure_3,
           "on and off (a plot)", HUNDREDTH),
    Figure("atp-figure8", "Figure 8", "Throughput of single jobs", "simulated, flows; baselines computed", figure_8,
           "at most 1.5 over BytePS NtoN, 1.24 over Horovod, 8.7 over BytePS Nto1 (TCP), 1.5 over SwitchML",
           "baselines are ideal; VGG's large layers come first in the backward pass, so at 100 Gbit/s their all-reduces are hidden, whoever sums: the paper's hosts reach 20 (§5.5) to 60 (§D.1) Gbit/s; passes of most models are from FLOPs"),
    Figure("atp-figure9", "Figure 9", "Traffic to the server from three racks", "simulated, packets", figure_9,
           "3 times the traffic with a rack-scale service"),
    Figure("atp-figure10", "Figure 10", "Losses at one worker", "simulated, packets", figure_10,
           "degrades less than SwitchML (a plot)", "our SwitchML hears of losses before its time-outs, too"),
    Figure("atp-figure11", "Figures 11, 18", "Time to accuracy, of one job", "computed from Figure 8: as many epochs", figures_11_and_18,
           "1.25 (VGG16), 1.02 (ResNet50), 1.2 (VGG19), 1.01 (ResNet101), 2.39 (AlexNet) times as fast as BytePS NtoN", "20 Gbit/s, as in Figure 8"),
    Figure("atp-figure12", "Figure 12", "Two VGG16 jobs over a shared trunk", "simulated, flows; baselines computed", figure_12,
           "1.25 times as fast as Horovod, 1.20 as BytePS", "20 Gbit/s links; the rings are ideal"),
    Figure("atp-figure13", "Figure 13a", "Slots shared, and in fixed parts", "simulated, packets", figure_13,
           "dynamic up to 38 % faster, with 33 % of the slots", "with 50 and 25 % (a SwitchML pool is a power of two); parts of just the slots that fill a link; a server of 60 Gbit/s (§D.1); " + HUNDREDTH),
    Figure("atp-figure13b", "Figure 13b", "Sums at the server while jobs warm up", "simulated, packets", figure_13b,
           "none after 500 ms", "16 packets in flight of each of three jobs; links of the 20 Gbit/s that the paper's jobs reach (§5.5); a hundredth of the rate"),
    Figure("atp-figure13c", "Figure 13c", "While a job pauses", "simulated, packets", figure_13c,
           "sums of the others at the switch rise (a plot)", "as Figure 13b, with a third of the slots; rates in place of sums"),
    Figure("atp-figure14", "Figure 14", "Slots by hash and by sequence number", "simulated, packets", figure_14,
           "hash as good as static, linear far worse (a plot)", HUNDREDTH),
    Figure("atp-figure15", "Figure 15", "Half of the slots, with and without congestion control", "simulated, packets", figure_15,
           "without it 65 % slower; 7.5 Gbit/s with it", "10 Gbit/s, and all-reduces alone: bandwidth is what contends, hosts cost nothing"),
    Figure("atp-figure20", "Figure 20", "Two jobs at a switch and a server", "simulated, packets", figure_20,
           "0.90 and 0.90; 145.6 and 159.3 images/s with 5 and 2 workers; 0.95 (VGG16) and 0.90 (ResNet50)", "a server of 60 Gbit/s (§D.1), which both jobs do not fill; " + HUNDREDTH),
    Elsewhere("Figure 9", "Traffic to the server from three racks", "measured", "3.00 (2.99 to 3.00) times the traffic with aggregation in racks alone",
              "scripts/reproduce atp-racks", "as above"),
    Elsewhere("Figure 10", "Losses at one worker", "measured", "TAT over that without: {repair-4-atp-one-0.01} at 0.01 %, {repair-4-atp-one-0.1} at 0.1 %, "
              "{repair-4-atp-one-1} at 1 %", "scripts/bench --suite repair", "as above", "links of 200 Mbit/s"),
    Elsewhere("Figure 13a", "Slots shared, and in fixed parts", "measured", "dynamic over static: 1.19 (1.17 to 1.23) with 66 %, 1.83 (1.82 to 1.91) with 33 %",
              "scripts/reproduce atp-sharing", "as above", "the link to the server has room ([benchmarks.md](benchmarks.md#atps-figures-scriptsreproduce))"),
    Elsewhere("Figure 13b", "Sums at the server while jobs warm up", "measured", "with rehashing 94 to 98 % are added at the switch, without it 63 to 82 %",
              "scripts/reproduce atp-sharing", "as above", "means of whole runs, 2 to 8 jobs"),
    Elsewhere("Figure 13c", "Sums at the switch while a job pauses", "measured", "the two others hold 10.6 slots together in place of 6.3, and 45 % more sums a second",
              "scripts/reproduce atp-sharing", "as above"),
    Elsewhere("Figure 14", "Slots by hash and by sequence number", "measured", "with 8 jobs, of parts: 94 % by hash and another on collision, 93 % by hash, 94 % by sequence number",
              "scripts/reproduce atp-sharing", "as above", "the link has room for packets without a slot"),
    Elsewhere("Figure 15", "Half of the slots, with and without congestion control", "measured", "40.9 Mbit/s with, 5.7 without: 86 % slower",
              "scripts/reproduce atp-congestion", "as above", "a link of 50 Mbit/s with 2 ms of round trip"),
    Figure("atp-figure16", "Figure 16", "Beside other traffic", "simulated, ns-3", figure_16,
           "VGG16 gets what it needs, the microbenchmark near its fair share; both together near line rate (plots)",
           "ATP halves its window at a mark, as Reno does, and DCTCP yields less; ns-3's cubic hardly grows with such short round trips, where Linux's is as Reno (measured, below). "
           "Links of 1 Gbit/s, a fifth of a second; the first job computes, and its hosts reach 40 % of a link"),
    Elsewhere("Figure 16", "Beside other traffic", "measured", "a job's share beside a TCP flow is 0.54, without congestion control 0.51 and 41 % repeats",
              "scripts/reproduce atp-congestion", "as above", "TCP is cubic with ECN, not DCTCP; an all-reduce, not VGG16"),
    Elsewhere("Table 1", "Packets that a proactive mechanism would take from switches", "measured", "0, 0, 66 and 1,262 with 8, 16, 32 and 64 workers",
              "scripts/reproduce atp-proactive", "37,002 to 14,602,998 an epoch of ResNet50", "20 steps of the demo's network"),
    Elsewhere("Figure 19", "Throughput with hardware acceleration", "measured", "one core's sockets: 0.70 million datagrams a second in batches, 4.5 in segment trains (GSO and GRO): 6.4 times; "
              "where the kernel copies, AF_XDP {af-xdp-switch} times a switch's packets by sockets, {af-xdp-bump-1100} times a bump's frames; "
              "by DPDK over a memif a switch's core sums {dpdk-software-switch-xdp} times the packets that a bare AF_XDP loop only returns",
              "build/release/bin/udp_bench; scripts/bench --suite af-xdp,dpdk", "TSO 3 times, several queues 1.47, two passes 1.3", "loopback, one short run ([simulator.md](simulator.md#against-reality)); no NIC with zero copy here ([performance.md](performance.md#past-the-kernels-network))"),
]
