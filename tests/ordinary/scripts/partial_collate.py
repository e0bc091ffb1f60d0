# equal
import functools

import torch
import torch.nn.functional as F
from torch import nn

import stretto


def collate(samples, *, length):
    """Pads sentences of different lengths."""
    texts = torch.zeros(len(samples), length, dtype=torch.long)
    for row, (words, _) in enumerate(samples):
        texts[row, : len(words)] = torch.tensor(words[:length])
    return texts, torch.tensor([label for _, label in samples])


job = stretto.join(seed=47)
g = torch.Generator().manual_seed(1)
lengths = torch.randint(2, 9, (64,), generator=g).tolist()
dataset = [(torch.randint(1, 20, (n,), generator=g).tolist(), n % 2) for n in lengths]
model = nn.Sequential(nn.EmbeddingBag(20, 16, padding_idx=0), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
job.share(model=model, optimizer=optimizer)
data = job.loader(dataset, batch_size=16, collate_fn=functools.partial(collate, length=8))

for epoch in job.epochs(10):
    for step in data:
        optimizer.zero_grad()
        for texts, labels in step:
            loss = F.cross_entropy(model(texts), labels)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()

print("digest", job.digest())
