"""The dispatcher: tokens to the ranks of their experts, and back.

Legend: T tokens of this rank, D width, E experts over all ranks, e experts of this rank, m members of the expert
group, K experts per token, A = T * K assignments in token order, N rows sent, R rows received.
A slot is an expert's place in the order of the members that hold them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from moescope_hooks.ranges import traced
from torch import Tensor

from moescope.trainer.capacity import capacity_of, places_in_expert
from moescope.trainer.comm import Splits, exchange_counts, exchange_rows
from moescope.trainer.mesh import Group
from moescope.trainer.overlap import Steps
from moescope.trainer.placement import Placement
from moescope.trainer.settings.model import MoEConfig


@dataclass(frozen=True)
class Metadata:
    """What :meth:`Dispatcher.combine` needs to bring the rows home."""

    weights_TK: Tensor
    home_A: Tensor
    """The row each assignment was sent as; N where it was dropped."""
    splits: Splits
    regroup_R: Tensor | None
    """For each row in expert order, its place in the order of arrival; None where the two are the same."""
    dropped_E: Tensor | None
    """Assignments that capacity dropped, per expert; None without capacity."""


class Dispatcher(Protocol):
    """The seam between routing and experts."""

    def dispatch(
        self, x_TD: Tensor, weights_TK: Tensor, experts_TK: Tensor, counts_E: Tensor
    ) -> Steps[tuple[Tensor, list[int], Metadata]]:
        """The rows for this rank's experts in expert order [R, D], how many each gets [e], and the way back."""
        ...

    def combine(self, out_RD: Tensor, metadata: Metadata) -> Steps[Tensor]:
        """The experts' outputs back at their tokens, weighted and summed, [T, D]."""
        ...


@dataclass(frozen=True)
class _Plan:
    """Which rows are sent."""

    order_A: Tensor
    """Assignments in the order of their slots, the dropped ones last."""
    home_A: Tensor
    """The row of each assignment; at least the number of rows where it is dropped."""
    sent_E: Tensor
    """Rows per expert."""
    dropped_E: Tensor | None


