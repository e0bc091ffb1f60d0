"""A plain Lightning script: it knows nothing of stretto. Its checkpoint callback saves, `ckpt_path="last"` loads."""

import argparse
import os
import time

import lightning
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Lit(lightning.LightningModule):
    def __init__(self, pause: float) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 2)
        self.pause = pause

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        inputs, targets = batch
        return F.cross_entropy(self.layer(inputs), targets)

    def on_train_epoch_start(self) -> None:
        time.sleep(self.pause)
        if self.trainer.is_global_zero:
            print(f"epoch {self.current_epoch} with {self.trainer.world_size}", flush=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--path", default="lit")
    parser.add_argument("--pause", type=float, default=0.0)
    args = parser.parse_args()
    lightning.seed_everything(0)
    dataset = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
    keep = ModelCheckpoint(dirpath=args.path, save_last=True, save_top_k=-1)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=args.epochs,
        callbacks=[keep],
        logger=False,
        enable_progress_bar=False,
        default_root_dir=args.path,
    )
    trainer.fit(Lit(args.pause), DataLoader(dataset, batch_size=8), ckpt_path="last", weights_only=True)
    if trainer.is_global_zero:
        print("done", flush=True)


if __name__ == "__main__":
    main()
