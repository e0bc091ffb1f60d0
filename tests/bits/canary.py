"""Operations of the recorded runs in plain PyTorch, without stretto. Prints a digest for each, as JSON.

They are the operations that the examples and the zoo are made of, at sizes like theirs, forward and backward, with a step of an
optimizer behind each. See record_digests.py.
"""

import hashlib
import json
import platform
import random
import warnings
from collections.abc import Callable, Iterable

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

warnings.simplefilter("ignore")
torch.set_num_threads(1)
Loss = Callable[[], Tensor]


def digest(tensors: Iterable[Tensor]) -> str:
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(tensor.detach().contiguous().numpy().tobytes())
    return sha.hexdigest()[:16]


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, *, autocast: bool = False, scale: float = 1.0) -> str:
    """The model's and the optimizer's state after three steps."""
    for _ in range(3):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            value = loss()
        (value * scale).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor) and value.dim()]
    return digest([*model.state_dict().values(), *states])


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape)


def matmul() -> str:
    products = [normal(n, k) @ normal(k, m) for n, k, m in ((3, 8, 5), (15, 64, 17), (32, 64, 192), (128, 256, 10), (256, 64, 256))]
    return digest(
        [*products, torch.bmm(normal(8, 64, 16), normal(8, 16, 64)), F.softmax(normal(24, 5), 1), normal(1000).sum()[None]]
    )


def bfloat16_matmul() -> str:
    sizes = ((3, 64, 17), (16, 64, 256), (16, 256, 10))
    return digest([(normal(n, k).bfloat16() @ normal(k, m).bfloat16()).view(torch.int16) for n, k, m in sizes])


def convolution(width: int, size: int, pictures: int) -> str:
    model = nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3), nn.BatchNorm2d(2 * width), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(),
        nn.Linear(2 * width * (size // 2 - 2) ** 2, 5),
    )  # fmt: skip
    images, targets = normal(pictures, 1, size, size), torch.randint(0, 5, (pictures,))
    return trained(model, torch.optim.Adam(model.parameters()), lambda: F.cross_entropy(model(images), targets))


def lstm() -> str:
    model = nn.LSTM(8, 12, batch_first=True)
    inputs = normal(3, 8, 8)
    return trained(
        model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), lambda: model(inputs)[0][:, -1].square().mean()
    )


def encoder() -> str:
    model = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    inputs = normal(3, 8, 16)
    return trained(model, torch.optim.AdamW(model.parameters(), lr=2e-3), lambda: model(inputs).square().mean())


def attention() -> str:
    model = nn.ModuleDict({"words": nn.Embedding(256, 64), "mix": nn.Linear(64, 192), "norm": nn.LayerNorm(64)})
    text = torch.randint(0, 256, (4, 64))

    def loss() -> Tensor:
        query, key, value = model["mix"](model["words"](text)).view(4, 64, 3, 4, 16).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).reshape(4, 64, 64)
        return F.cross_entropy((F.gelu(model["norm"](seen)) @ model["words"].weight.T).flatten(0, 1), text.flatten())

    return trained(model, torch.optim.AdamW(model.parameters(), lr=3e-3), loss)


def mlp(*, autocast: bool) -> str:
    model = nn.Sequential(nn.Linear(64, 256), nn.LayerNorm(256), nn.GELU(), nn.Tanh(), nn.Dropout(0.1), nn.Linear(256, 10))
    inputs, targets = normal(16, 64), torch.randint(0, 10, (16,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return trained(model, optimizer, lambda: F.cross_entropy(model(inputs).float(), targets), autocast=autocast, scale=1024.0)


def judged() -> str:
    model = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.LeakyReLU(0.2), nn.Linear(128, 1))
    inputs = normal(16, 64)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.5, 0.999))
    return trained(model, optimizer, lambda: F.binary_cross_entropy_with_logits(model(inputs), torch.ones(16, 1)))


def generators() -> str:
    random.seed(3)
    np.random.seed(3)
    return digest([torch.randn(100), torch.rand(33), torch.randperm(50), torch.tensor([random.random(), np.random.rand()])])


def data() -> str:
    digits = load_digits()
    return digest([torch.tensor(digits.images), torch.tensor(digits.target)])


OPERATIONS: dict[str, Callable[[], str]] = {
    "generators": generators,
    "data": data,
    "matmul": matmul,
    "bfloat16_matmul": bfloat16_matmul,
    "small_convolution": lambda: convolution(6, 8, 3),
    "convolution": lambda: convolution(16, 8, 15),
    "lstm": lstm,
    "encoder": encoder,
    "attention": attention,
    "mlp": lambda: mlp(autocast=False),
    "mixed_precision": lambda: mlp(autocast=True),
    "binary_cross_entropy": judged,
}

digests = {"machine": platform.machine(), "torch": torch.__version__.partition("+")[0]}
for name, operation in OPERATIONS.items():
    torch.manual_seed(7)
    digests[name] = operation()
print(json.dumps(digests))
