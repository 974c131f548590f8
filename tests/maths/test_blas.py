import pytest
import torch

from ascent.maths.blas import use_blas


def test_it_holds_for_the_whole_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)
    use_blas()
    assert not torch.backends.mkldnn.enabled
