"""ATP's evaluation (Lao et al., NSDI 2021)."""
import statistics

import baselines
import timeouts
from figure import Beside, Elsewhere, Figure, Result, bars, lines
from scenario import buckets_of, compute_seconds, gbit, iteration, job_of, link, model_bytes, run, run_all, shortened, star, time_of

GPU, BATCH, WORKERS = "rtx2080ti", 32, 8
# What hosts reach over their links of 100 Gbit/s, "the PS in our implementation saturates at" (§5.5), with packets of 306 bytes; with
# SwitchML's, of half the elements, 1.3 times less (§D.1).
HOSTS, SWITCHML_HOSTS = 60, 60 / 1.3
MODELS = ("alexnet", "vgg11", "vgg16", "vgg19", "resnet50", "resnet101", "resnet152")
BYTEPS = {"bucketing": "pieces", "bucket": "4MB"}
# Elements (§3.6, §4). The paper's SwitchML has 32, and ours 64 at least: a block's.
PACKETS = {"atp": 62, "switchml": 64}
PAPER_SHARES = {"atp": 248 / 306, "switchml": 128 / 180}  # of a packet that are tensor
PIECE = 1_000_000  # elements: 4 MB, the microbenchmark's (§5.1)

# Of a training so many packets are too many: a part of the elements, and of the passes' time, over the links as they are.
PART = 1 / 50
# 512 slots of each of three jobs are the fewest with which fixed parts saturate the link to the server (§5.4.1: 1980 of all).
FILLING = 512
LINK = {"rate": gbit(HOSTS), "delay": "10us", "buffer": "2MB", "mark": "300kB"}


def atp(network, jobs, pool, servers, switches=("sw",), **more):
    return {"protocol": "atp", "network": network, "job": jobs,
            "aggregation": {"aggregators": servers, "switches": list(switches), "pool_slots": pool, **more}}


def carried(protocol, rate):
    """Gbit/s of links over which our packets carry what the paper's carry over `rate`, whose headers are shorter."""
    ours = {"atp": 248 / 350, "switchml": 256 / 350}
    return rate * PAPER_SHARES[protocol] / ours[protocol]


def single_jobs(model, papers_packets=False):
    """Iteration seconds by who sums; the last key is computation alone."""
    of_atp, of_switchml = HOSTS, SWITCHML_HOSTS
    if papers_packets:
        of_atp, of_switchml = carried("atp", of_atp), carried("switchml", of_switchml)
    job = job_of(model, GPU, hosts=[f"h0..h{WORKERS - 1}"], slots=2 * FILLING, **BYTEPS)
    with_atp, with_switchml = run_all([atp(star(WORKERS + 1, of_atp), [{**job, "packet_elements": PACKETS["atp"]}], 2 * FILLING, [f"h{WORKERS}"]),
                                       {"network": star(WORKERS, of_switchml), "job": [{**job, "packet_elements": PACKETS["switchml"]}]}], "flow")
    buckets = with_atp["jobs"][0]["buckets"]
    return {"ATP": time_of(with_atp), "SwitchML": time_of(with_switchml), "ring": iteration(buckets, baselines.ring(WORKERS, HOSTS)),
            "BytePS NtoN": iteration(buckets, baselines.colocated_servers(WORKERS, HOSTS)),
            "BytePS Nto1": iteration(buckets, baselines.one_server(WORKERS, HOSTS)), "no communication": compute_seconds(buckets)}, buckets


def rate_of(ratio, seconds_at, found):
    """Gbit/s at which a baseline takes at most so many times as long as ATP, over all models."""
    low, high = 1.0, 100.0
    for _ in range(30):
        middle = (low + high) / 2
        most = max(iteration(buckets, seconds_at(middle)) / seconds["ATP"] for seconds, buckets in found.values())
        low, high = (middle, high) if most > ratio else (low, middle)
    return low


def figure_8(_):
    found = {model: single_jobs(model) for model in MODELS}
    with_papers = {model: single_jobs(model, papers_packets=True)[0] for model in MODELS}
    names = list(found["vgg16"][0])
    images = {name: [BATCH / found[model][0][name] for model in MODELS] for name in names}
    rows = [[model, *(f"{images[name][at]:.0f}" for name in names)] for at, model in enumerate(MODELS)]
    best = {name: max(seconds[name] / seconds["ATP"] for seconds, _ in found.values()) for name in names[1:-1]}
    over_switchml = max(each["SwitchML"] / each["ATP"] for each in with_papers.values())
    slower = {"BytePS NtoN, RDMA, 1.5": rate_of(1.5, lambda rate: baselines.colocated_servers(WORKERS, rate), found),
              "BytePS NtoN, TCP, 2.5": rate_of(2.5, lambda rate: baselines.colocated_servers(WORKERS, rate), found),
              "Horovod, TCP, 4.2": rate_of(4.2, lambda rate: baselines.ring(WORKERS, rate), found),
              "BytePS Nto1, TCP, 8.7": rate_of(8.7, lambda rate: baselines.one_server(WORKERS, rate), found)}
    return Result(["images/s of a worker", *names], rows, "at most " + ", ".join(f"{ratio:.2f} over {name}" for name, ratio in best.items()),
                  [bars(MODELS, images, y="images/s of a worker", title=f"8 workers, hosts of {HOSTS} Gbit/s")],
                  [Beside("over Horovod, RDMA", 1.24, best["ring"], 1), Beside("over BytePS NtoN, RDMA", 1.5, best["BytePS NtoN"], 1),
                   Beside("over SwitchML", 1.5, best["SwitchML"], 1)],
                  f"Our headers are longer: with packets that carry what the paper's do, ATP is up to {over_switchml:.2f} times as fast as SwitchML. The "
                  f"baselines are ideal, and as fast as ATP's hosts: the paper's ratios are those of " +
                  ", ".join(f"{rate:.0f} Gbit/s ({name})" for name, rate in slower.items()))


