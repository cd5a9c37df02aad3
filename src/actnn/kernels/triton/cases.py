"""Every kernel with constants of a usual call: what is compiled for each device, and estimated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from actnn.format import FAMILIES, GROUP, Family
from actnn.kernels.triton.batch_norm import NORMALIZING
from actnn.kernels.triton.compiling import Case
from actnn.kernels.triton.device import batch_norm, codes, masks, pooling, row_norm, sampling, smooth
from actnn.kernels.triton.device.kernel import Cut, Form
from actnn.kernels.triton.launching import tile_of

# planes of one channel after another, each of whole octets; rows of whole groups
CUT = Cut(large_inner=1, outer=0, large_count=1, octet=1)
LAST = Cut(large_inner=0, outer=1, large_count=1, octet=2)
NO_SUMS = frozenset({"sums", "share"})
PARAMETERS = frozenset({"gamma", "beta", "threshold"})
FLOAT_BYTES = 4
# elements that a turn of the loop over a row reads: 32 of each of eight parts
TURN = 8 * 32
SIZES = {"fp32": 4, "bf16": 2, "fp16": 2}


def form(family: str, bits: int, share: int = 1) -> Form:
    """Return the form of a code, with dither, of whole groups."""
    found = FAMILIES[family]
    kind = 0 if found.affine else found.sides
    return Form(kind, int(found.curve), int(found.unit), 0, bits, tile_of(found, bits, True, share), 0, 1)


def case(name: str, kernel: Any, family: str, bits: int, passes: int, **constants: Any) -> Case:
    """Return a case of a kernel over a code that reads and writes so many values for each element of one."""
    chosen = form(family, bits)
    nbytes = FLOAT_BYTES * passes + stored_bytes(FAMILIES[family], bits)
    return Case(f"{name} {family} {bits}", kernel, {"FORM": chosen, **constants}, GROUP * chosen.tile, nbytes)


def normalizing(name: str, family: str, **constants: Any) -> Case:
    """Return a case of the kernel that normalises, and leaves a code fewer registers."""
    of, own = case(name, batch_norm.normalize_kernel, family, 3, 2, **constants), form(family, 3, NORMALIZING)
    return replace(of, constants={**of.constants, "FORM": own}, elements=GROUP * own.tile)


def stored_bytes(family: Family, bits: int) -> float:
    """Return the bytes of a code for each of its elements; widths of samples are 3 bits on average."""
    return (bits or 3) / 8 + 2 * family.scales / GROUP


def of_codes() -> list[Case]:
    """Return cases of the kernels that make and read codes, in every family and some widths."""
    found = []
    for family in FAMILIES.values():
        for bits in (2, 3, 8, 0):
            found.append(case("encode", codes.encode_kernel, family.name, bits, 1))
            constants = {"POSITIVE": False, "AFFINE": False, "CUT": CUT}
            found.append(
                replace(case("decode", codes.decode_kernel, family.name, bits, 1, **constants), absent=PARAMETERS)
            )
    constants = {"POSITIVE": True, "AFFINE": True, "CUT": CUT}
    found.append(case("decode output", codes.decode_kernel, "two_sided", 3, 1, **constants))
    return found


def of_other_types(cases: list[Case]) -> list[Case]:
    """Return some cases again, with values of 16 bits, and with samples that are not whole groups."""
    chosen = [each for each in cases if each.name.endswith((" affine 2", " two_sided 3", " companded 2"))]
    found = [
        replace(each, name=f"{each.name} {dtype}", dtype=dtype, nbytes=each.nbytes - FLOAT_BYTES + SIZES[dtype])
        for each in chosen
        for dtype in ("bf16", "fp16")
    ]
    for each in chosen:
        for changes in ({"whole": 0}, {"whole": 0, "flat": 1}, {"rounding": 2}):
            own = each.constants["FORM"]._replace(**changes)
            family = FAMILIES[each.name.split()[-2]]
            own = own._replace(tile=tile_of(family, own.bits, bool(own.whole)))
            words = " ".join(f"{name}={value}" for name, value in changes.items())
            constants = {**each.constants, "FORM": own}
            found.append(replace(each, name=f"{each.name} {words}", constants=constants, elements=GROUP * own.tile))
    return found


def of_norms() -> list[Case]:
    """Return cases of the kernels of BatchNorm and of normalisations over rows."""
    tile = {"CHANNELS": 1, "POSITIONS": 512}
    channels = {"CHANNELS": 128}
    both, rows = {"CUT": CUT}, {"CUT": CUT, "ROW_CUT": CUT}
    several = "row part sums"
    return [
        normalizing("normalize", "two_sided", CUT=CUT),
        normalizing("normalize", "two_sided_normalized", CUT=CUT),
        normalizing("normalize channels last", "two_sided", CUT=LAST),
        replace(
            case("gradient", batch_norm.gradient_kernel, "two_sided", 3, 2, **both, RECTIFIED=True),
            absent=frozenset({"of_noise"}),
        ),
        case("gradient of few", batch_norm.gradient_kernel, "two_sided_normalized", 3, 2, **both, RECTIFIED=True),
        replace(
            case("gradient sums", batch_norm.gradient_sums_kernel, "two_sided", 3, 1, **tile, RECTIFIED=True),
            elements=512,
        ),
        Case("statistics", batch_norm.statistics_kernel, tile, 512, FLOAT_BYTES),
        Case("finish statistics", batch_norm.finish_statistics_kernel, channels, 128),
        Case("finish sums", batch_norm.finish_sums_kernel, channels, 128),
        Case("prepare", batch_norm.prepare_kernel, {"SIDES": True, **channels}, 128, absent=frozenset({"statistics"})),
        Case(
            *("coefficients", batch_norm.coefficients_kernel, {"SCHEME": 1, "NOISE": True, **channels}, 128),
            absent=NO_SUMS,
        ),
        Case("coefficients of all", batch_norm.coefficients_kernel, {"SCHEME": 1, "NOISE": True, **channels}, 128),
        case("row normalize", row_norm.row_normalize_kernel, "normalized", 2, 2, **rows),
        case("row gradient", row_norm.row_gradient_kernel, "normalized", 2, 2, **rows),
        replace(
            case("row statistics", row_norm.row_statistics_kernel, "affine", 2, 1, CENTRED=True, LEVELS=3),
            elements=TURN,
        ),
        replace(case("row products", row_norm.row_products_kernel, "normalized", 2, 1, LEVELS=3), elements=TURN),
        replace(
            case(several, row_norm.part_sums_kernel, "normalized", 2, 1, WHAT=2, LEAVES=16),
            absent=frozenset({"mean"}),
            elements=2 * TURN,
        ),
        Case("row means", row_norm.row_means_kernel, {"INVERSE": True, "LEVELS": 7}, 128),
    ]


def of_the_rest() -> list[Case]:
    """Return cases of the kernels of sampling, masks, indices, pooling and smooth functions."""
    ranges = {"CUT": CUT, "ROW_CUT": CUT, "SQUARED": True}
    divide = {"LEAST": 1, "STEPS": 7, "SAMPLES": 64, "EVEN": False}
    pool = {"KERNEL_D": 1, "KERNEL_H": 3, "KERNEL_W": 3, "LAST": False}
    integers = {"values": "*i32"}
    found = [
        case("ranges", sampling.ranges_kernel, "two_sided", 3, 1, **ranges, SOURCE=1),
        replace(
            case("ranges of rows", sampling.ranges_kernel, "normalized", 3, 1, **ranges, SOURCE=2),
            absent=frozenset({"threshold"}),
        ),
        case("energy", sampling.energy_kernel, "affine", 1, 1),
        Case("sample sums", sampling.sample_sums_kernel, {"COLUMNS": 4, "CHUNK": 64}, 256, types={"out": "*u8"}),
        Case("divide", sampling.divide_kernel, divide, 64),
        Case("encode mask", masks.encode_mask_kernel, {"BOUNDED": True, "OCTETS": 512}, 4096, FLOAT_BYTES + 1 / 8),
        case("apply mask", masks.apply_mask_kernel, "two_sided", 3, 2, PLAIN=False),
        Case("encode index", masks.encode_index_kernel, {"TILE": 4}, 1024, types=integers),
        Case("decode index", masks.decode_index_kernel, {"TILE": 4}, 1024, types=integers),
        Case("max pool", pooling.max_pool_kernel, {**pool, "TILE": 4}, 1024),
        Case("max pool backward", pooling.max_pool_backward_kernel, {**pool, "BLOCK": 512}, 512),
    ]
    for function in range(11):
        constants = {"FUNCTION": function, "DERIVATIVE": 1, "SCALED": True, "CUT": CUT}
        found.append(
            replace(
                case("function", smooth.decode_function_kernel, "normalized", 3, 2, **constants),
                name=f"function {function} normalized 3",
            )
        )
    return found


def all_cases() -> list[Case]:
    """Return a case of every kernel, and several of those that make and read codes."""
    found = of_codes()
    return [*found, *of_other_types(found), *of_norms(), *of_the_rest()]
