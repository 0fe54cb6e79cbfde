"""Histories of requests: what is hashed in pieces equals what the whole text hashes to."""

import numpy as np
import pytest

from sparkserve.engram.hashing import RowHasher
from sparkserve.engram.history import Batch, RequestHistory, predecessors_of
from sparkserve.errors import ConfigError
from tests.engram.scenario import SLOTS, Life, play
from tests.engram.test_hashing import FOLDED, SMALL


@pytest.fixture
def hasher():
    return RowHasher.of(SMALL, FOLDED)


@pytest.fixture
def history(hasher):
    return RequestHistory(hasher, SLOTS)


def batch(tokens, positions, slots, places=None):
    return Batch(
        np.array(tokens, dtype=np.int64), np.array(positions), np.array(slots, dtype=np.int64),
        None if places is None else np.array(places),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_every_token_hashes_as_in_its_whole_text_however_it_was_batched(hasher, history, seed):
    life = Life(seed, len(FOLDED), SMALL.image_token_id)
    modes = set()
    for step, ids, texts in play(history, life, 120):
        modes.add((step.mode, step.predecessors is not None))
        for row, truth in zip(ids, step.truth, strict=True):
            if truth is not None:
                text, place = truth
                whole = hasher.hash_text(texts[text][: place + 1])
                assert row.tolist() == whole[place].tolist(), (step, truth)
    assert modes >= {("idle", False), ("decode", False), ("verify", False)}
    assert modes >= {("extend", True), ("extend", False)}


def test_decoding_moves_the_history_on_by_one_token(history):
    history.rows[2] = [5, 6, 7]
    history.decode(batch([8], [3], [2]))
    assert history.rows[2].tolist() == [6, 7, 8]
    assert history.rows[[0, 1, 3]].tolist() == [[0, 0, 0]] * 3


def test_padding_of_a_graph_leaves_no_trace(history):
    history.rows[2] = [5, 6, 7]
    history.decode(batch([8, 9], [3, 3], [1, 2], places=[4, 0]))
    assert history.rows[2].tolist() == [5, 6, 7]
    assert history.rows[1].tolist() == [0, 0, 8]


def test_an_empty_run_writes_into_the_sink(history):
    history.rows[2] = [5, 6, 7]
    history.extend(batch([8, 9], [0, 1], [2, 1]), [0, 2])
    assert history.rows[2].tolist() == [5, 6, 7]
    assert history.rows[1].tolist() == [0, 8, 9]
    # Nothing at all is a batch as well.
    assert history.extend(batch([], [], [2]), [0]).shape == (0, 2, 6)
    assert history.rows[2].tolist() == [5, 6, 7]


def test_tokens_beyond_the_runs_are_fully_blocked(hasher, history):
    ids = history.extend(batch([8, 9, 11], [0, 1, 2], [1]), [2])
    blocked = hasher.hash_compressed(np.full((1, 4), hasher.pad_id))
    assert ids[2].tolist() == blocked[0].tolist()
    assert history.rows[1].tolist() == [0, 8, 9]


def test_predecessors_that_the_scheduler_supplies_are_believed_before_the_history(hasher, history):
    history.rows[1] = [1, 1, 1]
    text = [3, 5, 7, 9, 11, 13]
    before = predecessors_of(np.array(text), 4, 3)
    ids = history.extend(batch(text[4:], [4, 5], [1]), [2], before[None])
    assert ids.tolist() == hasher.hash_text(text)[4:].tolist()
    assert history.rows[1].tolist() == [9, 11, 13]
    assert predecessors_of(np.array(text), 1, 3).tolist() == [0, 0, 3]


def test_verifying_changes_nothing_until_the_accepted_tokens_are_known(history):
    history.rows[1] = [1, 3, 5]
    history.verify(batch([7, 9, 11, 13], [3, 4, 5, 6], [1]))
    assert history.rows[1].tolist() == [1, 3, 5]
    # Anchor 7 and one draft were accepted; the bonus is the next block's anchor.
    history.commit_after_verify(np.array([[7, 9, 11, 13]]), [1], [2])
    assert history.rows[1].tolist() == [5, 7, 9]
    history.commit_after_verify(np.array([[7, 9, 11, 13]]), [1], [4])
    assert history.rows[1].tolist() == [9, 11, 13]


def test_unequal_blocks_to_verify_are_refused(history):
    with pytest.raises(ConfigError, match="5 tokens to verify for 2 requests"):
        history.verify(batch([1, 2, 3, 4, 5], range(5), [0, 1]))


def test_ids_of_images_fit_the_history_and_stay_images(hasher, history):
    blind = RequestHistory(RowHasher.of(SMALL.model_copy(update={"image_token_id": None}), FOLDED),
                           SLOTS)  # fmt: skip
    history.extend(batch([3, 3_000_000_000], [0, 1], [1]), [2])
    assert history.rows[1].tolist() == [0, 3, 18]
    assert predecessors_of(np.array([3, 3_000_000_000]), 2, 3).tolist() == [0, 3, 1_000_000]
    with pytest.raises(ConfigError, match="token id 3000000000"):
        blind.extend(batch([3, 3_000_000_000], [0, 1], [1]), [2])


def test_idle_batches_give_zeros(history):
    assert not history.idle(5).any()
    assert history.idle(5).shape == (5, 2, 6)