TIME_TO_ACCURACY = {"alexnet": 2.39, "vgg16": 1.25, "vgg19": 1.2, "resnet50": 1.02, "resnet101": 1.01}
SLOW_SERVERS = 35  # Gbit/s of BytePS


def figures_11_and_18(_):
    found = {model: single_jobs(model) for model in TIME_TO_ACCURACY}
    ratio = {model: seconds["BytePS NtoN"] / seconds["ATP"] for model, (seconds, _) in found.items()}
    slow = {model: iteration(buckets, baselines.colocated_servers(WORKERS, SLOW_SERVERS)) / seconds["ATP"] for model, (seconds, buckets) in found.items()}
    return Result(["model", "an iteration, faster than BytePS NtoN", f"with {SLOW_SERVERS} Gbit/s", "paper, time to accuracy"],
                  [[model, f"{ratio[model]:.2f}", f"{slow[model]:.2f}", f"{paper:.2f}"] for model, paper in TIME_TO_ACCURACY.items()],
                  ", ".join(f"{value:.2f} ({model})" for model, value in ratio.items()),
                  [bars(ratio, {"iterations": list(ratio.values())}, [("paper, time to accuracy", list(TIME_TO_ACCURACY.values()))],
                        y="speedup over colocated servers")],
                  [Beside(model, paper, ratio[model], 1) for model, paper in TIME_TO_ACCURACY.items()],
                  f"BytePS is ideal here, and as fast as ATP's hosts. Where it reaches {SLOW_SERVERS} Gbit/s, the ratios are " +
                  ", ".join(f"{value:.2f} ({model})" for model, value in slow.items()) + ". AlexNet's 2.39 is beyond the paper's own most for an iteration, 1.5 (§5.2.1)")


def figure_3(_):
    """One worker: the network waits while the forward pass and the first of the backward pass run."""
    job = {"hosts": ["h0"], "slots": 2 * FILLING, "packet_elements": PACKETS["atp"], "iterations": 3}
    buckets = buckets_of("vgg16", GPU, **BYTEPS)
    report = run({**atp({"kind": "star", "hosts": 2, "link": LINK}, [{**job, "bucket": shortened(buckets, PART)}], 2 * FILLING, ["h1"]),
                  "output": {"series": ["link.h0.up.bytes"], "bin": "100us"}})
    sent = [8e-9 * each / report["bin_seconds"] for each in report["series"]["link.h0.up.bytes"]]
    idle = sum(each < 1 for each in sent) / len(sent)
    mean = 8e-9 * model_bytes(report) / time_of(report)
    return Result(["iteration ms", "bins without traffic", "most, Gbit/s", "mean of tensor, Gbit/s"],
                  [[f"{1e3 * time_of(report) / PART:.0f}", f"{100 * idle:.0f}%", f"{max(sent):.0f}", f"{mean:.1f}"]],
                  f"in {100 * idle:.0f} % of the time nothing is sent",
                  [lines({"worker": [(0.1 * at / PART, each) for at, each in enumerate(sent)]}, x="ms", y="Gbit/s", title="VGG16, one worker, one server")])


def figure_9(short):
    elements = 20_000 if short else 200_000
    network = {"kind": "tree", "fan_out": [3, 3], "link": {"rate": "10gbit", "delay": "1us"}}
    job = {"hosts": ["h0", "h1", "h3", "h4", "h6", "h7"], "slots": 256, "packet_elements": PACKETS["atp"], "elements": elements}
    switches = ("s0", "s1", "s2")
    both = run_all([atp(network, [job], 1024, ["h8"], switches, parents={"s0": "s2", "s1": "s2"}), atp(network, [job], 1024, ["h8"], switches)])
    received = [link(report, "h8.down")["bytes"] for report in both]
    ratio = received[1] / received[0]
    return Result(["aggregation", "MB at the server"], [["at two levels", f"{received[0] / 1e6:.2f}"], ["in racks", f"{received[1] / 1e6:.2f}"]],
                  f"{ratio:.2f} times the traffic with aggregation in racks alone", beside=[Beside("traffic of racks alone", 3, ratio, 1)])


LOSSES = (0.0, 0.00001, 0.0001, 0.001, 0.01)
KINDS = {"atp": "ATP", "paper": "ATP, the paper's rules", "switchml": "SwitchML"}


