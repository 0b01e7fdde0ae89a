"""The training script of a site, by NVFLARE's client API. It is the same with and without seals."""

import nvflare.client as flare
import torch
from model import Net

flare.init()
draw = torch.Generator().manual_seed(int(flare.get_site_name().split("-")[1]))
x = torch.randn(200, 4, generator=draw)  # this hospital's records
y = (x.sum(1) > 0).long()
net = Net()
while flare.is_running():
    received = flare.receive()
    net.load_state_dict(received.params)
    accuracy = (net(x).argmax(1) == y).float().mean().item()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(20):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    flare.send(
        flare.FLModel(
            params=net.state_dict(),
            metrics={"accuracy": accuracy},
            meta={"NUM_STEPS_CURRENT_ROUND": len(x)},
        )
    )
