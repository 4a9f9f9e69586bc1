"""Reads one block of a quantized matrix, as GGUF stores it, by its format's declaration."""

from __future__ import annotations

from kinetic.codegen.kernels.builder import I32, U32, Array, Builder, Type, Value
from kinetic.errors import UnsupportedError
from kinetic.ir.quant.base import RUN, AnyPlane, BitMask, BlockFormat, Plane

RUN_WORDS = RUN // 4
"""Words of four codes that hold a run."""
BYTES = 0x01010101
"""A word of four ones."""


def word_type(fmt: BlockFormat) -> Type:
    """Widest element that blocks of a format are aligned to.

    *Raises*: `UnsupportedError` for blocks of an odd size or of a kind not read here.
    """
    if not can_read(fmt) and fmt.nbytes % 2 == 0:
        raise UnsupportedError(
            f"the GPU kernels do not multiply by {fmt.name} yet; run this model on the CPU"
        )
    if fmt.nbytes % 2:
        raise UnsupportedError(
            f"the GPU kernels read weights by 16 bits, but a {fmt.name} block has {fmt.nbytes} "
            "bytes; run this model on the CPU"
        )
    return U32 if fmt.nbytes % 4 == 0 else Type.U16


def can_read(fmt: BlockFormat) -> bool:
    """Whether a block is what these kernels know: even, of plain planes, with an f16 scale."""
    plain = all(
        isinstance(plane, Plane) or (isinstance(plane, BitMask) and plane.bits == 1)
        for plane in fmt.planes
    )
    own_scale = fmt.d_e8m0 or fmt.d_bits is not None or fmt.d_factor != 1
    one_block = fmt.parts == 1 and fmt.nbytes % 2 == 0
    return plain and one_block and fmt.codebook is None and not own_scale


class BlockReader:
    """Block number `index` of `weights`, which is viewed as `word_type(fmt)`.

    Implements the `Reader` that format declarations are written over. Words already read
    are kept, because planes share bytes.
    """

    def __init__(self, k: Builder, weights: Array, fmt: BlockFormat, index: Value) -> None:
        self._k = k
        self._fmt = fmt
        self._weights = weights
        self._width = weights.type.nbytes
        self._start = index * (fmt.nbytes // self._width)
        self._read: dict[int, Value] = {}

    # -- bytes at any offset ------------------------------------------------------

    def _element(self, offset: int) -> Value:
        """The aligned element of the buffer that holds this byte."""
        place = offset // self._width
        if place not in self._read:
            self._read[place] = self._weights[self._start + place]
        return self._read[place]

    def word(self, offset: int) -> Value:
        """Four bytes at an even offset."""
        if offset % self._width == 0 and self._width == 4:
            return self._element(offset)
        return self.half(offset) | (self.half(offset + 2) << 16)

    def half(self, offset: int) -> Value:
        """Two bytes at an even offset, as an unsigned number."""
        shift = 8 * (offset % self._width)
        element = self._element(offset)
        if self._width == 2:
            return element
        return (element >> shift if shift else element) & 0xFFFF

    def u8(self, offset: int) -> Value:
        """Byte at `offset`, 0..255."""
        shift = 8 * (offset % self._width)
        element = self._element(offset)
        return ((element >> shift if shift else element) & 0xFF).as_type(I32)

    def s8(self, offset: int) -> Value:
        """Byte at `offset`, -128..127."""
        return (self.u8(offset) << 24) >> 24

    def f16(self, offset: int) -> Value:
        """The f16 at `offset`, widened."""
        return self._k.half_to_float(self.half(offset))

    # -- what the declaration says ------------------------------------------------

    def codes(self, run: int) -> list[Value]:
        """The 16 codes of a run, as four words of four signed bytes.

        Codes of up to 7 bits are as declared. Eight-bit codes come less 128, which makes
        them signed; `zero` says how much is still to be taken off.
        """
        words = []
        for index in range(RUN_WORDS):
            word = None
            for plane in self._fmt.planes:
                part = self._plane_word(plane, run, index)
                word = part if word is None else word | part
            assert word is not None, "a format has planes"
            words.append(word ^ (self._flip * BYTES) if self._flip else word)
        return words

    @property
    def _flip(self) -> int:
        return self._fmt.flip ^ (0x80 if self._fmt.bits == 8 else 0)

    @property
    def zero(self) -> int:
        """What `codes` still lacks: `q = code - zero`."""
        return self._fmt.zero - (0x80 if self._fmt.bits == 8 else 0)

    def _plane_word(self, plane: AnyPlane, run: int, index: int) -> Value:
        """One plane's share of codes `4 * index ...` of a run, in its place."""
        if isinstance(plane, BitMask):
            bits = self.half(plane.offset + 2 * run) >> (4 * index)
            # Bit i of four goes to byte i: the products of 1, 2^7, 2^14, 2^21 do not overlap.
            word = ((bits & 0xF) * 0x00204081) & BYTES
        else:
            assert isinstance(plane, Plane), "`word_type` refuses the others"
            offset, shift = plane.at(run)
            word = self.word(offset + 4 * index)
            word = word >> shift if shift else word
            word = word & (BYTES * ((1 << plane.bits) - 1)) if plane.bits < 8 else word
        return word << plane.place if plane.place else word