def with_losses(kind, loss, buckets, delay=LINK["delay"]):
    """One worker loses packets, both ways."""
    hosts = WORKERS + (kind != "switchml")
    network = {"kind": "star", "hosts": hosts, "link": {**LINK, "delay": delay}, "change": [{"nodes": ["h0"], "link": {"loss": loss}}]}
    job = {"hosts": [f"h0..h{WORKERS - 1}"], "slots": FILLING, "bucket": buckets}
    if kind == "switchml":
        return {"network": network, "job": [{**job, "packet_elements": PACKETS["switchml"]}]}
    rules = "paper" if kind == "paper" else "netsum"
    return atp(network, [{**job, "packet_elements": PACKETS["atp"], "congestion_control": False, "rules": rules}], FILLING, [f"h{WORKERS}"])


def figure_10(short):
    tensors = [{"elements": PIECE, "forward": "0us", "backward": "0us"}] * (1 if short else 8)
    training = shortened(buckets_of("vgg16", GPU, **BYTEPS), PART / 10 if short else PART)
    works = {"microbenchmark": tensors, "VGG16": training}
    keys = [(work, kind, loss) for work in works for kind in KINDS for loss in LOSSES]
    reports = dict(zip(keys, run_all([with_losses(kind, loss, works[work]) for work, kind, loss in keys])))
    share = {(work, kind, loss): time_of(reports[work, kind, 0.0]) / time_of(reports[work, kind, loss]) for work, kind, loss in keys}
    # The paper's SwitchML: a loss waits for a time-out of 1 ms.
    by_timeouts = {loss: timeouts.all_reduce(WORKERS, HOSTS, loss, FILLING, (1 if short else 3) * PIECE, PACKETS["switchml"],
                                             delay=1e-6 * float(LINK["delay"].removesuffix("us")), lossy=(0,))[0] for loss in (LOSSES[0], *LOSSES[2:])}
    plain = {loss: by_timeouts[0.0] / seconds for loss, seconds in by_timeouts.items()}
    # What a loss costs, in round trips: with two delays.
    delays, rare = (10, 30), 0.0001
    slower = run_all([with_losses("atp", loss, tensors, f"{delay}us") for delay in delays for loss in (0.0, rare)])
    trips = []
    for at, delay in enumerate(delays):
        without, with_rare = slower[2 * at:2 * at + 2]
        lost = sum(link(with_rare, f"h0.{way}")["lost"] for way in ("up", "down"))
        trips.append((time_of(with_rare) - time_of(without)) / max(1, lost) / (4e-6 * delay))
    def kept(work, kind):
        return ", ".join(f"{100 * share[work, kind, loss]:.1f}" for loss in LOSSES[1:])
    rates = ", ".join(f"{100 * loss:g}" for loss in LOSSES[1:])
    return Result(["", "loss", *KINDS.values()],
                  [[work, f"{100 * loss:g}%", *(f"{share[work, kind, loss]:.3f}" for kind in KINDS)] for work in works for loss in LOSSES],
                  f"of the throughput without loss, in % with {rates} %: " +
                  "; ".join(f"{work}: {name} {kept(work, kind)}" for work in works for kind, name in KINDS.items()),
                  [lines({name: [(100 * loss, share[work, kind, loss]) for loss in LOSSES[1:]] for kind, name in KINDS.items()},
                         x="% loss at one worker", y="throughput / without loss", xscale="log", title=work) for work in works],
                  [Beside("ATP over SwitchML with 1 %", 1.34, share["microbenchmark", "atp", 0.01] / share["microbenchmark", "switchml", 0.01], 1),
                   Beside("by both papers' own rules", 1.34, share["microbenchmark", "paper", 0.01] / plain[0.01], 1)],
                  f"Where losses are rare, one costs ATP {trips[0]:.2f} and {trips[1]:.2f} round trips of links of {delays[0]} and {delays[1]} µs: without congestion "
                  "control a window's sequence numbers are all in flight, and none is sent past it while the lost one is missing; SwitchML's other slots "
                  f"go on. So it is by the paper's rules too. The paper's SwitchML waits for a time-out of 1 ms with each loss, where ours finds it by later packets: by its "
                  f"rule it keeps {', '.join(f'{100 * plain[loss]:.0f}' for loss in LOSSES[2:])} % with {', '.join(f'{100 * loss:g}' for loss in LOSSES[2:])} %")


