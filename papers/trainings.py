"""Small trainings whose gradients are averaged by netsum (papers/rank_sums.cc), next to a ring's float32.

Ranks are in one process: each step computes their gradients one after the other, averages them through an aggregator by the product's
real packets, and steps once. So runs differ in their sums alone, and a seed is a run on the same machine and PyTorch.
"""
import concurrent.futures
import ctypes
import functools
import json
import os
import statistics
import subprocess
import sys

from figure import Result, lines
from network import ROOT
from scenario import run_all, time_of

LIBRARY = os.path.join(ROOT, "build/release/papers/librank_sums.so")
RANKS = 8  # as SwitchML's paper
# As rank_sums.cc numbers them; the ring's are Python's.
WAYS = {"float32, a ring": None, "NetReduce, float32": 0, "SwitchML, block fixed point": 1, "SwitchML, float16": 2, "SwitchML, bfloat16": 3,
        "ATP, scaled integers": 4}
BASE = "float32, a ring"
SEEDS = (1, 2, 3, 4, 5)
PATIENCE = 1800  # seconds of one run on a busy machine
# model: steps, batch of a rank, learning rate
MODELS = {"CNN": (150, 8, 3e-3), "transformer": (200, 2, 1e-2)}
# Few bits, with 4 ranks, so that all of it takes minutes; ways as above.
FEW_MODELS = {"CNN": (60, 8, 3e-3), "transformer": (100, 4, 1e-2), "ResNet": (50, 8, 1e-3)}
FEW = {"float32": 1, "bfloat16": 3, "int8": 5, "int4": 6}
FEEDBACK = ", with feedback"
FEW_WAYS = ("float32", *(wire + more for wire in ("bfloat16", "int8", "int4") for more in ("", FEEDBACK)))
SMOOTH = 10  # steps


def ring_average(gradients):
    """Of flat numpy arrays: part k is added from rank k on, around the ring."""
    import numpy
    bounds = [len(gradients[0]) * part // len(gradients) for part in range(len(gradients) + 1)]
    out = numpy.empty_like(gradients[0])
    for part in range(len(gradients)):
        here = slice(bounds[part], bounds[part + 1])
        total = gradients[part][here].copy()
        for step in range(1, len(gradients)):
            total += gradients[(part + step) % len(gradients)][here]
        out[here] = total / numpy.float32(len(gradients))
    return out


def average(way, gradients):
    import numpy
    number = FEW[way] if way in FEW else WAYS[way]
    if number is None:
        return ring_average(gradients)
    out = numpy.empty_like(gradients[0])
    pointer = ctypes.POINTER(ctypes.c_float)
    ranks = (pointer * len(gradients))(*(each.ctypes.data_as(pointer) for each in gradients))
    if library().netsum_average(number, out.ctypes.data_as(pointer), ranks, len(gradients), len(out)) != 0:
        raise SystemExit(f"no average by '{way}'")
    return out


def with_feedback(way, gradients, lost):
    """What ranks send in place of their gradients, rounded to nearest; `lost` is what this and the last steps rounded."""
    import numpy
    import torch
    sent = []
    for gradient, own in zip(gradients, lost):
        gradient += own
        rounded = numpy.empty_like(gradient)
        if way == "bfloat16":
            rounded[:] = torch.from_numpy(gradient).bfloat16().float().numpy()
        else:
            library().netsum_round(FEW[way], rounded.ctypes.data, gradient.ctypes.data, len(gradient))
        own[:] = gradient - rounded
        sent.append(rounded)
    return sent


@functools.cache
def library():
    loaded = ctypes.CDLL(LIBRARY)
    loaded.netsum_average.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
    loaded.netsum_round.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    loaded.netsum_round.restype = None
    return loaded


# ---- what is trained

def cnn(torch, seed):
    nn = torch.nn
    return of_images(torch, seed, nn.Sequential(nn.Conv2d(1, 16, 5, 2, 2), nn.ReLU(), nn.Conv2d(16, 32, 5, 2, 2), nn.ReLU(), nn.Flatten(),
                                                nn.Linear(32 * 49, 10)))


def resnet(torch, seed):
    """Three residual blocks, two of them in 7 x 7."""
    nn = torch.nn
    class Block(nn.Module):
        def __init__(self, before, after, stride):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.GroupNorm(4, after), nn.ReLU(),
                                      nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.GroupNorm(4, after))
            self.past = nn.Conv2d(before, after, 1, stride, bias=False) if before != after else nn.Identity()

        def forward(self, images):
            return torch.relu(self.body(images) + self.past(images))
    return of_images(torch, seed, nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), Block(16, 16, 1), Block(16, 32, 2), Block(32, 32, 1), nn.Flatten(),
                                                nn.Linear(32 * 49, 10)))


