"""Live lengths: against products in Python, written rules, and a toy model that verifies."""

import itertools
import math

import numpy as np
import pytest
import torch
from sparkserve_kernels.checks import KernelArgumentError
from sparkserve_kernels.live_lengths import api, reference
from sparkserve_kernels.live_lengths.api import (
    LiveRule,
    by_position,
    by_threshold,
    fixed,
    live_lengths,
    new_buffer,
    parse,
)

from tests.kernels.numeric import same_bits

# numpy, on which the interpreter computes, warns of comparisons with NaN.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
GPU_ONLY = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU: graphs")


def by_hand(row, rule):
    """The length by numpy's fp32 scalars, one product after the other."""
    product, kept = np.float32(1), 0
    for c, threshold in zip(row, rule.thresholds, strict=True):
        product = product * np.float32(min(max(c, 0.0), 1.0))
        if not product >= np.float32(threshold):
            break
        kept += 1
    return 1 + max(kept, rule.at_least)


class TestRule:
    @pytest.mark.parametrize("requests", [1, 7, 64])
    @pytest.mark.parametrize(
        "rule",
        [
            by_threshold(0.1),
            by_threshold(0.35, at_least=0),
            by_position(0.9, 0.2, 0.3, 0.05),
            LiveRule((0.5, 0.25, 0.1), at_least=2),
            fixed(3),
        ],
        ids=str,
    )
    def test_lengths_are_those_of_products_by_hand(self, requests, rule, generator, device):
        confidence = torch.rand(requests, rule.drafts, generator=generator, device=device)
        got = live_lengths(confidence, rule, new_buffer(device))
        want = [by_hand(row, rule) for row in confidence.tolist()]
        assert got[:requests].tolist() == want
        assert got[requests:].tolist() == [6] * (64 - requests)
        assert same_bits(got, reference.live_lengths(confidence, rule, new_buffer(device)))

    def test_equal_to_the_threshold_is_enough(self, device):
        """Products of powers of two are exact, so that cum == T holds to the bit."""
        confidence = torch.tensor([[1.0, 0.5, 0.5, 0.5, 1.0]], device=device)
        for threshold, length in ((0.125, 6), (0.1250001, 4), (0.25, 4), (0.2500001, 3), (0.5, 3)):
            got = live_lengths(confidence, by_threshold(threshold), new_buffer(device))
            assert got[0] == length

    def test_the_product_is_taken_from_the_first_draft_on(self, generator, device):
        """Thresholds on the very fp32 products, where another order of factors would miss."""
        confidence = torch.rand(64, 5, generator=generator, device=device) * 0.5 + 0.5
        orders = 0
        for row in range(64):
            c = [np.float32(v) for v in confidence[row].tolist()]
            products = list(itertools.accumulate(c, lambda x, y: x * y))
            assert all(isinstance(p, np.float32) for p in products)
            rule = LiveRule(tuple(map(float, products)))
            assert live_lengths(confidence[row : row + 1], rule, new_buffer(device))[0] == 6
            above = (*map(float, products[:4]), float(np.nextafter(products[4], np.float32(2))))
            assert (
                live_lengths(confidence[row : row + 1], LiveRule(above), new_buffer(device))[0] == 5
            )
            orders += (c[2] * c[3]) * (c[0] * c[1]) * c[4] != products[4]
        assert orders > 0, "another order gave the same products: this shows nothing"

    def test_confidences_are_clamped(self, device):
        confidence = torch.tensor([[7.0, 2.0, 1.5, 0.2, -1.0], [-3.0, 1.0, 1.0, 1.0, 1.0]])
        got = live_lengths(confidence.to(device), by_threshold(0.2), new_buffer(device))
        assert got[:2].tolist() == [5, 2]
        zero = live_lengths(confidence.to(device), by_threshold(0.0), new_buffer(device))
        assert zero[:2].tolist() == [6, 6]

    def test_what_comes_after_a_stop_never_counts(self, device):
        confidence = torch.tensor([[1.0, 0.01, 1.0, 1.0, 1.0]], device=device)
        rule = LiveRule((0.5, 0.5, 0.0, 0.0, 0.0))
        assert live_lengths(confidence, rule, new_buffer(device))[0] == 2

    def test_nan_reaches_no_threshold(self, device):
        confidence = torch.ones(3, 5, device=device)
        confidence[0, 0] = confidence[1, 3] = torch.nan
        got = live_lengths(confidence, by_threshold(0.0), new_buffer(device))
        assert got[:3].tolist() == [2, 4, 6]
        want = reference.live_lengths(confidence, by_threshold(0.0), new_buffer(device))
        assert same_bits(got, want)

    def test_rows_may_lie_apart_and_there_may_be_none(self, generator, device):
        wide = torch.rand(6, 11, generator=generator, device=device)
        rule = by_threshold(0.1)
        apart = live_lengths(wide[::2, 3:8], rule, new_buffer(device))
        packed = live_lengths(wide[::2, 3:8].contiguous(), rule, new_buffer(device))
        assert same_bits(apart, packed)
        untouched = live_lengths(torch.empty(0, 5, device=device), rule, new_buffer(device))
        assert untouched.tolist() == [6] * 64

    def test_requests_stand_alone(self, generator, device):
        confidence = torch.rand(13, 5, generator=generator, device=device)
        rule = by_threshold(0.2)
        order = torch.randperm(13, generator=generator, device=device)
        all_of_them = live_lengths(confidence, rule, new_buffer(device))[:13]
        moved = live_lengths(confidence[order], rule, new_buffer(device))[:13]
        assert same_bits(moved, all_of_them[order])

    @GPU_ONLY
    def test_a_captured_rule_follows_the_confidences(self, generator, device):
        confidence, out = torch.ones(16, 5, device=device), new_buffer(device)
        rule = by_threshold(0.2)
        live_lengths(confidence, rule, out)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            live_lengths(confidence, rule, out)
        for _ in range(3):
            confidence.uniform_(generator=generator)
            graph.replay()
            assert same_bits(out, reference.live_lengths(confidence, rule, new_buffer(device)))