def figure_12(_):
    trunk = 100
    def measured(hosts, trunk):
        network = {"kind": "shared", "left": 6, "right": 2, "link": {"rate": gbit(hosts), "delay": "1us"}, "trunk": {"rate": gbit(trunk), "delay": "1us"}}
        jobs = [job_of("vgg16", GPU, name=f"job{job}", hosts=[f"h{2 * job}", f"h{2 * job + 1}", f"h{6 + job}"], aggregators=[f"h{4 + job}"],
                       slots=2 * FILLING, packet_elements=PACKETS["atp"], **BYTEPS) for job in range(2)]
        report = run(atp(network, jobs, 4 * FILLING, ["h4", "h5"], ("left", "right"), parents={"right": "left"}), "flow")
        # Both jobs' rings, and servers, cross the trunk once each way, and share it.
        rate = min(hosts, trunk / 2)
        buckets = report["jobs"][0]["buckets"]
        return [max(time_of(report, job) for job in range(2)), iteration(buckets, baselines.ring(3, rate)),
                iteration(buckets, baselines.colocated_servers(3, rate)), buckets]
    own, ring, servers, buckets = measured(HOSTS, trunk)
    found = {"vgg16": ({"ATP": own}, buckets)}
    slow_ring = rate_of(1.25, lambda rate: baselines.ring(3, rate), found)
    slow_servers = rate_of(1.2, lambda rate: baselines.colocated_servers(3, rate), found)
    return Result(["ATP ms", "ring ms", "colocated servers ms"], [[f"{1e3 * each:.0f}" for each in (own, ring, servers)]],
                  f"{ring / own:.2f} times as fast as rings and as colocated servers; both jobs alike",
                  beside=[Beside("over Horovod", 1.25, ring / own, 1), Beside("over BytePS", 1.2, servers / own, 1)],
                  explained=f"Rings and servers are ideal here, and a trunk of {trunk} Gbit/s has room for both jobs: half of it is {trunk / 2:.0f} Gbit/s, over which almost all is "
                  f"hidden behind the passes. The paper's ratios are those of a ring of {slow_ring:.0f} Gbit/s, and of servers of {slow_servers:.0f}: its own had storms of "
                  "pauses (§5.3.2)")


def with_server(hosts, server=HOSTS):
    """A star whose last host is a parameter server."""
    return {"kind": "star", "hosts": hosts + 1, "link": {**LINK}, "change": [{"nodes": [f"h{hosts}"], "link": {**LINK, "rate": gbit(server)}}]}


def images(report, job=0):
    """A second, of a worker whose training is shortened."""
    return BATCH * PART / time_of(report, job)


def third_of(buckets, index):
    """A start, so that jobs are not in step."""
    return f"{round(1e6 * PART * compute_seconds(buckets) * index / 3)}us"


def figure_13(short):
    """Fixed parts are parts of one pool, and all jobs are at one server: a job whose part is full waits."""
    model = buckets_of("vgg16", GPU, **BYTEPS)
    buckets = shortened(model, PART / 5 if short else PART)
    iterations = 1 if short else 2
    shares = (1.0, 0.66, 0.5, 0.33)
    servers = (HOSTS, 100)
    def scenario(share, how, server):
        jobs = [{"name": f"job{index}", "hosts": [f"h{3 * index}..h{3 * index + 2}"], "slots": FILLING, "packet_elements": PACKETS["atp"],
                 "bucket": buckets, "iterations": iterations, "start": third_of(model, index),
                 "rules": "paper" if how == "paper" else "netsum"} for index in range(3)]
        parts = {"pool_parts": 3} if how == "static" else {}
        return atp(with_server(9, server), jobs, round(3 * FILLING * share), ["h9"], **parts)
    hows = {"static": "fixed parts", "dynamic": "shared", "paper": "shared, the paper's rules"}
    keys = [(share, how, server) for server in servers for share in shares for how in hows if how != "paper" or server == HOSTS]
    reports = dict(zip(keys, run_all([scenario(*key) for key in keys])))
    rates = {key: statistics.mean(images(report, job) for job in range(3)) for key, report in reports.items()}
    gain = {(share, how, server): rates[share, how, server] / rates[share, "static", server] - 1 for share, how, server in keys if how != "static"}
    def gains(how, server):
        return ", ".join(f"{100 * gain[share, how, server]:+.0f} % with {100 * share:.0f} %" for share in shares)
    groups = [f"{100 * share:.0f}%" for share in shares]
    half = {server: 1 - rates[0.5, "dynamic", server] / rates[1.0, "dynamic", server] for server in servers}
    return Result(["server, Gbit/s", "slots", *hows.values(), "shared gains"],
                  [[server, groups[at], *(f"{rates[share, how, server]:.1f}" if (share, how, server) in rates else "–" for how in hows),
                    f"{100 * gain[share, 'dynamic', server]:+.0f}%"] for server in servers for at, share in enumerate(shares)],
                  f"shared slots gain {gains('dynamic', HOSTS)} of the slots; half of them cost {100 * half[HOSTS]:.0f} %. Where the server takes "
                  f"{servers[1]} Gbit/s: {gains('dynamic', servers[1])}; half cost {100 * half[servers[1]]:.0f} %",
                  [bars(groups, {hows[how]: [rates[share, how, server] for share in shares] for how in hows if (1.0, how, server) in rates},
                        x="of the slots that fill the link", y="images/s of a worker", title=f"three VGG16 jobs, a server of {server} Gbit/s") for server in servers],
                  [Beside("gain of sharing with 33 %", 0.38, gain[0.33, "dynamic", HOSTS], 0),
                   Beside("throughput that half of the slots leave (§1)", 0.925, 1 - half[HOSTS])],
                  f"What finds no slot is three packets for one at the server, whose link the jobs fill as it is. With a server of {servers[1]} Gbit/s, the testbed's "
                  f"links, there is room, and sharing gains {100 * gain[0.33, 'dynamic', servers[1]]:.0f} %. By the paper's own rules it is {gains('paper', HOSTS)}")


