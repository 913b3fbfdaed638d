"""What a randomized Hadamard transform of blocks of 64 would do for 4 bits a value, and blocks of 256 (docs/numerics.md, "No rotation"):

    PYTHONPATH=bench/shared:bench/compare /usr/bin/python3 papers/rotation.py
"""
import numpy
import torch
import trainings

BLOCKS, BLOCK, LONG, MOST = 4096, 64, 256, 7
STEPS = (0, 20, 120)


def hadamard(size):
    matrix = numpy.ones((1, 1))
    while len(matrix) < size:
        matrix = numpy.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / numpy.sqrt(size)


def rounded(blocks, chance):
    """As the wire has it: the power of two that a block's largest value has is 4 steps, and the rest is up or down by chance."""
    largest = numpy.abs(blocks).max(axis=1, keepdims=True)
    step = 2.0 ** (numpy.floor(numpy.log2(numpy.where(largest == 0, 1, largest))) - 2)
    return numpy.clip(numpy.floor(blocks / step + chance.random(blocks.shape)), -MOST, MOST) * step


def gradients(name):
    """One rank's gradients of a training with few bits, in blocks, at STEPS."""
    torch.manual_seed(1)
    model, batch, loss_of, _ = {"CNN": trainings.cnn, "transformer": trainings.transformer}[name](torch, 1)
    _, size, rate = trainings.FEW_MODELS[name]
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for step in range(STEPS[-1] + 1):
        optimizer.zero_grad()
        asked, right = batch(size)
        loss_of(model(asked), right).backward()
        if step in STEPS:
            values = torch.cat([each.grad.flatten() for each in model.parameters()]).numpy().astype(float)
            yield values[:len(values) // LONG * LONG].reshape(-1, BLOCK)
        optimizer.step()


def errors(values, chance):
    """The roots of the errors' squares over those of the values': plain, rotated, and plain in long blocks."""
    turn, signs = hadamard(BLOCK), chance.choice([-1.0, 1.0], size=BLOCK)
    rotated = rounded((values * signs) @ turn, chance) @ turn * signs
    long = rounded(values.reshape(-1, LONG), chance).reshape(values.shape)
    return [f"{numpy.sqrt(((each - values) ** 2).sum() / (values**2).sum()):.3f}" for each in (rounded(values, chance), rotated, long)]


def main():
    chance = numpy.random.default_rng(1)
    shape = (BLOCKS, BLOCK)
    normal = chance.normal(size=shape)
    kinds = {
        "normal": normal,
        "Laplace's": chance.laplace(size=shape),
        "Student's t, 3 degrees of freedom": chance.standard_t(3, size=shape),
        "normal, 1 % of them 30 times as large": numpy.where(chance.random(shape) < 0.01, 30 * normal, normal),
        "normal, nine in ten are 0": numpy.where(chance.random(shape) < 0.9, 0, normal),
    }
    print("| values | plain | rotated | blocks of 256 |\n|---|---|---|---|")
    rows = {name: [errors(values, chance)] for name, values in kinds.items()}
    rows |= {f"gradients of the {name} above, at steps {', '.join(map(str, STEPS))}": [errors(values, chance) for values in gradients(name)]
             for name in ("CNN", "transformer")}
    for name, found in rows.items():
        print(f"| {name} | {' | '.join(', '.join(each) for each in zip(*found))} |")


if __name__ == "__main__":
    main()
