"""Each system once more for a single text, in plain steps or by torch, without any of its own functions."""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn


def gru_states(network: nn.GRU, tokens: Tensor) -> Tensor:
    """Both directions of torch's own GRU over one text."""
    assert network.bidirectional
    return network(tokens)[0]


def states_of(module, ids: Tensor) -> Tensor:
    tokens = module.embedding.weight[ids]
    return gru_states(module.recurrent, tokens) if module.hidden else tokens


def mean(module, ids):
    return torch.stack([module.embedding.weight[i] for i in ids]).sum(0) / len(ids)


def lama(module, ids):
    H = states_of(module, ids)
    c = H.sum(0) / len(H) if module.c is None else module.c
    scores = []
    r = module.rank
    for h in H:
        u = torch.tanh(module.scored.weight @ h + module.scored.bias) if module.layer else h
        product = [(module.P[:, j] @ c) * (module.Q[:, j] @ u) for j in range(module.heads * r)]
        e = torch.stack([torch.tanh(sum(product[j * r : (j + 1) * r])) for j in range(module.heads)])
        scores.append(e / e.square().sum().sqrt())
    A = torch.softmax(torch.stack(scores), 0)
    return torch.cat([sum(A[t, j] * H[t] for t in range(len(H))) for j in range(module.heads)])


def bilinear(module, ids):
    H = states_of(module, ids)
    c = H.sum(0) / len(H) if module.c is None else module.c
    return torch.softmax(torch.stack([c @ module.W @ h for h in H]), 0) @ H


def san_weights(module, ids):
    H = states_of(module, ids)
    return torch.softmax(module.W2 @ torch.tanh(module.W1 @ H.T), dim=1), H


def san(module, ids):
    A, H = san_weights(module, ids)
    return (A @ H).flatten()


def position(t: int, m: int) -> Tensor:
    return torch.tensor(
        [math.sin(t / 10_000 ** (j / m)) if j % 2 == 0 else math.cos(t / 10_000 ** ((j - 1) / m)) for j in range(m)],
        dtype=torch.float64,
    )


def transformer_outputs(module, ids):
    """torch's own encoder layers with the module's parameters."""
    m = module.dimension
    x = math.sqrt(m) * module.embedding.weight[ids] + torch.stack([position(t, m) for t in range(len(ids))])
    for own in module.stack:
        layer = nn.TransformerEncoderLayer(
            m, module.heads, module.feedforward, dropout=0, batch_first=True, norm_first=module.norm_first
        ).double()
        names = {"self_attn.in_proj_": own.qkv, "self_attn.out_proj.": own.out, "linear1.": own.up}
        names |= {"linear2.": own.down, "norm1.": own.attention_norm, "norm2.": own.feedforward_norm}
        pairs = {name + part: getattr(owner, part) for name, owner in names.items() for part in ("weight", "bias")}
        x = torch.func.functional_call(layer, pairs, (x[None],))[0]
    return x


def transformer(module, ids):
    return transformer_outputs(module, ids).sum(0) / len(ids)


def dan(module, ids):
    ids = ids.tolist()
    # Of no token, the layers' value at zero.
    rows = [module.embedding.weight[i] for i in ids] or [torch.zeros_like(module.embedding.weight[0])]
    for first, second in pairwise(ids):
        bucket = ((first * 2654435761 + second * 2246822507) // 32768) % module.buckets
        rows.append(module.bigrams.weight[bucket])
    x = sum(rows) / len(rows)
    *inner, last = module.maps
    for linear in inner:
        x = torch.relu(linear.weight @ x + linear.bias)
    return last.weight @ x + last.bias


def bigru(module, ids):
    return gru_states(module.recurrent, module.embedding.weight[ids]).max(0).values


def cnn(module, ids):
    tokens = list(module.embedding.weight[ids])
    zero = torch.zeros_like(tokens[0])
    features = []
    for width, convolution in zip(module.widths, module.convolutions, strict=True):
        padded = [zero] * (width - 1) + tokens + [zero] * (width - 1)
        windows = [torch.stack(padded[j : j + width], 1) for j in range(len(tokens) + width - 1)]
        values = [torch.relu((convolution.weight * window).sum((1, 2)) + convolution.bias) for window in windows]
        features.append(torch.stack(values).max(0).values)
    return torch.cat(features)


def self_attention(module, ids):
    X = module.embedding.weight[ids]
    return (torch.softmax(X @ X.T, dim=1) @ X).mean(0)


def self_attention_parametric(module, ids):
    X = module.embedding.weight[ids]
    Q, K, V = (X @ linear.weight.T for linear in (module.query, module.key, module.value))
    A = torch.softmax(Q @ K.T / math.sqrt(module.dimension), dim=1)
    return (torch.tanh(A @ V) @ module.out.weight.T).mean(0)


def attentive(module, ids):
    H = states_of(module, ids)
    q, given = module.q, module.of_score
    scores = {
        "content": lambda t, h: q @ h / (q.square().sum().sqrt() * h.square().sum().sqrt()),
        "additive": lambda t, h: given["v"] @ torch.tanh(given["W_query"] @ q + given["W_token"] @ h),
        "location": lambda t, h: given["W"][min(t, module.locations - 1)] @ q,
        "general": lambda t, h: q @ given["W"] @ h,
        "dot": lambda t, h: q @ h,
        "scaled-dot": lambda t, h: q @ h / math.sqrt(len(q)),
    }[module.score]
    return torch.softmax(torch.stack([scores(t, h) for t, h in enumerate(H)]), 0) @ H


def contextualizer(module, ids):
    """The paper's steps under positions none, scale mean and c^0 of ones."""
    X = module.embedding.weight[ids]
    c = torch.ones(module.dimension, dtype=X.dtype)
    for U, V, W, b, gain, bias in zip(*module.attention.parameters_of_steps, strict=True):
        total = sum((W @ ((U @ x) * (V @ c)) + b) * x for x in X)
        centred = total - total.mean()
        c = c + gain * centred / (centred.square().mean() + 1e-12).sqrt() + bias
    return c


REFERENCES = {
    "contextualizer": contextualizer,
    "mean": mean,
    "lama": lama,
    "lama-ctx": lama,
    "bilinear": bilinear,
    "san": san,
    "transformer": transformer,
    "dan": dan,
    "use-transformer": lambda module, ids: transformer_outputs(module, ids).sum(0) / math.sqrt(len(ids)),
    "bigru": bigru,
    "cnn": cnn,
    "self-attention": self_attention,
    "self-attention-parametric": self_attention_parametric,
    "attentive": attentive,
}