def of_images(torch, seed, model):
    """Fashion-MNIST: a batch, the model, and what counts in the end, the test set's accuracy in %."""
    sys.path.insert(0, os.path.join(ROOT, "examples"))
    import ddp_fashion_mnist as example
    def ready(split):
        images, labels = example.load(example.DATA, split)
        return images[:, None].float().sub_(72.94).div_(90.02), labels
    if not of_images.data:
        of_images.data = ready("train"), tuple(each[:5000] for each in ready("t10k"))
    train, test = of_images.data
    order = torch.Generator().manual_seed(seed)
    def batch(size):
        which = torch.randint(len(train[0]), (size,), generator=order)
        return train[0][which], train[1][which]
    def judge():
        with torch.no_grad():
            return 100 * (model(test[0]).argmax(1) == test[1]).float().mean().item()
    return model, batch, torch.nn.functional.cross_entropy, judge


of_images.data = None  # read once
LETTERS, LENGTH, WIDTH = 16, 24, 32


def text(torch, length, seed):
    """Letters of a language in which each depends on the two before it."""
    draw = torch.Generator().manual_seed(99)
    table = torch.multinomial(torch.ones(LETTERS * LETTERS, LETTERS), 3, generator=draw)  # what may follow each pair
    choices = torch.multinomial(torch.tensor([0.7, 0.2, 0.1]), length, replacement=True, generator=torch.Generator().manual_seed(seed)).tolist()
    table, letters = table.tolist(), [0, 1]
    for choice in choices:
        letters.append(table[letters[-2] * LETTERS + letters[-1]][choice])
    return torch.tensor(letters[2:])


def transformer(torch, seed):
    """Generated text: what counts in the end is the loss on text that was not seen; what a letter leaves open is 0.80."""
    nn = torch.nn
    train, test = text(torch, 100_000, 1), text(torch, 64 * LENGTH + 1, 2)
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.letters, self.places = nn.Embedding(LETTERS, WIDTH), nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
            layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            self.layers, self.out = nn.TransformerEncoder(layer, 2), nn.Linear(WIDTH, LETTERS)
            self.register_buffer("mask", torch.triu(torch.full((LENGTH, LENGTH), float("-inf")), 1))

        def forward(self, letters):
            return self.out(self.layers(self.letters(letters) + self.places, self.mask)).flatten(0, 1)
    model = Model()
    order = torch.Generator().manual_seed(seed)
    def pieces(of, begins):
        return torch.stack([of[begin:begin + LENGTH] for begin in begins]), torch.cat([of[begin + 1:begin + LENGTH + 1] for begin in begins])
    def batch(size):
        return pieces(train, torch.randint(len(train) - LENGTH - 1, (size,), generator=order).tolist())
    def judge():
        with torch.no_grad():
            asked, right = pieces(test, range(0, 64 * LENGTH, LENGTH))
            return nn.functional.cross_entropy(model(asked), right).item()
    return model, batch, nn.functional.cross_entropy, judge