class TestWriting:
    @pytest.mark.parametrize(
        ("text", "rule"),
        [
            ("conf:0.1", LiveRule((0.1,) * 5)),
            ("conf:0.4,0.3,0.2,0.1", LiveRule((0.0, 0.4, 0.3, 0.2, 0.1))),
            ("3", LiveRule((math.inf,) * 5, at_least=3)),
        ],
    )
    def test_rules_are_read(self, text, rule):
        assert parse(text) == rule

    @pytest.mark.parametrize("text", ["", "conf", "conf:", "conf:0.1,0.2", "code:0.1", "3.5", "x"])
    def test_other_texts_are_refused(self, text):
        with pytest.raises(KernelArgumentError, match="expected conf:T, conf:a,b,c,d or a number"):
            parse(text)

    @pytest.mark.parametrize("text", ["conf:5", "conf:-0.1", "conf:nan", "conf:0.1,0.2,inf,0.3"])
    def test_a_threshold_that_is_no_probability_is_refused(self, text):
        with pytest.raises(KernelArgumentError, match=f"'{text}', expected thresholds from 0 to"):
            parse(text)

    @pytest.mark.parametrize("drafts", [0, 6])
    def test_another_fixed_number_is_refused(self, drafts):
        with pytest.raises(KernelArgumentError, match=f"fixed to {drafts} drafts, expected 1 to 5"):
            fixed(drafts)


class TestToyModel:
    """Committed tokens with a cap of k are those of a verify with k drafts."""

    VOCABULARY = 11

    def next_token(self, context):
        """A model: what it says depends on every token before."""
        return (sum((i + 3) * t * t for i, t in enumerate(context)) + 5) % self.VOCABULARY

    def verify(self, context, drafts):
        """Greedy verify: the accepted drafts and the model's own next token."""
        accepted = []
        for token in drafts:
            if self.next_token(context + accepted) != token:
                break
            accepted.append(token)
        return accepted, self.next_token(context + accepted)

    def test_a_cap_commits_what_fewer_drafts_do(self, generator, device):
        lengths_seen = set()
        for step in range(60):
            context = [step % 7, step % 5]
            drafts = []
            for _ in range(5):
                # A draft that is right most of the time, as good drafts are.
                right = self.next_token(context + drafts)
                wrong = torch.rand(1, generator=generator, device=device).item() < 0.2
                drafts.append((right + wrong) % self.VOCABULARY)
            confidence = torch.rand(1, 5, generator=generator, device=device) * 0.5 + 0.5
            live = int(live_lengths(confidence, by_threshold(0.3), new_buffer(device))[0])
            lengths_seen.add(live)
            accepted, _ = self.verify(context, drafts)
            kept = accepted[: min(len(accepted), live - 1)]  # correct_len = min(correct_len, L-1)
            capped = [*kept, self.next_token(context + kept)]
            fewer, bonus = self.verify(context, drafts[: live - 1])
            assert capped == [*fewer, bonus]
        assert len(lengths_seen) > 2


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"confidence": torch.zeros(2, 4)}, r"confidence: shape \[2, 4\], expected \[any, 5\]"),
            ({"confidence": torch.zeros(2, 5).half()}, "confidence: dtype float16, expected"),
            ({"confidence": torch.zeros(65, 5)}, "65 requests, expected at most 64"),
            ({"confidence": torch.zeros(5, 2).t()}, r"confidence: strides \[1, 2\], expected 1"),
            ({"out": torch.zeros(64)}, "out: dtype float32, expected int64"),
            ({"out": torch.zeros(16, dtype=torch.int64)}, r"out: shape \[16\], expected \[64\]"),
        ],
    )
    def test_calls(self, change, message):
        arguments = {
            "confidence": torch.zeros(2, 5),
            "rule": by_threshold(0.1),
            "out": new_buffer(torch.device("cpu")),
            **change,
        }
        with pytest.raises(KernelArgumentError, match=message):
            live_lengths(**arguments)

    def test_rules(self):
        with pytest.raises(KernelArgumentError, match="6 thresholds, expected 1 to 5"):
            LiveRule((0.1,) * 6)
        with pytest.raises(KernelArgumentError, match="at_least = 6, expected 0 to 5"):
            by_threshold(0.1, at_least=6)
        with pytest.raises(KernelArgumentError, match="expected numbers"):
            by_threshold(math.nan)
        with pytest.raises(KernelArgumentError, match="3 thresholds, expected 4"):
            by_position(0.1, 0.2, 0.3)

    def test_support_is_a_question_of_the_device(self, device):
        assert api.is_supported(torch.zeros(1, device=device))
        assert not api.is_supported(torch.zeros(1, device="meta"))
