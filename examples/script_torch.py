"""A plain PyTorch loop at three hospitals, averaged by sealed sums."""

import torch

import secure_fl


def main(cohort):
    draw = torch.Generator().manual_seed(cohort.index)
    x = torch.randn(200, 8, generator=draw)  # this hospital's records
    y = (x[:, 0] * x[:, 1] > 0).float()
    torch.manual_seed(0)  # the same first model everywhere
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    cohort.agree(model.state_dict(), "the first model")
    mean, loss = 0.0, torch.zeros(())
    for _ in cohort.rounds(shared={"model": model}, own={"optimizer": optimizer}):
        base = {name: value.clone() for name, value in model.state_dict().items()}
        for _ in range(20):
            optimizer.zero_grad()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
            loss.backward()
            optimizer.step()
        model.load_state_dict(cohort.mean(model.state_dict(), weight=len(x), base=base))
        mean = cohort.mean({"loss": loss.item()}, weight=len(x))["loss"]
    return f"mean loss {mean:.3f}"


print(secure_fl.simulate(main, sites=3, rounds=10).results)