NETWORKS = {"CNN": cnn, "transformer": transformer, "ResNet": resnet}


def train(name, way, seed, steps, models, rank_count):
    """The training loss of each step, and what counts in the end."""
    import torch
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model, batch, loss_of, judge = NETWORKS[name](torch, seed)
    _, size, rate = models[name]
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters, lr=rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    losses, wire = [], way.removesuffix(FEEDBACK)
    lost = [torch.zeros(sum(each.numel() for each in parameters)).numpy() for _ in range(rank_count)]
    for _ in range(steps):
        gradients, loss_sum = [], 0.0
        for _ in range(rank_count):
            asked, right = batch(size)
            loss = loss_of(model(asked), right)
            loss_sum += loss.item()
            gradients.append(torch.cat([each.flatten() for each in torch.autograd.grad(loss, parameters)]).numpy())
        if wire != way:
            gradients = with_feedback(wire, gradients, lost)
        mean, at = torch.from_numpy(average(wire, gradients)), 0
        for parameter in parameters:
            parameter.grad = mean[at:at + parameter.numel()].view_as(parameter)
            at += parameter.numel()
        optimizer.step()
        schedule.step()
        losses.append(loss_sum / rank_count)
    return {"losses": losses, "final": judge()}


# ---- many of them

SETS = {"papers": (WAYS, MODELS, RANKS), "few": (FEW_WAYS, FEW_MODELS, 4)}


@functools.cache
def trained(name, short, which="papers"):
    """{way: a run for each seed}: a process for each seed, several at a time."""
    ways, models, _ = SETS[which]
    steps, seeds = (3, SEEDS[:2]) if short else (models[name][0], SEEDS)
    def one(seed):
        answer = subprocess.run([sys.executable, "-B", __file__, name, str(seed), str(steps), which], capture_output=True, text=True, timeout=PATIENCE)
        if answer.returncode != 0:
            raise SystemExit(f"a training failed: {answer.stderr.strip()[-500:]}")
        return json.loads(answer.stdout)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = list(pool.map(one, seeds))
    return {way: [run[way] for run in runs] for way in ways}


# Of Student's distribution: 97.5 %, by degrees of freedom.
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262}


def mean_interval(values):
    half = STUDENT[len(values) - 1] * statistics.stdev(values) / len(values) ** 0.5
    return statistics.mean(values), half


def smooth(losses):
    """Means over some steps, with the last of these."""
    return [(at + SMOOTH, statistics.mean(losses[at:at + SMOOTH])) for at in range(0, len(losses), SMOOTH)]


def differences(runs, way, key, base=BASE):
    """Of each seed: this way less the ring."""
    return [key(run) - key(other) for run, other in zip(runs[way], runs[base])]


def compared(runs, key, format_, base=BASE):
    """Rows of a table: each way's mean, and its difference to a ring, of the same seed, with the interval of 95 %."""
    rows = []
    for way, each in runs.items():
        values = [key(run) for run in each]
        mean, half = mean_interval(differences(runs, way, key, base))
        rows.append([way, format_.format(statistics.mean(values)), "" if way == base else f"{format_.format(mean)} ± {format_.format(half)}"])
    return rows


def accuracies(short):
    """What the trained networks are worth."""
    rows, ours, panels, apart = [], [], [], []
    for name, what, format_ in (("CNN", "accuracy, %", "{:.2f}"), ("transformer", "loss", "{:.4f}")):
        runs = trained(name, short)
        rows += [[name, what, *row] for row in compared(runs, lambda run: run["final"], format_)]
        for way in WAYS:
            mean, half = mean_interval(differences(runs, way, lambda run: run["final"]))
            if way != BASE and abs(mean) > half:
                apart.append(f"{name}, {way}: {what} {mean:+.4f} ± {half:.4f}")
        furthest = max((abs(statistics.mean(differences(runs, way, lambda run: run["final"]))), way) for way in WAYS if way != BASE)
        ours.append(f"{name}: {what} {format_.format(statistics.mean(run['final'] for run in runs[BASE]))} with a ring's float32; furthest from it is "
                    f"{furthest[1]}, by {format_.format(furthest[0])}")
        panels.append(lines({way: smooth([statistics.mean(each) for each in zip(*(run["losses"] for run in own))]) for way, own in runs.items()}, x="step",
                            y="training loss, mean of seeds", title=name))
    return Result(["network", "", "sums", "mean", "less the ring's (95 %)"], rows,
                  "; ".join(ours) + f"; with intervals of 95 % that exclude 0, of {2 * (len(WAYS) - 1)}: " + (", ".join(apart) or "none"), panels)


