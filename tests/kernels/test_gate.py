"""The compile gate, judged on kernels that are bad on purpose and on listings written by hand."""

import json
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool

import pytest
from sparkserve_kernels import compile as compiler
from sparkserve_kernels.cubin import CubinFacts, ToolError, read_listing, read_usage
from sparkserve_kernels.gate import Compiled, parse_arch
from sparkserve_kernels.shipped import Shipped

from tests.kernels.processes import COMPILES_FOR_SPARK, REPOSITORY, python

LISTING = """
\tcode for sm_121a
\t\tFunction : kernel
\t.headerflags\t@"EF_CUDA_TEXMODE_UNIFIED EF_CUDA_64BIT_ADDRESS EF_CUDA_SM121"
        /*0000*/                   LDC R1, c[0x0][0x37c] ; /* 0x0000df00ff017b82 */
                                                               /* 0x000e220000000800 */
        /*0010*/              @!P0 LDGSTS.E.BYPASS.LTC128B.128 [R5], desc[UR6][R2.64] ;
        /*0020*/                   LDGSTS.E.LTC128B [R5+0x10], desc[UR6][R2.64] ;
        /*0030*/             @!UP0 UBLKPF.L2 [UR10], UR9 ;
        /*0040*/                   QMMA.SF.16832.F32.E4M3.E4M3.E8 R4, R8, R12, R4, R16, R17, URZ ;
        /*0050*/                   QMMA.16832.F32.E4M3.E4M3 R4, R8, R12, R4 ;
        /*0060*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0070*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], R24 ;
        /*0080*/              @P3  OMMA.SF.16864.F32.E2M1.E2M1.UE8 R4, R8, R12, R4, R16, R17 ;
        /*0090*/                   STL.64 [R1+0x8], R2 ;
        /*00a0*/                   LDL R2, [R1] ;
        /*00b0*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*10000*/                  EXIT ;
"""
USAGE = """
Resource usage:
 Common:
  GLOBAL:0
 Function helper:
  REG:90 STACK:16 SHARED:0 LOCAL:0 CONSTANT[0]:900 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function kernel:
  REG:64 STACK:0 SHARED:1024 LOCAL:0 CONSTANT[0]:900 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
GOOD = CubinFacts(
    registers=255,
    stack_bytes=0,
    spill_instructions=0,
    block_scaled_mmas=4,
    other_mmas=0,
    async_loads_16_bytes=8,
    bulk_prefetches=1,
    instructions=100,
)
DEMANDS = {"multiplies": True, "streams": True, "prefetches": True}
SPARK, HOPPER = parse_arch("sm_121a"), parse_arch("sm_90a")


def faults(target=SPARK, shared_bytes=101_376, **changed):
    """What the gate finds in a form that demands all there is."""
    form = Shipped("form", None, {}, {}, 4, 3, **DEMANDS)
    facts = CubinFacts(**{**vars(GOOD), **changed})
    return Compiled("op", form, shared_bytes, facts).faults(target)


class TestListing:
    def test_every_instruction_is_counted_once(self):
        facts = read_listing(LISTING, registers=40, stack_bytes=8)
        assert facts == CubinFacts(
            registers=40,
            stack_bytes=8,
            spill_instructions=2,
            block_scaled_mmas=2,
            other_mmas=3,
            async_loads_16_bytes=1,
            bulk_prefetches=1,
            instructions=13,
        )

    def test_an_empty_listing_holds_nothing(self):
        assert read_listing("", registers=0, stack_bytes=0).instructions == 0

    def test_the_usage_is_that_of_the_hungriest_function(self):
        assert read_usage(USAGE) == (90, 16)

    def test_no_usage_is_an_error_and_no_zero(self):
        with pytest.raises(ToolError, match="printed no resource usage: 'cuobjdump fatal"):
            read_usage("cuobjdump fatal   : could not open")


class TestRules:
    def test_a_form_at_every_limit_may_ship(self):
        assert faults() == ()

    @pytest.mark.parametrize(
        ("changed", "text"),
        [
            ({"spill_instructions": 3}, "3 spill instructions"),
            ({"stack_bytes": 8}, "8 bytes of stack"),
            ({"registers": 256}, "256 registers, expected at most 255"),
            ({"block_scaled_mmas": 0, "other_mmas": 9}, "no block-scaled matrix instruction"),
            ({"async_loads_16_bytes": 0}, "no 16-byte asynchronous load"),
            ({"bulk_prefetches": 0}, "no bulk prefetch"),
            (
                {"shared_bytes": 101_377},
                "101377 bytes of shared memory, expected at most 101376",
            ),
        ],
    )
    def test_each_fault_is_found_and_named(self, changed, text):
        assert faults(**changed) == (text,)

    def test_all_faults_are_named_at_once(self):
        assert len(faults(spill_instructions=1, stack_bytes=8, bulk_prefetches=0)) == 3

    def test_hopper_has_more_shared_memory_and_no_block_scales(self):
        assert faults(HOPPER, 232_448, block_scaled_mmas=0) == ()
        assert faults(HOPPER, 232_449) == (
            "232449 bytes of shared memory, expected at most 232448",
        )

    def test_nothing_is_demanded_of_a_form_that_claims_nothing(self):
        form = Shipped("form", None, {}, {}, 4, 3)
        facts = CubinFacts(**{**dict.fromkeys(vars(GOOD), 0), "registers": 20})
        assert Compiled("op", form, 0, facts).faults(SPARK) == ()

    @pytest.mark.parametrize("name", ["sm_121a", "sm_120", "sm_121f"])
    def test_names_of_architectures(self, name):
        assert parse_arch(name).family == "spark"
        assert parse_arch("sm_90").capability == (9, 0)

    @pytest.mark.parametrize("name", ["", "sm_9", "121", "sm_100a", "sm_121x", "compute_90"])
    def test_other_architectures_are_refused(self, name):
        with pytest.raises(ValueError, match=rf"arch '{name}', expected"):
            parse_arch(name)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the gate says of every kernel of ``bad_kernels.py``."""
    cache = tmp_path_factory.mktemp("triton")
    done = python("-m", "tests.kernels.bad_kernels", "sm_121a", cache=cache, timeout_s=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@COMPILES_FOR_SPARK
class TestBadKernels:
    """Real kernels through the real compiler, for a GPU that is not there."""

    def test_a_good_kernel_has_no_fault(self, found):
        assert found["forms"]["good"]["faults"] == []
        assert found["forms"]["good"]["instructions"] > 20
        assert found["forms"]["async"]["faults"] == []
        assert found["forms"]["async"]["async_loads_16_bytes"] > 0

    def test_a_kernel_that_spills(self, found):
        spilled = found["forms"]["spills"]
        assert [text.split(" ", 1)[1] for text in spilled["faults"]] == [
            "spill instructions",
            "bytes of stack",
        ]
        assert spilled["spill_instructions"] > 100

    def test_a_kernel_with_more_shared_memory_than_a_block_gets(self, found):
        """Triton and ptxas both let it pass: it would fail on the device alone."""
        assert found["forms"]["shared"]["faults"] == [
            f"{found['forms']['shared']['shared_bytes']} bytes of shared memory, expected at most "
            f"101376"
        ]

    @pytest.mark.parametrize(
        ("form", "fault"),
        [
            ("streams", "no 16-byte asynchronous load"),
            ("multiplies", "no block-scaled matrix instruction"),
            ("prefetches", "no bulk prefetch"),
        ],
    )
    def test_kernels_without_the_instructions_that_they_claim(self, form, fault, found):
        assert found["forms"][form]["faults"] == [fault]

    def test_what_does_not_compile_is_a_fault_of_its_form_alone(self, found):
        good, names, missing, misuse = found["rows"]
        assert good["faults"] == []
        assert "arguments missing [], unknown ['cuont']; expected exactly" in names["faults"][0]
        assert "arguments missing ['BLOCK'], unknown []" in missing["faults"][0]
        assert misuse["faults"][0].startswith("does not compile: CompilationError")
        assert "registers" not in misuse


class TestCommand:
    @pytest.mark.parametrize(
        ("words", "says"),
        [
            (["--arch", "sm_80"], "arch 'sm_80', expected sm_90 or sm_12x\nhint: --arch sm_121a"),
            (["--jobs", "0"], "--jobs 0, expected at least 1"),
            (["--table", "missing/page.md"], "no folder missing"),
            (["--op", "pad_k", "--table", "page.md"], "would hold ['pad_k'] alone"),
        ],
    )
    def test_refusals_come_before_anything_is_compiled(
        self, words, says, tmp_path, monkeypatch, capsys
    ):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "page.md").write_text("of all ops")
        with pytest.raises(SystemExit) as ended:
            compiler.main(words)
        assert ended.value.code == 2
        assert says in capsys.readouterr().err
        assert (tmp_path / "page.md").read_text() == "of all ops"

    @COMPILES_FOR_SPARK
    def test_it_prints_a_line_per_form_writes_the_page_and_ends_with_zero(self, tmp_path):
        page = tmp_path / "page.md"
        done = python(
            "-m", "sparkserve_kernels.compile", "--op", "l2_prefetch", "--table", str(page),
            cache=tmp_path, timeout_s=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        assert done.stderr.endswith("1 form for sm_121a, 0 may not ship\n")
        assert done.stdout.startswith("l2_prefetch")
        assert done.stdout.rstrip().endswith("1 ublkpf  ok")
        assert page.read_text().splitlines()[-1].startswith("| l2_prefetch | 64 threads | 2 | 3 | ")

    def test_an_unknown_architecture_and_an_unknown_op_are_refused(self, tmp_path):
        command = ("-m", "sparkserve_kernels.compile")
        done = python(*command, "--arch", "sm_75", cache=tmp_path, timeout_s=60)
        assert done.returncode == 2
        assert "arch 'sm_75', expected sm_90 or sm_12x" in done.stderr
        done = python(*command, "--op", "nonsense", cache=tmp_path, timeout_s=60)
        assert done.returncode == 2
        assert "l2_prefetch" in done.stderr

    def test_a_form_that_may_not_ship_ends_with_one(self, tmp_path):
        script = (
            "import sys; from sparkserve_kernels import compile as c; "
            "from tests.kernels.bad_kernels import FORMS; "
            "c.shipped_by = lambda op, target: (FORMS['names'],); "
            "sys.exit(c.main(['--op', 'l2_prefetch', '--jobs', '1']))"
        )
        done = python("-c", script, cache=tmp_path, timeout_s=60)
        assert done.returncode == 1
        assert done.stdout.startswith("FAIL l2_prefetch")
        assert "1 form for sm_121a, 1 may not ship" in done.stderr

    def test_a_compiler_that_takes_its_process_down_is_a_fault_of_forms(self, monkeypatch):
        class Pool:
            def __init__(self, max_workers):
                self.jobs = 0

            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

            def submit(self, _, item):
                self.jobs += 1
                future = Future()
                if self.jobs == 1:
                    future.set_result({"op": item[0], "faults": []})
                else:
                    future.set_exception(BrokenProcessPool("gone"))
                return future

        forms = tuple(Shipped(label, None, {}, {}, 4, 3) for label in ("one", "two"))
        monkeypatch.setattr(compiler, "ProcessPoolExecutor", Pool)
        monkeypatch.setattr(compiler, "shipped_by", lambda op, target: forms)
        good, lost = compiler.compile_all(["op"], SPARK, jobs=2)
        assert good == {"op": "op", "faults": []}
        assert lost["form"] == "two"
        assert "a compiler's process died" in lost["faults"][0]
        assert compiler._line(lost).startswith("FAIL op")

    def test_the_kernels_package_is_the_repositorys(self, tmp_path):
        script = "import sparkserve_kernels as s; print(s.__file__)"
        done = python("-c", script, cache=tmp_path, timeout_s=60)
        assert done.stdout.startswith(str(REPOSITORY / "kernels"))