class AllToAllDispatcher:
    """Counts first, then rows, by all-to-alls with uneven splits. Alone in its group it only permutes.

    With a capacity, what exceeds it is dropped; with padding, every expert gets exactly its capacity of rows, zeros
    among them, and no counts are exchanged.
    """

    def __init__(
        self, layer: int, group: Group, placement: Placement, config: MoEConfig, *, overlapped: bool = False
    ) -> None:
        """``overlapped``: stop while rows are under way, for something else to be computed."""
        self.layer = layer
        self.group = group
        self.config = config
        self.overlapped = overlapped
        self.num_local = len(placement) // group.size
        order_E = sorted(range(len(placement)), key=lambda expert: placement[expert])
        self._expert_of_slot = torch.tensor(order_E)
        self._slot_of_expert = torch.empty_like(self._expert_of_slot)
        self._slot_of_expert[self._expert_of_slot] = torch.arange(len(order_E))

    def dispatch(
        self, x_TD: Tensor, weights_TK: Tensor, experts_TK: Tensor, counts_E: Tensor
    ) -> Steps[tuple[Tensor, list[int], Metadata]]:
        """See :class:`Dispatcher`."""
        self._move_to(x_TD.device)
        if self.config.capacity_factor and self.config.capacity_pad:
            dropped_E: Tensor | None
            tokens_N, home_A, dropped_E, received_me = self._padded(weights_TK, experts_TK, counts_E)
            rows = (len(received_me[0]) * received_me[0][0],) * self.group.size
            splits = Splits(rows, rows)
        else:
            plan = self._plan(weights_TK, experts_TK, counts_E)
            sent_me, received_me = self._exchange_counts(plan.sent_E)
            splits = Splits(tuple(sum(row) for row in sent_me), tuple(sum(row) for row in received_me))
            num_sent = sum(splits.send)
            tokens_N, dropped_E = plan.order_A[:num_sent] // weights_TK.shape[1], plan.dropped_E
            home_A = plan.home_A if dropped_E is None else plan.home_A.clamp(max=num_sent)
        x_ND = traced("permute", self.layer, lambda x: _rows(x, tokens_N, spare=self.config.capacity_pad), x_TD)
        x_RD = yield from self._exchange(x_ND, splits, "dispatch")
        regroup_R = regroup_index(received_me, x_TD.device)
        if regroup_R is not None:
            x_RD = traced("permute", self.layer, lambda x: x.index_select(0, regroup_R), x_RD)
        counts_e = [sum(column) for column in zip(*received_me, strict=True)]
        return x_RD, counts_e, Metadata(weights_TK, home_A, splits, regroup_R, dropped_E)

    def combine(self, out_RD: Tensor, metadata: Metadata) -> Steps[Tensor]:
        """See :class:`Dispatcher`."""
        regroup_R = metadata.regroup_R
        if regroup_R is not None:
            out_RD = traced("unpermute", self.layer, lambda x: x.index_select(0, regroup_R.argsort()), out_RD)
        out_ND = yield from self._exchange(out_RD, metadata.splits.back(), "combine")
        spare = metadata.dropped_E is not None
        return traced(
            "unpermute",
            self.layer,
            lambda x, weights: weighted_sum(_rows(x, metadata.home_A, spare=spare), weights),
            out_ND,
            metadata.weights_TK,
        )

    def _exchange(self, x: Tensor, splits: Splits, phase: str) -> Steps[Tensor]:
        return exchange_rows(x, splits, self.group, phase, self.layer, overlapped=self.overlapped)

    def _move_to(self, device: torch.device) -> None:
        if self._slot_of_expert.device != device:
            self._slot_of_expert = self._slot_of_expert.to(device)
            self._expert_of_slot = self._expert_of_slot.to(device)

    def _plan(self, weights_TK: Tensor, experts_TK: Tensor, counts_E: Tensor) -> _Plan:
        experts_A = experts_TK.reshape(-1)
        slots_A, sent_E, dropped_E = self._slot_of_expert[experts_A], counts_E, None
        if self.config.capacity_factor:
            place_A, capacity = self._places(weights_TK, experts_A, counts_E)
            slots_A = slots_A.masked_fill(place_A >= capacity, counts_E.numel())
            sent_E = counts_E.clamp(max=capacity)
            dropped_E = counts_E - sent_E
        order_A = slots_A.argsort(stable=True)
        home_A = torch.empty_like(order_A)
        home_A[order_A] = torch.arange(order_A.numel(), device=order_A.device)
        return _Plan(order_A, home_A, sent_E, dropped_E)

    def _padded(
        self, weights_TK: Tensor, experts_TK: Tensor, counts_E: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, list[list[int]]]:
        """Token of each row (T: padding) [N], row of each assignment (N: dropped), dropped [E], and rows received."""
        experts_A = experts_TK.reshape(-1)
        place_A, capacity = self._places(weights_TK, experts_A, counts_E)
        num_tokens, top_k = weights_TK.shape
        num_rows = counts_E.numel() * capacity
        row_A = torch.where(place_A < capacity, self._slot_of_expert[experts_A] * capacity + place_A, num_rows)
        tokens_N = torch.full((num_rows + 1,), num_tokens, dtype=torch.int64, device=row_A.device)
        tokens_N[row_A] = torch.arange(row_A.numel(), device=row_A.device) // top_k
        received_me = [[capacity] * self.num_local for _ in range(self.group.size)]
        return tokens_N[:-1], row_A, counts_E - counts_E.clamp(max=capacity), received_me

    def _places(self, weights_TK: Tensor, experts_A: Tensor, counts_E: Tensor) -> tuple[Tensor, int]:
        """Each assignment's place in its expert's queue, and how many places there are."""
        num_tokens, top_k = weights_TK.shape
        capacity = capacity_of(num_tokens, top_k, counts_E.numel(), self.config.capacity_factor)
        by_score = self.config.capacity_drop == "score"
        priority_A = weights_TK.detach().reshape(-1) if by_score else None
        return places_in_expert(experts_A, counts_E, priority_A), capacity

    def _exchange_counts(self, sent_E: Tensor) -> tuple[list[list[int]], list[list[int]]]:
        """Rows to and from each member for each of the receiver's experts; the one place that waits for the device."""
        sent_me = sent_E[self._expert_of_slot].view(self.group.size, self.num_local)
        received_me = exchange_counts(sent_me, self.group, self.layer)
        both: list[list[list[int]]] = torch.stack([sent_me, received_me]).tolist()
        return both[0], both[1]


def _rows(x: Tensor, index: Tensor, *, spare: bool) -> Tensor:
    """``x[index]``; with ``spare``, one past the last row is a row of zeros."""
    return (torch.cat([x, x.new_zeros(1, x.shape[1])]) if spare else x).index_select(0, index)


def regroup_index(received_me: list[list[int]], device: torch.device) -> Tensor | None:
    """Places, in order of arrival (sender, expert), of the rows in order (expert, sender), [R]."""
    num_senders, num_experts = len(received_me), len(received_me[0])
    if num_senders == 1 or num_experts == 1:
        return None
    counts = torch.tensor(received_me).flatten()
    expert_R = torch.arange(num_experts).repeat(num_senders).repeat_interleave(counts)
    return expert_R.argsort(stable=True).to(device, non_blocking=True)


def weighted_sum(out_AD: Tensor, weights_TK: Tensor) -> Tensor:
    """Each token's K outputs, weighted and summed, [T, D]."""
    out_TKD = out_AD.view(*weights_TK.shape, -1)
    return (out_TKD * weights_TK.to(out_TKD.dtype).unsqueeze(-1)).sum(dim=1)
