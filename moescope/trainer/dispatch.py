"""The dispatcher: tokens to the ranks of their experts, and back.

Legend: T tokens of this rank, D width, E experts over all ranks, e experts of this rank, m members of the expert
group, K experts per token, N = T * K assignments of this rank (less what capacity drops), R rows received.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from moescope_hooks.ranges import traced
from torch import Tensor

from moescope.trainer.comm import Splits, exchange_counts, exchange_rows
from moescope.trainer.mesh import Group


@dataclass(frozen=True)
class Metadata:
    """What :meth:`Dispatcher.combine` needs to bring the rows home."""

    weights_TK: Tensor
    order_N: Tensor
    """Index into the flattened [T * K] assignments, in the order they were sent."""
    splits: Splits
    regroup_R: Tensor | None
    """For each row in expert order, its place in the order of arrival; None where the two are the same."""


class Dispatcher(Protocol):
    """The seam between routing and experts."""

    def dispatch(
        self, x_TD: Tensor, weights_TK: Tensor, experts_TK: Tensor, counts_E: Tensor
    ) -> tuple[Tensor, list[int], Metadata]:
        """The rows for this rank's experts in expert order [R, D], how many each gets [e], and the way back."""
        ...

    def combine(self, out_RD: Tensor, metadata: Metadata) -> Tensor:
        """The experts' outputs back at their tokens, weighted and summed, [T, D]."""
        ...


class AllToAllDispatcher:
    """Counts first, then rows, by all-to-alls with uneven splits. Alone in its group it only permutes."""

    def __init__(self, layer: int, group: Group, placement: list[int]) -> None:
        """``placement``: the member of the group that holds each expert, [E]; every member holds as many."""
        self.layer = layer
        self.group = group
        self.num_local = len(placement) // group.size
        order_E = sorted(range(len(placement)), key=lambda expert: placement[expert])
        self._expert_of_slot = torch.tensor(order_E)
        self._slot_of_expert = torch.empty_like(self._expert_of_slot)
        self._slot_of_expert[self._expert_of_slot] = torch.arange(len(order_E))

    def dispatch(
        self, x_TD: Tensor, weights_TK: Tensor, experts_TK: Tensor, counts_E: Tensor
    ) -> tuple[Tensor, list[int], Metadata]:
        """See :class:`Dispatcher`."""
        self._to(x_TD.device)
        order_N = self._slot_of_expert[experts_TK.reshape(-1)].argsort(stable=True)
        x_ND = traced("permute", self.layer, lambda x: x.index_select(0, order_N // weights_TK.shape[1]), x_TD)
        sent_me, received_me = self._counts(counts_E)
        splits = Splits(tuple(sum(row) for row in sent_me), tuple(sum(row) for row in received_me))
        x_RD = exchange_rows(x_ND, splits, self.group, "dispatch", self.layer)
        regroup_R = regroup_index(received_me, x_TD.device)
        if regroup_R is not None:
            x_RD = traced("permute", self.layer, lambda x: x.index_select(0, regroup_R), x_RD)
        counts_e = [sum(column) for column in zip(*received_me, strict=True)]
        return x_RD, counts_e, Metadata(weights_TK, order_N, splits, regroup_R)

    def combine(self, out_RD: Tensor, metadata: Metadata) -> Tensor:
        """See :class:`Dispatcher`."""
        regroup_R = metadata.regroup_R
        if regroup_R is not None:
            out_RD = traced("unpermute", self.layer, lambda x: x.index_select(0, regroup_R.argsort()), out_RD)
        out_ND = exchange_rows(out_RD, metadata.splits.back(), self.group, "combine", self.layer)
        return traced(
            "unpermute", self.layer, lambda x, w: _weighted_sum(x, w, metadata.order_N), out_ND, metadata.weights_TK
        )

    def _to(self, device: torch.device) -> None:
        if self._slot_of_expert.device != device:
            self._slot_of_expert = self._slot_of_expert.to(device)
            self._expert_of_slot = self._expert_of_slot.to(device)

    def _counts(self, counts_E: Tensor) -> tuple[list[list[int]], list[list[int]]]:
        """Rows to and from each member for each of the receiver's experts; the one place that waits for the device."""
        sent_me = counts_E[self._expert_of_slot].view(self.group.size, self.num_local)
        received_me = exchange_counts(sent_me, self.group, self.layer)
        both: list[list[list[int]]] = torch.stack([sent_me, received_me]).tolist()
        return both[0], both[1]


def regroup_index(received_me: list[list[int]], device: torch.device) -> Tensor | None:
    """Places, in order of arrival (sender, expert), of the rows in order (expert, sender), [R]."""
    num_senders, num_experts = len(received_me), len(received_me[0])
    if num_senders == 1 or num_experts == 1:
        return None
    counts = torch.tensor(received_me).flatten()
    expert_R = torch.arange(num_experts).repeat(num_senders).repeat_interleave(counts)
    return expert_R.argsort(stable=True).to(device, non_blocking=True)


def _weighted_sum(out_ND: Tensor, weights_TK: Tensor, order_N: Tensor) -> Tensor:
    """Each token's K outputs, weighted and summed, [T, D]; every row has one home, so the sum's order is fixed."""
    num_tokens, top_k = weights_TK.shape
    home_N = torch.empty_like(order_N)
    home_N[order_N] = torch.arange(order_N.numel(), device=order_N.device)
    out_TKD = out_ND.index_select(0, home_N).view(num_tokens, top_k, -1)
    return (out_TKD * weights_TK.to(out_TKD.dtype).unsqueeze(-1)).sum(dim=1)
