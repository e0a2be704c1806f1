from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ctx_embed.systems.encoder import offsets_of, recurrent_states


def states_and_gradients(network, tokens, lengths, weights, most_padding):
    tokens = tokens.clone().requires_grad_()
    states = recurrent_states(network, tokens, offsets_of(lengths, tokens.device), most_padding)
    return states, torch.autograd.grad((states * weights).sum(), [tokens, *network.parameters()])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(any), st.booleans(), st.sampled_from([1, 10**6, 0]))
def test_each_document_is_read_by_itself(lengths, bidirectional, most_padding):
    """However documents are padded or packed, states and gradients are those of one document after the other."""
    torch.manual_seed(0)
    network = nn.GRU(3, 2, bidirectional=bidirectional).double()
    tokens = torch.randn(sum(lengths), 3, dtype=torch.double)
    weights = torch.randn(sum(lengths), 4 if bidirectional else 2, dtype=torch.double)
    states, gradients = states_and_gradients(network, tokens, lengths, weights, most_padding)
    alone = [network(document)[0] for document in tokens.split([length for length in lengths if length])]
    torch.testing.assert_close(states, torch.cat(alone))
    (torch.cat(alone) * weights).sum().backward()
    torch.testing.assert_close(gradients[1:], tuple(parameter.grad for parameter in network.parameters()))