def three_jobs(part, server, **more):
    """With so many slots each, of which all may take any."""
    return [with_server(9, server), [{"name": f"job{index}", "hosts": [f"h{3 * index}..h{3 * index + 2}"], "slots": FILLING, "packet_elements": PACKETS["atp"],
                                      "elements": PIECE, "iterations": 100_000, **more} for index in range(3)], 3 * part, ["h9"]]


def figure_13b(short):
    """As many slots as all need: a packet that goes past the switch to the server met another chunk in its slot."""
    milliseconds = 2 if short else 12
    report = run({**atp(*three_jobs(FILLING, HOSTS, stop=f"{milliseconds}ms")),
                  "output": {"series": ["aggregator.h9.server_added_single", "aggregator.h9.server_added_complete"], "bin": "100us"}})
    single, complete = (report["series"][f"aggregator.h9.server_added_{kind}"] for kind in ("single", "complete"))
    share = [100 * past / (past + 3 * summed) if past + summed else 0.0 for past, summed in zip(single, complete)]
    tenth = len(share) // 10
    first, last = statistics.mean(share[1:1 + tenth]), statistics.mean(share[-tenth - 2:-2])
    return Result(["first tenth, % past the switch", "last tenth"], [[f"{first:.1f}", f"{last:.1f}"]],
                  f"{first:.1f} % of the packets go past the switch in the first {0.1 * tenth:.1f} ms, {last:.1f} % in the last",
                  [lines({"packets summed by the server": [(0.1 * at, each) for at, each in enumerate(single)]}, x="ms", y="in 0.1 ms")])


