"""``mirage::linear``: right, and bit for bit the same for a row whatever is computed beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from mirage_core import native

native.load()
ops = torch.ops.mirage

SHAPES = [(1536, 512), (33, 7), (16, 4), (1, 1), (100, 130), (48, 2050)]
"""(out, in) features, most of them no multiple of a panel or of a block of steps."""
DTYPES = [torch.float32, torch.bfloat16]
ROWS = 70


@pytest.fixture
def threads_restored() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def a_linear(
    out_features: int, in_features: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(out_features * 10_000 + in_features)
    weight = torch.randn(out_features, in_features).to(dtype)
    bias = torch.randn(out_features).to(dtype)
    x = torch.randn(ROWS, in_features).to(dtype)
    return weight, bias, x


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
def test_row_has_the_same_bits_whatever_the_batch(
    out_features: int, in_features: int, dtype: torch.dtype
) -> None:
    weight, bias, x = a_linear(out_features, in_features, dtype)
    packed = ops.pack_linear(weight)
    alone = torch.cat(
        [ops.linear(x[row : row + 1], packed, bias, out_features, -1, -1) for row in range(ROWS)]
    )
    for rows in range(1, ROWS + 1):
        together = ops.linear(x[:rows], packed, bias, out_features, -1, -1)
        assert torch.equal(together, alone[:rows])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("threads_restored")
def test_result_has_the_same_bits_with_one_thread_and_with_two(dtype: torch.dtype) -> None:
    weight, bias, x = a_linear(1536, 512, dtype)
    packed = ops.pack_linear(weight)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append([ops.linear(x[:rows], packed, bias, 1536, -1, -1) for rows in (1, 3, 70)])
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
def test_result_is_near_a_float64_reference(
    out_features: int, in_features: int, dtype: torch.dtype, with_bias: bool
) -> None:
    weight, bias, x = a_linear(out_features, in_features, dtype)
    y = ops.linear(x, ops.pack_linear(weight), bias if with_bias else None, out_features, -1, -1)
    assert y.dtype == dtype
    reference = x.double() @ weight.double().T + (bias.double() if with_bias else 0.0)
    # A sum of K rounded products errs by at most K eps of the products' magnitudes; the result
    # is rounded once to its own type.
    magnitude = x.double().abs() @ weight.double().abs().T + bias.double().abs()
    bound = (in_features + 2) * torch.finfo(torch.float32).eps * magnitude
    bound += torch.finfo(dtype).eps * reference.abs()
    assert ((y.double() - reference).abs() <= bound).all()


def test_bfloat16_result_is_the_float32_one_rounded_to_nearest_even() -> None:
    weight, bias, x = a_linear(100, 130, torch.bfloat16)
    narrow = ops.linear(x, ops.pack_linear(weight), bias, 100, -1, -1)
    wide = ops.linear(x.float(), ops.pack_linear(weight.float()), bias.float(), 100, -1, -1)
    assert torch.equal(narrow, wide.to(torch.bfloat16))


def test_bfloat16_keeps_what_is_not_a_number_and_what_is_infinite() -> None:
    x = torch.tensor([[float("nan")], [float("inf")], [3.4e38]]).to(torch.bfloat16)
    packed = ops.pack_linear(torch.tensor([[2.0]]).to(torch.bfloat16))
    nan, infinite, overflowing = ops.linear(x, packed, None, 1, -1, -1).flatten()
    assert nan.isnan()
    assert infinite == overflowing == float("inf")


def test_rows_may_be_a_slice_or_have_more_dimensions() -> None:
    weight, bias, x = a_linear(100, 130, torch.float32)
    packed = ops.pack_linear(weight)
    y = ops.linear(x, packed, bias, 100, -1, -1)
    wide = torch.randn(ROWS, 200)
    wide[:, 30:160] = x
    assert torch.equal(ops.linear(wide[:, 30:160], packed, bias, 100, -1, -1), y)
    assert torch.equal(ops.linear(x.T.contiguous().T, packed, bias, 100, -1, -1), y)
    cube = ops.linear(x.view(7, 10, 130), packed, bias, 100, -1, -1)
    assert torch.equal(cube, y.view(7, 10, 100))
    assert torch.equal(ops.linear(x[0], packed, bias, 100, -1, -1), y[0])
    assert ops.linear(x[:0], packed, bias, 100, -1, -1).shape == (0, 100)


@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_weight_works_from_any_place_that_holds_its_bytes(dtype: torch.dtype) -> None:
    weight, _, x = a_linear(100, 130, dtype)
    packed = ops.pack_linear(weight)
    assert packed.shape == native.packed_shape(100, 130)
    size_bytes = native.packed_bytes(100, 130, dtype)
    assert size_bytes == packed.numel() * packed.element_size()
    span = torch.zeros(size_bytes + 64, dtype=torch.uint8)[64:]
    span.copy_(packed.view(torch.uint8).flatten())
    placed = span.view(dtype).view(packed.shape)
    assert torch.equal(
        ops.linear(x, placed, None, 100, -1, -1), ops.linear(x, packed, None, 100, -1, -1)
    )


@pytest.mark.parametrize(
    ("x", "bias", "out_features", "message"),
    [
        (torch.zeros(2, 5), None, 20, "x must be"),
        (torch.zeros(2, 4), None, 40, "do not fit"),
        (torch.zeros(2, 4), torch.zeros(19), 20, "bias must be"),
        (torch.zeros(2, 4, dtype=torch.float16), None, 20, "must all be float32 or all bfloat16"),
        (torch.zeros(2, 4), torch.zeros(20).bfloat16(), 20, "must all be float32"),
    ],
)
def test_operands_that_do_not_fit_are_refused(
    x: torch.Tensor, bias: torch.Tensor | None, out_features: int, message: str
) -> None:
    packed = ops.pack_linear(torch.zeros(20, 4))
    with pytest.raises(RuntimeError, match=message):
        ops.linear(x, packed, bias, out_features, -1, -1)


def test_weight_of_another_type_is_refused() -> None:
    with pytest.raises(RuntimeError, match="float32 or bfloat16"):
        ops.pack_linear(torch.zeros(4, 4, dtype=torch.float16))
