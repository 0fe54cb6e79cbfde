"""Packing from behind http: the same bytes as from a folder, whatever the server does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from sparkserve.engram.http_source import HttpFolder, Patience
from sparkserve.engram.manifest import read_manifest
from sparkserve.engram.pack_error import PackError
from sparkserve.errors import ExitCode
from sparkserve.model.pack import PackCode
from tests.engram.checkpoints import Checkpoint
from tests.engram.packing import Run, expected_file, job_of, pack
from tests.engram.range_server import Handler, RangeServer, Seen, serving

TOKEN = "hf_secretsecret"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Shards of about 2.5 MiB, so that each takes a few requests."""
    folder = tmp_path_factory.mktemp("served") / "model"
    return Checkpoint(folder, vocab_size=1500, layer_ids=(1,)).write()


@pytest.fixture
def server(checkpoint: Checkpoint) -> Iterator[RangeServer]:
    with serving(checkpoint.folder.parent) as running:
        yield running


class Waits(list[float]):
    """Takes the place of sleeping."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


def folder_of(server: RangeServer, token: str | None = None) -> tuple[HttpFolder, Waits]:
    waits = Waits()
    return HttpFolder(f"{server.url}/model/", token, Patience(sleep=waits)), waits


def packed(
    checkpoint: Checkpoint, server: RangeServer, out: Path, token: str | None = None
) -> Waits:
    """Pack through the server and compare; returns how long it was waited."""
    folder, waits = folder_of(server, token)
    job = job_of(checkpoint, out, tp=2, rank=1, verify="none")
    pack(job, folder=folder)
    content = (out / "engram-l1-r1of2.bin").read_bytes()
    assert content == expected_file(checkpoint, 1, "columns", 1, 2)
    return waits


def refused(
    checkpoint: Checkpoint, server: RangeServer, out: Path, token: str | None = None
) -> PackError:
    folder, _ = folder_of(server, token)
    with pytest.raises(PackError) as caught:
        pack(job_of(checkpoint, out, tp=2, rank=1, verify="none"), folder=folder)
    assert not (out / "engram-l1-r1of2.bin").exists()
    return caught.value


def data_requests(server: RangeServer) -> list[Seen]:
    """Requests for rows: everything of the big file but its header."""
    return [
        seen
        for seen in server.seen
        if seen.path.endswith(".safetensors") and seen.range is not None and seen.if_range
    ][2:]


def test_one_request_per_run_of_rows(
    checkpoint: Checkpoint, server: RangeServer, tmp_path: Path
) -> None:
    assert packed(checkpoint, server, tmp_path) == []
    size = (tmp_path / "engram-l1-r1of2.bin").stat().st_size
    chunks = -(-size // (1 << 20))
    assert chunks >= 3
    # Weights and scales of each chunk, and nothing else.
    assert len(data_requests(server)) == 2 * chunks


def test_the_manifest_is_that_of_a_local_pack(
    checkpoint: Checkpoint, server: RangeServer, tmp_path: Path
) -> None:
    packed(checkpoint, server, tmp_path / "a")
    pack(job_of(checkpoint, tmp_path / "b", tp=2, rank=1, verify="none"))
    manifests = [read_manifest(tmp_path / name, 1, 2, "columns") for name in "ab"]
    assert manifests[0] == manifests[1]


def test_sampled_rows_are_compared_through_the_server(
    checkpoint: Checkpoint,
    server: RangeServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sparkserve.engram.verify.RANDOM_ROWS", 50)
    folder, _ = folder_of(server)
    done = pack(job_of(checkpoint, tmp_path, tp=2, rank=1, layout="strided"), folder=folder)
    assert done.layers[0].against_source == "sample"
    assert done.layers[0].compared_rows == 63


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("form", ["seconds", "date"])
def test_a_server_that_asks_to_wait_is_waited_for(
    checkpoint: Checkpoint, server: RangeServer, tmp_path: Path, status: int, form: str
) -> None:
    def busy(handler: Handler, seen: Seen, count: int) -> bool:
        if count != 3 or not seen.path.endswith(".safetensors"):
            return False
        soon = format_datetime(datetime.now(UTC) + timedelta(seconds=110), usegmt=True)
        handler.answer(status, b"", {"Retry-After": "7" if form == "seconds" else soon})
        return True

    server.troubles.append(busy)
    (wait,) = packed(checkpoint, server, tmp_path)
    assert wait == 7 if form == "seconds" else 7 < wait <= 110


def test_a_server_that_asks_for_too_much_is_not_waited_for(
    checkpoint: Checkpoint, server: RangeServer, tmp_path: Path
) -> None:
    def busy(handler: Handler, *_: object) -> bool:
        handler.answer(429, b"", {"Retry-After": "100000"})
        return True

    server.troubles.append(busy)
    error = refused(checkpoint, server, tmp_path)
    assert error.code is PackCode.SOURCE_UNREACHABLE
    assert "asks to wait 100000 s" in error.message


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429, 408])
def test_errors_that_go_by_are_waited_for_ever_longer(
    checkpoint: Checkpoint, server: RangeServer, tmp_path: Path, status: int
) -> None:
    def failing(handler: Handler, seen: Seen, count: int) -> bool:
        if not seen.path.endswith("config.json") or count >= 4:
            return False
        handler.answer(status)
        return True

    server.troubles.append(failing)
    waits = packed(checkpoint, server, tmp_path)
    assert len(waits) == 4
    assert all(later > sooner for sooner, later in itertools.pairwise(waits))


def test_errors_that_stay_end_it(
    checkpoint: Checkpoint, server: RangeServer, tmp_path: Path
) -> None:
    def failing(handler: Handler, *_: object) -> bool:
        handler.answer(503)
        return True

    server.troubles.append(failing)
    error = refused(checkpoint, server, tmp_path)
    assert error.code is PackCode.SOURCE_UNREACHABLE
    assert error.exit_code is ExitCode.UNREACHABLE
    assert "8 attempts" in error.message
    assert "503" in error.message


def test_nobody_at_the_address(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with serving(checkpoint.folder.parent) as server:
        pass
    error = refused(checkpoint, server, tmp_path)
    assert error.code is PackCode.SOURCE_UNREACHABLE
    assert "gave up after 3 attempts" in error.message, "an address that never answered"


def test_cut_connections_are_gone_on_with_from_the_byte_they_reached(
    checkpoint: Checkpoint, server: RangeServer, tmp_path: Path
) -> None:
    continued: set[int] = set()

    def cutting(handler: Handler, seen: Seen, _: int) -> bool:
        # Every long request breaks after 100,000 bytes, and the one that goes on does not.
        if not seen.if_range or seen.range is None:
            return False
        start, end = range_of(seen)
        if end - start <= 100_000 or start in continued:
            return False
        continued.add(start + 100_000)
        handler.serve(seen, cut=100_000)
        return True

    server.troubles.append(cutting)
    waits = packed(checkpoint, server, tmp_path)
    assert len(waits) == len(continued) >= 2
    assert max(waits) < 1, "every attempt got further, so nothing builds up"
    asked = [range_of(seen) for seen in data_requests(server)]
    total = sum(end - start for start, end in asked)
    size = (tmp_path / "engram-l1-r1of2.bin").stat().st_size
    # What was received before a cut is not asked for again.
    assert total <= size * 2
    assert continued <= {start for start, _ in asked}


def range_of(seen: Seen) -> tuple[int, int]:
    start, _, last = (seen.range or "").removeprefix("bytes=").partition("-")
    return int(start), int(last) + 1


def test_a_server_without_ranges_is_refused(
    checkpoint: Checkpoint, server: RangeServer, tmp_path: Path
) -> None:
    def whole(handler: Handler, seen: Seen, _: int) -> bool:
        handler.serve(seen._replace(range=None))
        return True

    server.troubles.append(whole)
    error = refused(checkpoint, server, tmp_path)
    assert error.code is PackCode.SHORT_READ
    assert "byte ranges" in error.message


def test_wrong_bytes_are_not_taken(
    checkpoint: Checkpoint, server: RangeServer, tmp_path: Path
) -> None:
    def shifted(handler: Handler, seen: Seen, _: int) -> bool:
        if not seen.if_range:
            return False
        handler.serve(seen, shift=264)
        return True

    server.troubles.append(shifted)
    error = refused(checkpoint, server, tmp_path)
    assert error.code is PackCode.SHORT_READ
    assert "bytes 264 to 271 came, expected 0 to 7" in error.message


def test_an_answer_without_a_range_is_not_taken(
    checkpoint: Checkpoint, server: RangeServer, tmp_path: Path
) -> None:
    def bare(handler: Handler, seen: Seen, _: int) -> bool:
        if not seen.if_range:
            return False
        handler.answer(206, b"12345678")
        return True

    server.troubles.append(bare)
    error = refused(checkpoint, server, tmp_path)
    assert error.code is PackCode.SHORT_READ
    assert "Content-Range" in error.message


@pytest.mark.parametrize("knows_if_range", [True, False])
def test_a_file_that_changes_is_noticed(
    checkpoint: Checkpoint, tmp_path: Path, knows_if_range: bool
) -> None:
    own = Checkpoint(tmp_path / "model", vocab_size=1500, layer_ids=(1,)).write()
    big = own.folder / own.file(1)

    def changing(handler: Handler, seen: Seen, count: int) -> bool:
        if seen.path.endswith(".safetensors") and count == 4:
            data = bytearray(big.read_bytes())
            data[-1] ^= 1
            big.write_bytes(data)
        if knows_if_range or not seen.if_range:
            return False
        handler.serve(seen._replace(if_range=None))
        return True

    with serving(tmp_path) as server:
        server.troubles.append(changing)
        error = refused(own, server, tmp_path / "out")
    assert error.code is PackCode.SOURCE_CHANGED


def test_an_interrupted_pack_goes_on_only_with_the_same_etag(
    tmp_path: Path,
) -> None:
    own = Checkpoint(tmp_path / "model", vocab_size=1500, layer_ids=(1,)).write()
    out = tmp_path / "out"
    job = job_of(own, out, tp=2, rank=1, verify="none")
    with serving(tmp_path) as server:
        run = Run()
        real = run.reporter.step

        def stop_soon(layer: int, step_bytes: int) -> None:
            run.stop.set()
            real(layer, step_bytes)

        run.reporter.step = stop_soon  # type: ignore[method-assign]
        with pytest.raises(PackError):
            pack(job, run, folder_of(server)[0])
        big = own.folder / own.file(1)
        before = big.read_bytes()
        big.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        with pytest.raises(PackError) as caught:
            pack(job, folder=folder_of(server)[0])
        assert caught.value.code is PackCode.SOURCE_CHANGED
        big.write_bytes(before)
        again = Run()
        pack(job, again, folder_of(server)[0])
    assert again.of("planned")[0].layers[0].action == "resume"
    content = (out / "engram-l1-r1of2.bin").read_bytes()
    assert content == expected_file(own, 1, "columns", 1, 2)


@pytest.mark.parametrize("status", [401, 403])
def test_a_server_that_wants_a_token(
    checkpoint: Checkpoint, server: RangeServer, tmp_path: Path, status: int
) -> None:
    def guarded(handler: Handler, seen: Seen, _: int) -> bool:
        if seen.token == f"Bearer {TOKEN}":
            return False
        handler.answer(status)
        return True

    server.troubles.append(guarded)
    error = refused(checkpoint, server, tmp_path / "a")
    assert error.code is PackCode.SOURCE_REFUSED
    assert "0600" in (error.hint or "")
    wrong = refused(checkpoint, server, tmp_path / "b", "another")
    assert "another token" in wrong.message
    packed(checkpoint, server, tmp_path / "c", TOKEN)


def test_a_redirect_is_followed_and_the_token_stays_at_home(
    checkpoint: Checkpoint, server: RangeServer, tmp_path: Path
) -> None:
    with serving(checkpoint.folder.parent) as other:

        def away(handler: Handler, seen: Seen, _: int) -> bool:
            if not seen.path.endswith(".safetensors"):
                return False
            handler.answer(302, b"", {"Location": f"{other.url}{seen.path}?signature=a%2Fb"})
            return True

        server.troubles.append(away)
        packed(checkpoint, server, tmp_path, TOKEN)
        assert {seen.token for seen in server.seen} == {f"Bearer {TOKEN}"}
        assert {seen.token for seen in other.seen} == {None}
        assert all(seen.path.endswith("?signature=a%2Fb") for seen in other.seen)
        # Where it leads is remembered.
        assert sum(seen.path.endswith(".safetensors") for seen in server.seen) == 1


def test_a_redirect_within_the_host_keeps_the_token(
    checkpoint: Checkpoint, server: RangeServer, tmp_path: Path
) -> None:
    def moved(handler: Handler, seen: Seen, _: int) -> bool:
        if seen.path.endswith("?here") or not seen.path.endswith(".safetensors"):
            return False
        handler.answer(307, b"", {"Location": f"{seen.path}?here"})
        return True

    server.troubles.append(moved)
    packed(checkpoint, server, tmp_path, TOKEN)
    assert {seen.token for seen in server.seen} == {f"Bearer {TOKEN}"}


def test_an_address_that_runs_out_is_asked_for_anew(
    checkpoint: Checkpoint, server: RangeServer, tmp_path: Path
) -> None:
    with serving(checkpoint.folder.parent) as other:
        given = itertools.count()

        def away(handler: Handler, seen: Seen, _: int) -> bool:
            if not seen.path.endswith(".safetensors"):
                return False
            handler.answer(302, b"", {"Location": f"{other.url}{seen.path}?n={next(given)}"})
            return True

        def used_up(handler: Handler, _: Seen, count: int) -> bool:
            if count < 3:
                return False
            handler.answer(403)
            return True

        server.troubles.append(away)
        other.troubles.append(used_up)
        packed(checkpoint, server, tmp_path)
    assert next(given) > 2


@pytest.mark.parametrize("location", ["http://[", "http://a:99999/x", "https:///x", "ftp://a/x"])
def test_a_redirect_to_nowhere_ends_it(
    checkpoint: Checkpoint, server: RangeServer, tmp_path: Path, location: str
) -> None:
    def away(handler: Handler, *_: object) -> bool:
        handler.answer(302, b"", {"Location": location})
        return True

    server.troubles.append(away)
    error = refused(checkpoint, server, tmp_path)
    assert error.code is PackCode.SOURCE_UNREACHABLE
    assert "redirected to" in error.message


def test_a_signed_address_is_in_no_message(
    checkpoint: Checkpoint, server: RangeServer, tmp_path: Path
) -> None:
    with serving(checkpoint.folder.parent) as gone:
        pass

    def away(handler: Handler, *_: object) -> bool:
        handler.answer(302, b"", {"Location": f"{gone.url}/x?Signature=s3cret&Expires=1"})
        return True

    server.troubles.append(away)
    error = refused(checkpoint, server, tmp_path)
    assert "nothing answers" in error.message
    assert "s3cret" not in error.message


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://user:s3cret@host/model", "holds a user or password"),
        ("http:///model", "names no host"),
        ("http://[::1/model", "is no address"),
    ],
)
def test_an_address_that_cannot_be_a_source_is_refused(url: str, words: str) -> None:
    with pytest.raises(PackError, match=words) as caught:
        HttpFolder(url, None)
    assert caught.value.code is PackCode.JOB
    assert "s3cret" not in caught.value.message


def test_a_name_in_the_index_is_no_piece_of_an_address(tmp_path: Path) -> None:
    own = Checkpoint(tmp_path / "model", layer_ids=(1,))
    name = "100%25 #1?.safetensors"
    own.write()
    (own.folder / own.file(1)).rename(own.folder / name)
    index = own.folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace(own.file(1), name))
    with serving(tmp_path) as server:
        pack(job_of(own, tmp_path / "out", verify="none"), folder=folder_of(server)[0])
    content = (tmp_path / "out" / "engram-l1-r0of1.bin").read_bytes()
    assert content == expected_file(own, 1, "columns", 0, 1)


def test_files_below_the_folder_are_the_same_source_from_a_folder_and_a_server(
    tmp_path: Path,
) -> None:
    own = Checkpoint(tmp_path / "model", layer_ids=(1,))
    own.write()
    (own.folder / "sub").mkdir()
    (own.folder / own.file(1)).rename(own.folder / "sub" / own.file(1))
    index = own.folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace(own.file(1), f"sub/{own.file(1)}"))
    with serving(tmp_path) as server:
        pack(job_of(own, tmp_path / "a", verify="none"), folder=folder_of(server)[0])
    pack(job_of(own, tmp_path / "b", verify="none"))
    manifests = [read_manifest(tmp_path / each, 0, 1, "columns") for each in "ab"]
    assert manifests[0] == manifests[1]
    assert manifests[0] is not None
    assert manifests[0].layers[0].source_shard == f"sub/{own.file(1)}"


def test_redirects_in_a_circle_end(
    checkpoint: Checkpoint, server: RangeServer, tmp_path: Path
) -> None:
    def circle(handler: Handler, seen: Seen, _: int) -> bool:
        handler.answer(302, b"", {"Location": seen.path})
        return True

    server.troubles.append(circle)
    assert "redirects" in refused(checkpoint, server, tmp_path).message


def test_the_token_is_in_no_message_and_no_representation(
    checkpoint: Checkpoint, server: RangeServer, tmp_path: Path
) -> None:
    def failing(handler: Handler, seen: Seen, _: int) -> bool:
        handler.answer(500, (seen.token or "").encode())
        return True

    server.troubles.append(failing)
    error = refused(checkpoint, server, tmp_path, TOKEN)
    folder, _ = folder_of(server, TOKEN)
    assert TOKEN not in f"{error.message} {error.hint} {folder!r} {vars(folder)}"


def test_a_stop_ends_the_waiting(
    checkpoint: Checkpoint, server: RangeServer, tmp_path: Path
) -> None:
    def busy(handler: Handler, *_: object) -> bool:
        handler.answer(503, b"", {"Retry-After": "100"})
        run.stop.set()
        return True

    run = Run()
    server.troubles.append(busy)
    folder = HttpFolder(f"{server.url}/model", None, Patience(sleep=run.reporter.sleep))
    with pytest.raises(PackError) as caught:
        pack(job_of(checkpoint, tmp_path), run, folder)
    assert caught.value.code is PackCode.INTERRUPTED


def test_a_missing_file_is_missing(
    checkpoint: Checkpoint, server: RangeServer, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with serving(tmp_path) as empty:
        error = refused(checkpoint, empty, tmp_path / "out")
    assert error.code is PackCode.SOURCE_MISSING
