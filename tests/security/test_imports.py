"""Nothing of ours can run what a stranger sends: the imports of both packages are walked from their entry points."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edge_runtime.errors import ModelError
from policy_server import bundle
from scripts.rig.bundles import write_bundle, write_manifest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("edge_runtime", "policy_server")

# Modules that turn bytes into code, or that hand objects to other processes by doing so.
UNSAFE_MODULES = {
    *("pickle", "_pickle", "cPickle", "marshal", "dill", "cloudpickle", "joblib", "shelve", "copyreg"),
    *("multiprocessing", "code", "codeop", "xmlrpc", "logging.config", "runpy"),
    *("torch.hub", "torch.jit", "torch.package", "torch.multiprocessing"),
}
UNSAFE_BUILTINS = {"eval", "exec", "compile", "__import__"}
UNSAFE_CALLS = {
    *("torch.load", "torch.hub.load", "torch.jit.load", "pandas.read_pickle", "yaml.unsafe_load", "yaml.full_load"),
    *("os.system", "os.popen", "concurrent.futures.ProcessPoolExecutor", "logging.config.listen", "numpy.fromregex"),
}


def problems(source: str) -> list[str]:
    """What in a module's source could run foreign code."""
    tree = ast.parse(source)
    aliases = {"np": "numpy"}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {each.asname: each.name for each in node.names if each.asname}
        for name in imported(node):
            if any(name == unsafe or name.startswith(unsafe + ".") for unsafe in UNSAFE_MODULES):
                found.append(f"imports {name}")
        if isinstance(node, ast.ImportFrom):
            aliases |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            found += list(wrong_call(node, aliases))
        if isinstance(node, ast.Attribute) and dotted(node, aliases) in UNSAFE_CALLS:
            found.append(f"uses {dotted(node, aliases)}")
    return found


def wrong_call(node: ast.Call, aliases: dict[str, str]) -> Iterator[str]:
    name = dotted(node.func, aliases)
    said = {keyword.arg: keyword.value for keyword in node.keywords}
    if name in UNSAFE_BUILTINS | UNSAFE_CALLS:
        yield f"calls {name}"
    if "allow_pickle" in said and not is_constant(said["allow_pickle"], False):
        yield "allow_pickle"
    if name in ("numpy.load", "numpy.lib.format.read_array") and not is_constant(said.get("allow_pickle"), False):
        yield f"{name} without allow_pickle=False"
    if "shell" in said and not is_constant(said["shell"], False):
        yield "shell"
    if name in ("yaml.load", "yaml.load_all"):
        loader = node.args[1] if len(node.args) > 1 else said.get("Loader")
        if dotted(loader, aliases) not in ("yaml.SafeLoader", "yaml.CSafeLoader", "_Loader"):
            yield f"{name} without a safe loader"


def is_constant(node: ast.expr | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def dotted(node: ast.expr | None, aliases: dict[str, str]) -> str:
    """`np.lib.load` as `numpy.lib.load`; empty for what is no plain name."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        before = dotted(node.value, aliases)
        return f"{before}.{node.attr}" if before else ""
    return ""


def imported(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    if isinstance(node, ast.Constant) and isinstance(node.value, str):  # "edge_runtime.cli:start", loaded by its name
        named = re.match(rf"((?:{'|'.join(PACKAGES)})(?:\.\w+)+)", node.value)
        return {named[1]} if named else set()
    return set()


def reachable() -> dict[str, Path]:
    """Every module of ours that an entry point leads to, imports within functions and names in tables included."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    waiting = {entry.partition(":")[0] for entry in scripts.values()} | {f"{name}.__main__" for name in PACKAGES}
    seen: dict[str, Path] = {}
    while waiting:
        name = waiting.pop()
        path = ROOT / Path(*name.split("."))
        file = next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)
        if file is None or name in seen:
            continue
        seen[name] = file
        waiting |= {each for node in ast.walk(ast.parse(file.read_text())) for each in imported(node)}
        waiting |= {name.rpartition(".")[0]} - {""}
    return seen


def test_the_walk_reaches_what_there_is() -> None:
    there = {path for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    unreached = {path.relative_to(ROOT).as_posix() for path in there - set(reachable().values())}
    assert len(unreached) <= len(there) // 20, (
        unreached
    )  # a few stand beside the programs, such as a module for scripts


def test_nothing_reachable_can_run_what_a_stranger_sends() -> None:
    modules = {path for package in PACKAGES for path in (ROOT / package).rglob("*.py")} | set(reachable().values())
    wrong = {str(path.relative_to(ROOT)): found for path in modules if (found := problems(path.read_text()))}
    assert not wrong


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "def f():\n    import marshal",
        "import dill as harmless",
        "eval('1')",
        "exec(code)",
        "import torch\ntorch.load(path)",
        "import torch\ntorch.load(path, weights_only=True)",
        "from torch import load\nload(path)",
        "from torch import hub",
        "import numpy as np\nnp.load(path)",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "import numpy as np\nnp.load(path, allow_pickle=flag)",
        "reader(path, allow_pickle=1)",
        "import yaml\nyaml.load(text, yaml.Loader)",
        "import yaml\nyaml.unsafe_load(text)",
        "import subprocess\nsubprocess.run(text, shell=True)",
        "import multiprocessing",
        "from concurrent.futures import ProcessPoolExecutor\nProcessPoolExecutor()",
    ],
)
def test_the_check_finds_it(source: str) -> None:
    assert problems(source)


@pytest.mark.parametrize(
    "source",
    ["import numpy as np\nnp.load(path, allow_pickle=False)", "import yaml\nyaml.load(text, yaml.SafeLoader)"],
)
def test_the_check_lets_the_safe_way_pass(source: str) -> None:
    assert not problems(source)


class Bomb:
    """Goes off when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return pytest.fail, ("a pickle in a bundle was run",)


def test_a_pickle_in_a_bundle_is_not_run(tmp_path: Path) -> None:
    path = write_bundle(tmp_path / "bundle")
    np.savez(path / "reference.npz", action=np.array([Bomb()], dtype=object))
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["files"]
    write_manifest(path, manifest)
    with pytest.raises(ModelError, match=r"reference.npz: holds no stored pair .*allow_pickle=False"):
        bundle.load(path).reference()
