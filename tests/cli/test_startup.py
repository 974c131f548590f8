"""What a command leaves out of its imports, and that the rest works as ever."""

import subprocess
import sys
import textwrap

from ascent.models import tiny


def python(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_sample_imports_no_compiler_no_distributed_tensors_and_one_configuration(tmp_path):
    model = tiny.named(tmp_path / "model", "llama", seed=0)
    lines = python(
        """
        import sys
        from ascent.cli.main import run
        sys.argv = ["ascent", "sample", sys.argv[1], "1+1=", "--max-new-tokens", "2", "--greedy"]
        try:
            run()
        except SystemExit as stop:
            assert stop.code == 0
        for name in sorted(sys.modules):
            print(name)
        """,
        str(model),
    )
    assert lines[0].startswith("1+1= -> ")
    loaded = set(lines)
    assert "torch._dynamo.convert_frame" not in loaded
    assert not any(name.startswith("torch.distributed.tensor") for name in loaded)
    configured = {
        name
        for name in loaded
        if ".configuration_" in name and name.startswith("transformers.models.")
    }
    assert "transformers.models.llama.configuration_llama" in configured
    assert len(configured) < 10


def test_what_was_left_out_loads_on_first_use():
    """Whatever a reward of the user's does with torch works: the compiler is loaded then, and torch tells the truth."""
    assert python(
        """
        import gc, sys
        from ascent.cli.startup import shorten_imports
        shorten_imports()
        import ascent.api.sample, torch, importlib.metadata
        assert gc.isenabled() and gc.get_freeze_count() > 100_000
        assert torch.distributed.is_available() and importlib.metadata.packages_distributions()
        from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
        with TransformGetItemToIndex():
            pass
        compiled = torch.compile(lambda x: x + 1, backend="eager")
        assert compiled(torch.ones(1)).item() == 2
        print(torch._dynamo.__file__ == sys.modules["torch._dynamo"].__file__, torch._dynamo.config.disable)
        """
    ) == ["True False"]
