"""Lightning, Accelerate and transformers' Trainer over netsum, in the lines that docs/pytorch.md shows."""

import importlib.util
import os
import tempfile
import unittest

import on_gpu
import torch_support
from torch_support import DEVICE, Switch, run

FOUND = {}


def data(torch, rank=0):
    generator = torch.Generator().manual_seed(7 + rank)
    inputs = torch.randn(256, 32, generator=generator)
    return torch.utils.data.TensorDataset(inputs, inputs[:, :4].argmax(1))


def checked(torch, model):
    """All ranks end with the same parameters, and their gradients went by the switch."""
    import netsum.torch
    parameters = torch.cat([p.detach().flatten().float() for p in model.parameters()])
    others = [torch.empty_like(parameters) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(others, parameters)
    assert all(torch.equal(parameters, each) for each in others)
    statistics = netsum.torch.statistics()
    assert statistics["path"] == "switch" and statistics["collectives"]["all_reduce"]["switch"]["calls"] > 0, statistics
    return statistics["collectives"]["all_reduce"]["switch"]["calls"]


def case_lightning(rank, size):
    import lightning
    import torch
    from lightning.pytorch.strategies import DDPStrategy

    import netsum.torch  # noqa: F401
    lightning.seed_everything(1)

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))

        def training_step(self, batch, _):
            return torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    model = Model()
    # Two ranks share the machine's one GPU: as two nodes of one device.
    trainer = lightning.Trainer(strategy=DDPStrategy(process_group_backend="netsum"), accelerator="gpu" if on_gpu.IS_GPU else "cpu",
                                devices=1, num_nodes=size, max_epochs=1, logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, torch.utils.data.DataLoader(data(torch), batch_size=32))
    return checked(torch, model.to(DEVICE))


def case_accelerate(rank, size):
    import torch
    from accelerate import Accelerator, InitProcessGroupKwargs

    import netsum.torch  # noqa: F401
    accelerator = Accelerator(cpu=not on_gpu.IS_GPU, kwargs_handlers=[InitProcessGroupKwargs(backend="netsum")])
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(data(torch), batch_size=32)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for inputs, labels in loader:
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.cross_entropy(model(inputs), labels))
        optimizer.step()
    assert accelerator.num_processes == size
    return checked(torch, model)


def case_trainer(rank, size):
    import torch
    import transformers

    import netsum.torch  # noqa: F401
    config = transformers.BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
                                     max_position_embeddings=16, num_labels=2)
    torch.manual_seed(1)
    model = transformers.BertForSequenceClassification(config)
    rows = [{"input_ids": [(i + j) % 50 for j in range(8)], "labels": i % 2} for i in range(64)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(output_dir=folder, ddp_backend="netsum", use_cpu=not on_gpu.IS_GPU, max_steps=4,
                                                   per_device_train_batch_size=8, report_to=[], save_strategy="no",
                                                   disable_tqdm=True)
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows)
        trainer.train()
    return checked(torch, model)


class Frameworks(unittest.TestCase):
    def over_switch(self, case, package):
        if importlib.util.find_spec(package) is None:
            self.skipTest(f"{package} is not installed")
        with Switch() as switch:
            of_rank = {rank: {"LOCAL_RANK": "0", "NODE_RANK": str(rank), "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": str(rank)} for rank in range(2)}
            environment = {"NETSUM_MODE": "force", "NETSUM_SWITCH": switch.address, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
                           "HOME": os.environ.get("HOME", "/root"), "ACCELERATE_USE_CPU": str(not on_gpu.IS_GPU).lower()}
            FOUND[case] = [rank.result for rank in run(case, 2, environment=environment, of_rank=of_rank, seconds=100)]

    def test_lightning(self):
        self.over_switch("lightning", "lightning")

    def test_accelerate(self):
        self.over_switch("accelerate", "accelerate")

    def test_trainer(self):
        self.over_switch("trainer", "transformers")


def tearDownModule():
    on_gpu.save(FOUND)


if __name__ == "__main__":
    torch_support.main()
