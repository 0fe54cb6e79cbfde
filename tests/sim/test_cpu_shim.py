"""The CPU engine's stand-ins, each in a process of its own as Python finds them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sparkserve

SHIM = Path(sparkserve.__file__).parent / "sim" / "cpu_shim"


def python(script, **variables):
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SHIM), **variables}
    command = [sys.executable, "-W", "ignore", "-c", script]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_any_kernel_can_be_imported_and_none_can_be_called():
    result = python(
        "from sgl_kernel import some_kernel, other\n"
        "import sgl_kernel\n"
        "print(some_kernel, sgl_kernel.__version__, hasattr(sgl_kernel, '__path_hooks__'))\n"
        "some_kernel(1, out=2)\n"
    )
    assert result.stdout == "<missing kernel some_kernel> 0.4.10 False\n"
    expected = "NotImplementedError: sgl_kernel.some_kernel needs the compiled kernel"
    assert result.stderr.splitlines()[-1] == expected


def test_starting_python_with_the_shim_imports_nothing_heavy():
    result = python("import sys; print({'torch', 'torchvision', 'numpy'} & set(sys.modules))")
    assert result.stdout == "set()\n", result.stderr


@pytest.mark.engine
def test_torchvision_imports_beside_a_cpu_torch():
    with_shim = python("import torchvision, torch; print(torch.ops.torchvision.nms)")
    assert with_shim.stdout == "torchvision.nms\n", with_shim.stderr


@pytest.mark.engine
def test_operators_are_declared_without_an_implementation():
    result = python(
        "import torchvision, torch\n"
        "boxes = torch.zeros(1, 4)\n"
        "torch.ops.torchvision.nms(boxes, torch.zeros(1), 0.5)\n"
    )
    assert "NotImplementedError" in result.stderr
    assert "torchvision::nms" in result.stderr