def step_seconds(parameters):
    """Of 4 ranks behind links of 200 Mbit/s: an all-reduce, simulated, and computation that takes a third of float32's."""
    reports = run_all([{"network": {"kind": "star", "hosts": 4, "link": {"rate": "200mbit", "delay": "10us"}},
                        "job": [{"elements": parameters, "packet_elements": 320, "slots": 64, "wire": wire}]} for wire in FEW])
    seconds = dict(zip(FEW, map(time_of, reports)))
    return {wire: each + seconds["float32"] / 3 for wire, each in seconds.items()}


def few_bits(short):
    """Gradients of few bits, with and without error feedback."""
    rows, panels, ours = [], {"step": [], "second": []}, []
    for name in FEW_MODELS:
        what, format_ = ("loss", "{:.3f}") if name == "transformer" else ("accuracy, %", "{:.2f}")
        runs = trained(name, short, "few")
        own = compared(runs, lambda run: run["final"], format_, "float32")
        taken = step_seconds(parameters_of(name))
        rows += [[name, what, *row, f"{1000 * taken[row[0].removesuffix(FEEDBACK)]:.2f}"] for row in own]
        ours.append(f"{name}: {what} {own[0][1]} with float32; less that " + ", ".join(f"{row[0]} {row[2]}" for row in own[1:]))
        means = {way: smooth([statistics.mean(each) for each in zip(*(run["losses"] for run in every))]) for way, every in runs.items()}
        timed = {wire: [(at * taken[wire], loss) for at, loss in means[wire]] for wire in FEW}
        panels["step"].append(lines(means, x="step", y="training loss, mean of seeds", title=name, bare=True))
        panels["second"].append(lines(timed, x="seconds, computed for links of 200 Mbit/s", y="training loss, mean of seeds", bare=True))
    return Result(["network", "", "wire", "mean", "less float32's (95 %)", "ms of a step, computed"], rows, "; ".join(ours), panels["step"] + panels["second"])


def parameters_of(name):
    import torch
    return sum(each.numel() for each in NETWORKS[name](torch, 1)[0].parameters())


def loss_differences(short):
    """NetReduce's |loss - a ring's| / a ring's, over steps."""
    rows, series = [], {}
    for name in MODELS:
        runs = trained(name, short)
        pairs = zip(runs["NetReduce, float32"], runs[BASE])
        ratios = [[abs(mine / base - 1) for mine, base in zip(run["losses"], other["losses"])] for run, other in pairs]
        series[name] = [(at + 1, 100 * max(each)) for at, each in enumerate(zip(*ratios))]
        flat = [each for run in ratios for each in run]
        rows.append([name, f"{100 * statistics.median(flat):.2g} %", f"{100 * max(flat):.2g} %"])
    return Result(["network", "median", "most"], rows, "; ".join(f"{row[0]}: {row[1]} in the median, at most {row[2]}" for row in rows),
                  [lines(series, x="step", y="% difference of losses, largest of the seeds")])


if __name__ == "__main__":
    ways, *rest = SETS[sys.argv[4]]
    print(json.dumps({way: train(sys.argv[1], way, int(sys.argv[2]), int(sys.argv[3]), *rest) for way in ways}))