def figure_13c(short):
    """A third of the slots; the last job pauses."""
    begin, end, stop = (2, 4, 5) if short else (5, 25, 27)
    network, jobs, pool, servers = three_jobs(FILLING // 3, HOSTS, stop=f"{stop}ms")
    jobs[2]["pauses"] = [[f"{begin}ms", f"{end}ms"]]
    report = run({**atp(network, jobs, pool, servers), "output": {"series": ["switch.sw.switch_completed"], "bin": "1ms"}})
    sums = report["series"]["switch.sw.switch_completed"]
    # Jobs are alike: two thirds are the others'.
    before, during = 2 / 3 * statistics.mean(sums[1:begin]), statistics.mean(sums[begin + 1:end])
    return Result(["the two others' sums at the switch in 1 ms", "during the pause"], [[f"{before:.0f}", f"{during:.0f}"]],
                  f"the two others have {100 * (during / before - 1):.0f} % more sums at the switch while the third pauses",
                  [lines({"sums at the switch": list(enumerate(sums))}, x="ms", y="in 1 ms")])


def figure_14(short):
    """Each job has its own server, and as many slots as fill a link. Ranks begin up to 50 µs apart."""
    pieces, counts = (1, (1, 2)) if short else (2, (1, 2, 4, 8))
    def scenario(jobs, indexing, rules):
        network = {"kind": "star", "hosts": 4 * jobs, "link": LINK}
        return atp(network, [{"name": f"job{job}", "hosts": [f"h{3 * job}..h{3 * job + 2}"], "aggregators": [f"h{3 * jobs + job}"],
                              "slots": FILLING, "packet_elements": PACKETS["atp"],
                              "bucket": [{"elements": PIECE, "forward": "0us", "backward": "0us"}] * pieces,
                              "indexing": indexing, "rules": rules, "start_jitter": "50us"}
                             for job in range(jobs)], jobs * FILLING, [f"h{3 * jobs + job}" for job in range(jobs)])
    hows = {"hash, and another on collision": ("rehash", "netsum"), "hash": ("hash", "netsum"),
            "sequence number": ("linear", "netsum"), "the paper's rules, hash and another": ("rehash", "paper"),
            "the paper's rules, sequence number": ("linear", "paper")}
    keys = [(jobs, how) for how in hows for jobs in counts]
    reports = dict(zip(keys, run_all([scenario(jobs, *hows[how]) for jobs, how in keys])))
    # Jobs with parts of their own share nothing: each is as one alone, whose chunks have slots one behind the other.
    alone = run(scenario(1, "linear", "netsum"))
    keys += [(jobs, "fixed parts") for jobs in counts]
    reports |= {(jobs, "fixed parts"): alone for jobs in counts}
    hows = {"fixed parts": None, **hows}
    rate = {key: statistics.mean(32e-9 * pieces * PIECE / each["iteration_seconds"]["mean"] for each in report["jobs"]) for key, report in reports.items()}
    repeats = {key: sum(each["retransmissions"] for each in report["jobs"]) for key, report in reports.items()}
    most = counts[-1]
    last = {how: rate[most, how] / rate[most, "fixed parts"] for how in hows}
    rehash, linear, papers_rehash, papers_linear = (last[how] for how in list(hows)[1:2] + list(hows)[3:])
    return Result(["jobs", *(f"{how}, Gbit/s" for how in hows)], [[jobs, *(f"{rate[jobs, how]:.1f}" for how in hows)] for jobs in counts],
                  f"with {most} jobs, of a static share: by hash and another on collision {100 * rehash:.0f} %, by hash {100 * last['hash']:.0f} %, by sequence "
                  f"number {100 * linear:.0f} %; by the paper's rules {100 * papers_rehash:.0f} % and, by sequence number, {100 * papers_linear:.0f} %",
                  [lines({how: [(jobs, rate[jobs, how]) for jobs in counts] for how in hows}, x="jobs", y=f"Gbit/s of each (hosts of {HOSTS})")],
                  [Beside("hash over static", 1, rehash)],
                  f"By sequence number all jobs want the same slots, and what finds none is three packets for one at a server. By the paper's rules what is left of such a chunk "
                  f"takes a slot, too, and waits for a packet that is past it (§3.6): up to {max(repeats[jobs, name] for jobs in counts for name in list(hows)[-2:])} repeats")


def figure_15(short):
    """Half of the slots that fill a link, and a server whose queue holds half a window of all workers."""
    buckets = shortened(buckets_of("vgg16", GPU, **BYTEPS), PART / 10 if short else PART)
    link_to_all = {**LINK, "buffer": "500kB", "mark": "100kB"}
    def scenario(control, rules, window):
        return atp({"kind": "star", "hosts": WORKERS + 1, "link": link_to_all},
                   [{"hosts": [f"h0..h{WORKERS - 1}"], "slots": window, "packet_elements": PACKETS["atp"], "bucket": buckets, "iterations": 1 if short else 2,
                     "congestion_control": control, "rules": rules}], FILLING // 2, [f"h{WORKERS}"])
    keys = [(control, rules, 2 * FILLING) for rules in ("netsum", "paper") for control in (True, False)] + [(False, rules, FILLING) for rules in ("netsum", "paper")]
    reports = dict(zip(keys, run_all([scenario(*key) for key in keys])))
    rate = {key: images(report) * (0.1 if short else 1) for key, report in reports.items()}
    rows = [[rules, "with" if control else "without", window, f"{rate[control, rules, window]:.1f}",
             f"{32e-9 * sum(each['elements'] for each in buckets) / time_of(report):.1f}", report["jobs"][0]["retransmissions"], link(report, f"h{WORKERS}.down")["dropped"]]
            for (control, rules, window), report in reports.items()]
    def slower(rules, window):
        return 1 - rate[False, rules, window] / rate[True, rules, 2 * FILLING]
    return Result(["rules", "congestion control", "window", "images/s", "Gbit/s", "retransmissions", "dropped"], rows,
                  f"without congestion control {100 * slower('netsum', 2 * FILLING):.0f} % slower, by the paper's rules {100 * slower('paper', 2 * FILLING):.0f} %; "
                  f"{rows[0][3]} images/s and {rows[0][4]} Gbit/s with it; {rows[0][6]} packets dropped with it, {rows[1][6]} without",
                  beside=[Beside("what is lost without", 0.65, slower("netsum", 2 * FILLING)), Beside("by the paper's rules", 0.65, slower("paper", 2 * FILLING)),
                          Beside("images/s with", 66.8, rate[True, "netsum", 2 * FILLING]), Beside("without", 23.2, rate[False, "netsum", 2 * FILLING])],
                  explained=f"Without control the window is what is set, {2 * FILLING} packets here, and the paper's is not known. With {FILLING} it is "
                  f"{100 * slower('netsum', FILLING):.0f} %, and by the paper's rules {100 * slower('paper', FILLING):.0f} %")


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
    """Two jobs at a server, which both fill."""
    vgg, resnet = buckets_of("vgg16", GPU, **BYTEPS), buckets_of("resnet50", GPU, **BYTEPS)
    iterations = 1 if short else 4
    network = with_server(7)
    def job(index, hosts, buckets):
        return {"name": f"job{index}", "hosts": hosts, "slots": 2 * FILLING, "packet_elements": PACKETS["atp"], "bucket": shortened(buckets, PART), "iterations": iterations,
                "start": third_of(vgg, index)}
    # Links over which our packets carry what the paper's do over theirs.
    wider = with_server(7)
    for each in (wider["link"], wider["change"][0]["link"]):
        each["rate"] = gbit(carried("atp", HOSTS))
    cases = {"VGG16 and VGG16, 3 each": (job(0, ["h0..h2"], vgg), job(1, ["h3..h5"], vgg)),
             "VGG16 with 5 and with 2": (job(0, ["h0..h4"], vgg), job(1, ["h5..h6"], vgg)),
             "VGG16 and ResNet50": (job(0, ["h0..h2"], vgg), job(1, ["h3..h5"], resnet))}
    rows, found = [], {}
    for name, jobs in cases.items():
        together, *alone = run_all([atp(network, list(jobs), 4 * FILLING, ["h7"])] + [atp(network, [each], 4 * FILLING, ["h7"]) for each in jobs])
        found[name] = [time_of(own) / time_of(together, at) for at, own in enumerate(alone)], [images(together, at) for at in range(2)]
        rows.append([name, *(f"{share:.2f} ({rate:.0f} images/s)" for share, rate in zip(*found[name]))])
    (same, _), (_, unequal), (other, _) = found.values()
    papers_packets = run(atp(wider, list(cases["VGG16 with 5 and with 2"]), 4 * FILLING, ["h7"]))
    return Result(["jobs", "first, of alone", "second"], rows, "; ".join(f"{name}: {shares[0]:.2f} and {shares[1]:.2f}" for name, (shares, _) in found.items()) +
                  f"; {unequal[0]:.1f} and {unequal[1]:.1f} images/s with 5 and 2 workers",
                  [bars(found, {"first": [shares[0] for shares, _ in found.values()], "second": [shares[1] for shares, _ in found.values()]}, y="throughput / alone")],
                  [Beside("VGG16 beside VGG16", 0.9, same[0]), Beside("the other", 0.9, same[1]), Beside("images/s with 5 workers", 145.6, unequal[0]),
                   Beside("images/s with 2 workers", 159.3, unequal[1]), Beside("VGG16 beside ResNet50", 0.95, other[0]), Beside("ResNet50", 0.9, other[1])],
                  f"Our headers are longer. With packets that carry what the paper's do, 5 and 2 workers have {images(papers_packets):.1f} and {images(papers_packets, 1):.1f} images/s: "
                  "the number of workers makes no difference")


SHORTER = "a fiftieth of the elements and of the passes' time; hosts of 60 Gbit/s (§D.1), packets of 62 elements (350 bytes; the paper's 306)"
FITTED = "VGG16's passes, to 177 images/s alone (§D.2)"
OTHERS = FITTED + ", and the other models' to that, by FLOPs"
FIGURES = [
    Figure("atp-figure3", "Figure 3", "Traffic of a training comes and goes", "simulated, packets", figure_3,
           "on and off; VGG16 needs about 20 Gbit/s (§5.5)", SHORTER, FITTED),
    Figure("atp-figure8", "Figure 8", "Throughput of single jobs", "simulated, flows; baselines computed", figure_8,
           "at most 1.5 over SwitchML, 1.24 over Horovod (RDMA), 4.2 over Horovod (TCP), 1.5 over BytePS NtoN (RDMA), 2.5 over BytePS NtoN (TCP), 8.7 over BytePS Nto1 (TCP)",
           "hosts of 60 Gbit/s (§D.1), with SwitchML's packets 46; 62 elements (350 bytes; the paper's 306), SwitchML 64 (350; 32 of 180), its least here; "
           "baselines are ideal, as fast as ATP's hosts, and have no TCP", OTHERS),
    Figure("atp-figure9", "Figure 9", "Traffic to the server from three racks", "simulated, packets", figure_9,
           "3 times the traffic with a rack-scale service", "6 workers in 3 racks, links of 10 Gbit/s, 200,000 elements"),
    Figure("atp-figure10", "Figure 10", "Losses at one worker", "simulated, packets", figure_10,
           "keeps more than SwitchML at all rates; 1.34 times as much (§1)",
           "8 workers; 4 MB tensors, eight at once; 512 packets in flight; round trips of 40 µs; time-outs are 1 ms at least; VGG16: " + SHORTER, FITTED),
    Figure("atp-figure11", "Figures 11, 18", "Time to accuracy, of one job", "computed from Figure 8: an iteration's time", figures_11_and_18,
           "1.25 (VGG16), 1.02 (ResNet50), 1.2 (VGG19), 1.01 (ResNet101), 2.39 (AlexNet) times as fast as BytePS NtoN",
           "as many epochs, as the paper found (§5.3.1): our trainings end with ATP's sums where they do with a ring's (`switchml-figure2`)", OTHERS),
    Figure("atp-figure12", "Figure 12", "Two VGG16 jobs over a shared trunk", "simulated, flows; baselines computed", figure_12,
           "1.25 times as fast as Horovod, 1.20 as the fastest BytePS job", "iterations, not time to accuracy; hosts of 60 Gbit/s, a trunk of 100", FITTED),
    Figure("atp-figure13", "Figure 13a", "Slots shared, and in fixed parts", "simulated, packets", figure_13,
           "as fast with all slots; up to 38 % faster with 33 %; half of them cost 5 to 10 % (§1)",
           "three parts of 512 slots fill the server's link (1,980 slots in the paper); " + SHORTER, FITTED),
    Figure("atp-figure13b", "Figure 13b", "Sums at the server while jobs warm up", "simulated, packets", figure_13b,
           "none after 500 ms", "the microbenchmark, for 12 ms: what falls is the share of packets, with each result"),
    Figure("atp-figure13c", "Figure 13c", "While a job pauses", "simulated, packets", figure_13c,
           "sums of the others at the switch rise", "as Figure 13b, with a third of the slots"),
    Figure("atp-figure14", "Figure 14", "Slots by hash and by sequence number", "simulated, packets", figure_14,
           "hash as good as static, linear far worse", "jobs of 3 workers and a server each; two tensors of 4 MB; hosts of 60 Gbit/s (§D.1)"),
    Figure("atp-figure15", "Figure 15", "Half of the slots, with and without congestion control", "simulated, packets", figure_15,
           "without it 65 % slower: 23.2 for 66.8 images/s; 7.5 Gbit/s with it", "a queue of 500 kB at the server; " + SHORTER, FITTED),
    Figure("atp-figure20", "Figure 20", "Two jobs at a switch and a server", "simulated, packets", figure_20,
           "0.90 and 0.90; 145.6 and 159.3 images/s with 5 and 2 workers; 0.95 (VGG16) and 0.90 (ResNet50)", SHORTER, OTHERS),
    Elsewhere("Figure 9", "Traffic to the server from three racks", "measured", "3.00 (2.99 to 3.00) times the traffic with aggregation in racks alone",
              "scripts/reproduce atp-racks", "as above"),
    Elsewhere("Figure 10", "Losses at one worker", "measured", "TAT over that without: {repair-4-atp-one-0.01} at 0.01 %, {repair-4-atp-one-0.1} at 0.1 %, "
              "{repair-4-atp-one-1} at 1 %", "scripts/bench --suite repair", "as above", "links of 200 Mbit/s"),
    Elsewhere("Figure 13a", "Slots shared, and in fixed parts", "measured", "dynamic over static: 1.19 (1.17 to 1.23) with 66 %, 1.83 (1.82 to 1.91) with 33 %",
              "scripts/reproduce atp-sharing", "as above", "the link to the server has room, as with 100 Gbit/s above ([benchmarks.md](benchmarks.md#atps-figures-scriptsreproduce))",
              (Beside("dynamic over static with 33 %", 1.38, "1.83", 1),), "Jobs do not fill this link: a packet that finds no slot costs them nothing."),
    Elsewhere("Figure 13b", "Sums at the server while jobs warm up", "measured", "with rehashing 94 to 98 % are added at the switch, without it 63 to 82 %",
              "scripts/reproduce atp-sharing", "as above", "means of whole runs, 2 to 8 jobs"),
    Elsewhere("Figure 13c", "Sums at the switch while a job pauses", "measured", "the two others hold 10.6 slots together in place of 6.3, and 45 % more sums a second",
              "scripts/reproduce atp-sharing", "as above"),
    Elsewhere("Figure 14", "Slots by hash and by sequence number", "measured", "with 8 jobs, of parts: 94 % by hash and another on collision, 93 % by hash, 94 % by sequence number",
              "scripts/reproduce atp-sharing", "as above", "the link has room for packets without a slot"),
    Elsewhere("Figure 15", "Half of the slots, with and without congestion control", "measured", "40.9 Mbit/s with, 5.7 without: 86 % slower",
              "scripts/reproduce atp-congestion", "as above", "a link of 50 Mbit/s with 2 ms of round trip",
              (Beside("what is lost without", 0.65, "0.86"),), "As simulated: how much is lost follows from the window that is set (`atp-figure15`)."),
    Figure("atp-figure16", "Figure 16", "Beside other traffic", "simulated, ns-3", figure_16,
           "VGG16 gets what it needs, the microbenchmark near its fair share; both together near line rate (read from its plots; its text has no figure)",
           "ATP halves its window at a mark, as Reno does, and DCTCP yields less. "
           "Links of 1 Gbit/s, a fifth of a second; the first job computes, and its hosts reach 40 % of a link"),
    Elsewhere("Figure 16", "Beside other traffic", "measured", "a job's share beside a TCP flow is 0.54, without congestion control 0.51 and 41 % repeats",
              "scripts/reproduce atp-congestion", "as above", "TCP is cubic with ECN, not DCTCP; an all-reduce, not VGG16"),
    Elsewhere("Table 1", "Packets that a proactive mechanism would take from switches", "measured", "0, 0, 66 and 1,262 with 8, 16, 32 and 64 workers",
              "scripts/reproduce atp-proactive", "37,002 to 14,602,998 an epoch of ResNet50", "20 steps of the demo's network"),
    Elsewhere("Table 1", "Gradients that vanish, and sums that overflow (§5.3.1, §B.1)", "measured", "0.95 % of those that are not 0 are below 10⁻⁵, 0.0015 % below 10⁻⁸; "
              "no sum of 8 workers overflows", "scripts/reproduce atp-proactive", "below 10⁻⁵: 18 % (ResNet50), 42.8 % (VGG16), 39.8 % (AlexNet); below 10⁻⁸: 0.00002 % (ResNet50); "
              "445 packets of an epoch of ResNet152 overflow", "20 steps of the demo's network, which is dense and has just begun: another one"),
    Elsewhere("Table 1", "What sums cost that are made again from floats (§3.8)", "measured", "an all-reduce takes 1.0 times as long where no chunk falls back, 3.7 with 39 %, 5.5 with 95 %, "
              "5.9 with 99 %", "scripts/reproduce atp-fallbacks", "a round trip in the worst case (§B.3)", "4 workers, links of 100 Mbit/s and 10 ms; one short run; 8 chunks at a time are made again, and the "
              "others wait for them"),
    Elsewhere("Figure 19", "Throughput with hardware acceleration", "measured", "one core's sockets: 0.70 million datagrams a second in batches, 4.5 in segment trains (GSO and GRO): 6.4 times; "
              "where the kernel copies, AF_XDP {af-xdp-switch} times a switch's packets by sockets, {af-xdp-bump-1100} times a bump's frames; "
              "by DPDK over a memif a switch's core sums {dpdk-software-switch-xdp} times the packets that a bare AF_XDP loop only returns",
              "build/release/bin/udp_bench; scripts/bench --suite af-xdp,dpdk", "TSO 3 times, several queues 1.47, two passes 1.3", "loopback, one short run ([simulator.md](simulator.md#against-reality)); no NIC with zero copy here ([performance.md](performance.md#past-the-kernels-network))"),
]
