"""Each system once more for a single text, in plain steps or by torch, without any of its own functions."""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn


def states_of(module, ids: Tensor) -> Tensor:
    """The embeddings of the tokens, or torch's own GRU over them."""
    tokens = module.embedding.weight[ids]
    return module.recurrent(tokens)[0] if getattr(module, "hidden", 0) else tokens


# The weights of tokens


def lama(module, ids):
    H = states_of(module, ids)
    c = H.sum(0) / len(H) if module.c is None else module.c
    scores, r = [], module.rank
    for h in H:
        u = torch.tanh(module.scored.weight @ h + module.scored.bias) if module.layer else h
        product = [(module.P[:, j] @ c) * (module.Q[:, j] @ u) for j in range(module.heads * r)]
        e = torch.stack([torch.tanh(sum(product[j * r : (j + 1) * r])) for j in range(module.heads)])
        scores.append(e / e.square().sum().sqrt())
    return torch.softmax(torch.stack(scores), 0).T


def bilinear(module, ids):
    H = states_of(module, ids)
    c = H.sum(0) / len(H) if module.c is None else module.c
    return torch.softmax(torch.stack([c @ module.W @ h for h in H]), 0)[None]


def san(module, ids):
    return torch.softmax(module.W2 @ torch.tanh(module.W1 @ states_of(module, ids).T), dim=1)


def attentive(module, ids):
    q, given = module.q, module.of_score
    score = {
        "content": lambda t, h: q @ h / (q.square().sum().sqrt() * h.square().sum().sqrt()),
        "additive": lambda t, h: given["v"] @ torch.tanh(given["W_query"] @ q + given["W_token"] @ h),
        "location": lambda t, h: given["W"][min(t, module.locations - 1)] @ q,
        "general": lambda t, h: q @ given["W"] @ h,
        "dot": lambda t, h: q @ h,
        "scaled-dot": lambda t, h: q @ h / math.sqrt(len(q)),
    }[module.score]
    return torch.softmax(torch.stack([score(t, h) for t, h in enumerate(states_of(module, ids))]), 0)[None]


def self_attention(module, ids):
    X = module.embedding.weight[ids]
    return torch.softmax(X @ X.T, dim=1)


def self_attention_parametric(module, ids):
    X = module.embedding.weight[ids]
    return torch.softmax(X @ module.query.weight.T @ (X @ module.key.weight.T).T / math.sqrt(module.dimension), dim=1)


def first_layer(module, ids):
    """Of the first layer and each of its heads, by torch's own attention."""
    own, attention = module.stack[0], nn.MultiheadAttention(module.dimension, module.heads, batch_first=True).double()
    pairs = {"in_proj_weight": own.qkv.weight, "in_proj_bias": own.qkv.bias}
    pairs |= {"out_proj.weight": own.out.weight, "out_proj.bias": own.out.bias}
    call = {"need_weights": True, "average_attn_weights": False}
    return torch.func.functional_call(attention, pairs, (inputs_of(module, ids)[None],) * 3, call)[1]


def share_of_features(module, ids):
    """Each feature of a GRU is won by one token."""
    winners = states_of(module, ids).argmax(0)
    return winners.bincount(minlength=len(ids))[None] / len(winners)


def share_of_windows(module, ids):
    """Each filter is won by one window, and shared among its tokens."""
    shares = torch.zeros(1, len(ids), dtype=torch.float64)
    for width, values in convolved(module, ids):
        for last in values.argmax(0).tolist():
            inside = slice(max(last - width + 1, 0), last + 1)
            shares[0, inside] += 1 / (len(shares[0, inside]) * len(module.widths) * values.shape[1])
    return shares


WEIGHTS = {
    "mean": lambda module, ids: torch.full((1, len(ids)), 1 / len(ids), dtype=torch.float64),
    "lama": lama,
    "lama-ctx": lama,
    "bilinear": bilinear,
    "san": san,
    "attentive": attentive,
    "self-attention": self_attention,
    "self-attention-parametric": self_attention_parametric,
    "transformer": first_layer,
    "use-transformer": first_layer,
    "bigru": share_of_features,
    "cnn": share_of_windows,
}


# The embeddings


def position(t: int, m: int) -> Tensor:
    return torch.tensor(
        [math.sin(t / 10_000 ** (j / m)) if j % 2 == 0 else math.cos(t / 10_000 ** ((j - 1) / m)) for j in range(m)],
        dtype=torch.float64,
    )


def inputs_of(module, ids):
    m = module.dimension
    return math.sqrt(m) * module.embedding.weight[ids] + torch.stack([position(t, m) for t in range(len(ids))])


def transformer_outputs(module, ids):
    """torch's own encoder layers with the module's parameters."""
    m, x = module.dimension, inputs_of(module, ids)
    for own in module.stack:
        layer = nn.TransformerEncoderLayer(
            m, module.heads, module.feedforward, dropout=0, batch_first=True, norm_first=module.norm_first
        ).double()
        names = {"self_attn.in_proj_": own.qkv, "self_attn.out_proj.": own.out, "linear1.": own.up}
        names |= {"linear2.": own.down, "norm1.": own.attention_norm, "norm2.": own.feedforward_norm}
        pairs = {name + part: getattr(owner, part) for name, owner in names.items() for part in ("weight", "bias")}
        x = torch.func.functional_call(layer, pairs, (x[None],))[0]
    return x


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


def convolved(module, ids):
    """Of each convolution its width, and its filters at each window."""
    tokens = list(module.embedding.weight[ids])
    for width, convolution in zip(module.widths, module.convolutions, strict=True):
        padding = [torch.zeros_like(tokens[0])] * (width - 1)
        padded = padding + tokens + padding
        windows = [torch.stack(padded[j : j + width], 1) for j in range(len(tokens) + width - 1)]
        values = [(convolution.weight * window).sum((1, 2)) + convolution.bias for window in windows]
        yield width, torch.stack(values)


def contextualizer(module, ids):
    """The paper's steps under positions none, scale mean and c^0 of ones."""
    X = module.embedding.weight[ids]
    c = torch.ones(module.dimension, dtype=X.dtype)
    for U, V, W, b, gain, bias in zip(*module.attention.parameters_of_steps, strict=True):
        total = sum((W @ ((U @ x) * (V @ c)) + b) * x for x in X)
        centred = total - total.mean()
        c = c + gain * centred / (centred.square().mean() + 1e-12).sqrt() + bias
    return c


def weighted(name):
    return lambda module, ids: (WEIGHTS[name](module, ids) @ states_of(module, ids)).flatten()


REFERENCES = {
    **{name: weighted(name) for name in ("mean", "lama", "lama-ctx", "bilinear", "san", "attentive")},
    "contextualizer": contextualizer,
    "transformer": lambda module, ids: transformer_outputs(module, ids).sum(0) / len(ids),
    "use-transformer": lambda module, ids: transformer_outputs(module, ids).sum(0) / math.sqrt(len(ids)),
    "dan": dan,
    "bigru": lambda module, ids: states_of(module, ids).max(0).values,
    "cnn": lambda module, ids: torch.cat([values.relu().max(0).values for _, values in convolved(module, ids)]),
    "self-attention": lambda module, ids: (self_attention(module, ids) @ module.embedding.weight[ids]).mean(0),
    "self-attention-parametric": lambda module, ids: (
        torch.tanh(self_attention_parametric(module, ids) @ module.embedding.weight[ids] @ module.value.weight.T)
        @ module.out.weight.T
    ).mean(0),
}
