"""What sizes and strides say of a tensor's memory, compared with torch."""

from __future__ import annotations

import pytest
import torch

from inductor_plugin.problem.strides import is_dense, storage_elements

Sizes = tuple[int, ...]


@pytest.mark.parametrize(
    ("size", "stride", "dense"),
    [
        ((), (), True),
        ((1, 8), (99, 1), True),
        ((4, 1, 8), (8, 99, 1), True),
        ((4, 2, 8), (8, 99, 1), False),
        ((4, 8), (9, 1), False),
        ((4, 8), (8, 2), False),
        ((4, 8), (1, 4), False),
        ((4, 8), (0, 1), False),
    ],
)
def test_dense_is_what_torch_calls_contiguous(size: Sizes, stride: Sizes, dense: bool) -> None:
    assert is_dense(size, stride) is dense
    assert torch.empty(256).as_strided(size, stride).is_contiguous() is dense


@pytest.mark.parametrize(
    ("size", "stride", "offset", "elements"),
    [
        ((), (), 0, 1),
        ((), (), 3, 4),
        ((4, 8), (8, 1), 0, 32),
        ((4, 8), (10, 1), 5, 43),
        ((4, 8), (0, 1), 2, 10),
        ((4, 0), (8, 1), 0, 0),
        ((4, 0), (8, 1), 7, 7),
    ],
)
def test_a_storage_ends_with_the_last_element_of_its_tensor(
    size: Sizes, stride: Sizes, offset: int, elements: int
) -> None:
    assert storage_elements(size, stride, offset) == elements
    assert torch.empty(elements).as_strided(size, stride, offset).size() == size
    if 0 not in size:
        with pytest.raises(RuntimeError, match="out of bounds"):
            torch.empty(elements - 1).as_strided(size, stride, offset)
