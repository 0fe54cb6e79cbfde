import importlib
import sys
from pathlib import Path

import pytest
import sparkserve_kernels
from sparkserve_kernels import bench_case, gate, registry, shipped, target

REPOSITORY = Path(__file__).parents[2]
EVERY_OP = pytest.mark.parametrize("name", registry.names())


@EVERY_OP
def test_every_folder_is_an_operation_with_its_files_and_test(name):
    folder = Path(sparkserve_kernels.__file__).parent / name
    meta = registry.load(name)
    assert {path.stem for path in folder.glob("*.py")} >= {
        "__init__",
        "api",
        "benchmark",
        "kernel",
        "reference",
        "shipped",
    }
    assert (REPOSITORY / meta.test).is_file()
    assert meta.summary
    assert meta.capabilities


@EVERY_OP
def test_entry_points_are_functions_with_a_reference_of_the_same_name(name):
    meta = registry.load(name)
    assert meta.entry_points
    api = importlib.import_module(f"sparkserve_kernels.{name}.api")
    reference = importlib.import_module(f"sparkserve_kernels.{name}.reference")
    for entry in (*meta.entry_points, "is_supported"):
        function = getattr(api, entry)
        assert callable(function)
        assert function.__doc__, f"{name}.api.{entry} does not say what it does"
    assert any(callable(getattr(reference, entry, None)) for entry in meta.entry_points)


@EVERY_OP
@pytest.mark.parametrize("where", [target.SPARK, target.HOPPER], ids=lambda where: where.family)
def test_shipped_forms_have_the_kernels_arguments_and_names_of_their_own(name, where):
    """Without a compiler: the gate compiles them in a process of its own."""
    forms = shipped.shipped_by(name, where)
    assert len({form.label for form in forms}) == len(forms)
    for form in forms:
        gate.check_names(name, form, form.kernel.arg_names)
        assert {*form.aligned} <= {*form.signature}
        assert form.warps in (1, 2, 4, 8, 16)
        assert form.stages >= 1


@EVERY_OP
def test_benchmark_cases_are_of_their_op_and_have_names_of_their_own(name):
    cases = bench_case.cases_of(name)
    assert all(case.op == name for case in cases)
    assert all(case.bytes_moved > 0 and case.bytes_per_copy > 0 for case in cases)
    assert all(case.max_error >= 0 for case in cases)


def test_the_package_never_shadows_the_kernels_of_others():
    assert not (REPOSITORY / "kernels" / "__init__.py").exists()


def test_the_registry_imports_no_tensor_library():
    import subprocess

    script = (
        "import sys, sparkserve_kernels.registry as r; r.names(); print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", script]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


class TestStrictness:
    @pytest.fixture
    def package(self, tmp_path, monkeypatch):
        """A package of operations of the test's own."""
        name = f"ops_{tmp_path.name.replace('-', '_')}"
        folder = tmp_path / name
        folder.mkdir()
        (folder / "__init__.py").touch()
        monkeypatch.syspath_prepend(str(tmp_path))

        def add(op, source):
            (folder / op).mkdir()
            (folder / op / "__init__.py").write_text(source)
            importlib.invalidate_caches()
            return name

        return add

    GOOD = (
        "from sparkserve_kernels.meta import OpMeta\n"
        "META = OpMeta('twice', 'doubles', ('twice',), ((12, 1),), 'tests/x.py')\n"
    )

    def test_a_folder_is_found_without_a_list(self, package):
        assert registry.load("twice", package("twice", self.GOOD)).summary == "doubles"

    def test_an_unknown_operation_is_answered_with_what_exists(self, package):
        name = package("twice", self.GOOD)
        with pytest.raises(registry.RegistryError, match=r"no operation thrice \(there are: twice"):
            registry.load("thrice", name)

    @pytest.mark.parametrize("source", ["", "META = 1\n", GOOD.replace("'twice', 'd", "'x', 'd")])
    def test_a_folder_without_its_meta_is_an_error(self, package, source):
        with pytest.raises(registry.RegistryError, match="META must be an OpMeta named twice"):
            registry.load("twice", package("twice", source))

    def test_a_broken_operation_shows_its_own_error(self, package):
        with pytest.raises(ImportError, match="no_such_module_anywhere"):
            registry.load("twice", package("twice", "import no_such_module_anywhere\n"))
