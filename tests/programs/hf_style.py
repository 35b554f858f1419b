"""A classifier in the manner of the Hugging Face library: keyword calls only, an output object with loss and logits."""
import argparse
import hashlib
import json
from collections import OrderedDict
from dataclasses import dataclass, fields
from typing import Optional

import torch
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader


@dataclass
class TinyConfig:
    vocab_size: int = 40
    hidden_size: int = 24
    num_labels: int = 3
    hidden_dropout_prob: float = 0.1


class ModelOutput(OrderedDict):
    """Fields by attribute, by key and by position; absent ones are left out."""

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                self[field.name] = value


@dataclass
class SequenceClassifierOutput(ModelOutput):
    loss: Optional[torch.Tensor] = None
    logits: Optional[torch.Tensor] = None
    hidden_states: Optional[torch.Tensor] = None


class PreTrainedModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(mean=0.0, std=0.05)

    def post_init(self):
        self.apply(self._init_weights)


class TinyEncoder(PreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=0)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids=None, attention_mask=None):
        hidden = self.LayerNorm(torch.tanh(self.dense(self.embeddings(input_ids))))
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        pooled = (hidden * mask).sum(1) / mask.sum(1)
        return self.dropout(pooled), hidden


class TinyForSequenceClassification(PreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.encoder = TinyEncoder(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(self, input_ids=None, attention_mask=None, labels=None):
        pooled, hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask)
        logits = self.classifier(pooled)
        loss = None
        if labels is not None:
            loss = nn.CrossEntropyLoss()(logits.view(-1, self.config.num_labels), labels.view(-1))
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=hidden)


def collate(examples):
    width = max(len(ids) for ids, _ in examples)
    input_ids = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in examples])
    return {
        "input_ids": input_ids,
        "attention_mask": (input_ids != 0).long(),
        "labels": torch.tensor([label for _, label in examples]),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_train_epochs", type=int, default=2)
    parser.add_argument("--learning_rate", type=float, default=5e-3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(42)

    examples = [([1 + (i * k) % 39 for k in range(1, 4 + i % 6)], i % 3) for i in range(96)]
    train_dataloader = DataLoader(examples, shuffle=True, batch_size=8, collate_fn=collate)
    eval_dataloader = DataLoader(examples[:24], batch_size=8, collate_fn=collate)
    model = TinyForSequenceClassification(TinyConfig())
    no_decay = ["bias", "LayerNorm.weight"]
    grouped = [
        {"params": [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)], "weight_decay": 0.01},
        {"params": [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)], "weight_decay": 0.0},
    ]
    optimizer = AdamW(grouped, lr=args.learning_rate)
    total = args.num_train_epochs * len(train_dataloader)
    lr_scheduler = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4) * max(0.0, (total - step) / total))
    history = []
    for epoch in range(args.num_train_epochs):
        model.train()
        for batch in train_dataloader:
            outputs = model(**batch)
            loss = outputs.loss
            loss.backward()
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
            history.append(loss.item())
        model.eval()
        for batch in eval_dataloader:
            with torch.no_grad():
                outputs = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
            outputs["logits"].argmax(dim=-1)
        print(f"epoch {epoch}: {history[-1]:.4f}")

    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.contiguous().numpy().tobytes())
    print("RESULT", json.dumps({"losses": [x.hex() for x in history], "params": digest.hexdigest()}))


if __name__ == "__main__":
    main()
